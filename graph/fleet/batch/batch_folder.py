"""The folder of a batch: which tasks were begun, what came of them, and their patches, safe from a kill at any moment.

    batch.json      the batch's name, and the options of its last start
    begun.jsonl     a line for each task that was begun, with its hash, and for each commit that copies are made of
    results.jsonl   a line for each task that is done with
    patches/        what each task has changed
    work/           the copies of the workspaces

A result's patch is on the disk before its line is, so what has a line is whole. A line that a kill tore is cut off.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

from pydantic import ValidationError

from mendgraph.graph.fleet.batch.tasks import BatchTask, Source, TaskResult, TaskUsage, Worked
from mendgraph.nodes.execute_tools.files.deadline import pause
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock
from mendgraph.nodes.execute_tools.store.user_files import lines_of, open_regular, read_bytes, write_whole
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import JsonMap, OutcomeKind, ToolError, ToolErrorCode, invalid, quoted

BATCH: Final = "batch.json"
BEGUN: Final = "begun.jsonl"
RESULTS: Final = "results.jsonl"
PATCHES: Final = "patches"
WORK: Final = "work"

_SCHEMA: Final = 1
_LOOK_AGAIN_S: Final = 1.0
_APPEND: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Done(NamedTuple):
    """What is remembered of a task that has its result: the hash of the task, its end, and what it has used.

    `in_copy_alone`: no patch could be made of all that it changed, or its run took that back and keeps it. `refused`:
    calls of it were not allowed.
    """

    task: str
    kind: OutcomeKind
    usage: TaskUsage
    in_copy_alone: bool = False
    refused: bool = False

    @classmethod
    def of(cls, result: TaskResult) -> Self:
        """What is remembered of this result."""
        in_copy_alone = result.restored or result.left_out or (result.error and result.base)
        return cls(result.task, result.kind, result.usage, bool(in_copy_alone), bool(result.refused))


@dataclass
class BatchFolder:
    """The folder of a batch, which this process has locked. Use it as a context manager."""

    path: str
    batch: str
    lock: RunLock
    results_fd: int = -1
    begun_fd: int = -1
    done: dict[str, Done] = field(default_factory=dict)
    begun_hashes: dict[str, str] = field(default_factory=dict)
    pins: dict[Source, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its files, and release the lock."""
        for descriptor in (self.results_fd, self.begun_fd):
            if descriptor >= 0:
                os.close(descriptor)

        self.lock.release()

    def copy_of(self, task_id: str) -> str:
        """The folder for the copy of this task's workspace."""
        return os.path.join(self.path, WORK, task_id)

    def known_hash(self, task_id: str) -> str | None:
        """The hash of the task when it began, None where it has not begun."""
        if task_id in self.begun_hashes:
            return self.begun_hashes[task_id]
        if task_id in self.done:
            return self.done[task_id].task

        return None

    def begin(self, task: BatchTask) -> None:
        """Write down that a task is begun, before anything is done for it.

        Raises:
            OSError: the disk refuses it.
        """
        if task.id not in self.begun_hashes:
            _append(self.begun_fd, {"id": task.id, "task": task.sha256})
            self.begun_hashes[task.id] = task.sha256

    def pin(self, source: Source, commit: str) -> None:
        """Write down of which commit the copies of a workspace are, at this start and at each later one.

        Raises:
            OSError: the disk refuses it.
        """
        _append(self.begun_fd, {"workspace": source[0], "revision": source[1], "commit": commit})
        self.pins[source] = commit

    def write(self, worked: Worked) -> TaskResult:
        r"""Bring a patch and then its result onto the disk; the result as it is written there.

        Bytes of file names that are no UTF-8, which no JSON holds, become escapes such as `\udcff`.

        Raises:
            OSError: the disk refuses it. The file of results is then as it was.
        """
        result = worked.result

        if worked.patch:
            name = f"{PATCHES}/{result.id}.patch"
            write_whole(os.path.join(self.path, name), worked.patch)
            result = result.model_copy(update={"patch": name, "patch_sha256": sha256(worked.patch).hexdigest()})

        result = result.model_copy(update={"value": _as_text(result.value)})
        line = _as_text(result.model_dump(mode="json"))
        result = TaskResult.model_validate_json(json.dumps(line))
        _append(self.results_fd, line)
        os.fsync(self.results_fd)
        self.done[result.id] = Done.of(result)

        return result


def open_batch_folder(path: str, options: Mapping[str, Any], *, standby: bool = False) -> BatchFolder | ToolError:
    """Take the folder, which is made where there is none, and read what is in it; a `standby` waits until it is free.

    UNAVAILABLE: another process works on this batch. CONFLICT: the folder holds something else. INVALID_ARGUMENT: its
    files cannot be read. Otherwise the code is that of what the file system refuses.
    """
    try:
        os.makedirs(path, exist_ok=True)
        is_new = not os.path.lexists(os.path.join(path, BATCH))
        strangers = sorted(name for name in os.listdir(path) if not name.startswith(("batch.lock", f".{BATCH}.")))
    except OSError as error:
        return os_failure(error, "make the batch's folder", path)

    if is_new and strangers:
        message = (
            f"The folder {quoted(path)} is no batch's: it holds {quoted(strangers[0])}. Name another one with --out,"
            " or a new one, which is made."
        )

        return ToolError(code=ToolErrorCode.CONFLICT, message=message)

    lock = RunLock(path, name="batch", what="on this batch")
    while (busy := lock.acquire(Owner(f"batch {os.path.basename(path)}"))) is not None:
        if not standby or busy.code is not ToolErrorCode.UNAVAILABLE:
            return busy

        pause(_LOOK_AGAIN_S)

    folder = BatchFolder(path, "", lock)
    try:
        problem = _open(folder, options)
    except OSError as error:
        problem = os_failure(error, "open the batch's folder", path)

    if problem is not None:
        folder.close()

    return problem or folder


def read_results(path: str) -> Iterator[TaskResult]:
    """The results in a batch's folder, one after another; a line that is just being written is left out.

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular(os.path.join(path, RESULTS)) as file:
        for line in lines_of(file, RESULTS):
            if line.endswith(b"\n"):
                yield TaskResult.model_validate_json(line)


def _open(folder: BatchFolder, options: Mapping[str, Any]) -> ToolError | None:
    """Read what the folder holds, and make what it lacks."""
    file = os.path.join(folder.path, BATCH)
    data = read_bytes(file)
    if isinstance(data, ToolError) and data.code is not ToolErrorCode.NOT_FOUND:
        return data

    header: Any = {"schema": _SCHEMA, "batch": secrets.token_hex(6)}
    if not isinstance(data, ToolError):
        header = _json(data)

    match header:
        case {"schema": int(schema), "batch": str(name)} if schema == _SCHEMA and name.isalnum():
            folder.batch = name
        case _:
            return invalid(f"{quoted(file)} is no file of this version of mendgraph: name another folder (--out).")

    content = {"schema": _SCHEMA, "batch": folder.batch, "options": dict(options)}
    write_whole(file, json.dumps(content, indent=2, ensure_ascii=True).encode() + b"\n")
    for name in (PATCHES, WORK):
        os.makedirs(os.path.join(folder.path, name), exist_ok=True)

    folder.results_fd = os.open(os.path.join(folder.path, RESULTS), _APPEND, 0o644)
    folder.begun_fd = os.open(os.path.join(folder.path, BEGUN), _APPEND, 0o644)
    with closing(open_root(folder.path)) as handle:
        os.fsync(handle)

    return _read_done(folder) or _read_begun(folder)


def _json(data: bytes) -> object:
    """What the text holds; None where it is no JSON."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError):
        return None

    return document


def _read_done(folder: BatchFolder) -> ToolError | None:
    for number, line in enumerate(_whole_lines(folder.results_fd, RESULTS), 1):
        try:
            result = TaskResult.model_validate_json(line)
        except ValidationError:
            return _unreadable(folder, RESULTS, number, "no result")

        if result.id in folder.done:
            return _unreadable(folder, RESULTS, number, f"a second result of the task {result.id!r}")

        folder.done[result.id] = Done.of(result)

    return None


def _read_begun(folder: BatchFolder) -> ToolError | None:
    for number, line in enumerate(_whole_lines(folder.begun_fd, BEGUN), 1):
        match _json(line):
            case {"id": str(task_id), "task": str(task)}:
                folder.begun_hashes[task_id] = task
            case {"workspace": str(workspace), "revision": str(revision), "commit": str(commit)}:
                folder.pins[workspace, revision] = commit
            case _:
                return _unreadable(folder, BEGUN, number, "no note of a task")

    return None


def _unreadable(folder: BatchFolder, name: str, line: int, what: str) -> ToolError:
    path = quoted(os.path.join(folder.path, name))
    return invalid(
        f"Line {line} of {path} is {what}: put it right, or remove the line, and the task is taken up again."
    )


def _whole_lines(descriptor: int, name: str) -> Iterator[bytes]:
    """The lines of the file; what follows the last line end was torn by a kill, and is cut off."""
    total = 0

    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)

        for line in lines_of(file, name):
            if line.endswith(b"\n"):
                total += len(line)
                yield line

    if os.fstat(descriptor).st_size > total:
        os.ftruncate(descriptor, total)
        os.fsync(descriptor)


def _as_text(value: Any) -> Any:
    """The same JSON without halves of surrogate pairs, which could not be read again."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_as_text(name): _as_text(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_text(item) for item in value]

    return value


def _append(descriptor: int, value: JsonMap) -> None:
    """Add one line, wholly or not at all; ASCII, so that no separator of Unicode splits it."""
    data = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
    before = os.fstat(descriptor).st_size

    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, before)
        raise


# --- What came of a whole batch


class BatchEnd(StrEnum):
    """Why a batch has ended.

    Each task has its result (`complete`); a limit on spending was reached (`limit`); somebody stopped it (`cancelled`);
    or it could not go on, as the disk is full or a task has changed (`failed`).
    """

    COMPLETE, LIMIT, CANCELLED, FAILED = "complete", "limit", "cancelled", "failed"


_COUNTED: Final = ("calls", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens")


@dataclass
class Tally:
    """The results so far, and what their tasks have used.

    `unpriced` are those with calls of no known price, `refused` those with calls that were not allowed.
    """

    finished: int = 0
    stopped: int = 0
    failed: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    refused: int = 0

    @property
    def done(self) -> int:
        """How many results there are."""
        return self.finished + self.stopped + self.failed

    def add(self, done: Done) -> None:
        """Count one more result."""
        kind = done.kind
        usage = done.usage
        self.refused += done.refused
        self.finished += kind is OutcomeKind.FINISHED
        self.stopped += kind is OutcomeKind.BUDGET_STOP
        self.failed += kind is OutcomeKind.SYSTEM_ERROR

        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(usage, name))

        self.cost_usd = round(self.cost_usd + (usage.cost_usd or 0.0), 9)
        self.unpriced += usage.cost_usd is None


@dataclass(frozen=True)
class BatchResult:
    """A batch from its end, or from where it stopped; `print(result)` gives it in words.

    `tally` counts the tasks that have results, those of earlier starts included, and `total` all tasks. `folder` holds
    the results and patches; `message` says why it ended and how to go on.
    """

    batch: str
    folder: str
    end: BatchEnd
    message: str
    total: int
    tally: Tally = field(default_factory=Tally)

    @property
    def ok(self) -> bool:
        """Whether all tasks have results, and all of them have FINISHED."""
        return self.end is BatchEnd.COMPLETE and self.tally.finished == self.tally.done

    @property
    def left(self) -> int:
        """How many tasks have no result yet."""
        return self.total - self.tally.done

    def results(self) -> Iterator[TaskResult]:
        """The results of all tasks, one after another, in the order in which they came; read from the disk."""
        return read_results(self.folder)

    def __str__(self) -> str:
        """The numbers and the reason, in two sentences."""
        return f"{counted(self.tally, self.total)}. {self.message}"


def counted(tally: Tally, total: int) -> str:
    """How many tasks have results, and which: "3 of 4 tasks have results: 2 finished, 1 stopped by a limit"."""
    kinds = ((tally.finished, "finished"), (tally.stopped, "stopped by a limit"), (tally.failed, "failed"))
    named = ", ".join(f"{count:,} {what}" for count, what in kinds if count)
    if tally.refused:
        named += f"; something was refused in {tally.refused:,}"

    tasks = "tasks have results"
    if total == 1:
        tasks = "task has a result"

    words = f"{tally.done:,} of {total:,} {tasks}"
    if named:
        words += f": {named}"

    return words


def how_to_continue(end: BatchEnd, reason: str, remaining: int) -> str:
    """Why the batch has ended, and how to continue; `reason` is that of a limit, a person or a failure."""
    if end is BatchEnd.COMPLETE:
        return "Each task has its result."

    remain = f"{remaining:,} tasks are"
    if remaining == 1:
        remain = "1 task is"

    if end is BatchEnd.LIMIT:
        return f"{reason} {remain} left: start the same batch again to go on, once the limit allows it."
    if end is BatchEnd.CANCELLED:
        return f"It was stopped {reason}. {remain} left: start the same batch again to go on."

    return f"{reason} {remain} left: put this right, and start the same batch again to go on."
