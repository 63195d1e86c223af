"""Orders on a simulated cluster, what a node does with one, and how a real cluster of Ray is opened.

The loss of real nodes is tested in `tests/surfaces/batch/test_ray.py`.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch import executors, on_ray
from mendgraph.graph.fleet.batch.on_ray import (
    RayExecutor,
    check_node,
    open_ray_executor,
    required_variables,
    run_pickled_order,
)
from mendgraph.graph.fleet.batch.tasks import MOST_TRIES, TaskOutput, TaskResult, WorkOrder
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import OutcomeKind, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.store.database import STORE_URL_VARIABLE
from tests.architecture.product import ROOT
from tests.extent import slow
from tests.row_tables import rows
from tests.surfaces.batch.ray_nodes import needs_ray
from tests.surfaces.batch.scripted_work import done, order

pytestmark = needs_ray

CONTEXT = AgentContext(model="m", base_url="http://127.0.0.1:1/v1")


class RayError(Exception):
    pass


class NodeDiedError(RayError):
    pass


class TaskUnschedulableError(RayError):
    pass


class RayTaskError(RayError):
    cause = ValueError("a secret")


class TaskCancelledError(RayError):
    pass


KINDS: tuple[type[Exception], ...] = (RayError, NodeDiedError, TaskUnschedulableError, RayTaskError, TaskCancelledError)
Answer = Callable[[WorkOrder], Any]


class FakeRay:
    """The part of Ray that an executor uses; it answers at once, with `looks` for the nodes and the orders."""

    exceptions = SimpleNamespace(**{error_class.__name__: error_class for error_class in KINDS})

    def __init__(self, answer: Answer = done, looks: tuple[Any, ...] = ()) -> None:
        self.answer, self.looks, self.closed = answer, iter(looks), False
        self.node_records = [
            {"NodeID": f"{number:056x}", "Alive": True, "Resources": {"CPU": 1.0}, "NodeManagerAddress": "10.0.0.1"}
            for number in range(len(looks))
        ]
        self.submitted: list[tuple[WorkOrder, dict[str, Any]]] = []
        self.forced: list[bool] = []

    def remote(self, function: Callable[..., Any]) -> Any:
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self._called(function, options)))

    def _called(self, function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            assert options.pop("max_retries") == 0
            if function is check_node:
                assert arguments[0] == version("mendgraph")
                return next(self.looks)
            work_order = pickle.loads(arguments[0])  # noqa: S301 - our own
            self.submitted.append((work_order, options))
            future: Future[Any] = Future()
            answer = self.answer(work_order)
            if isinstance(answer, Exception):
                future.set_exception(answer)
            elif answer is not None:
                future.set_result(answer)
            return SimpleNamespace(future=lambda: future)

        return call

    def get(self, answer: Any, *, timeout: float) -> Any:
        assert timeout > 60
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": False, "Resources": {"CPU": 1.0}}, *self.node_records, {"Alive": True, "Resources": {}}]

    def cancel(self, _: Any, *, force: bool, recursive: bool) -> None:
        self.forced.append(force)
        assert not recursive

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def shutdown(self) -> None:
        self.closed = True


def executor_on(cluster: Any, workers: int | None = None) -> RayExecutor:
    return RayExecutor(cluster, workers)


def result_of(answer: Answer) -> TaskResult:
    [worked] = executor_on(FakeRay(answer)).run(iter([order("t")]))
    return worked.result


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def test_tasks_share_the_cpus_and_no_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    cluster = FakeRay()
    results = [*executor_on(cluster, 8).run(order(f"t{number}") for number in range(9))]
    assert sorted(output.result.id for output in results) == [f"t{number}" for number in range(9)]
    assert cluster.closed
    assert cluster.submitted[0][1] == {"num_cpus": 0.25, "scheduling_strategy": "SPREAD"}
    assert b"sk-of-nobody" not in pickle.dumps(cluster.submitted[0][0])


def test_task_of_a_dead_node_is_tried_three_times() -> None:
    late = result_of(lambda one: NodeDiedError() if one.tries < MOST_TRIES else done(one))
    lost = result_of(lambda _: NodeDiedError("who knows"))
    assert (late.reason, late.tries) == ("answered", MOST_TRIES)
    assert (lost.reason, lost.tries) == ("worker_failed", MOST_TRIES)
    assert lost.message == (
        "The Ray worker or node that worked on the task died, 3 times in all (the last time NodeDiedError)."
    )


@pytest.mark.parametrize(
    ("answer", "reason", "message"),
    [
        (RayTaskError(), "worker_failed", "an unexpected error (ValueError): see Ray's logs"),
        (TaskCancelledError(), "cancelled", "was stopped by somebody who cancelled it in Ray"),
    ],
)
def test_error_of_a_node_is_reported_without_its_text(answer: Any, reason: str, message: str) -> None:
    result = result_of(lambda _: answer)
    assert (result.reason, message in result.message, "secret" in result.message) == (reason, True, False)


def test_after_cancel_no_order_starts_and_each_has_a_result() -> None:
    cluster = FakeRay(lambda one: TaskCancelledError() if one.task.id == "t1" else NodeDiedError())
    executor = executor_on(cluster, 3)

    def orders() -> Iterator[WorkOrder]:
        yield order("t0")
        yield order("t1")
        executor.cancel("by Ctrl-C")
        executor.cancel("by somebody later")
        yield order("t2")

    results = [output.result for output in executor.run(orders())]
    assert sorted((result.id, result.reason, result.message) for result in results) == [
        (f"t{number}", "cancelled", "The task was stopped by Ctrl-C.") for number in range(3)
    ]
    assert cluster.forced == [False, False, False]


def test_closing_the_outputs_ends_active_ray_tasks() -> None:
    cluster = FakeRay(lambda one: done(one) if one.task.id == "t0" else None)
    results = executor_on(cluster).run(order(f"t{number}") for number in range(5))
    next(results)
    results.close()
    assert (cluster.forced, cluster.closed) == ([True], True)


# --- Before a batch begins

KEY, URL = {"OPENAI_API_KEY": "k"}, {"OPENAI_BASE_URL": "https://models.example/v1"}
NEEDED: list[tuple[dict[str, str], AgentContext, tuple[str, ...]]] = [
    ({}, CONTEXT, ()),
    (KEY, CONTEXT, ("OPENAI_API_KEY",)),
    (KEY | URL, CONTEXT, ("OPENAI_API_KEY",)),
    (KEY | URL, AgentContext(model="m"), ("OPENAI_API_KEY", "OPENAI_BASE_URL")),
    (KEY | URL, AgentContext(model="anthropic:m"), ()),
    (KEY, AgentContext.model_construct(**{**dict(CONTEXT), "fallback_models": ("m",)}), ()),
    ({"MENDGRAPH_MODEL": "anthropic:claude-sonnet-4-6"}, AgentContext(), ("MENDGRAPH_MODEL",)),
    ({"ANTHROPIC_API_KEY": "k"}, AgentContext(), ("ANTHROPIC_API_KEY",)),
]


@rows(*NEEDED)
def test_variables_of_the_models_are_required_on_each_node(
    variables: dict[str, str], context: AgentContext, names: tuple[str, ...]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        assert required_variables(context) == names


def refusal_of(context: AgentContext = CONTEXT, **options: Any) -> str:
    error = open_ray_executor(context, **options)
    assert isinstance(error, ToolError)
    return error.message


def test_unreachable_cluster_is_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "The embedded model is not for a cluster" in refusal_of(AgentContext(model="local"))
    assert "share one store: set MENDGRAPH_STORE_URL" in refusal_of(address="host:6379")
    monkeypatch.setenv(STORE_URL_VARIABLE, "postgresql://u:word@h/d")
    for address in ("nonsense", "host:0", "host:65536", ":6379", "host:six", "ray://127.0.0.1:10001"):
        assert refusal_of(address=address).startswith(
            f"{address!r} is not the address of a Ray cluster: write host:port"
        )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert refusal_of().startswith(f"No Ray cluster answers at {address} ([Errno 111] Connection refused): ")


def test_cluster_that_does_not_start_is_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(**_: Any) -> None:
        raise RuntimeError("no\nroom")

    monkeypatch.setattr("ray.init", refuses)
    assert refusal_of() == "No Ray cluster could be started on this machine (no room): see the folder /tmp/ray."
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal_of() == "Work on a Ray cluster needs the extra `ray`: run `uv sync --inexact --extra ray`."


LACKING = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="The node n1 has no A_KEY.")
LOOKS: list[tuple[tuple[Any, ...], str]] = [
    ((None, None), ""),
    ((None, NodeDiedError()), ""),  # it was lost just now
    ((None, LACKING.model_dump(mode="json")), "The node n1 has no A_KEY."),
    ((RayError(),), "The node 10.0.0.1 cannot run this version of mendgraph (RayError): install it."),
    ((TaskUnschedulableError(),), "The Ray cluster has no node with a CPU"),
    ((), "The Ray cluster has no node with a CPU"),
    ((KeyboardInterrupt(),), "stopped"),
]


@pytest.mark.parametrize(("looks", "problem"), LOOKS)
def test_all_nodes_are_checked_before_a_task_starts(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[Any, ...], problem: str
) -> None:
    cluster = FakeRay(looks=looks)
    monkeypatch.setattr(on_ray, "_connect", lambda _: cluster)
    if problem == "stopped":
        with pytest.raises(KeyboardInterrupt):
            open_ray_executor(CONTEXT)
    elif problem:
        assert problem in refusal_of()
    else:
        assert isinstance(open_ray_executor(CONTEXT), RayExecutor)
    assert cluster.closed == bool(problem)


PROGRAM = """
import os, signal, sys
before = dict(os.environ), signal.getsignal(signal.SIGTERM)
os.chdir(sys.argv[1])  # who would have imported this one, had it been sent to the workers
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.on_ray import (
    RayExecutor,
    check_node,
    open_ray_executor,
    required_variables,
    run_pickled_order,
)
executor = open_ray_executor(AgentContext(model="m", base_url="http://127.0.0.1:1/v1"))
import ray
assert sys.argv[1] not in ray.get(ray.remote(num_cpus=0)(lambda: sys.path).remote())
[node] = ray.nodes()
assert max(node["DashboardAgentListenPort"], node["MetricsAgentPort"]) <= 0, node
import httpx  # the one port that a web page can talk to installs what it is told to, and wants a token
agent = f"http://{node['NodeManagerAddress']}:{node['RuntimeEnvAgentPort']}/get_or_create_runtime_env"
asked = httpx.post(agent, content=b"", headers={"origin": "http://evil.test", "content-type": "text/plain"})
assert asked.status_code == 401, asked.text
executor.close()
assert signal.getsignal(signal.SIGTERM) is before[1]
changed = {name for name in {*os.environ, *before[0]} if os.environ.get(name) != before[0].get(name)}
print(sorted(changed - {"RAY_CLIENT_MODE"}), ray.is_initialized())  # Ray's import sets it
"""


@slow
def test_local_cluster_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit('somebody else')\n")
    folder = Path("/tmp") / f"r-{os.getpid()}-{tmp_path.name[-2:]}"  # sockets have short names
    folder.mkdir()
    process = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "here")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "RAY_TMPDIR": str(folder), "A_KEY": "k"},
    )
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    offline = "network_util.cc"  # Ray's own complaint where the machine has no route to others
    complaints = [line for line in process.stderr.splitlines() if offline not in line]
    assert (process.returncode, process.stdout, complaints) == (0, "[] False\n", [])


# --- What a node does


def test_node_reports_missing_variables_without_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    ours = version("mendgraph")
    assert check_node(ours, ("OPENAI_API_KEY",), str(tmp_path)) is None
    problem = str(check_node(ours, ("OPENAI_API_KEY", "NOT_THERE"), ""))
    assert "has no NOT_THERE: set it in the environment of `ray start` there" in problem
    assert "sk-of-nobody" not in problem
    assert "does not see the folder '/no/such'" in str(check_node(ours, (), "/no/such"))
    assert f"another version of mendgraph than this program ({ours}, not 0.0.7)" in str(check_node("0.0.7", (), ""))


@slow
def test_cancel_by_ray_stops_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []
    result = TaskResult(id="t0", kind=OutcomeKind.BUDGET_STOP, reason="cancelled")

    def work(_: WorkOrder, stop: StopRequest, __: object) -> TaskOutput:
        with stop.listening(lambda: reasons.append(stop.reason)):
            stop.wait(0.3)  # until somebody waits for it
            os.kill(os.getpid(), signal.SIGINT)
            while len(reasons) < 2:  # a signal that came too early is repeated
                stop.wait(0.01)
        return TaskOutput(result)

    monkeypatch.setattr(executors, "run_order", work)
    assert run_pickled_order(pickle.dumps(order("t0"))) == TaskOutput(result)
    assert {*reasons} == {"by whoever runs the batch"}
