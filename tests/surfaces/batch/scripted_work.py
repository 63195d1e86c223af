"""Orders, and work that does what a test says: executors are tested without runs."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mendgraph.graph.fleet.batch.local import Executor
from mendgraph.graph.fleet.batch.tasks import BatchTask, TaskResult, Worked, WorkOrder, cancelled
from mendgraph.graph.machine.build import SessionOptions
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import OutcomeKind

Work = Callable[[WorkOrder, StopRequest, SessionOptions | None], Worked]


def order(name: str) -> WorkOrder:
    """An order of the task with this name."""
    return WorkOrder("0a", BatchTask(id=name, prompt="p", workspace="/w"), "{}", f"/out/{name}")


def done(given: WorkOrder) -> Worked:
    """What comes of it where nothing happens."""
    return Worked(TaskResult(id=given.task.id, kind=OutcomeKind.FINISHED, reason="answered", tries=given.tries))


def waits(given: WorkOrder, stop: StopRequest, _: SessionOptions | None = None) -> Worked:
    """Work that lasts until somebody stops it."""
    while not stop.reason:
        stop.wait(60)
    return Worked(cancelled(given, stop.reason))


class InTurn(Executor):
    """Does each order at once, in this thread, as `work` says; a slot is taken until its result was read."""

    def __init__(self, work: Callable[[WorkOrder], Worked] = done, workers: int = 1) -> None:
        super().__init__(workers, patience_s=0.0)
        self._work = work

    def _begin(self, order: WorkOrder) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._work(order))
        return future

    def _ask_to_stop(self, reason: str) -> None:
        """Nothing is at work between two results."""

    def close(self) -> None:
        """Nothing is held."""
