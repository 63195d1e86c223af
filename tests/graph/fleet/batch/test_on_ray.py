"""Orders on a cluster that a test plays, what a node does with one, and the way to a cluster of Ray's own."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch import on_ray, work as working
from mendgraph.graph.fleet.batch.on_ray import RayExecutor, do, look, needed, ray_executor
from mendgraph.graph.fleet.batch.tasks import MOST_TRIES, BatchTask, TaskResult, Worked, WorkOrder
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.execute_tools.store.database import STORE_URL_VARIABLE
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE
from mendgraph.nodes.records import JsonMap, OutcomeKind, ToolError, ToolErrorCode
from tests.architecture.product import ROOT
from tests.crash import batch_play
from tests.doubles.replies import Reply
from tests.doubles.scripted_server import ScriptedServer
from tests.runs.batching import repository, some

pytest.importorskip("ray", reason="Ray is missing: `uv sync --extra ray` installs it")

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
EXCEPTIONS = SimpleNamespace(**{each.__name__: each for each in KINDS})
Answer = Callable[[Any], Any]


class Played:
    """Ray, as far as an executor uses it: what is asked is answered at once, `looks` by the nodes and orders."""

    exceptions = EXCEPTIONS

    def __init__(self, answer: Answer, looks: tuple[Any, ...] = ()) -> None:
        self.answer, self.looks, self.closed = answer, looks, False
        self.submitted: list[tuple[WorkOrder, dict[str, Any]]] = []
        self.cancelled: list[tuple[Any, bool]] = []

    def remote(self, _: object) -> Any:
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self._called(options)))

    def _called(self, options: dict[str, Any]) -> Callable[..., Any]:
        def call(ours: str, name: str, *arguments: Any) -> Any:
            assert (ours, options.pop("max_retries")) == (version("mendgraph"), 0)
            if name == "look":
                return iter(self.looks).__next__ if not self.looks else self._next_look
            order = pickle.loads(arguments[0])  # noqa: S301 - our own
            self.submitted.append((order, options))
            future: Future[Any] = Future()
            found = self.answer(order)
            if isinstance(found, Exception):
                future.set_exception(found)
            elif found is not None:
                future.set_result(found)
            return SimpleNamespace(future=lambda: future)

        return call

    def _next_look(self) -> Any:
        first, *self.looks = self.looks  # type: ignore[assignment]
        return first

    def get(self, reference: Any, *, timeout: float) -> Any:
        assert timeout > 60
        found = reference()
        if isinstance(found, Exception):
            raise found
        return found

    def nodes(self) -> list[dict[str, Any]]:
        known = [
            {"NodeID": f"{number:056x}", "Alive": True, "Resources": {"CPU": 1.0}, "NodeManagerAddress": "10.0.0.1"}
            for number in range(len(self.looks))
        ]
        return [{"Alive": False, "Resources": {"CPU": 1.0}}, *known, {"Alive": True, "Resources": {}}]

    def cancel(self, reference: Any, *, force: bool, recursive: bool) -> None:
        self.cancelled.append((reference, force))
        assert not recursive

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def shutdown(self) -> None:
        self.closed = True


def order(number: int, workspace: Path, context: AgentContext = CONTEXT) -> WorkOrder:
    task = BatchTask(id=f"t{number}", prompt="Do it.", workspace=str(workspace))
    return WorkOrder("b", task, context.model_dump_json(), "/here/t")


def worked(one: WorkOrder) -> Worked:
    return Worked(TaskResult(id=one.task.id, kind=OutcomeKind.FINISHED, reason="answered", tries=one.tries))


def played(cluster: Played, workers: int | None = None) -> RayExecutor:
    return RayExecutor(cluster, workers)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def own_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "data"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("a\n")
    return tmp_path / "project"


def test_tasks_share_the_cpus(project: Path) -> None:
    cluster = Played(worked)
    results = [*played(cluster, 8).run(order(number, project) for number in range(9))]
    assert sorted(each.result.id for each in results) == [f"t{number}" for number in range(9)]
    assert cluster.closed
    assert cluster.submitted[0][1] == {"num_cpus": 0.25, "scheduling_strategy": "SPREAD"}


def test_task_whose_node_dies_is_tried_again_some_times(project: Path) -> None:
    died = Played(lambda one: NodeDiedError() if one.tries < MOST_TRIES else worked(one))
    assert [each.result.tries for each in played(died).run(iter([order(1, project)]))] == [MOST_TRIES]
    lost = Played(lambda _: NodeDiedError("who knows"))
    (result,) = [each.result for each in played(lost).run(iter([order(1, project)]))]
    assert len(lost.submitted) == MOST_TRIES
    assert (result.reason, result.tries) == ("worker_failed", MOST_TRIES)
    assert result.message == (
        "The Ray worker or node that worked on the task died, 3 times in all; the last one with NodeDiedError."
    )


@pytest.mark.parametrize(
    ("answer", "reason", "message"),
    [
        (RayTaskError(), "worker_failed", "an error that nobody expected (ValueError): see Ray's logs"),
        (TaskCancelledError(), "cancelled", "was stopped by somebody who cancelled it in Ray"),
        ("0.0.7", "worker_failed", "has another mendgraph than this program (0.0.7, not "),
    ],
)
def test_what_a_node_says_instead_is_the_result(project: Path, answer: Any, reason: str, message: str) -> None:
    (result,) = [each.result for each in played(Played(lambda _: answer)).run(iter([order(1, project)]))]
    assert (result.reason, message in result.message, "secret" in result.message) == (reason, True, False)


def test_after_a_stop_nothing_is_begun_and_each_order_has_its_result(project: Path) -> None:
    cluster = Played(lambda one: TaskCancelledError() if one.task.id == "t1" else NodeDiedError())
    executor = played(cluster, 3)

    def orders() -> Iterator[WorkOrder]:
        yield order(0, project)
        yield order(1, project)
        executor.cancel("by Ctrl-C")
        executor.cancel("by somebody later")
        yield order(2, project)

    results = [each.result for each in executor.run(orders())]
    assert sorted((each.id, each.reason, each.message) for each in results) == [
        (f"t{number}", "cancelled", "The task was stopped by Ctrl-C.") for number in range(3)
    ]
    assert [force for _, force in cluster.cancelled] == [False, False, False]


def test_batch_that_is_left_ends_what_is_at_work(project: Path) -> None:
    cluster = Played(lambda one: worked(one) if one.task.id == "t0" else None)
    results = played(cluster).run(order(number, project) for number in range(5))
    next(results)
    results.close()
    assert ([force for _, force in cluster.cancelled], cluster.closed) == ([True], True)


# --- What goes to a node, and what does not


def test_no_key_goes_with_the_order(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    cluster = Played(worked)
    assert [*played(cluster, 1).run(iter([order(1, project)]))]
    assert b"sk-of-nobody" not in pickle.dumps(cluster.submitted[0][0])


def test_variables_with_keys_are_those_of_the_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needed(CONTEXT) == ()
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert needed(CONTEXT) == ("OPENAI_API_KEY",)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.example/v1")
    assert needed(CONTEXT) == ("OPENAI_API_KEY",)
    assert needed(AgentContext(model="m")) == ("OPENAI_API_KEY", "OPENAI_BASE_URL")
    assert needed(AgentContext(model="anthropic:m")) == ()
    assert needed(AgentContext.model_construct(**{**dict(CONTEXT), "fallback_models": ("m",)})) == ()
    assert "The embedded model is not for a cluster" in refused(context=AgentContext(model="local")).message


@pytest.mark.parametrize(
    ("variable", "value"), [("MENDGRAPH_MODEL", "anthropic:claude-sonnet-4-6"), ("ANTHROPIC_API_KEY", "k")]
)
def test_variable_that_decides_on_the_model_is_needed_on_each_node(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert needed(AgentContext()) == (variable,)
    assert needed(AgentContext(model="anthropic:m")) == ()


def refused(context: AgentContext = CONTEXT, **options: Any) -> ToolError:
    found = ray_executor(context, **options)
    assert isinstance(found, ToolError)
    return found


@pytest.mark.parametrize("address", ["nonsense", "host:0", "host:65536", ":6379", "host:six", "ray://127.0.0.1:10001"])
def test_what_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    assert "share one store: set MENDGRAPH_STORE_URL" in refused(address=address).message
    monkeypatch.setenv(STORE_URL_VARIABLE, "postgresql://u:word@h/d")
    assert refused(address=address).message.startswith(f"{address!r} is no address of a Ray cluster: write host:port")


def test_nobody_answers_or_ray_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setenv(STORE_URL_VARIABLE, "postgresql://u:word@h/d")
        assert refused().message.startswith(f"No Ray cluster answers at {address} ([Errno 111] Connection refused): ")
    monkeypatch.delenv("RAY_ADDRESS")

    def refuses(**_: Any) -> None:
        raise RuntimeError("no\nroom")

    monkeypatch.setattr(ray, "init", refuses)
    assert refused().message == "No Ray cluster could be started on this machine (no room): see the folder /tmp/ray."
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refused().message == "Work on a Ray cluster needs the extra `ray`: run `uv sync --inexact --extra ray`."


LACKING = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="The node n1 has no A_KEY.")


@pytest.mark.parametrize(
    ("looks", "problem"),
    [
        ((None, None), ""),
        ((None, NodeDiedError()), ""),  # it was lost just now
        ((None, LACKING.model_dump(mode="json")), "The node n1 has no A_KEY."),
        (("0.0.7",), "has another mendgraph than this program (0.0.7, not "),
        ((RayError(),), "The node 10.0.0.1 does not answer (RayError)."),
        ((TaskUnschedulableError(),), "The Ray cluster has no node with a CPU"),
        ((), "The Ray cluster has no node with a CPU"),
    ],
)
def test_all_nodes_are_looked_at_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[Any, ...], problem: str
) -> None:
    cluster = Played(worked, looks)
    monkeypatch.setattr(on_ray, "_connect", lambda _: cluster)
    found = ray_executor(CONTEXT)
    assert isinstance(found, ToolError) == cluster.closed == bool(problem)
    assert not isinstance(found, ToolError) or problem in found.message


def test_look_that_is_stopped_leaves_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Played(worked, (None,))

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "get", stopped)
    monkeypatch.setattr(on_ray, "_connect", lambda _: cluster)
    with pytest.raises(KeyboardInterrupt):
        ray_executor(CONTEXT)
    assert cluster.closed


def test_node_of_another_version_says_so() -> None:
    call = on_ray._caller()
    assert call("0.0.7", "look", (), "") == version("mendgraph")
    assert call(version("mendgraph"), "look", (), "") is None


def test_ray_takes_no_signal_over() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with on_ray._quiet():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGTERM) is before
    thread = threading.Thread(target=lambda: on_ray._quiet().__enter__())
    thread.start()
    thread.join()


PROGRAM = """
import os, signal, sys
before = dict(os.environ), signal.getsignal(signal.SIGTERM)
os.chdir(sys.argv[1])  # who would have imported this one, had it been sent to the workers
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.on_ray import ray_executor
executor = ray_executor(AgentContext(model="m", base_url="http://127.0.0.1:1/v1"))
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
print(sorted(changed), ray.is_initialized())
"""


def test_cluster_that_is_started_here_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit('somebody else')\n")
    folder = Path("/tmp") / f"r-{os.getpid()}-{tmp_path.name[-2:]}"  # sockets have short names
    folder.mkdir()
    said = subprocess.run(
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
    complained = [line for line in said.stderr.splitlines() if offline not in line]
    assert (said.returncode, said.stdout, complained) == (0, "[] False\n", [])


# --- What a node does


def sent(tmp_path: Path, base_url: str) -> bytes:
    """The first task as it is sent."""
    (task,) = some(repository(tmp_path / "repository"), 1)
    context = batch_play.context(base_url).model_dump_json()
    return pickle.dumps(WorkOrder("abcdef12", task, context, str(tmp_path / "work" / "t0")))


def test_node_says_what_it_lacks_and_never_what_is_in_its_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    assert look(("OPENAI_API_KEY",), str(tmp_path)) is None
    said = look(("OPENAI_API_KEY", "NOT_THERE"), "")
    assert said is not None
    assert "has no NOT_THERE: set it in the environment of `ray start` there" in said["message"]
    assert "does not see the folder '/no/such'" in str(look((), "/no/such"))


def test_cancel_of_ray_stops_the_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reasons: list[str] = []
    result = TaskResult(id="t0", kind=OutcomeKind.BUDGET_STOP, reason="cancelled")

    def work(_: WorkOrder, stop: StopRequest) -> Worked:
        with stop.told(lambda: reasons.append(stop.reason)):
            stop.wait(0.3)  # until it is waited for
            os.kill(os.getpid(), signal.SIGINT)
            while len(reasons) < 2:  # a wish that came too early is repeated
                stop.wait(0.01)
        return Worked(result)

    monkeypatch.setattr(on_ray, "work", work)
    assert do(sent(tmp_path, "http://127.0.0.1:1/v1")) == Worked(result)
    assert {*reasons} == {"by whoever runs the batch"}


@pytest.mark.usefixtures("shared_store")
def test_run_of_a_lost_node_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def answer(request: JsonMap) -> Reply:
        if any(message["role"] == "tool" for message in request["messages"]):
            asked.set()
            goes_on.wait(60.0)
        return batch_play.answer(request)

    ended: list[Worked] = []
    with ScriptedServer(then=answer) as server:
        data, stop = sent(tmp_path, server.base_url), StopRequest()
        worker = threading.Thread(target=lambda: ended.append(working.work(pickle.loads(data), stop)))  # noqa: S301 - our own
        worker.start()
        assert asked.wait(60.0)
        stop.ask("by the test")  # which drops the model call at work
        worker.join()
        goes_on.set()
        assert (ended[0].result.reason, len(server.requests)) == ("cancelled", 2)
        monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "of the other node"))
        again = do(data)
    assert (again.result.kind, again.result.resumed, len(server.requests)) == (OutcomeKind.FINISHED, True, 4)
    assert again.result.changed == ("new0.txt", "old0.txt")  # the step that was stopped had ended whole


@pytest.mark.usefixtures("shared_store")
@pytest.mark.parametrize("name", ["get_run", "give_workspace_name"])
def test_store_that_fails_is_a_typed_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    held = ToolError(code=ToolErrorCode.CONFLICT, message="Somebody has it.")
    monkeypatch.setattr(working, name, lambda *_: held)
    result = do(sent(tmp_path, "http://127.0.0.1:1/v1")).result
    assert (result.reason, result.error) == ("store_failed", held)
