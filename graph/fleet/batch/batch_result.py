"""What came of a whole batch, in numbers and in words. Pure, but for reading the results of a batch from its folder."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mendgraph.graph.fleet.batch.batch_folder import read_results
from mendgraph.graph.fleet.batch.orders import TaskResult, TaskUsage
from mendgraph.nodes.records import OutcomeKind

_UP_TO_DIGITS: Final = 9


class BatchEnd(StrEnum):
    """Why a batch has ended.

    Each task has its result (`complete`); a limit on spending was reached (`limit`); somebody stopped it (`cancelled`);
    or it could not go on, as the disk is full or a task has changed (`failed`).
    """

    COMPLETE, LIMIT, CANCELLED, FAILED = "complete", "limit", "cancelled", "failed"


@dataclass
class Tally:
    """The results so far, and what their tasks have used. `unpriced` are those with calls of no known price."""

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

    @property
    def done(self) -> int:
        """How many results there are."""
        return self.finished + self.stopped + self.failed

    def add(self, kind: OutcomeKind, usage: TaskUsage) -> None:
        """Count one more result."""
        self.finished += kind is OutcomeKind.FINISHED
        self.stopped += kind is OutcomeKind.BUDGET_STOP
        self.failed += kind is OutcomeKind.SYSTEM_ERROR
        self.calls += usage.calls
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cached_tokens += usage.cached_tokens
        self.reasoning_tokens += usage.reasoning_tokens
        self.cache_write_tokens += usage.cache_write_tokens
        self.cost_usd = round(self.cost_usd + (usage.cost_usd or 0.0), _UP_TO_DIGITS)
        self.unpriced += usage.cost_usd is None


@dataclass(frozen=True)
class BatchResult:
    """A batch from its end, or from where it stopped; `print(result)` gives it in words.

    `tally` counts the tasks that have results, those of earlier starts included, and `total` all tasks, None where a
    generator was not read to its end. `folder` holds the results and patches; `message` says why it ended and how to
    go on.
    """

    batch: str
    folder: str
    end: BatchEnd
    message: str
    total: int | None
    tally: Tally = field(default_factory=Tally)

    @property
    def ok(self) -> bool:
        """Whether all tasks have results, and all of them have FINISHED."""
        return self.end is BatchEnd.COMPLETE and self.tally.finished == self.tally.done

    @property
    def left(self) -> int | None:
        """How many tasks have no result yet, None where that is not known."""
        return None if self.total is None else self.total - self.tally.done

    def results(self) -> Iterator[TaskResult]:
        """The results of all tasks, one after another, in the order in which they came; read from the disk."""
        return read_results(self.folder)

    def __str__(self) -> str:
        """The numbers and the reason, in two sentences."""
        return f"{counted(self.tally, self.total)}. {self.message}"


def counted(tally: Tally, total: int | None) -> str:
    """How many tasks have results, and which: "3 of 4 tasks have results: 2 finished, 1 stopped by a limit"."""
    kinds = ((tally.finished, "finished"), (tally.stopped, "stopped by a limit"), (tally.failed, "failed"))
    named = ", ".join(f"{count:,} {what}" for count, what in kinds if count)
    of = "" if total is None else f" of {total:,}"
    tasks = "task has a result" if (total or tally.done) == 1 else "tasks have results"
    return f"{tally.done:,}{of} {tasks}" + (f": {named}" if named else "")


def way_to_go_on(end: BatchEnd, reason: str, left: int | None) -> str:
    """Why the batch has ended, and how to go on; `reason` is that of a limit, a person or a failure."""
    if end is BatchEnd.COMPLETE:
        return "Each task has its result."
    remain = "Tasks are" if left is None else "1 task is" if left == 1 else f"{left:,} tasks are"
    if end is BatchEnd.LIMIT:
        return f"{reason} {remain} left: start the same batch again to go on, once the limit allows it."
    if end is BatchEnd.CANCELLED:
        return f"It was stopped {reason}. {remain} left: start the same batch again to go on."
    return f"{reason} {remain} left: put this right, and start the same batch again to go on."
