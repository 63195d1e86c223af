"""What runs on a node of a Ray cluster, in a process of Ray's, with the node's own environment and disk: one task."""

import os
import pickle
import socket
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from mendgraph.graph.fleet.batch.local import ASKED_EVERY_S
from mendgraph.graph.fleet.batch.tasks import Worked, WorkOrder
from mendgraph.graph.fleet.batch.work import work
from mendgraph.graph.machine.bound_nodes import StopRequest
from mendgraph.nodes.execute_tools.copies.workspace_copies import delete_copy
from mendgraph.nodes.execute_tools.files.failures import os_failure
from mendgraph.nodes.execute_tools.store.database import uses_postgres
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode

BATCH_DIR_VARIABLE: Final = "MENDGRAPH_BATCH_DIR"
"""Names the folder of a node that holds the copies it works on, instead of one in the user's cache folder."""

STOPPED: Final = "by whoever runs the batch"


def batch_dir() -> str:
    """The folder for the copies of this node."""
    given = os.environ.get(BATCH_DIR_VARIABLE, "").strip()
    if given:
        return os.path.abspath(os.path.expanduser(given))
    from platformdirs import user_cache_dir

    return os.path.join(user_cache_dir("mendgraph", appauthor=False), "batch")


def look(names: tuple[str, ...]) -> JsonMap | None:
    """Why this node cannot work, as the map of a `ToolError`; `names` are variables that it has to have."""
    lacking = [name for name in names if not os.environ.get(name, "").strip()]
    if lacking:
        return lacks(socket.gethostname(), lacking).model_dump(mode="json")
    try:
        os.makedirs(batch_dir(), exist_ok=True)
    except OSError as error:
        return os_failure(error, "make the node's folder", batch_dir()).model_dump(mode="json")
    return None


def lacks(host: str, names: list[str]) -> ToolError:
    """The error of a node whose environment lacks variables of the one that began the batch."""
    message = (
        f"The node {host} has no {', '.join(names)}: set it in the environment of `ray start` there."
        " Secrets are never sent to a node."
    )
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def do(data: bytes, packed: bytes) -> Worked:
    """Work on the pickled order in `data`, whose source is `packed`; Ray's cancel stops it early.

    The work is done in a thread, as Ray's cancel is a `KeyboardInterrupt` in the main one, which may come at any
    moment. A run that another node has begun goes on from the shared store.
    """
    order: WorkOrder = pickle.loads(data)  # noqa: S301 - of the batch itself, over Ray's own pickles
    order = order._replace(packed=packed, folder=os.path.join(batch_dir(), order.batch, order.task.id))
    stop, done = StopRequest(), SimpleQueue[Worked]()
    Thread(target=lambda: done.put(_work_here(order, stop)), name="task", daemon=True).start()
    while True:
        try:
            with suppress(Empty):
                return done.get(timeout=ASKED_EVERY_S)
            if stop.reason:
                stop.ask(stop.reason)
        except KeyboardInterrupt:
            stop.ask(STOPPED)


def _work_here(order: WorkOrder, stop: StopRequest) -> Worked:
    worked = work(order, stop)
    if worked.result.is_final and uses_postgres():
        delete_copy(order.folder)
    return worked
