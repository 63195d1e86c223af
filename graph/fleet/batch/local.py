"""Does the orders of a batch: what all ways have in common, and the two ways on this machine, threads and processes.

A process that dies is replaced, and its tasks are tried again. It ends with the connection to its parent, whatever
ended that, so that a batch that is killed leaves nobody behind who still works in its copies.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import IO, Any, ClassVar, Final

from mendgraph.graph.fleet.batch.tasks import MOST_TRIES, WORKER_FAILED, Worked, WorkOrder, cancelled, failed
from mendgraph.graph.fleet.batch.work import work
from mendgraph.graph.machine.build import SessionOptions
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.secrets.redact import Redactor, known_values
from mendgraph.nodes.records import ToolError, ToolErrorCode

ASKED_EVERY_S: Final = 0.25
"""How often a wish to stop is repeated: a turn that begins in the same moment misses it once."""

PATIENCE_S: Final = 10.0
"""How long tasks that are to stop are waited for. A call of a model cannot be interrupted in a thread, and may last
minutes; what is left behind stops after it, and is then as safe as a run that was killed."""

PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; from mendgraph.graph.fleet.batch.local import main; main({descriptor})"
)
"""What a worker process runs; importing the program of the parent would run that once more."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_TO_END_S: Final = 5.0
"""For a process that has nothing to do any more but to end."""
_LAST_WORDS: Final = 500
"""Bytes of what a worker wrote before it died that are reported."""


class WorkerDiedError(Exception):
    """Whoever did an order is gone; the message says how it ended."""


class Executor(ABC):
    """Does orders, `workers` at a time. It takes an order only when somebody is free for it: the iterator is lazy.

    Every order that was taken gives one result, whatever becomes of its worker, also after `cancel`. A task whose
    worker dies is tried again, `MOST_TRIES` times in all.
    """

    worker: ClassVar[str] = "worker"

    def __init__(self, workers: int, patience_s: float) -> None:
        """Work that does not stop within `patience_s` seconds after `cancel` is abandoned."""
        self._workers = workers
        self._patience_s = patience_s
        self._at_work: dict[Future[Any], WorkOrder] = {}
        self._again: deque[WorkOrder] = deque()
        self._reason = ""

    def run(self, orders: Iterator[WorkOrder]) -> Generator[Worked, None, None]:
        """The result of each order, as it ends. Orders are taken in the thread that reads the results.

        Closing the generator ends the work.
        """
        stopped_at = 0.0
        try:
            while True:
                self._hand_out(orders)

                if self._reason:
                    self._ask_to_stop(self._reason)
                    stopped_at = stopped_at or monotonic_s()
                    yield from self._give_up(all_of_it=monotonic_s() - stopped_at >= self._patience_s)

                if not self._at_work:
                    return

                for future in wait(self._at_work, ASKED_EVERY_S, FIRST_COMPLETED).done:
                    yield from self._results(self._at_work.pop(future), future)
        finally:
            self.close()

    def cancel(self, reason: str) -> None:
        """Take no further order, and let those at work stop early (`Session.stop`); signal handlers may call it.

        `run` then gives what comes of those at work, with the reason `cancelled`, and ends.
        """
        self._reason = self._reason or reason

    def _hand_out(self, orders: Iterator[WorkOrder]) -> None:
        """Begin orders while there is room; those for another try go first."""
        while not self._reason and len(self._at_work) < self._workers:
            order: WorkOrder | None
            if self._again:
                order = self._again.popleft()
            else:
                order = next(orders, None)

            if order is None:
                return

            self._at_work[self._begin(order)] = order

    def _give_up(self, *, all_of_it: bool) -> Iterator[Worked]:
        """Abandon the orders that wait for another try, and with `all_of_it` those at work."""
        abandoned = list(self._again)
        self._again.clear()
        if all_of_it:
            abandoned += self._at_work.values()
            self._at_work.clear()

        for order in abandoned:
            yield Worked(cancelled(order, self._reason))

    def _results(self, order: WorkOrder, future: Future[Any]) -> Iterator[Worked]:
        try:
            yield self._result(order, future)
        except WorkerDiedError as error:
            if self._reason:
                yield Worked(cancelled(order, self._reason))
            elif order.tries < MOST_TRIES:
                self._again.append(order._replace(tries=order.tries + 1))
            else:
                message = (
                    f"The {self.worker} that worked on the task died, {order.tries} times in all; the last one {error}."
                )
                problem = ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
                yield Worked(failed(order, problem, WORKER_FAILED))

    def _result(self, order: WorkOrder, future: Future[Any]) -> Worked:  # noqa: ARG002 - others need it
        """What came of the order. WorkerDiedError where it is to be tried again."""
        worked: Worked = future.result()
        return worked

    @abstractmethod
    def _begin(self, order: WorkOrder) -> Future[Any]:
        """Let somebody do the order."""

    @abstractmethod
    def _ask_to_stop(self, reason: str) -> None:
        """Let what is at work stop early; this is asked again and again."""

    @abstractmethod
    def close(self) -> None:
        """End what is at work, and let go of all."""


class ThreadExecutor(Executor):
    """An `Executor` of threads: one for each task at work."""

    def __init__(self, workers: int, options: SessionOptions | None = None, patience_s: float = PATIENCE_S) -> None:
        """Nothing is started yet. `options` are further arguments of each `Session`."""
        super().__init__(workers, patience_s)
        self._options = options
        self._stop = StopRequest()

    def _begin(self, order: WorkOrder) -> Future[Any]:
        future: Future[Any] = Future()
        Thread(target=self._work, args=(order, future), name="task", daemon=True).start()
        return future

    def _work(self, order: WorkOrder, future: Future[Any]) -> None:
        future.set_result(work(order, self._stop, self._options))

    def _ask_to_stop(self, reason: str) -> None:
        self._stop.ask(reason)

    def close(self) -> None:
        """Let what is at work stop early, and wait for it."""
        latest = monotonic_s() + self._patience_s
        while self._at_work and monotonic_s() < latest:
            self._stop.ask("by the program, which closed the batch")
            for future in wait(self._at_work, ASKED_EVERY_S, FIRST_COMPLETED).done:
                del self._at_work[future]


class ProcessExecutor(Executor):
    """An `Executor` of processes, which share the work of `workers` tasks at a time.

    A process is started when there is work for it. Tasks that were at work in one that died share others, as many at
    most, and are tried for the last time each in its own, so that one that kills its process fails alone.
    """

    worker = "process"

    def __init__(self, workers: int, processes: int, patience_s: float = PATIENCE_S) -> None:
        super().__init__(workers, patience_s)
        self._processes = min(processes, workers)
        self._crew: list[_WorkerProcess] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the processes that run."""
        return tuple(worker.process.pid for worker in self._crew if not worker.end)

    def _begin(self, order: WorkOrder) -> Future[Any]:
        self._crew = [worker for worker in self._crew if not worker.end]
        alike = [worker for worker in self._crew if worker.tries == order.tries]
        worker = min(alike, key=lambda candidate: len(candidate.futures), default=None)

        if worker is None or (worker.futures and (order.tries == MOST_TRIES or len(alike) < self._processes)):
            worker = _WorkerProcess(order.tries)
            self._crew.append(worker)

        return worker.do(order)

    def _ask_to_stop(self, reason: str) -> None:
        for worker in self._crew:
            worker.send(reason)

    def close(self) -> None:
        """End the processes, whatever they do."""
        for worker in self._crew:
            worker.close()

        self._crew.clear()


class _WorkerProcess:
    """A process that does several orders at a time: `futures` are what comes of them, by the ids of their tasks.

    All of them are tried for the same time (`tries`). `end` says how it has ended, "" while it has not.
    """

    def __init__(self, tries: int) -> None:
        """Start it. It takes orders from the beginning, and does them once it has loaded what it needs."""
        self._socket, its = socket.socketpair()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process

        with its:
            command = [sys.executable, "-P", "-c", PROGRAM.format(path=sys.path, descriptor=its.fileno())]
            self.process = subprocess.Popen(  # noqa: S603 - ourselves
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(its.fileno(),),
            )

        self._connection: Connection[Any, Any] = Connection(os.dup(self._socket.fileno()))
        self.tries = tries
        self.end = ""
        self.futures: dict[str, Future[Any]] = {}
        self._turn = Lock()
        self._reader = Thread(target=self._read, name="worker process", daemon=True)
        self._reader.start()

    def do(self, order: WorkOrder) -> Future[Any]:
        """Let it do the order."""
        future: Future[Any] = Future()
        with self._turn:
            if self.end:
                future.set_exception(WorkerDiedError(self.end))
            else:
                self.futures[order.task.id] = future

        self.send(order)
        return future

    def send(self, message: WorkOrder | str) -> None:
        """An order, or why it is to stop. That the process has died meanwhile is noticed when it is read."""
        with suppress(OSError):
            self._connection.send(message)

    def close(self) -> None:
        """End the process, whatever it does, and let go of it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

        self._reader.join()

    def _read(self) -> None:
        """Take what comes until the process is gone."""
        with suppress(EOFError, OSError):
            while True:
                worked: Worked = self._connection.recv()
                self.futures.pop(worked.result.id).set_result(worked)

        how = self._ended()
        self._errors.seek(-min(_LAST_WORDS, self._errors.seek(0, os.SEEK_END)), os.SEEK_END)
        text = " ".join(self._errors.read().decode(errors="replace").split())

        for resource in (self._errors, self._connection, self._socket):
            resource.close()

        with self._turn:
            if text:
                self.end = f"{how}: {Redactor(known_values(os.environ)).text(text)}"
            else:
                self.end = how

        for future in self.futures.values():
            future.set_exception(WorkerDiedError(self.end))

    def _ended(self) -> str:
        try:
            code = self.process.wait(_TO_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "did not end"

        if code >= 0:
            return f"ended with the code {code}"
        return f"was killed by the signal {-code}"


def main(descriptor: int) -> None:
    """The program of a worker process. A terminal's Ctrl-C is the parent's, which decides what to do."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # not ignored: the programs that it starts would inherit that

    serve(Connection(descriptor))
    os._exit(0)


def serve(connection: "Connection[Any, Any]") -> None:
    """Do the orders that come over the connection until it is closed, each in a thread, and send what comes of each."""
    stop = StopRequest()
    sending = Lock()

    def do(order: WorkOrder) -> None:
        worked = work(order, stop)
        with sending:
            connection.send(worked)

    with suppress(EOFError, OSError):
        while True:
            message: WorkOrder | str = connection.recv()
            if isinstance(message, WorkOrder):
                Thread(target=do, args=(message,), name="task", daemon=True).start()
            else:
                stop.ask(message)
