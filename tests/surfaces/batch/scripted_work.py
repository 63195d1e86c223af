"""Orders, and scripted work: executors are tested without runs."""

from collections.abc import Callable, Iterable

from mendgraph.graph.fleet.batch.executors import Executor, WorkerDiedError
from mendgraph.graph.fleet.batch.tasks import BatchTask, TaskOutput, TaskResult, WorkOrder, cancelled_result
from mendgraph.graph.machine.options import SessionOptions
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import OutcomeKind

Work = Callable[[WorkOrder, StopRequest, SessionOptions | None], TaskOutput]


def order(name: str) -> WorkOrder:
    """An order of the task with this name."""
    return WorkOrder("0a", BatchTask(id=name, prompt="p", workspace="/w"), "{}", f"/out/{name}")


def done(work_order: WorkOrder) -> TaskOutput:
    """The output of an order without work."""
    return TaskOutput(
        TaskResult(id=work_order.task.id, kind=OutcomeKind.FINISHED, reason="answered", tries=work_order.tries)
    )


def wait_for_stop(work_order: WorkOrder, stop: StopRequest, _: SessionOptions | None = None) -> TaskOutput:
    """Work that lasts until somebody stops it."""
    while not stop.reason:
        stop.wait(60)
    return TaskOutput(cancelled_result(work_order, stop.reason))


class InTurn(Executor):
    """Does each order at once, in this thread, as `work` says; a slot is taken until its result was read."""

    def __init__(self, work: Callable[[WorkOrder], TaskOutput] = done, workers: int = 1) -> None:
        super().__init__(workers, stop_timeout_s=0.0)
        self._work = work
        self._outputs: list[TaskOutput] = []

    def _start(self, order: WorkOrder) -> None:
        self._outputs.append(self._work(order))

    def _wait(self) -> Iterable[tuple[str, TaskOutput | WorkerDiedError]]:
        output = self._outputs.pop(0)
        return [(output.result.id, output)]

    def _request_stop(self, reason: str) -> None:
        """Nothing is at work between two results."""

    def close(self) -> None:
        """Nothing is held."""
