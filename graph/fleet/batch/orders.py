"""What travels between a batch and whoever does its work, and what comes of a task. Pure; all of it can be pickled."""

from typing import Any, Final, NamedTuple

from pydantic import Field

from mendgraph.graph.fleet.batch.tasks import BatchTask
from mendgraph.graph.machine.run_records import Durability
from mendgraph.nodes.call_model.ledger import Usage
from mendgraph.nodes.records import OutcomeKind, Record, StopReason, ToolError, ToolErrorCode

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

    `kind`, `reason`, `message` and `answer` are those of the run's outcome. `error` says why there was no run to its
    end: the copy could not be made, its settings are refused, or what worked on it died; the kind is then SYSTEM_ERROR
    and `reason` `workspace_failed` or `worker_failed`. `changed` are the files that differ from `base`, the commit or
    hash that the copy began with; `patch` is the path of the difference below the batch's folder, "" where there is
    none, and `patch_sha256` that of its bytes. `seconds` is the time of the last try, `tries` how many there were, and
    `resumed` says that the run went on from the store. `task` is the hash of the task (`BatchTask.sha256`).
    """

    id: str
    kind: OutcomeKind
    reason: str
    message: str = ""
    answer: str = ""
    value: Any = None
    changed: tuple[str, ...] = ()
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

    `context` is the JSON of an `AgentContext`, and `given` that of the fields in it which the workspace's own settings
    cannot change; they are read where `own_settings` says so, and may then only narrow what the context allows, unless
    the hash of their file is `trusted` ("*": whatever it holds). `folder` is the place of the copy itself, not of its
    parent, and `without` are folders that no copy holds. `packed` is the source in bytes, where the worker cannot
    reach it. The task's revision is the commit that the batch has pinned; `known_as` is the hash that the task had
    before. `tries` is the number of this try.
    """

    batch: str
    task: BatchTask
    context: str
    folder: str
    packed: bytes | None = None
    given: str = "{}"
    own_settings: bool = False
    trusted: str = ""
    without: tuple[str, ...] = ()
    known_as: str = ""
    durability: Durability = "sync"
    tries: int = 1

    @property
    def task_hash(self) -> str:
        """The hash of the task as it was given."""
        return self.known_as or self.task.sha256

    @property
    def run_id(self) -> str:
        """The name of the task's run: the same whenever and wherever it is worked on."""
        return f"{self.batch}-{self.task.id}"

    @property
    def account(self) -> str:
        """The name under which the whole batch's spending is counted."""
        return f"batch/{self.batch}"

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
