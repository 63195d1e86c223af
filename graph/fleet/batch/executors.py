"""Executors run the orders of a batch: on threads, or on processes of this machine.

A worker process that dies is replaced, and its tasks are tried again. It ends with its parent, however that ends, so
that a killed batch leaves nobody at work in its copies.
"""

import multiprocessing
import os
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import ClassVar, Final

from mendgraph.graph.fleet.batch.task_run import run_order
from mendgraph.graph.fleet.batch.tasks import (
    MOST_TRIES,
    WORKER_FAILED,
    TaskOutput,
    WorkOrder,
    cancelled_result,
    failed_result,
)
from mendgraph.graph.machine.options import SessionOptions
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.deadline import monotonic_s

POLL_S: Final = 0.25
"""The longest wait for an output, after which a request to stop is repeated: a turn that just begins may miss one."""

STOP_TIMEOUT_S: Final = 10.0
"""How long stopped tasks are waited for. A model call in a thread cannot be interrupted and may last minutes; a task
that is abandoned in one stops after it, and is as safe as a run that was killed."""


class WorkerDiedError(Exception):
    """The worker of an order is gone; the message says how."""


class Executor(ABC):
    """Runs orders, `workers` at a time. The iterator of orders is lazy: one is taken when a worker is free.

    Each order that was taken has one output, also after `cancel`. A task whose worker dies is tried again, up to
    `MOST_TRIES` times.
    """

    worker_name: ClassVar[str] = "worker"

    def __init__(self, workers: int, stop_timeout_s: float) -> None:
        """Tasks that have not stopped `stop_timeout_s` seconds after `cancel` are abandoned."""
        self._workers = workers
        self._stop_timeout_s = stop_timeout_s
        self._active: dict[str, WorkOrder] = {}
        self._retries: deque[WorkOrder] = deque()
        self._stop_reason = ""

    def run(self, orders: Iterator[WorkOrder]) -> Generator[TaskOutput, None, None]:
        """Yield the output of each order when it ends. Orders are taken in the thread that reads the outputs.

        Closing the generator ends the work.
        """
        deadline: float | None = None
        try:
            while True:
                self._start_orders(orders)

                if self._stop_reason:
                    self._request_stop(self._stop_reason)
                    if deadline is None:
                        deadline = monotonic_s() + self._stop_timeout_s
                    yield from self._abandon(with_active=monotonic_s() >= deadline)

                if not self._active:
                    return

                for task_id, output in self._wait():
                    order = self._active.pop(task_id)
                    if isinstance(output, TaskOutput):
                        yield output
                    else:
                        yield from self._retry(order, output)
        finally:
            self.close()

    def cancel(self, reason: str) -> None:
        """Take no further order, and stop the active ones early (`Session.stop`). Signal handlers may call this.

        `run` yields the outputs of the active orders, with the reason `cancelled`, and ends.
        """
        self._stop_reason = self._stop_reason or reason

    def _start_orders(self, orders: Iterator[WorkOrder]) -> None:
        while not self._stop_reason and len(self._active) < self._workers:
            order: WorkOrder | None
            if self._retries:
                order = self._retries.popleft()
            else:
                order = next(orders, None)

            if order is None:
                return

            self._active[order.task.id] = order
            self._start(order)

    def _abandon(self, *, with_active: bool) -> Iterator[TaskOutput]:
        """Yield outputs for the orders that wait for another try, and `with_active` for those at work."""
        abandoned = list(self._retries)
        self._retries.clear()
        if with_active:
            abandoned += self._active.values()
            self._active.clear()

        for order in abandoned:
            yield TaskOutput(cancelled_result(order, self._stop_reason))

    def _retry(self, order: WorkOrder, death: WorkerDiedError) -> Iterator[TaskOutput]:
        """Schedule another try, or yield why there is none."""
        if self._stop_reason:
            yield TaskOutput(cancelled_result(order, self._stop_reason))
        elif order.tries < MOST_TRIES:
            self._retries.append(order._replace(tries=order.tries + 1))
        else:
            message = (
                f"The {self.worker_name} that worked on the task died, {order.tries} times in all (the last time"
                f" {death})."
            )
            error = ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
            yield TaskOutput(failed_result(order, error, WORKER_FAILED))

    @abstractmethod
    def _start(self, order: WorkOrder) -> None:
        """Give the order to a worker."""

    @abstractmethod
    def _wait(self) -> Iterable[tuple[str, TaskOutput | WorkerDiedError]]:
        """Wait at most `POLL_S`; return what has ended, by the ids of the tasks."""

    @abstractmethod
    def _request_stop(self, reason: str) -> None:
        """Let active tasks stop early; called repeatedly."""

    @abstractmethod
    def close(self) -> None:
        """End active tasks and release all resources."""


class TaskThreads:
    """Runs each order in a thread of its own.

    The threads are daemons: a thread pool would delay the end of the process until the last model call returns.
    """

    def __init__(self, options: SessionOptions | None = None) -> None:
        """`options` are further arguments of each `Session`."""
        self.stop = StopRequest()
        self._options = options
        self._outputs: SimpleQueue[TaskOutput] = SimpleQueue()

    def start(self, order: WorkOrder) -> None:
        """Start a thread that runs the order."""
        Thread(target=self._run, args=(order,), name="task", daemon=True).start()

    def wait(self) -> list[TaskOutput]:
        """Wait at most `POLL_S` for an output; return all that there are."""
        outputs = []
        with suppress(Empty):
            outputs.append(self._outputs.get(timeout=POLL_S))
            while True:
                outputs.append(self._outputs.get_nowait())

        return outputs

    def _run(self, order: WorkOrder) -> None:
        self._outputs.put(run_order(order, self.stop, self._options))


class ThreadExecutor(Executor):
    """An `Executor` of threads of this process."""

    def __init__(
        self, workers: int, options: SessionOptions | None = None, stop_timeout_s: float = STOP_TIMEOUT_S
    ) -> None:
        """`options` are further arguments of each `Session`."""
        super().__init__(workers, stop_timeout_s)
        self._threads = TaskThreads(options)

    def _start(self, order: WorkOrder) -> None:
        self._threads.start(order)

    def _wait(self) -> Iterable[tuple[str, TaskOutput]]:
        return [(output.result.id, output) for output in self._threads.wait()]

    def _request_stop(self, reason: str) -> None:
        self._threads.stop.ask(reason)

    def close(self) -> None:
        """Stop active tasks early, and wait for them."""
        deadline = monotonic_s() + self._stop_timeout_s
        while self._active and monotonic_s() < deadline:
            self._threads.stop.ask("by the program, which closed the batch")
            for task_id, _ in self._wait():
                del self._active[task_id]


class ProcessExecutor(Executor):
    """An `Executor` of processes, each of which runs several orders in threads.

    A process starts when there is work for it. Tasks of a process that died share other processes, and have their last
    try in a process of their own, so that a task that kills its process fails alone.
    """

    worker_name = "process"

    def __init__(self, workers: int, processes: int, stop_timeout_s: float = STOP_TIMEOUT_S) -> None:
        super().__init__(workers, stop_timeout_s)
        self._most_processes = min(processes, workers)
        self._processes: list[_WorkerProcess] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the running processes."""
        return tuple(process.pid for process in self._processes)

    def _start(self, order: WorkOrder) -> None:
        alike = [process for process in self._processes if process.tries == order.tries]
        process = min(alike, key=lambda candidate: len(candidate.task_ids), default=None)

        if process is None or (process.task_ids and (order.tries == MOST_TRIES or len(alike) < self._most_processes)):
            process = _WorkerProcess(order.tries)
            self._processes.append(process)

        process.add(order)

    def _wait(self) -> Iterable[tuple[str, TaskOutput | WorkerDiedError]]:
        exchanges = {}
        for process in self._processes:
            if process.task_ids:
                exchanges[process.exchange(self._stop_reason)] = process

        for future in wait(exchanges, POLL_S, FIRST_COMPLETED).done:
            yield from self._outputs_of(exchanges[future])

    def _outputs_of(self, process: "_WorkerProcess") -> Iterator[tuple[str, TaskOutput | WorkerDiedError]]:
        try:
            outputs = process.outputs()
        except BrokenProcessPool:
            self._processes.remove(process)
            for task_id in process.task_ids:
                yield task_id, WorkerDiedError(process.cause_of_death())
        else:
            for output in outputs:
                yield output.result.id, output

    def _request_stop(self, reason: str) -> None:
        """Each exchange carries the reason."""

    def close(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.kill()

        self._processes.clear()


class _WorkerProcess:
    """A process that runs several orders at a time; `task_ids` are those without an output.

    It is a pool of one process, with which orders and outputs are exchanged all the time: a pool of several would break
    as a whole when one of them dies. All its orders are at the same try (`tries`).
    """

    def __init__(self, tries: int) -> None:
        self.tries = tries
        self.task_ids: set[str] = set()
        self._new_orders: list[WorkOrder] = []
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), start_worker)
        others = multiprocessing.active_children()
        self._pid = self._pool.submit(os.getpid)  # it starts the process
        self._children = [child for child in multiprocessing.active_children() if child not in others]
        self._exchange: Future[list[TaskOutput]] | None = None

    @property
    def pid(self) -> int:
        """Its id, once it has started."""
        return self._pid.result()

    def add(self, order: WorkOrder) -> None:
        """Send the order with the next exchange."""
        self.task_ids.add(order.task.id)
        self._new_orders.append(order)

    def exchange(self, stop_reason: str) -> Future[list[TaskOutput]]:
        """The exchange that is under way, or a new one, with the orders added since the last."""
        if self._exchange is None:
            try:
                self._exchange = self._pool.submit(exchange_orders, self._new_orders, stop_reason)
            except BrokenProcessPool as error:
                self._exchange = Future()
                self._exchange.set_exception(error)

            self._new_orders = []

        return self._exchange

    def outputs(self) -> list[TaskOutput]:
        """The outputs of the exchange that has ended. Raises BrokenProcessPool: the process died."""
        exchange = self.exchange("")
        self._exchange = None
        outputs = exchange.result()
        self.task_ids -= {output.result.id for output in outputs}

        return outputs

    def cause_of_death(self) -> str:
        """Return how the process ended."""
        self._pool.shutdown()  # it has the exit code then: two threads that ask for it at once lose it

        for child in self._children:
            if child.exitcode is not None and child.exitcode < 0:
                return f"it was killed by signal {-child.exitcode}"
            if child.exitcode is not None:
                return f"it ended with the exit code {child.exitcode}"

        return "it ended without an exit code"

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        with suppress(BrokenProcessPool, ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

        self._pool.shutdown()


# --- In a worker process


def start_worker() -> None:
    """Prepare a worker process, which prints nothing and leaves Ctrl-C in the terminal to its parent."""
    global _task_threads  # noqa: PLW0603 - the state of the process, as `ProcessPoolExecutor` intends

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not ignored: programs that it starts would inherit that

    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)

    Thread(target=_end_with_parent, name="parent", daemon=True).start()
    _task_threads = TaskThreads()


def exchange_orders(orders: Sequence[WorkOrder], stop_reason: str) -> list[TaskOutput]:
    """Start these orders, stop all where there is a reason, and return the outputs since the last exchange."""
    for order in orders:
        _task_threads.start(order)

    if stop_reason:
        _task_threads.stop.ask(stop_reason)

    return _task_threads.wait()


_task_threads: TaskThreads


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
