"""Does the orders of a batch on this machine, in threads of this process or in processes, which are started from here.

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
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import IO, Any, ClassVar, Final

from mendgraph.graph.fleet.batch.orders import MOST_TRIES, WORKER_FAILED, Worked, WorkOrder, cancelled, failed
from mendgraph.graph.fleet.batch.work import work
from mendgraph.graph.machine.build import SessionOptions
from mendgraph.graph.machine.stop_request import StopRequest
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
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

_STOP: Final = "stop"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_TO_END_S: Final = 5.0
"""For a process that has nothing to do any more but to end."""
_LAST_WORDS: Final = 500
"""Bytes of what a worker wrote before it died that are reported."""


class Executor(ABC):
    """Does orders, `workers` at a time. It takes an order only when somebody is free for it: the iterator is lazy.

    Every order that was taken gives one result, whatever becomes of its worker, also after `cancel`. A task whose
    worker dies is tried again, `MOST_TRIES` times in all.
    """

    worker: ClassVar[str] = "worker"

    def __init__(self, workers: int, patience_s: float) -> None:
        """Nothing is started yet. What does not stop within `patience_s` seconds after `cancel` is given up."""
        self._workers, self._patience_s = workers, patience_s
        self._at_work: dict[str, WorkOrder] = {}
        self._again: deque[WorkOrder] = deque()
        self._reason, self._stopped_at = "", 0.0

    def run(self, orders: Iterator[WorkOrder]) -> Generator[Worked, None, None]:
        """What came of each order, as it comes. Orders are taken in the thread that asks for the next result.

        Where the generator is closed early, what is at work is ended.
        """
        try:
            while True:
                yield from self._hand_out(orders)
                if self._reason:
                    yield from self._stopping()
                if not self._at_work:
                    return
                for worked in self._gather():
                    self._at_work.pop(worked.result.id, None)
                    yield worked
        finally:
            self._end()

    def cancel(self, reason: str) -> None:
        """Take no further order, and let those at work stop early (`Session.stop`); signal handlers may call it.

        `run` then gives what comes of those at work, with the reason `cancelled`, and ends.
        """
        self._reason = self._reason or reason

    def _hand_out(self, orders: Iterator[WorkOrder]) -> Iterator[Worked]:
        """Those that are tried again go first."""
        while not self._reason and len(self._at_work) < self._workers and self._has_room():
            order = self._again.popleft() if self._again else next(orders, None)
            if order is None:
                return
            problem = self._begin(order)
            if problem is None:
                self._at_work[order.task.id] = order
            else:
                yield Worked(failed(order, problem))

    def _stopping(self) -> Iterator[Worked]:
        """Ask once more; what waits to be tried again is given up at once, and all else when it is too late."""
        self._ask_to_stop()
        self._stopped_at = self._stopped_at or monotonic_s()
        given_up = [*self._again]
        self._again.clear()
        if monotonic_s() - self._stopped_at >= self._patience_s:
            given_up += self._at_work.values()
            self._at_work.clear()
        for order in given_up:
            yield Worked(cancelled(order, self._reason))

    def _try_again(self, order: WorkOrder, how: str) -> Iterator[Worked]:
        """`how` says how the worker of the order died: where that was the last try, this is its result."""
        self._at_work.pop(order.task.id, None)
        if order.tries < MOST_TRIES:
            self._again.append(order._replace(tries=order.tries + 1))
            return
        message = f"The {self.worker} that worked on the task died, {order.tries} times in all; the last one {how}."
        yield Worked(failed(order, ToolError(code=ToolErrorCode.UNAVAILABLE, message=message), WORKER_FAILED))

    def _has_room(self) -> bool:
        return True

    @abstractmethod
    def _begin(self, order: WorkOrder) -> ToolError | None:
        """Let somebody do the order; why that cannot be."""

    @abstractmethod
    def _gather(self) -> Iterator[Worked]:
        """What has come, or nothing where `ASKED_EVERY_S` have passed."""

    @abstractmethod
    def _ask_to_stop(self) -> None:
        """Let what is at work stop early; this is asked again and again."""

    @abstractmethod
    def _end(self) -> None:
        """End what is at work, and let go of all."""


class ThreadExecutor(Executor):
    """An `Executor` of threads: one for each task at work."""

    def __init__(self, workers: int, options: SessionOptions | None = None, patience_s: float = PATIENCE_S) -> None:
        """Nothing is started yet. `options` are further arguments of each `Session`."""
        super().__init__(workers, patience_s)
        self._options, self._stop = options, StopRequest()
        self._done: SimpleQueue[Worked] = SimpleQueue()

    def _begin(self, order: WorkOrder) -> None:
        Thread(target=self._work, args=(order,), name="task", daemon=True).start()

    def _work(self, order: WorkOrder) -> None:
        self._done.put(work(order, self._stop, self._options))

    def _gather(self) -> Iterator[Worked]:
        with suppress(Empty):
            yield self._done.get(timeout=ASKED_EVERY_S)

    def _ask_to_stop(self) -> None:
        self._stop.ask(self._reason)

    def _end(self) -> None:
        if self._at_work:
            self.cancel("by the program, which closed the batch")
        while self._at_work:
            for worked in (*self._stopping(), *self._gather()):
                self._at_work.pop(worked.result.id, None)


class ProcessExecutor(Executor):
    """An `Executor` of processes, which share the work of `workers` tasks at a time.

    A process is started when there is work for it. A task that was at work in one that died is tried again in a
    process of its own, so that a task that kills its process takes no other one with it twice.
    """

    worker = "process"

    def __init__(self, workers: int, processes: int, patience_s: float = PATIENCE_S) -> None:
        """Nothing is started yet."""
        super().__init__(workers, patience_s)
        self._processes = min(processes, workers)
        self._each = -(-workers // self._processes)
        self._crew: list[_WorkerProcess] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that there are now."""
        return tuple(worker.process.pid for worker in self._crew)

    def _has_room(self) -> bool:
        return self._free() is not None or len(self._crew) < self._processes

    def _free(self) -> "_WorkerProcess | None":
        """The process with the least to do; what is tried again waits for one with nothing to do."""
        most = 1 if self._again else self._each
        free = (each for each in self._crew if len(each.at_work) < (1 if each.alone else most))
        return min(free, key=lambda each: len(each.at_work), default=None)

    def _begin(self, order: WorkOrder) -> None:
        worker = self._free() if order.tries == 1 else next((each for each in self._crew if not each.at_work), None)
        if (worker is None or worker.at_work) and len(self._crew) < self._processes:
            worker = _WorkerProcess()
            self._crew.append(worker)
        assert worker is not None  # noqa: S101 - there was room
        worker.at_work.add(order.task.id)
        worker.alone = order.tries > 1
        worker.send(order)

    def _gather(self) -> Iterator[Worked]:
        ready = wait([worker.connection for worker in self._crew], ASKED_EVERY_S)
        for worker in [each for each in self._crew if each.connection in ready]:
            worked = worker.receive()
            if worked is not None:
                yield worked
                continue
            self._crew.remove(worker)
            how = worker.end()
            for order in [self._at_work[each] for each in worker.at_work if each in self._at_work]:
                yield from self._try_again(order, how)

    def _ask_to_stop(self) -> None:
        for worker in self._crew:
            worker.send((_STOP, self._reason))

    def _end(self) -> None:
        for worker in self._crew:
            worker.end()
        self._crew.clear()


class _WorkerProcess:
    """A process that does several orders at a time: `at_work` are the ids of their tasks."""

    def __init__(self) -> None:
        """Start it. It takes orders from the beginning, and does them once it has loaded what it needs."""
        ours, its = socket.socketpair()
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
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        self.at_work: set[str] = set()
        self.alone = False

    def send(self, message: "WorkOrder | tuple[str, str]") -> None:
        """An order, or a wish. That the process has died meanwhile is noticed when its connection is read."""
        with suppress(OSError):
            self.connection.send(message)

    def receive(self) -> Worked | None:
        """What came of an order; None where the process is gone, or talks nonsense."""
        try:
            worked = self.connection.recv()
        except (EOFError, OSError):
            return None
        if not isinstance(worked, Worked):
            return None
        self.at_work.discard(worked.result.id)
        return worked

    def end(self) -> str:
        """End the process, whatever it does, and let go of it; how it had ended, in words."""
        self.connection.close()
        how = self._ended()
        self._errors.seek(-min(_LAST_WORDS, self._errors.seek(0, os.SEEK_END)), os.SEEK_END)
        text = " ".join(self._errors.read().decode(errors="replace").split())
        self._errors.close()
        return f"{how}: {Redactor(known_values(os.environ)).text(text)}" if text else how

    def _ended(self) -> str:
        try:
            code = self.process.wait(_TO_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "did not end"
        if code >= 0:
            return f"ended with the code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by the signal {-code}"


def main(descriptor: int) -> None:
    """The program of a worker process. A terminal's Ctrl-C is the parent's, which decides what to do."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # not ignored: the programs that it starts would inherit that
    serve(Connection(descriptor))
    os._exit(0)


def serve(connection: "Connection[Any, Any]") -> None:
    """Do the orders that come over the connection until it is closed, each in a thread, and send what comes of each."""
    stop, sending = StopRequest(), Lock()

    def do(order: WorkOrder) -> None:
        worked = work(order, stop)
        with sending:
            connection.send(worked)

    while True:
        try:
            message: WorkOrder | tuple[str, str] = connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(message, WorkOrder):
            Thread(target=do, args=(message,), name="task", daemon=True).start()
        else:
            stop.ask(message[1])
