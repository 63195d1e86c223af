"""What a batch works on and what comes of it: tasks, how a file of them is read, orders for workers, and results.

A task file holds a JSON object on each line, with the keys `id`, `prompt`, `workspace` and, where they are wanted,
`revision` and `limits`. Empty lines are passed over. All that is wrong with a file is reported at once.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import Problem, first_problems
from mendgraph.graph.configuration.settings import FolderName
from mendgraph.graph.machine.run_records import Durability
from mendgraph.nodes.call_model.ledger import Usage
from mendgraph.nodes.execute_tools.copies.workspace_copies import pin_source
from mendgraph.nodes.execute_tools.store.user_files import lines_of, open_regular
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import OutcomeKind, Record, StopReason, ToolError, ToolErrorCode, Verification

_ID: Final = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")
_OTHERS: Final = frozenset({"tool_timeouts_s", "tool_quotas", "tool_calls_per_minute"})

LIMITS: Final = frozenset(
    name
    for name in AgentContext.model_fields
    if name in _OTHERS or (name.startswith("max_") and not name.endswith("_per_account")) or name.endswith("_timeout_s")
)
"""The fields of `AgentContext` that a task may set for itself; those of an account are the whole batch's."""


class BatchTask(BaseModel):
    """One task of a batch.

    `id` names its result, its copy and its patch. `workspace` is a folder, `revision` a commit, tag or
    branch where it is a git repository ("" is what is checked out there, HEAD). `limits` are fields of `AgentContext`
    (`LIMITS`) that hold for this task alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: str
    prompt: str
    workspace: FolderName = Field(min_length=1)
    revision: str = Field(default="", pattern="^([^-]|$)")
    limits: dict[str, Any] = {}

    @field_validator("id")
    @classmethod
    def _names_files(cls, value: str) -> str:
        if not _ID.fullmatch(value):
            raise ValueError("use 1 to 100 of A-Z a-z 0-9 . _ - and no dot at the beginning: it names files")
        return value

    @field_validator("prompt", "workspace", "revision")
    @classmethod
    def _is_text(cls, value: str) -> str:
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("it holds a NUL or half of a surrogate pair, which no text has")
        return value

    @field_validator("prompt")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("it is empty: say in words what is wanted")
        return value

    @field_validator("limits")
    @classmethod
    def _are_limits(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name not in LIMITS:
                meant = ", ".join(closest_names(name, LIMITS)) or "the limits of `mendgraph config`"
                raise ValueError(f"{name!r} is no limit that a task may set: did you mean {meant}?")

        try:
            AgentContext(**value)
        except ValidationError as error:
            raise ValueError("; ".join(problems_of(error))) from None

        return value

    @property
    def sha256(self) -> str:
        """What the task is known by: another prompt, workspace, revision or limit makes it another task."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=True)
        return sha256(text.encode()).hexdigest()


def problems_of(error: ValidationError) -> list[str]:
    """Each problem as `field: what is wrong`, with the words of pydantic."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    problems = []
    for detail in errors:
        message = detail["msg"].removeprefix("Value error, ")
        if detail["loc"]:
            message = f"{'.'.join(map(str, detail['loc']))}: {message}"

        problems.append(message)

    return problems


# --- Reading


class ReadTask(NamedTuple):
    """A task, and the line of the file that it stands on, counted from 1."""

    task: BatchTask
    line: int


Source = tuple[str, str]
"""A workspace and a revision of it."""


class Sources(NamedTuple):
    """The commits that copies are made of, and sentences about what is in none of them."""

    pins: Mapping[Source, str]
    notes: tuple[str, ...] = ()


def read_task_file(path: str) -> list[ReadTask] | tuple[Problem, ...]:
    """The tasks of a file, with absolute names of their workspaces; or what is wrong with its lines."""
    base = os.path.dirname(os.path.abspath(path))

    try:
        with open_regular(path) as file:
            lines = [(number, line) for number, line in enumerate(lines_of(file, "it"), 1) if line.strip()]
    except OSError as error:
        return (Problem(path, os_failure(error, "read", path).message),)

    if not lines:
        what = 'it holds no task: write {"id": ..., "prompt": ..., "workspace": ...} on a line'
        return (Problem(path, what),)

    read: list[ReadTask] = []
    wrong: list[Problem] = []

    for number, line in lines:
        try:
            task = BatchTask.model_validate_json(line.removeprefix(b"\xef\xbb\xbf"), strict=True)
        except ValidationError as error:
            problems = problems_of(error)
            wrong += [Problem(path, problem, number, field=problem.partition(":")[0]) for problem in problems]
        else:
            read.append(ReadTask(absolute(task, base), number))

    if wrong:
        return first_problems(wrong, path)

    return read


def numbered(tasks: Iterable[ReadTask], file: str) -> tuple[Problem, ...]:
    """The problems of ids that are not unique without regard to case, as on some file systems."""
    seen: dict[str, ReadTask] = {}
    problems: list[Problem] = []

    for task, line in tasks:
        before = seen.setdefault(task.id.lower(), ReadTask(task, line))
        what = f"the id {before.task.id!r} is there already: give each task an id of its own, whatever its capitals"
        if before.line != line:
            problems.append(Problem(file, f"{what} (line {before.line})", line, field="id"))

    return first_problems(problems, file)


def absolute(task: BatchTask, base: str) -> BatchTask:
    """The task with the absolute name of its workspace; a relative one is below `base`."""
    path = os.path.normpath(os.path.join(base, os.path.expanduser(task.workspace)))
    if path == task.workspace:
        return task

    return task.model_copy(update={"workspace": path})


def find_sources(
    tasks: Iterable[ReadTask], earlier_pins: Mapping[Source, str], file: str = ""
) -> Sources | tuple[Problem, ...]:
    """Pin the workspaces of all tasks to commits; or every problem, with the line of the first task that has it.

    `earlier_pins` are commits that were pinned at an earlier start, which stay.
    """
    pins: dict[Source, str] = {}
    problems: list[Problem] = []
    notes: dict[str, None] = {}
    first: dict[Source, int] = {}

    for task, line in tasks:
        first.setdefault((task.workspace, task.revision), line)

    for source, line in first.items():
        if source in earlier_pins:
            continue

        pin = pin_source(*source)
        if isinstance(pin, ToolError):
            problems.append(Problem(file, pin.message, line, field="workspace"))
        else:
            pins[source] = pin.revision
            notes |= dict.fromkeys(pin.notes)

    return tuple(problems) or Sources(pins, tuple(notes))


# --- What travels between a batch and whoever does its work: all of it can be pickled


MOST_TRIES: Final = 3
"""How often a task is tried whose process or machine dies of it, or with it."""

LEFT_OPEN: Final = frozenset(
    reason for reason in StopReason if reason.is_limit and reason.from_outside and reason is not StopReason.WALL_CLOCK
)
"""Reasons that say nothing of the task itself, which has no result yet: a restart goes on with it. The time is its own
limit."""

WORKER_FAILED: Final = "worker_failed"
"""The reason of a task whose worker died, or met an error that nobody expected."""


class TaskUsage(Usage):
    """What a task has used, all tries together."""


class TaskResult(Record):
    """What came of a task: one line of the file of results.

    `kind`, `reason`, `message`, `answer`, `refused` and `verified` are those of the run's outcome. `error` says why
    there was no run to its end: the copy could not be made, its settings are refused, or what worked on it died; the
    kind is then SYSTEM_ERROR and `reason` `workspace_failed` or `worker_failed`. `changed` are the files that differ
    from `base`, the commit or hash that the copy began with; `patch` is the path of the difference below the batch's
    folder, "" where there is none, and `patch_sha256` that of its bytes. `left_out` are changed files that are in the
    copy alone, each with the reason: git ignores it, it lies in a submodule. `restored` are those of the outcome, for
    `apply_run(run_id, copy_path)`. `seconds` is the time of the last try, `tries` how many there were, and `resumed`
    says that the run went on from the store. `task` is the hash of the task (`BatchTask.sha256`).
    """

    id: str
    kind: OutcomeKind
    reason: str
    message: str = ""
    answer: str = ""
    value: Any = None
    changed: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    verified: Verification = Verification()
    patch: str = ""
    patch_sha256: str = ""
    usage: TaskUsage = Field(default_factory=TaskUsage)
    seconds: float = 0.0
    run_id: str = ""
    copy_path: str = ""
    base: str = ""
    tries: int = 1
    resumed: bool = False
    error: ToolError | None = None
    task: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the task is done with; others go on when the batch is started again, and are not written down."""
        return self.reason not in LEFT_OPEN


class WorkOrder(NamedTuple):
    """A task to work on, in any process and on any machine.

    `context` is the JSON of an `AgentContext`. `folder` is the place of the copy itself, not of its parent, and
    `without` are folders that no copy holds. The task's revision is the commit that the batch has pinned, `task_hash`
    the hash of the task as it was given, and `tries` the number of this try.
    """

    batch: str
    task: BatchTask
    context: str
    folder: str
    without: tuple[str, ...] = ()
    task_hash: str = ""
    durability: Durability = "sync"
    tries: int = 1

    @property
    def run_id(self) -> str:
        """The name of the task's run: the same whenever and wherever it is worked on."""
        return f"{self.batch}-{self.task.id}"

    @property
    def shared_name(self) -> str:
        """The key of the copy in a shared store."""
        return f"batch/{self.batch}/{self.task.id}"


class Worked(NamedTuple):
    """What came of an order. `patch` are the bytes of the difference, b"" where nothing was changed."""

    result: TaskResult
    patch: bytes = b""


def failed(order: WorkOrder, error: ToolError, reason: str = StopReason.WORKSPACE_FAILED.value) -> TaskResult:
    """The result of a task that could not be worked on to its end."""
    return TaskResult(
        id=order.task.id,
        kind=OutcomeKind.SYSTEM_ERROR,
        reason=reason,
        message=error.message,
        run_id=order.run_id,
        copy_path=order.folder,
        tries=order.tries,
        error=error,
        task=order.task_hash,
    )


def cancelled(order: WorkOrder, reason: str) -> TaskResult:
    """The result of a task that was stopped before its run could be; a restart takes it up. `reason`: "by Ctrl-C"."""
    error = ToolError(code=ToolErrorCode.CANCELLED, message=f"The task was stopped {reason}.")
    return failed(order, error, StopReason.CANCELLED).model_copy(update={"kind": OutcomeKind.BUDGET_STOP})
