"""The program of a worker process: it does the orders that come over a connection, each in a thread of its own.

It ends when the connection does, whatever ended its parent, so that a batch that is killed leaves nobody behind who
still works in its copies.
"""

import os
import signal
from multiprocessing.connection import Connection
from threading import Lock, Thread
from typing import Any, Final

from mendgraph.graph.fleet.batch.orders import Worked, WorkOrder
from mendgraph.graph.machine.stop_request import StopRequest

PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; from mendgraph.graph.fleet.batch.worker import main; main({descriptor})"
)
"""What a worker runs; importing the program of the parent would run that once more."""

STOP: Final = "stop"
"""The word that asks for an early end; a reason follows it."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def main(descriptor: int) -> None:
    """Do what comes until nothing comes any more. A terminal's Ctrl-C is the parent's, which says what to do."""
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # not ignored: the programs that it starts would inherit that
    connection: Connection[Any, Any] = Connection(descriptor)
    serve(connection)
    os._exit(0)


def serve(connection: "Connection[Any, Any]") -> None:
    """Take orders and words from the connection until it is closed, and send what comes of each order."""
    stop, sending = StopRequest(), Lock()

    def do(order: WorkOrder) -> None:
        from mendgraph.graph.fleet.batch.work import work

        worked = work(order, stop)
        with sending:
            connection.send(worked)

    while True:
        try:
            said: WorkOrder | tuple[str, str] = connection.recv()
        except (EOFError, OSError):
            return
        if isinstance(said, WorkOrder):
            Thread(target=do, args=(said,), name="task", daemon=True).start()
        else:
            stop.ask(said[1])


def answer_of(received: object) -> Worked:
    """What a worker has sent.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(received, Worked):
        raise TypeError(f"a worker sent {type(received).__name__}")
    return received
