"""What runs on a node of a Ray cluster, in processes of Ray's, with the node's own environment and disk.

That is one task in each process, and for all of them one server of the embedded model, in an actor that lives as long
as the batch.
"""

import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

from mendgraph.graph.fleet.batch.local import ASKED_EVERY_S
from mendgraph.graph.fleet.batch.orders import WORKER_FAILED, Worked, WorkOrder, failed
from mendgraph.graph.fleet.batch.work import work
from mendgraph.graph.machine.stop_request import StopRequest
from mendgraph.nodes.call_model.embedded.local_model import LocalServer, shared_local_server, take_local_server_from
from mendgraph.nodes.execute_tools.copies.workspace_copies import delete_copy
from mendgraph.nodes.execute_tools.files.deadline import pause
from mendgraph.nodes.execute_tools.files.failures import os_failure
from mendgraph.nodes.execute_tools.store.postgres_url import uses_postgres
from mendgraph.nodes.execute_tools.store.run_folder import data_folder
from mendgraph.nodes.records import JsonMap, ProviderErrorKind, ProviderFailure, Record, ToolError, ToolErrorCode

BATCH_DIR_VARIABLE: Final = "MENDGRAPH_BATCH_DIR"
"""Names the folder of a node that holds the copies it works on, instead of one in the user's cache folder."""

STOPPED: Final = "by whoever runs the batch"


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
    has = tuple(name for name in names if os.environ.get(name, "").strip())
    found = NodeLook(
        host=socket.gethostname(), shared=uses_postgres(), has=has, records=records, copies=copies, problem=problem
    )
    return found.model_dump(mode="json")


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
            with suppress(Empty):
                return done.get(timeout=ASKED_EVERY_S)
            if stop.reason:
                stop.ask(stop.reason)
        except KeyboardInterrupt:
            stop.ask(STOPPED)


def work_here(order: WorkOrder, needs: tuple[str, ...], stop: StopRequest) -> Worked:
    """What comes of the order on this node. A run that another node has begun goes on from the shared store."""
    lacking = [name for name in needs if not os.environ.get(name, "").strip()]
    if lacking:
        return Worked(failed(order, lacks(socket.gethostname(), lacking), WORKER_FAILED))
    take_local_server_from(node_server)
    worked = work(order, stop)
    if worked.result.is_final and uses_postgres():
        delete_copy(order.folder)
    return worked


def lacks(host: str, names: list[str]) -> ToolError:
    """The error of a node whose environment lacks variables of the one that began the batch."""
    named = ", ".join(names)
    message = (
        f"The node {host} has no {named}: set it in the environment of `ray start` there."
        " Secrets are never sent to a node."
    )
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


# --- The embedded model

Start = Callable[[], LocalServer | ProviderFailure]

_HELD: Final[dict[str, Any]] = {}
"""An actor ends when the process that started it lets go of it: it is held even while its server is found dead."""

_LONGEST_START_S: Final = 120.0
_LONGEST_LOOK_S: Final = 20.0
_MOST_STARTS: Final = 20
_PAUSE_S: Final = 0.25


class ModelOfNode:
    """The actor: it starts the server when the first task asks, and again where it has died since."""

    def __init__(self, start: Start | None = None) -> None:
        """Nothing is started yet. Without `start` it is the server of the embedded model."""
        self._start = start or shared_local_server

    def serve(self) -> tuple[str, str] | ProviderFailure:
        """The server's address and the name of its model, or why there is none."""
        server = self._start()
        return server if isinstance(server, ProviderFailure) else (server.base_url, server.model)


class NodeServer(LocalServer):
    """The server of another process of this node. To stop it is not up to us."""

    def __init__(self, actor: Any, base_url: str, model: str) -> None:
        """`actor` is a handle of the `ModelOfNode` that serves at this address."""
        self.base_url, self.model = base_url, model
        self._actor = actor

    @property
    def alive(self) -> bool:
        """Whether it still answers at this address."""
        import ray
        from ray.exceptions import RayError

        try:
            found = ray.get(self._actor.serve.remote(), timeout=_LONGEST_LOOK_S)
        except RayError:
            return False
        return bool(found == (self.base_url, self.model))

    def stop(self) -> None:
        """Leave it to the actor, which ends with the batch."""


def node_server(start: Start | None = None) -> LocalServer | ProviderFailure:
    """The node's server. Whoever asks first starts the actor; the server runs until the batch ends, or its node does.

    The actor belongs to the job and to the process that started it: where that process dies, the next one that needs
    a model starts another. An actor of one node is of no use to another, as its server listens on loopback alone.
    """
    import ray
    from ray.exceptions import RayActorError, RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = ray.get_runtime_context().get_node_id()
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    one = ray.remote(ModelOfNode).options(
        name=f"mendgraph-model-{node}", get_if_exists=True, num_cpus=0, scheduling_strategy=here
    )
    tries = 0
    while True:
        try:
            actor: Any = one.remote(start)
            _HELD[node] = actor
            found: tuple[str, str] | ProviderFailure = ray.get(actor.serve.remote(), timeout=_LONGEST_START_S)
        except RayActorError as error:
            tries += 1
            if tries == _MOST_STARTS:
                return _unreachable(error)
            pause(_PAUSE_S)  # the actor ended with the process that had started it, and its name is not free yet
        except RayError as error:
            return _unreachable(error)
        else:
            return found if isinstance(found, ProviderFailure) else NodeServer(actor, *found)


def _unreachable(error: Exception) -> ProviderFailure:
    message = f"the node's local model server cannot be reached ({type(error).__name__})"
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message)
