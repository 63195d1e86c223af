"""The folder of a batch: which tasks have begun, their results and patches. A kill at any moment does not corrupt it.

    batch.json      the id of the batch
    begun.jsonl     a line for each task that has begun, with its hash, and for each pinned commit
    results.jsonl   a line for each task that is done
    patches/        the changes of each task
    work/           the copies of the workspaces

A patch is on the disk before the line of its result. An incomplete last line is cut off.
"""

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

from pydantic import ValidationError

from mendgraph.graph.fleet.batch.tasks import BatchTask, Source, TaskOutput, TaskResult, TaskUsage
from mendgraph.nodes.language.display import count_of
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import JsonMap, OutcomeKind, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.deadline import pause
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock
from mendgraph.nodes.workspace.store.user_files import lines_of, open_regular, read_bytes, write_whole

HEADER: Final = "batch.json"
BEGUN: Final = "begun.jsonl"
RESULTS: Final = "results.jsonl"
PATCHES: Final = "patches"
WORK: Final = "work"

_SCHEMA: Final = 1
_STANDBY_POLL_S: Final = 1.0
_APPEND: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class CompletedTask(NamedTuple):
    """What is kept in memory of a task with a result: its hash, the kind of its outcome, and its usage.

    `needs_copy`: not all changes are in a patch, or the run restored the files and the copy keeps the attempt.
    `refused`: some calls were refused.
    """

    task: str
    kind: OutcomeKind
    usage: TaskUsage
    needs_copy: bool = False
    refused: bool = False

    @classmethod
    def of(cls, result: TaskResult) -> Self:
        """Return what is kept of this result."""
        needs_copy = bool(result.restored or result.left_out or (result.error and result.base))
        return cls(result.task, result.kind, result.usage, needs_copy, bool(result.refused))


@dataclass
class BatchFolder:
    """The folder of a batch, locked by this process. Use it as a context manager."""

    path: str
    batch: str
    lock: RunLock
    results_fd: int = -1
    begun_fd: int = -1
    completed: dict[str, CompletedTask] = field(default_factory=dict)
    begun_hashes: dict[str, str] = field(default_factory=dict)
    pins: dict[Source, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its files and release the lock."""
        for descriptor in (self.results_fd, self.begun_fd):
            if descriptor >= 0:
                os.close(descriptor)

        self.lock.release()

    def copy_of(self, task_id: str) -> str:
        """Return the folder for the copy of this task's workspace."""
        return os.path.join(self.path, WORK, task_id)

    def known_hash(self, task_id: str) -> str | None:
        """Return the hash of the task when it began, None if it has not begun."""
        if task_id in self.begun_hashes:
            return self.begun_hashes[task_id]
        if task_id in self.completed:
            return self.completed[task_id].task

        return None

    def begin(self, task: BatchTask) -> None:
        """Write that a task begins, before anything is done for it. Raises OSError: the disk refuses it."""
        if task.id not in self.begun_hashes:
            _append(self.begun_fd, {"id": task.id, "task": task.sha256})
            self.begun_hashes[task.id] = task.sha256

    def pin(self, source: Source, commit: str) -> None:
        """Write the commit of a workspace's copies, for this start and all later ones. Raises OSError as `begin`."""
        _append(self.begun_fd, {"workspace": source[0], "revision": source[1], "commit": commit})
        self.pins[source] = commit

    def write(self, output: TaskOutput) -> TaskResult:
        r"""Write a patch and then its result; return the result as it was written.

        Bytes of file names that are not UTF-8, which JSON cannot hold, become escapes such as `\udcff`.

        Raises:
            OSError: the disk refuses it. The file of results is then unchanged.
        """
        result = output.result

        if output.patch:
            name = f"{PATCHES}/{result.id}.patch"
            write_whole(os.path.join(self.path, name), output.patch)
            result = result.model_copy(update={"patch": name, "patch_sha256": sha256(output.patch).hexdigest()})

        result = result.model_copy(update={"value": _escape_surrogates(result.value)})
        line = _escape_surrogates(result.model_dump(mode="json"))
        result = TaskResult.model_validate_json(json.dumps(line))
        _append(self.results_fd, line)
        os.fsync(self.results_fd)
        self.completed[result.id] = CompletedTask.of(result)

        return result


def open_batch_folder(path: str, *, standby: bool = False) -> BatchFolder | ToolError:
    """Lock the folder, create what is missing, and read its files; `standby` waits until the lock is free.

    UNAVAILABLE: another process works on this batch. CONFLICT: the folder holds something else. INVALID_ARGUMENT: a
    file cannot be parsed. Otherwise the code is that of the file system's error.
    """
    try:
        os.makedirs(path, exist_ok=True)
        names = sorted(os.listdir(path))
    except OSError as error:
        return os_failure(error, "make the batch's folder", path)

    is_new = HEADER not in names  # another process that starts the same batch may write it from here on
    other_names = [name for name in names if not name.startswith(("batch.lock", f".{HEADER}."))]
    if is_new and other_names:
        message = (
            f"The folder {quoted(path)} is not the folder of a batch: it holds {quoted(other_names[0])}. Name another"
            " folder with --out; a new one is created."
        )

        return ToolError(code=ToolErrorCode.CONFLICT, message=message)

    lock = RunLock(path, name="batch", what="on this batch")
    while (busy := lock.acquire(Owner(f"batch {os.path.basename(path)}"))) is not None:
        if not standby or busy.code is not ToolErrorCode.UNAVAILABLE:
            return busy

        pause(_STANDBY_POLL_S)

    folder = BatchFolder(path, "", lock)
    try:
        problem = _open_files(folder) or _read_results(folder) or _read_begun(folder)
    except OSError as error:
        problem = os_failure(error, "open the batch's folder", path)

    if problem is not None:
        folder.close()

    return problem or folder


def read_results(path: str) -> Iterator[TaskResult]:
    """Yield the results in a batch's folder, without an incomplete last line.

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular(os.path.join(path, RESULTS)) as file:
        for line in lines_of(file, RESULTS):
            if line.endswith(b"\n"):
                yield TaskResult.model_validate_json(line)


def _open_files(folder: BatchFolder) -> ToolError | None:
    """Read the header, and create and open the files."""
    file = os.path.join(folder.path, HEADER)
    data = read_bytes(file)
    header: Any

    if not isinstance(data, ToolError):
        header = _parse_json(data)
    elif data.code is ToolErrorCode.NOT_FOUND:
        header = {"schema": _SCHEMA, "batch": secrets.token_hex(6)}
        write_whole(file, json.dumps(header).encode() + b"\n")
    else:
        return data

    match header:
        case {"schema": int(schema), "batch": str(name)} if schema == _SCHEMA and name.isalnum():
            folder.batch = name
        case _:
            return invalid(f"{quoted(file)} is not a file of this version of mendgraph: name another folder (--out).")

    for name in (PATCHES, WORK):
        os.makedirs(os.path.join(folder.path, name), exist_ok=True)

    folder.results_fd = os.open(os.path.join(folder.path, RESULTS), _APPEND, 0o644)
    folder.begun_fd = os.open(os.path.join(folder.path, BEGUN), _APPEND, 0o644)
    with closing(open_root(folder.path)) as handle:
        os.fsync(handle)

    return None


def _parse_json(data: bytes) -> object:
    """Return the document, None if it is invalid."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError):
        return None

    return document


def _read_results(folder: BatchFolder) -> ToolError | None:
    for number, line in enumerate(_complete_lines(folder.results_fd, RESULTS), 1):
        try:
            result = TaskResult.model_validate_json(line)
        except ValidationError:
            return _invalid_line(folder, RESULTS, number, "no result")

        if result.id in folder.completed:
            return _invalid_line(folder, RESULTS, number, f"a second result of the task {result.id!r}")

        folder.completed[result.id] = CompletedTask.of(result)

    return None


def _read_begun(folder: BatchFolder) -> ToolError | None:
    for number, line in enumerate(_complete_lines(folder.begun_fd, BEGUN), 1):
        match _parse_json(line):
            case {"id": str(task_id), "task": str(task)}:
                folder.begun_hashes[task_id] = task
            case {"workspace": str(workspace), "revision": str(revision), "commit": str(commit)}:
                folder.pins[workspace, revision] = commit
            case _:
                return _invalid_line(folder, BEGUN, number, "no note of a task")

    return None


def _invalid_line(folder: BatchFolder, name: str, line: int, problem: str) -> ToolError:
    path = quoted(os.path.join(folder.path, name))
    return invalid(f"Line {line} of {path} is {problem}: correct it, or remove the line, and the task is tried again.")


def _complete_lines(descriptor: int, name: str) -> Iterator[bytes]:
    """Yield the lines of the file, then cut off what follows the last line end: a kill interrupted the write."""
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


def _escape_surrogates(value: Any) -> Any:
    """Return the JSON value without lone surrogates, which could not be read again."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_escape_surrogates(name): _escape_surrogates(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_escape_surrogates(item) for item in value]

    return value


def _append(descriptor: int, value: JsonMap) -> None:
    """Append one line completely or not at all; ASCII, so that no line separator of Unicode splits it."""
    data = json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
    before = os.fstat(descriptor).st_size

    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, before)
        raise


# --- The result of a batch


class BatchEnd(StrEnum):
    """Why a batch has ended.

    Each task has its result (`complete`); a spending limit was reached (`limit`); it was stopped (`cancelled`); or it
    could not continue, as the disk is full (`failed`).
    """

    COMPLETE, LIMIT, CANCELLED, FAILED = "complete", "limit", "cancelled", "failed"


_SUMMED: Final = ("calls", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cache_write_tokens")


@dataclass
class Tally:
    """The numbers of results, and the usage of their tasks.

    `unpriced` counts tasks with calls of unknown price, `refused` those with calls that were refused.
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
        """The number of results."""
        return self.finished + self.stopped + self.failed

    def add(self, task: CompletedTask) -> None:
        """Count one more result."""
        self.refused += task.refused
        self.finished += task.kind is OutcomeKind.FINISHED
        self.stopped += task.kind is OutcomeKind.BUDGET_STOP
        self.failed += task.kind is OutcomeKind.SYSTEM_ERROR

        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(task.usage, name))

        self.cost_usd = round(self.cost_usd + (task.usage.cost_usd or 0.0), 9)
        self.unpriced += task.usage.cost_usd is None


@dataclass(frozen=True)
class BatchResult:
    """The result of a batch; `print(result)` shows it in two sentences.

    `tally` counts the tasks with results, those of earlier starts included, and `total` all tasks. `folder` holds the
    results and patches; `message` says why it ended and how to continue.
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
        """Yield the results of all tasks in the order in which they ended; they are read from the disk."""
        return read_results(self.folder)

    def __str__(self) -> str:
        """The numbers and the reason, in two sentences."""
        return f"{tally_words(self.tally, self.total)}. {self.message}"


def tally_words(tally: Tally, total: int) -> str:
    """Return the number of results of each kind: "3 of 4 tasks have results: 2 finished, 1 stopped by a limit"."""
    tasks = "task has a result" if total == 1 else "tasks have results"
    words = f"{tally.done:,} of {total:,} {tasks}"

    kinds = ((tally.finished, "finished"), (tally.stopped, "stopped by a limit"), (tally.failed, "failed"))
    parts = [f"{count:,} {kind}" for count, kind in kinds if count]
    if parts:
        words += f": {', '.join(parts)}"
    if tally.refused:
        words += f"; calls were refused in {count_of(tally.refused, 'task')}"

    return words


def end_words(end: BatchEnd, reason: str, remaining: int) -> str:
    """Return why the batch has ended and how to continue; `reason` is that of a limit, a person or a failure."""
    if end is BatchEnd.COMPLETE:
        return "Each task has its result."

    remain = "1 task is" if remaining == 1 else f"{remaining:,} tasks are"
    if end is BatchEnd.LIMIT:
        return f"{reason} {remain} left: start the same batch again to continue, after you raise the limit."
    if end is BatchEnd.CANCELLED:
        return f"It was stopped {reason}. {remain} left: start the same batch again to continue."

    return f"{reason} {remain} left: fix this, then start the same batch again."
