"""An executor on a Ray cluster: one Ray task for each order, tried again when its worker or node dies.

All nodes see the folders of the batch, as on a shared disk. Retries are ours, not Ray's: a result says how often it was
tried, and its run continues from the store. Ray prints, sets signal handlers, changes the environment and lets workers
import from the current folder; none of this reaches the program that runs a batch, or the nodes.
"""

import logging
import os
import pickle
import signal
import socket
import threading
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from importlib.metadata import version
from types import ModuleType
from typing import Any, Final

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.executors import POLL_S, Executor, TaskThreads, WorkerDiedError
from mendgraph.graph.fleet.batch.tasks import WORKER_FAILED, TaskOutput, WorkOrder, cancelled_result, failed_result
from mendgraph.nodes.call_model.endpoint import NO_KEY, Endpoint, deciding_variable, find_endpoint, models_in_order
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.language.installation import how_to_add
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.store.database import STORE_URL_VARIABLE, uses_postgres

STOP_TIMEOUT_S: Final = 30.0
"""How long tasks may take to stop after `cancel`, before their processes are ended."""

_CANCEL_INTERVAL_S: Final = 5.0
_CONNECT_TIMEOUT_S: Final = 5.0
_CHECK_TIMEOUT_S: Final = 120.0
_AUTH_MODE: Final = "RAY_AUTH_MODE"
_SETTINGS: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run` it would upload the whole folder, keys in files included
}


def open_ray_executor(
    context: AgentContext, folder: str = "", *, workers: int | None = None, address: str | None = None
) -> "RayExecutor | ToolError":
    """Connect to the cluster at `address` or RAY_ADDRESS; without either, start one on this machine.

    Args:
        context: the settings of the tasks. The key of its model has to be in the environment of each node, and
            OPENAI_BASE_URL if it names the endpoint here; this is checked now.
        folder: the folder of the batch, which each node has to see.
        workers: how many tasks run at a time, by default the CPUs of the cluster. More tasks than CPUs share them: most
            of a task's time is the model's.
        address: `host:port` of the cluster's head.

    Returns:
        The executor, whose `run` is called once and disconnects at its end. UNAVAILABLE: the extra or the cluster is
        missing, or a node has another version. PERMISSION_DENIED: a node lacks a variable with a secret. NOT_FOUND: a
        node does not see the folder. INVALID_ARGUMENT: there is no shared store, or the model is the embedded one.
    """
    names = required_variables(context)
    if isinstance(names, ToolError):
        return names

    address = (address or os.environ.get("RAY_ADDRESS", "")).strip() or "local"
    if address != "local":
        if not uses_postgres():
            return invalid(f"The nodes of a cluster share one store: set {STORE_URL_VARIABLE}, here and on each node.")
        names = (*names, STORE_URL_VARIABLE)

    auth_mode = os.environ.get(_AUTH_MODE)
    ray = _connect(address)
    if isinstance(ray, ToolError):
        return ray

    executor = RayExecutor(ray, workers, auth_mode=auth_mode)
    try:
        problem = executor.check_nodes(names, folder)
    except BaseException:
        executor.close()
        raise

    if problem is not None:
        executor.close()

    return problem or executor


class RayExecutor(Executor):
    """An `Executor` of Ray tasks; a task that does not stop within `STOP_TIMEOUT_S` is ended."""

    worker_name = "Ray worker or node"

    def __init__(self, ray: ModuleType, workers: int | None = None, *, auth_mode: str | None = None) -> None:
        """`auth_mode` is the value of RAY_AUTH_MODE before this program connected."""
        cpus = max(1, int(ray.cluster_resources().get("CPU", 0)))
        super().__init__(workers or cpus, STOP_TIMEOUT_S)
        self._ray = ray
        self._auth_mode = auth_mode
        self._cpus_of_task = max(0.001, min(1.0, round(cpus / self._workers, 3)))
        self._references: dict[str, Any] = {}
        self._orders: dict[Future[TaskOutput], WorkOrder] = {}
        self._next_cancel_s = 0.0

    def check_nodes(self, names: tuple[str, ...], folder: str) -> ToolError | None:
        """Return why the nodes cannot work on a batch; all of them are checked."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        errors = self._ray.exceptions
        nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0)]
        check = self._ray.remote(check_node)
        references = []
        for node in nodes:
            strategy = NodeAffinitySchedulingStrategy(node["NodeID"], False)
            options = check.options(max_retries=0, num_cpus=0, scheduling_strategy=strategy)
            references.append(options.remote(version("mendgraph"), names, folder))

        answers = 0
        for node, reference in zip(nodes, references, strict=True):
            try:
                problem = self._ray.get(reference, timeout=_CHECK_TIMEOUT_S)
            except (errors.NodeDiedError, errors.TaskUnschedulableError):
                continue  # the node is lost, and the head does not know it yet
            except errors.RayError as error:
                kind = type(getattr(error, "cause", None) or error).__name__
                address = node["NodeManagerAddress"]
                return _unavailable(f"The node {address} cannot run this version of mendgraph ({kind}): install it.")

            if problem is not None:
                return ToolError.model_validate(problem)

            answers += 1

        if not answers:
            return _unavailable("The Ray cluster has no node with a CPU: start one with `ray start --address=...`.")

        return None

    def close(self) -> None:
        """End active tasks and leave the cluster; one that was started here ends."""
        self._cancel_tasks(force=True)
        self._references.clear()
        with _isolated():
            self._ray.shutdown()

        if self._auth_mode is None:
            os.environ.pop(_AUTH_MODE, None)

    def _start(self, order: WorkOrder) -> None:
        options = {"max_retries": 0, "num_cpus": self._cpus_of_task, "scheduling_strategy": "SPREAD"}
        reference = self._ray.remote(run_pickled_order).options(**options).remote(pickle.dumps(order))
        self._references[order.task.id] = reference
        self._orders[reference.future()] = order

    def _wait(self) -> Iterable[tuple[str, TaskOutput | WorkerDiedError]]:
        for future in wait(self._orders, POLL_S, FIRST_COMPLETED).done:
            order = self._orders.pop(future)
            self._references.pop(order.task.id, None)
            yield order.task.id, self._output(order, future)

    def _output(self, order: WorkOrder, future: Future[TaskOutput]) -> TaskOutput | WorkerDiedError:
        errors = self._ray.exceptions

        try:
            return future.result()
        except errors.TaskCancelledError:
            return TaskOutput(cancelled_result(order, self._stop_reason or "by somebody who cancelled it in Ray"))
        except errors.RayTaskError as error:  # only its type: the text may hold what a program on the node printed
            kind = type(getattr(error, "cause", None) or error).__name__
            message = f"The worker met an unexpected error ({kind}): see Ray's logs of that node."
            problem = ToolError(code=ToolErrorCode.IO_ERROR, message=message)
            return TaskOutput(failed_result(order, problem, WORKER_FAILED))
        except errors.RayError as error:
            return WorkerDiedError(type(error).__name__)

    def _request_stop(self, reason: str) -> None:  # noqa: ARG002 - Ray passes no reason
        if monotonic_s() >= self._next_cancel_s:
            self._next_cancel_s = monotonic_s() + _CANCEL_INTERVAL_S
            self._cancel_tasks(force=False)

    def _cancel_tasks(self, *, force: bool) -> None:
        for reference in self._references.values():
            with suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.cancel(reference, force=force, recursive=False)


def required_variables(context: AgentContext) -> tuple[str, ...] | ToolError:
    """Return the variables that the models need on each node: keys, and the endpoint's address.

    Other providers than OpenAI's have none, except the one whose key decides on the model.
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
    """Return Ray, connected to the cluster at `address`, or to a new one on this machine ("local")."""
    with _isolated():
        try:
            import ray
            from ray.exceptions import RayError
        except ImportError:
            return invalid(f"Work on a Ray cluster needs {how_to_add('ray')}.")

        if address not in {"local", "auto"}:
            problem = _check_address(address)
            if problem is not None:
                return problem

        arguments: JsonMap = {"address": address, "job_config": _job_config()}
        if address == "local":
            arguments["include_dashboard"] = False

        try:
            ray.init(**arguments, log_to_driver=False, logging_level=logging.CRITICAL)
        except (RayError, RuntimeError, ValueError, OSError) as error:
            return _no_cluster(address, error)

        ray._private.worker._worker_logs_enabled = False  # noqa: SLF001 - it prints the deaths of nodes on our stdout

    module: ModuleType = ray
    return module


@contextmanager
def _isolated() -> Iterator[None]:
    """Inside, Ray prints no warnings, and `_SETTINGS` are set; it replaces neither SIGTERM's handler nor the debugger.

    Other variables that Ray sets stay.
    """
    handler = signal.getsignal(signal.SIGTERM)
    before = {name: os.environ.get(name) for name in (*_SETTINGS, "PYTHONBREAKPOINT")}
    os.environ.update(_SETTINGS)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _job_config() -> Any:
    """A job whose workers import what their node has installed, and nothing from the current folder."""
    from ray.job_config import JobConfig

    class InstalledCode(JobConfig):
        def _serialize(self) -> Any:
            self._py_driver_sys_path = []
            return super()._serialize()

    return InstalledCode()


def _check_address(address: str) -> ToolError | None:
    """Return why nobody answers there: Ray itself tries for more than three minutes, and prints."""
    host, _, port = address.rpartition(":")
    if not host or "://" in address or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65_536:
        return invalid(
            f"{one_line(address)!r} is not the address of a Ray cluster: write host:port of its head, such as"
            " 10.0.0.1:6379, on a machine that is one of its nodes."
        )

    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, UnicodeError) as error:
        return _no_cluster(address, error)

    return None


def _no_cluster(address: str, error: Exception) -> ToolError:
    reason = one_line(f"{error}", 500)
    if address == "local":
        return _unavailable(f"No Ray cluster could be started on this machine ({reason}): see the folder /tmp/ray.")

    return _unavailable(f"No Ray cluster answers at {one_line(address)} ({reason}): start one with `ray start --head`.")


def _unavailable(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


# --- What runs on a node, in a process of Ray's, with the node's own environment


def check_node(required_version: str, names: tuple[str, ...], folder: str) -> JsonMap | None:
    """Return why this node cannot work, as the map of a `ToolError`; `names` are variables that have to be set."""
    node = f"The node {socket.gethostname()}"
    missing = [name for name in names if not os.environ.get(name, "").strip()]

    if version("mendgraph") != required_version:
        code = ToolErrorCode.UNAVAILABLE
        message = (
            f"{node} has another version of mendgraph than this program ({version('mendgraph')}, not"
            f" {required_version}): install the same version on all of them."
        )
    elif missing:
        code = ToolErrorCode.PERMISSION_DENIED
        message = (
            f"{node} has no {', '.join(missing)}: set it in the environment of `ray start` there. Secrets are never"
            " sent to a node."
        )
    elif folder and not os.path.isdir(folder):
        code = ToolErrorCode.NOT_FOUND
        message = (
            f"{node} does not see the folder {quoted(folder)}: all machines of a cluster work in the same folders, so"
            " put it, and the workspaces, on a disk that they share."
        )
    else:
        return None

    return ToolError(code=code, message=message).model_dump(mode="json")


def run_pickled_order(data: bytes) -> TaskOutput:
    """Run the pickled order; Ray's cancel stops it early.

    It runs in a thread, because Ray's cancel is a KeyboardInterrupt in the main thread at any moment.
    """
    order: WorkOrder = pickle.loads(data)  # noqa: S301 - from the batch itself, within Ray's own pickles
    threads = TaskThreads()
    threads.start(order)

    while True:
        try:
            for output in threads.wait():
                return output

            if threads.stop.reason:
                threads.stop.ask(threads.stop.reason)
        except KeyboardInterrupt:
            threads.stop.ask("by whoever runs the batch")
