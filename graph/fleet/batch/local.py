"""Does the orders of a batch in threads of this process."""

from collections.abc import Generator, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from mendgraph.graph.fleet.batch.orders import Worked, WorkOrder, cancelled
from mendgraph.graph.fleet.batch.work import work
from mendgraph.graph.machine.build_arguments import SessionOptions
from mendgraph.graph.machine.stop_request import StopRequest
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s

ASKED_EVERY_S: Final = 0.25
"""How often a wish to stop is repeated: a turn that begins in the same moment misses it once."""

PATIENCE_S: Final = 10.0
"""How long tasks that are to stop are waited for. A call of a model cannot be interrupted in a thread, and may last
minutes; what is left behind stops after it, and is then as safe as a run that was killed."""


class ThreadExecutor:
    """An `Executor` of threads: one for each task at work, `workers` at most."""

    def __init__(self, workers: int, options: SessionOptions | None = None, patience_s: float = PATIENCE_S) -> None:
        """Nothing is started yet. `options` are further arguments of each `Session`."""
        self._workers, self._options, self._patience_s = workers, options, patience_s
        self._stop = StopRequest()
        self._stopped_at: float | None = None
        self._done: SimpleQueue[Worked] = SimpleQueue()
        self._at_work: dict[str, WorkOrder] = {}

    def run(self, orders: Iterator[WorkOrder]) -> Generator[Worked, None, None]:
        """What came of each order, as it comes."""
        try:
            while True:
                self._hand_out(orders)
                if not self._at_work:
                    return
                worked = self._next()
                if worked is None:
                    break
                yield worked
            for order in self._at_work.values():
                yield Worked(cancelled(order, self._stop.reason))
            self._at_work.clear()
        finally:
            if self._at_work:
                self.cancel("by the program, which closed the batch")
            while self._at_work and self._next() is not None:
                pass

    def cancel(self, reason: str) -> None:
        """Take no further order, and let those at work stop early."""
        self._stop.ask(reason)

    def _hand_out(self, orders: Iterator[WorkOrder]) -> None:
        while len(self._at_work) < self._workers and not self._stop.reason:
            order = next(orders, None)
            if order is None:
                return
            self._at_work[order.task.id] = order
            Thread(target=self._work, args=(order,), name="task", daemon=True).start()

    def _work(self, order: WorkOrder) -> None:
        self._done.put(work(order, self._stop, self._options))

    def _next(self) -> Worked | None:
        """The next one that is done; None where those who are to stop do not."""
        while not self._is_too_late():
            try:
                worked = self._done.get(timeout=ASKED_EVERY_S)
            except Empty:
                if self._stop.reason:
                    self._stop.ask(self._stop.reason)
            else:
                del self._at_work[worked.result.id]
                return worked
        return None

    def _is_too_late(self) -> bool:
        if not self._stop.reason:
            return False
        self._stopped_at = self._stopped_at or monotonic_s()
        return monotonic_s() - self._stopped_at >= self._patience_s
