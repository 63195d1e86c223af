"""The tasks of a batch, task files, the orders for workers, and the results.

A task file holds one JSON object per line, with the keys `id`, `prompt`, `workspace` and, optionally, `revision` and
`limits`. Empty lines are skipped. All problems of a file are reported at once.
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
from mendgraph.graph.configuration.settings import FolderName, value_words
from mendgraph.graph.machine.run_records import Durability
from mendgraph.nodes.call_model.ledger import Usage
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.language.os_errors import os_reason
from mendgraph.nodes.records import OutcomeKind, Record, StopReason, ToolError, ToolErrorCode, Verification
from mendgraph.nodes.workspace.copies.workspace_copies import PinnedRevision, pin_source
from mendgraph.nodes.workspace.store.user_files import lines_of, open_regular

_ID: Final = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,100}")
_OTHER_LIMITS: Final = frozenset({"tool_timeouts_s", "tool_quotas", "tool_calls_per_minute"})

LIMITS: Final = frozenset(
    name
    for name in AgentContext.model_fields
    if name in _OTHER_LIMITS
    or (name.startswith("max_") and not name.endswith("_per_account"))
    or name.endswith("_timeout_s")
)
"""The fields of `AgentContext` that a task may set; the limits of an account belong to the whole batch."""


class BatchTask(BaseModel):
    """One task of a batch.

    `id` names its result, its copy and its patch. `workspace` is a folder; in a git repository, `revision` is a commit,
    tag or branch ("" is HEAD). `limits` are fields of `AgentContext` (`LIMITS`) for this task alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    id: str
    prompt: str
    workspace: FolderName = Field(min_length=1)
    revision: str = Field(default="", pattern="^([^-]|$)")
    limits: dict[str, Any] = {}

    @field_validator("id")
    @classmethod
    def _check_id(cls, value: str) -> str:
        if not _ID.fullmatch(value):
            raise ValueError("use 1 to 100 of A-Z a-z 0-9 . _ - and no dot at the beginning: it names files")
        return value

    @field_validator("prompt", "workspace", "revision")
    @classmethod
    def _check_text(cls, value: str) -> str:
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError("it holds a NUL or half of a surrogate pair, which no text has")
        return value

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("it is empty: describe the task")
        return value

    @field_validator("limits")
    @classmethod
    def _check_limits(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name not in LIMITS:
                meant = ", ".join(closest_names(name, LIMITS)) or "the limits of `mendgraph config`"
                raise ValueError(f"{name!r} is not a limit of a task: did you mean {meant}?")

        try:
            AgentContext(**value)
        except ValidationError as error:
            raise ValueError("; ".join(problems_of(error))) from None

        return value

    @property
    def sha256(self) -> str:
        """The hash of all its fields: a task with another prompt, workspace, revision or limit is another task."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=True)
        return sha256(text.encode()).hexdigest()


def problems_of(error: ValidationError) -> list[str]:
    """Return each problem as `field: problem`."""
    problems = []
    for detail in error.errors(include_url=False, include_input=False):
        message = value_words(detail)
        if detail["loc"]:
            message = f"{'.'.join(map(str, detail['loc']))}: {message}"

        problems.append(message)

    return problems


# --- Task files


class TaskLine(NamedTuple):
    """A task, and the number of its line in the file, counted from 1."""

    task: BatchTask
    line: int


Source = tuple[str, str]
"""A workspace and a revision."""


def read_task_file(path: str) -> list[TaskLine] | tuple[Problem, ...]:
    """Return the tasks of a file, with absolute workspaces, or the problems of its lines."""
    folder = os.path.dirname(os.path.abspath(path))

    try:
        with open_regular(path) as file:
            lines = [(number, line) for number, line in enumerate(lines_of(file, "it"), 1) if line.strip()]
    except OSError as error:
        return (Problem(path, os_reason(error)[1]),)

    if not lines:
        message = 'it holds no task: write {"id": ..., "prompt": ..., "workspace": ...} on a line'
        return (Problem(path, message),)

    tasks: list[TaskLine] = []
    problems: list[Problem] = []

    for number, line in lines:
        try:
            task = BatchTask.model_validate_json(line.removeprefix(b"\xef\xbb\xbf"), strict=True)
        except ValidationError as error:
            messages = problems_of(error)
            problems += [Problem(path, message, number, field=message.partition(":")[0]) for message in messages]
        else:
            tasks.append(TaskLine(with_absolute_workspace(task, folder), number))

    if problems:
        return first_problems(problems, path)

    return tasks


def find_duplicate_ids(tasks: Iterable[TaskLine], file: str) -> tuple[Problem, ...]:
    """Return the problems of ids that differ at most in case, which some file systems ignore."""
    first: dict[str, TaskLine] = {}
    problems: list[Problem] = []

    for task, line in tasks:
        earlier = first.setdefault(task.id.lower(), TaskLine(task, line))
        if earlier.line != line:
            message = (
                f"the id {earlier.task.id!r} exists: each task needs a different id, whatever its case"
                f" (line {earlier.line})"
            )
            problems.append(Problem(file, message, line, field="id"))

    return first_problems(problems, file)


def with_absolute_workspace(task: BatchTask, folder: str) -> BatchTask:
    """Return the task with an absolute workspace; a relative one is below `folder`."""
    path = os.path.normpath(os.path.join(folder, os.path.expanduser(task.workspace)))
    return task.model_copy(update={"workspace": path})


def pin_sources(
    tasks: Iterable[TaskLine], pins: Mapping[Source, str], file: str = ""
) -> dict[Source, PinnedRevision] | tuple[Problem, ...]:
    """Find the commit of each workspace that has no pin yet, or return each problem with the line of its first task."""
    first_lines: dict[Source, int] = {}
    for task, line in tasks:
        first_lines.setdefault((task.workspace, task.revision), line)

    new_pins: dict[Source, PinnedRevision] = {}
    problems: list[Problem] = []

    for source, line in first_lines.items():
        if source in pins:
            continue

        pin = pin_source(*source)
        if isinstance(pin, ToolError):
            problems.append(Problem(file, pin.message, line, field="workspace"))
        else:
            new_pins[source] = pin

    return tuple(problems) or new_pins


# --- Orders and results, which are pickled on their way to workers and back


MOST_TRIES: Final = 3
"""How often a task is tried whose worker dies."""

UNFINISHED: Final = frozenset(
    reason for reason in StopReason if reason.is_limit and reason.from_outside and reason is not StopReason.WALL_CLOCK
)
"""Reasons that are not about the task itself: it has no result yet, and continues at the next start. The wall clock is
a limit of the task."""

WORKER_FAILED: Final = "worker_failed"
"""The reason of a task whose worker died, or met an unexpected error."""


class TaskUsage(Usage):
    """The usage of a task, all tries together."""


class TaskResult(Record):
    """The result of a task: one line of `results.jsonl`.

    `kind`, `reason`, `message`, `answer`, `refused` and `verified` are those of the run's outcome. `error` says why the
    run did not end: the copy could not be made, its settings are invalid, or its worker died; the kind is then
    SYSTEM_ERROR and `reason` `workspace_failed` or `worker_failed`. `changed` are the files that differ from `base`,
    the commit or tree hash of the copy; `patch` is the path of the diff below the batch's folder, "" for none, and
    `patch_sha256` the hash of its bytes. `left_out` are changed files that are in the copy alone, each with the reason:
    git ignores it, it lies in a submodule. `restored` are those of the outcome, for `apply_run(run_id, copy_path)`.
    `seconds` is the time of the last try, `tries` the number of tries; `resumed` says that the run continued from the
    store. `task` is the hash of the task (`BatchTask.sha256`).
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
        """Whether the task is done; one that is not continues when the batch is started again, and is not stored."""
        return self.reason not in UNFINISHED


class WorkOrder(NamedTuple):
    """A task for a worker, in any process and on any machine.

    `context` is the JSON of an `AgentContext`. `folder` is the folder of the copy, `without` are folders that no copy
    holds. The task's revision is the pinned commit, `task_hash` the hash of the task as the user wrote it, `tries` the
    number of this try.
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
        """The id of the task's run, the same at each try."""
        return f"{self.batch}-{self.task.id}"

    @property
    def workspace_name(self) -> str:
        """The name of the copy in a shared store."""
        return f"batch/{self.batch}/{self.task.id}"


class TaskOutput(NamedTuple):
    """The output of an order. `patch` is the diff, b"" if nothing was changed."""

    result: TaskResult
    patch: bytes = b""


def failed_result(order: WorkOrder, error: ToolError, reason: str = StopReason.WORKSPACE_FAILED.value) -> TaskResult:
    """Return the result of a task whose run could not end."""
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


def cancelled_result(order: WorkOrder, reason: str) -> TaskResult:
    """Return the result of a task that was stopped before its run was; `reason` is, for example, "by Ctrl-C"."""
    error = ToolError(code=ToolErrorCode.CANCELLED, message=f"The task was stopped {reason}.")
    return failed_result(order, error, StopReason.CANCELLED).model_copy(update={"kind": OutcomeKind.BUDGET_STOP})
