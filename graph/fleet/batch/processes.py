"""Does the orders of a batch in processes of this machine. One that dies is replaced, and its tasks are tried again."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Final

from mendgraph.graph.fleet.batch.local import ASKED_EVERY_S, PATIENCE_S
from mendgraph.graph.fleet.batch.orders import MOST_TRIES, WORKER_FAILED, Worked, WorkOrder, cancelled, failed
from mendgraph.graph.fleet.batch.worker import PROGRAM, STOP, answer_of
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import ToolError, ToolErrorCode

_PATIENCE_S: Final = 5.0
"""For a process that has nothing to do any more but to end."""

_LAST_WORDS: Final = 500
"""Bytes of what a worker wrote before it died that are told."""


class WorkerProcess:
    """A process that does several orders at a time. `at_work` are those, by the ids of their tasks."""

    def __init__(self) -> None:
        """Start it. It takes orders from the beginning, and does them once it has loaded what it needs."""
        ours, its = socket.socketpair()
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        with its:
            command = [sys.executable, "-P", "-c", PROGRAM.format(path=sys.path, descriptor=its.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=(its.fileno(),),
            )
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        self.at_work: dict[str, WorkOrder] = {}
        self.alone = False

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send(self, order: WorkOrder) -> None:
        """Let it do the order. One that has died meanwhile is noticed when its connection is read."""
        self.at_work[order.task.id] = order
        self.alone = order.tries > 1
        self._say(order)

    def stop(self, reason: str) -> None:
        """Let what is at work end early."""
        self._say((STOP, reason))

    def receive(self) -> Worked | None:
        """What came of an order; None where the process is gone."""
        try:
            worked = answer_of(self.connection.recv())
        except (EOFError, OSError, TypeError):
            return None
        del self.at_work[worked.result.id]
        return worked

    def end(self) -> str:
        """End the process, whatever it does, and let go of it; how it had ended, in words."""
        self.connection.close()
        ended = _wait_for(self._process)
        self._said.seek(-min(_LAST_WORDS, self._said.seek(0, os.SEEK_END)), os.SEEK_END)
        said = " ".join(self._said.read().decode(errors="replace").split())
        self._said.close()
        return f"{ended}: {Redactor(known_values(os.environ)).text(said)}" if said else ended

    def _say(self, words: object) -> None:
        with suppress(OSError):
            self.connection.send(words)


class ProcessExecutor:
    """An `Executor` of processes, which share the work of `workers` tasks at a time.

    A process is started when there is work for it. A task that was at work in one that died is tried again in a
    process of its own, so that a task that kills its process takes no other one with it twice.
    """

    def __init__(self, workers: int, processes: int, patience_s: float = PATIENCE_S) -> None:
        """Nothing is started yet."""
        self._patience_s, self._stopped_at = patience_s, 0.0
        self._processes = min(processes, workers)
        self._each = -(-workers // self._processes)
        self._room = workers
        self._crew: list[WorkerProcess] = []
        self._again: deque[WorkOrder] = deque()
        self._reason = ""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that there are now."""
        return tuple(worker.pid for worker in self._crew)

    def run(self, orders: Iterator[WorkOrder]) -> Generator[Worked, None, None]:
        """What came of each order, as it comes."""
        try:
            while True:
                self._hand_out(orders)
                yield from self._given_up()
                if not any(worker.at_work for worker in self._crew):
                    return
                yield from self._gather()
        finally:
            for worker in self._crew:
                worker.end()
            self._crew.clear()

    def _given_up(self) -> Iterator[Worked]:
        """What nobody works on any more, where the batch is to stop: at once what has no process, all in the end."""
        if not self._reason:
            return
        self._stopped_at = self._stopped_at or monotonic_s()
        given_up = [*self._again]
        self._again.clear()
        if monotonic_s() - self._stopped_at >= self._patience_s:
            for worker in self._crew:
                given_up += worker.at_work.values()
                worker.at_work.clear()
        for order in given_up:
            yield Worked(cancelled(order, self._reason))

    def cancel(self, reason: str) -> None:
        """Take no further order, and let those at work stop early."""
        self._reason = self._reason or reason

    def _hand_out(self, orders: Iterator[WorkOrder]) -> None:
        """Give each process what it has room for; those that are tried again go first."""
        while not self._reason:
            again = bool(self._again)
            worker = self._free(alone=again)
            if worker is None:
                return
            order = self._again.popleft() if again else next(orders, None)
            if order is None:
                return
            worker.send(order)

    def _free(self, *, alone: bool) -> WorkerProcess | None:
        """The process with the least to do, a new one where all have something; None where there is no room.

        What has to be `alone` waits for a process with nothing to do.
        """
        if sum(len(worker.at_work) for worker in self._crew) >= self._room:
            return None
        open_ones = [each for each in self._crew if not (each.alone and each.at_work)]
        least = min(open_ones, key=lambda each: len(each.at_work), default=None)
        if (least is None or least.at_work) and len(self._crew) < self._processes:
            self._crew.append(WorkerProcess())
            return self._crew[-1]
        if least is None or len(least.at_work) >= (1 if alone else self._each):
            return None
        return least

    def _gather(self) -> Iterator[Worked]:
        """What has come, or nothing where some time has passed; the dead are buried."""
        ready = wait([worker.connection for worker in self._crew], ASKED_EVERY_S)
        for worker in [each for each in self._crew if each.connection in ready]:
            worked = worker.receive()
            if worked is not None:
                yield worked
            else:
                yield from self._bury(worker)
        if self._reason:
            for worker in self._crew:
                worker.stop(self._reason)

    def _bury(self, worker: WorkerProcess) -> Iterator[Worked]:
        self._crew.remove(worker)
        how = worker.end()
        for order in worker.at_work.values():
            if order.tries < MOST_TRIES:
                self._again.append(order._replace(tries=order.tries + 1))
            else:
                yield Worked(failed(order, _died(order, how), WORKER_FAILED))


def _died(order: WorkOrder, how: str) -> ToolError:
    message = f"The process that worked on the task died, {order.tries} times in all; the last one {how}."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def _wait_for(process: "subprocess.Popen[bytes]") -> str:
    """How the process ended, which ends by itself once its connection is closed; one that does not is killed."""
    try:
        code = process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "did not end"
    if code >= 0:
        return f"ended with the code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by the signal {-code}"
