"""What runs on a node of a Ray cluster: one task, in a process of Ray's, with the node's own environment and disk."""

import os
import pickle
import socket
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from mendgraph.graph.fleet.batch.copies import prepare_copy, remove_copy
from mendgraph.graph.fleet.batch.local import ASKED_EVERY_S
from mendgraph.graph.fleet.batch.orders import WORKER_FAILED, Worked, WorkOrder, failed
from mendgraph.graph.fleet.batch.work import work
from mendgraph.graph.machine.stop_request import StopRequest
from mendgraph.graph.runs.runs import get_run, prune_runs
from mendgraph.nodes.execute_tools.files.failures import os_failure
from mendgraph.nodes.execute_tools.journal.rebuilding import rebuild_workspace
from mendgraph.nodes.execute_tools.store.postgres_url import give_workspace_name, uses_postgres
from mendgraph.nodes.execute_tools.store.run_folder import data_folder, workspace_folder
from mendgraph.nodes.records import JsonMap, Record, StopReason, ToolError, ToolErrorCode

BATCH_DIR_VARIABLE: Final = "MENDGRAPH_BATCH_DIR"
"""Names the folder of a node that holds the copies it works on, instead of one in the user's cache folder."""

LONGEST_BUSY_S: Final = 60.0
"""How long the workspace may be held by a worker whose node was lost, until the retry gives up."""

STOPPED: Final = "by whoever runs the batch"
_POLL_S: Final = 0.25


class NodeLook(Record):
    """What a node says of itself before a batch begins: never a value of its environment, only which names it has."""

    host: str
    shared: bool
    has: tuple[str, ...] = ()
    records: tuple[str, int, int] = ("", 0, 0)
    copies: str = ""
    problem: str = ""


def batch_dir() -> str:
    """The folder for the copies of this node."""
    given = os.environ.get(BATCH_DIR_VARIABLE, "").strip()
    if given:
        return os.path.abspath(os.path.expanduser(given))
    from platformdirs import user_cache_dir

    return os.path.join(user_cache_dir("mendgraph", appauthor=False), "batch")


def look(names: tuple[str, ...]) -> JsonMap:
    """A `NodeLook` as a map: `names` are variables of which it says whether they are set."""
    copies, problem, records = batch_dir(), "", ("", 0, 0)
    try:
        os.makedirs(copies, exist_ok=True)
        folder = os.path.abspath(data_folder())
        os.makedirs(folder, mode=0o700, exist_ok=True)
        known = os.stat(folder)
        records = (folder, known.st_dev, known.st_ino)
    except OSError as error:
        problem = os_failure(error, "make the node's folders", copies).message
    except RuntimeError as error:
        problem = f"{error}"
    return NodeLook(
        host=socket.gethostname(),
        shared=uses_postgres(),
        has=tuple(name for name in names if os.environ.get(name, "").strip()),
        records=records,
        copies=copies,
        problem=problem,
    ).model_dump(mode="json")


def do(data: bytes, packed: bytes, needs: tuple[str, ...]) -> Worked:
    """Work on the pickled order in `data`, whose source is `packed`; Ray's cancel stops it early.

    `needs` are variables that the task cannot do without. The work is done in a thread, as Ray's cancel is a
    `KeyboardInterrupt` in the main one, which may come at any moment.
    """
    order: WorkOrder = pickle.loads(data)  # noqa: S301 - of the batch itself, over Ray's own pickles
    order = order._replace(packed=packed, folder=os.path.join(batch_dir(), order.batch, order.task.id))
    stop, done = StopRequest(), SimpleQueue[Worked]()
    Thread(target=lambda: done.put(work_here(order, needs, stop)), name="task", daemon=True).start()
    while True:
        try:
            return _awaited(done, stop)
        except KeyboardInterrupt:
            stop.ask(STOPPED)


def _awaited(done: "SimpleQueue[Worked]", stop: StopRequest) -> Worked:
    while True:
        with suppress(Empty):
            return done.get(timeout=ASKED_EVERY_S)
        if stop.reason:
            stop.ask(stop.reason)


def work_here(order: WorkOrder, needs: tuple[str, ...], stop: StopRequest) -> Worked:
    """What comes of the order on this node. A run that another node has begun goes on from the shared store."""
    lacking = [name for name in needs if not os.environ.get(name, "").strip()]
    if lacking:
        return Worked(failed(order, lacks(socket.gethostname(), lacking), WORKER_FAILED))
    from mendgraph.graph.fleet.batch.node_model import use_node_model

    use_node_model()
    anew = made_ready(order, stop) if uses_postgres() else ""
    if isinstance(anew, ToolError):
        reason = StopReason.WORKSPACE_BUSY if anew.code is ToolErrorCode.UNAVAILABLE else StopReason.STORE_FAILED
        return Worked(failed(order, anew, reason))
    worked = work(order, stop)
    if anew:
        told = f"{worked.result.message} {anew}".strip()
        worked = worked._replace(result=worked.result.model_copy(update={"message": told}))
    if worked.result.is_final and uses_postgres():
        remove_copy(order.folder)
    return worked


def lacks(host: str, names: list[str]) -> ToolError:
    """What is said of a node whose environment lacks variables of the one that began the batch."""
    named = ", ".join(names)
    message = (
        f"The node {host} has no {named}: set it in the environment of `ray start` there."
        " Secrets are never sent to a node."
    )
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def made_ready(order: WorkOrder, stop: StopRequest) -> str | ToolError:
    """Bring the copy to where the run has left it, wherever that was; nothing is done for a run that is not begun.

    Returns:
        "" where the run can go on, or why it begins anew. UNAVAILABLE where another worker holds it for too long.
    """
    copy = prepare_copy(order.task, order.folder, order.packed, without=order.without)
    if isinstance(copy, ToolError):
        return ""  # which becomes the task's result
    folder = workspace_folder(copy.root)
    problem = folder if isinstance(folder, ToolError) else give_workspace_name(folder, order.shared_name)
    if problem is not None:
        return problem
    known = get_run(order.run_id, copy.root)
    if isinstance(known, ToolError):
        return "" if known.code is ToolErrorCode.NOT_FOUND else known
    rebuilt, waited_s = rebuild_workspace(order.run_id, copy.root), 0.0
    while _is_busy(rebuilt) and waited_s < LONGEST_BUSY_S and not stop.reason:
        stop.wait(_POLL_S)
        waited_s += _POLL_S
        rebuilt = rebuild_workspace(order.run_id, copy.root)
    if not isinstance(rebuilt, ToolError):
        return ""
    if rebuilt.code is not ToolErrorCode.CONFLICT:
        return rebuilt
    pruned = prune_runs(copy.root, keep=0, unfinished=True)
    problem = pruned if isinstance(pruned, ToolError) else remove_copy(copy)
    return problem or f"(The run was begun anew, as its files could not be made again on this node: {rebuilt.message})"


def _is_busy(found: object) -> bool:
    return isinstance(found, ToolError) and found.code is ToolErrorCode.UNAVAILABLE
