"""Does the orders of a batch on a Ray cluster: one Ray task for each, tried again when its worker or node dies.

All nodes see the folders of the batch, as on a shared disk. The retry is ours, not Ray's: a task that is tried again
says so in its result, and goes on from the store. Ray prints, sets signal handlers, changes the environment, and sends
the folder that it is started in to its workers as a place to import from. None of that reaches the program that runs a
batch, or the nodes.
"""

import logging
import os
import pickle
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from importlib.metadata import version
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, Final

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.local import ASKED_EVERY_S, Executor, WorkerDiedError
from mendgraph.graph.fleet.batch.tasks import WORKER_FAILED, Worked, WorkOrder, cancelled, failed
from mendgraph.graph.fleet.batch.work import work
from mendgraph.nodes.call_model.endpoint import NO_KEY, Endpoint, deciding_variable, find_endpoint, models_in_order
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s
from mendgraph.nodes.execute_tools.store.database import STORE_URL_VARIABLE, uses_postgres
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode, invalid, quoted

GRACE_S: Final = 30.0
"""How long tasks may take to stop after `cancel`, until their processes are ended."""


_AUTH_MODE: Final = "RAY_AUTH_MODE"
_REACHED_WITHIN_S: Final = 5.0
_LOOKED_WITHIN_S: Final = 120.0
_AGAIN_S: Final = 5.0
_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` it would upload the whole folder, keys in files included
}


def ray_executor(
    context: AgentContext, folder: str = "", *, workers: int | None = None, address: str | None = None
) -> "RayExecutor | ToolError":
    """An executor on the cluster at `address`, or at RAY_ADDRESS; without either, on one that is started here.

    Args:
        context: what tasks may do. Its model's key has to be in the environment of each node, and
            OPENAI_BASE_URL where it names the endpoint here, which is looked at now.
        folder: that of the batch, which each node has to see.
        workers: how many tasks are at work at a time, the CPUs of the cluster by default. More than it has CPUs share
            them: most of a task's time is the model's.
        address: `host:port` of the cluster's head.

    Returns:
        The executor, whose `run` is called once, and leaves the cluster at its end. UNAVAILABLE where the extra or the
        cluster is missing, or a node has another version; PERMISSION_DENIED where a node lacks a variable with a
        secret; NOT_FOUND where it does not see the folder; INVALID_ARGUMENT where there is no shared store, or the
        model is the embedded one.
    """
    if isinstance(names := needed(context), ToolError):
        return names

    cluster = (address or os.environ.get("RAY_ADDRESS", "")).strip()
    is_local = cluster in {"", "local"}
    if not is_local and not uses_postgres():
        return invalid(f"The nodes of a cluster share one store: set {STORE_URL_VARIABLE}, here and on each node.")

    before = os.environ.get(_AUTH_MODE)
    if is_local:
        cluster = "local"

    ray = _connect(cluster)
    if isinstance(ray, ToolError):
        return ray

    executor = RayExecutor(ray, workers, auth_mode=before)
    try:
        if not is_local:
            names = (*names, STORE_URL_VARIABLE)

        problem = executor.look(names, folder)
    except BaseException:
        executor.close()
        raise

    if problem is not None:
        executor.close()

    return problem or executor


class RayExecutor(Executor):
    """An `Executor` of Ray tasks; a task that does not stop within `GRACE_S` is ended."""

    worker = "Ray worker or node"

    def __init__(self, ray: ModuleType, workers: int | None = None, *, auth_mode: str | None = None) -> None:
        """`auth_mode` is the value of RAY_AUTH_MODE before this program was connected."""
        cpus = max(1, int(ray.cluster_resources().get("CPU", 0)))
        super().__init__(workers or cpus, GRACE_S)
        self._ray = ray
        self._mode = auth_mode
        self._call = ray.remote(_caller())
        self._cpu = max(0.001, min(1.0, round(cpus / self._workers, 3)))
        self._references: dict[str, Any] = {}
        self._asked_s = 0.0

    def look(self, names: tuple[str, ...], folder: str) -> ToolError | None:
        """Why these nodes cannot work on a batch; all of them are checked."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        errors = self._ray.exceptions
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0)]
        requested = []
        for node in nodes:
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], False)
            requested.append(self._submit("look", names, folder, num_cpus=0, scheduling_strategy=strategy))

        answered = 0

        for node, reference in zip(nodes, requested, strict=True):
            try:
                status = self._ray.get(reference, timeout=_LOOKED_WITHIN_S)
            except (errors.NodeDiedError, errors.TaskUnschedulableError):
                continue  # the node is lost, and the head does not know it yet
            except errors.RayError as error:
                return _unavailable(f"The node {node['NodeManagerAddress']} does not answer ({type(error).__name__}).")

            problem = status
            if isinstance(status, str):
                problem = _other_version(status)

            if problem is not None:
                return ToolError.model_validate(problem)

            answered += 1

        if not answered:
            return _unavailable("The Ray cluster has no node with a CPU: start one with `ray start --address=...`.")

        return None

    def close(self) -> None:
        """End what is at work, and leave the cluster; what we have started of it ends."""
        self._cancel_all(force=True)
        self._references.clear()
        with _quiet():
            self._ray.shutdown()

        if self._mode is None:
            os.environ.pop(_AUTH_MODE, None)

    def _submit(self, function: str, *arguments: Any, **options: Any) -> Any:
        """A reference to what this function below gives on a node; Ray tries nothing again."""
        return self._call.options(max_retries=0, **options).remote(version("mendgraph"), function, *arguments)

    def _begin(self, order: WorkOrder) -> Future[Any]:
        reference = self._submit("do", pickle.dumps(order), num_cpus=self._cpu, scheduling_strategy="SPREAD")
        self._references[order.task.id] = reference
        future: Future[Any] = reference.future()

        return future

    def _result(self, order: WorkOrder, future: Future[Any]) -> Worked:
        self._references.pop(order.task.id, None)
        errors = self._ray.exceptions

        try:
            result = future.result()
        except errors.TaskCancelledError:
            return Worked(cancelled(order, self._reason or "by somebody who cancelled it in Ray"))
        except errors.RayTaskError as error:  # of it the type alone: its text has what a program on the node put there
            what = type(getattr(error, "cause", None) or error).__name__
            message = f"The worker met an error that nobody expected ({what}): see Ray's logs of that node."
            problem = ToolError(code=ToolErrorCode.IO_ERROR, message=message)

            return Worked(failed(order, problem, WORKER_FAILED))
        except errors.RayError as error:
            raise WorkerDiedError(f"with {type(error).__name__}") from error

        if isinstance(result, Worked):
            return result

        return Worked(failed(order, _other_version(result), WORKER_FAILED))

    def _ask_to_stop(self, reason: str) -> None:  # noqa: ARG002 - Ray hands none on
        if not self._asked_s or monotonic_s() >= self._asked_s + _AGAIN_S:  # a node repeats it by itself
            self._asked_s = monotonic_s()
            self._cancel_all(force=False)

    def _cancel_all(self, *, force: bool) -> None:
        for reference in self._references.values():
            with suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.cancel(reference, force=force, recursive=False)


def needed(context: AgentContext) -> tuple[str, ...] | ToolError:
    """The variables that this context's models use here, and so on each node: keys, and the endpoint's address.

    Of a provider none is known but the one whose key decides on the model.
    """
    choices = models_in_order(context.model, context.base_url, context.fallback_models)
    if isinstance(choices, str):
        return ()

    names = set()
    for choice in choices:
        endpoint = find_endpoint(choice.model, choice.base_url, os.environ, key_variable=choice.key_variable)
        if not isinstance(endpoint, Endpoint) or endpoint.provider:
            continue
        if endpoint.embedded:
            return invalid("The embedded model is not for a cluster: name a model, and the endpoint that serves it.")

        if endpoint.api_key.get_secret_value() != NO_KEY:
            names.add(endpoint.key_variable)
        if endpoint.base_url and not choice.base_url:
            names.add("OPENAI_BASE_URL")

    if context.model is None and (variable := deciding_variable(context.base_url, os.environ)):
        names.add(variable)

    return tuple(sorted(names))


# --- The cluster


def _connect(address: str) -> ModuleType | ToolError:
    """Ray, connected to the cluster at `address`, or to one that is started on this machine ("local")."""
    with _environment():
        try:
            import ray
            from ray.exceptions import RayError
        except ImportError:
            return invalid(f"Work on a Ray cluster needs {how_to_add('ray')}.")

        if address not in {"local", "auto"}:
            problem = _reachable(address)
            if problem is not None:
                return problem

        arguments: JsonMap = {"address": address}
        if address == "local":
            arguments["include_dashboard"] = False

        try:
            with _quiet():
                ray.init(**arguments, log_to_driver=False, logging_level=logging.CRITICAL, job_config=_job_config())
        except (RayError, RuntimeError, ValueError, OSError) as error:
            return _refused(address, error)

        ray._private.worker._worker_logs_enabled = False  # noqa: SLF001 - it prints the deaths of nodes on our stdout

    module: ModuleType = ray
    return module


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, Ray neither warns nor takes over SIGTERM."""
    in_main = threading.current_thread() is threading.main_thread()
    before = None
    if in_main:
        before = signal.getsignal(signal.SIGTERM)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _environment() -> Iterator[None]:
    """Inside, `_SETTINGS` are set; what Ray sets for itself stays, but where it is the debugger's."""
    before = {name: os.environ.get(name) for name in (*_SETTINGS, "PYTHONBREAKPOINT")}
    os.environ.update(_SETTINGS)

    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
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
    host, _, port = address.rpartition(":")
    if not host or "://" in address or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65_536:
        return invalid(
            f"{one_line(address)!r} is no address of a Ray cluster: write host:port of its head, as in 10.0.0.1:6379,"
            " on a machine that is one of its nodes."
        )

    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACHED_WITHIN_S).close()
    except (OSError, UnicodeError) as error:
        return _refused(address, error)

    return None


def _refused(address: str, error: Exception) -> ToolError:
    if address == "local":
        where = "could be started on this machine"
    else:
        where = f"answers at {one_line(address)}"

    if address == "local":
        remedy = "see the folder /tmp/ray"
    else:
        remedy = "start one with `ray start --head`"

    return _unavailable(f"No Ray cluster {where} ({one_line(f'{error}', 500)}): {remedy}.")


def _other_version(node_version: str) -> ToolError:
    ours = version("mendgraph")
    return _unavailable(
        f"A node of the Ray cluster has another mendgraph than this program ({one_line(node_version)}, not {ours}):"
        " install the same version on all of them."
    )


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

        return getattr(import_module("mendgraph.graph.fleet.batch.on_ray"), name)(*arguments)

    return by_name


# --- What runs on a node, in a process of Ray's, with the node's own environment

STOPPED: Final = "by whoever runs the batch"


def look(names: tuple[str, ...], folder: str) -> JsonMap | None:
    """Why this node cannot work, as the map of a `ToolError`; `names` are variables that it has to have."""
    lacking = [name for name in names if not os.environ.get(name, "").strip()]
    if lacking:
        code = ToolErrorCode.PERMISSION_DENIED
        message = (
            f"The node {socket.gethostname()} has no {', '.join(lacking)}: set it in the environment of `ray start`"
            " there. Secrets are never sent to a node."
        )
    elif folder and not os.path.isdir(folder):
        code = ToolErrorCode.NOT_FOUND
        message = (
            f"The node {socket.gethostname()} does not see the folder {quoted(folder)}: all machines of a cluster work"
            " in the same folders, so put it, and the workspaces, on a disk that they share."
        )
    else:
        return None

    return ToolError(code=code, message=message).model_dump(mode="json")


def do(data: bytes) -> Worked:
    """Work on the pickled order in `data`; Ray's cancel stops it early.

    The work is done in a thread, as Ray's cancel is a `KeyboardInterrupt` in the main one, which may come at any
    moment. A run that another node has begun goes on from the shared store.
    """
    order: WorkOrder = pickle.loads(data)  # noqa: S301 - of the batch itself, over Ray's own pickles
    stop = StopRequest()
    done = SimpleQueue[Worked]()
    threading.Thread(target=lambda: done.put(work(order, stop)), name="task", daemon=True).start()

    while True:
        try:
            with suppress(Empty):
                return done.get(timeout=ASKED_EVERY_S)

            if stop.reason:
                stop.ask(stop.reason)
        except KeyboardInterrupt:
            stop.ask(STOPPED)
