"""The way to a Ray cluster: connect to it or start one, and look at its nodes before anything is spent.

Ray prints, sets signal handlers, changes the environment, and sends the folder that it is started in to its workers as
a place to import from. None of that reaches the program that runs a batch, or the nodes.
"""

import logging
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from types import ModuleType
from typing import Any, Final

from mendgraph.graph.fleet.batch.ray_node import BATCH_DIR_VARIABLE, NodeLook, lacks, look
from mendgraph.nodes.execute_tools.store.postgres_url import STORE_URL_VARIABLE, uses_postgres
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import ToolError, ToolErrorCode

EXTRA_MISSING: Final = "Work on a Ray cluster needs the extra `ray`: pip install 'mendgraph[ray]'."
DEFAULT_PORT: Final = 6379
"""Source: the Ray documentation, "ray start", --port."""

_ADDRESS: Final = "RAY_ADDRESS"
_AUTH_MODE: Final = "RAY_AUTH_MODE"
_REACHED_WITHIN_S: Final = 5.0
_LOOKED_WITHIN_S: Final = 120.0
_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` it would upload the whole folder, keys in files included
}


class Cluster:
    """A connection to a cluster. `cpus` is how many it has now; `close` ends the connection, and what we started."""

    def __init__(self, ray: ModuleType, *, ours: bool, mode: str | None = None) -> None:
        """`ours` says that this program was not connected before, `mode` what RAY_AUTH_MODE was then."""
        self.ray, self._ours, self._mode = ray, ours, mode
        self._call = ray.remote(_caller())

    @property
    def cpus(self) -> float:
        """Of all nodes that are there now."""
        return float(self.ray.cluster_resources().get("CPU", 0.0))

    def submit(self, function: str, *arguments: Any, **options: Any) -> Any:
        """A reference to what this function of `ray_node` gives on a node; Ray tries nothing again."""
        return self._call.options(max_retries=0, **options).remote(version("mendgraph"), function, *arguments)

    def get(self, reference: Any) -> Any:
        """What the function gave; UNAVAILABLE where the node has another version of mendgraph.

        Raises:
            RayError: the worker or its node died, or the call was cancelled.
        """
        found = self.ray.get(reference, timeout=_LOOKED_WITHIN_S)
        if isinstance(found, str):
            message = (
                f"A node of the Ray cluster has another mendgraph than this program ({one_line(found)}, not"
                f" {version('mendgraph')}): install the same version on all of them."
            )
            return _unavailable(message)
        return found

    def close(self) -> None:
        """Leave the cluster. A second time does nothing."""
        if self._ours:
            with quiet():
                self.ray.shutdown()
            if self._mode is None:
                os.environ.pop(_AUTH_MODE, None)


def connect(address: str | None) -> Cluster | ToolError:
    """Connect to the cluster at `address`, or at RAY_ADDRESS; without either one is started on this machine.

    A program that is connected already keeps its connection. UNAVAILABLE says that no cluster answers, or one of
    other versions; INVALID_ARGUMENT that this is no address.
    """
    with _environment(_SETTINGS):
        try:
            import ray
            from ray.exceptions import RayError
        except ImportError:
            return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=EXTRA_MISSING)
        if ray.is_initialized() and address is None:
            return Cluster(ray, ours=False)
        wanted = (address or os.environ.get(_ADDRESS, "")).strip()
        problem = _reachable(wanted) if wanted not in {"", "local", "auto"} else None
        if problem is not None:
            return problem
        mode = os.environ.get(_AUTH_MODE)
        own = wanted in {"", "local"}
        given: Mapping[str, Any] = {"address": "local", "include_dashboard": False} if own else {"address": wanted}
        try:
            with quiet():
                ray.init(**given, log_to_driver=False, logging_level=logging.CRITICAL, job_config=_job_config())
        except (RayError, RuntimeError, ValueError, OSError) as error:
            return _refused(wanted, error)
        ray._private.worker._worker_logs_enabled = False  # noqa: SLF001 - it prints the deaths of nodes on our stdout
        return Cluster(ray, ours=True, mode=mode)


def look_at_nodes(cluster: Cluster, names: Sequence[str]) -> ToolError | None:
    """Why a batch cannot be worked on by these nodes: all of them are looked at, and none is left out.

    `names` are variables that a task cannot do without. Without a shared store all nodes have to be on one machine,
    with one folder of records, which is where a retry finds its run, and a limit its count.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = cluster.ray
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0)]
    asked = [
        cluster.submit(
            "look", tuple(names), num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], False)
        )
        for node in nodes
    ]
    looks: list[NodeLook] = []
    machines: set[str] = set()
    for node, reference in zip(nodes, asked, strict=True):
        try:
            found = cluster.get(reference)
        except (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError):
            continue  # it is lost, and the head has not noticed yet
        except ray.exceptions.RayError as error:
            return _unavailable(f"The node {node['NodeManagerAddress']} does not answer ({type(error).__name__}).")
        if isinstance(found, ToolError):
            return found
        looks.append(NodeLook.model_validate(found))
        machines.add(str(node["NodeManagerAddress"]))
    if not looks:
        return _unavailable("The Ray cluster has no node with a CPU: start one with `ray start --address=...`.")
    return _problem(looks, machines, names)


def _problem(looks: Sequence[NodeLook], machines: set[str], names: Sequence[str]) -> ToolError | None:
    for each in looks:
        if each.problem:
            return _unavailable(f"The node {each.host} cannot work: {each.problem} {BATCH_DIR_VARIABLE} names another.")
        missing = [name for name in names if name not in each.has]
        if missing:
            return lacks(each.host, missing)
    without = [each.host for each in looks if not each.shared]
    here = NodeLook.model_validate(look(()))
    if here.shared and without:
        return lacks(without[0], [STORE_URL_VARIABLE])
    if uses_postgres():
        return None
    if len(without) < len(looks):
        message = f"The nodes have {STORE_URL_VARIABLE}, and this program has not: set it here to the same store."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    apart = len(machines) > 1 or {(each.records, each.copies) for each in looks} != {(here.records, looks[0].copies)}
    if not apart:
        return None
    message = (
        f"The nodes of the Ray cluster do not share their records with this program: set {STORE_URL_VARIABLE} to one"
        " PostgreSQL database, here and in the environment of `ray start` on each node."
    )
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, Ray neither warns nor takes over SIGTERM."""
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Inside, these variables are set; what Ray sets for itself stays, but where it is the debugger's."""
    before = {name: os.environ.get(name) for name in (*settings, "PYTHONBREAKPOINT")}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _job_config() -> Any:
    """A job whose workers import what their node has installed: nothing from the folder that we are in."""
    from ray.job_config import JobConfig

    class OwnCode(JobConfig):
        def _serialize(self) -> Any:
            self._py_driver_sys_path = []
            return super()._serialize()

    return OwnCode()


def _reachable(address: str) -> ToolError | None:
    """Ask whether anybody listens: Ray itself asks for more than three minutes, and prints what it thinks."""
    if "://" in address:
        message = (
            f"{one_line(address)!r} is a Ray client's address: give that of the cluster itself, as in 10.0.0.1:6379,"
            " on a machine that is one of its nodes (`ray start --address=...`)."
        )
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65_536:
        message = (
            f"{one_line(address)!r} is no address of a Ray cluster: write host:port, as in 10.0.0.1:{DEFAULT_PORT}."
        )
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACHED_WITHIN_S).close()
    except (OSError, UnicodeError) as error:
        return _refused(address, error)
    return None


def _refused(address: str, error: Exception) -> ToolError:
    said = one_line(f"{error}", 500)
    if "ersion mismatch" in said:
        return _unavailable(f"The Ray cluster at {one_line(address)} has other versions than this program: {said}")
    where = f"answers at {one_line(address)}" if address else "could be started on this machine"
    remedy = "start one with `ray start --head`, or correct the address" if address else "see the folder /tmp/ray"
    return _unavailable(f"No Ray cluster {where} ({said}): {remedy}.")


def _unavailable(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


def _caller() -> Callable[..., Any]:
    """Calls a function of the node's own mendgraph where that is our version, and else gives the node's version.

    It is sent as a whole, as functions in functions are: a node that has no mendgraph can say so.
    """

    def by_name(ours: str, name: str, *arguments: Any) -> Any:
        from importlib import import_module, metadata

        try:
            theirs = metadata.version("mendgraph")
        except metadata.PackageNotFoundError:
            theirs = "none"
        if theirs != ours:
            return theirs
        return getattr(import_module("mendgraph.graph.fleet.batch.ray_node"), name)(*arguments)

    return by_name
