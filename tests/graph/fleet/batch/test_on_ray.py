"""Orders on a cluster that a test plays: sources are sent once, who dies is replaced, and a stop is one."""

import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch import on_ray
from mendgraph.graph.fleet.batch.on_ray import RayExecutor, for_nodes, needed, ray_executor
from mendgraph.graph.fleet.batch.orders import MOST_TRIES, TaskResult, Worked, WorkOrder
from mendgraph.graph.fleet.batch.tasks import BatchTask
from mendgraph.nodes.records import OutcomeKind, ToolError, ToolErrorCode

CONTEXT = AgentContext(model="m", base_url="http://127.0.0.1:1/v1")


class RayError(Exception):
    pass


class NodeDiedError(RayError):
    pass


class RayTaskError(RayError):
    cause = ValueError("a secret")


class TaskCancelledError(RayError):
    pass


Answer = Callable[[WorkOrder], Worked | ToolError | Exception]


class Played:
    """A cluster whose tasks end in the order in which they were submitted."""

    def __init__(self, answer: Answer, cpus: float = 2.0) -> None:
        self.answer, self.cpus, self.closed = answer, cpus, False
        self.submitted: list[tuple[WorkOrder, Any, tuple[str, ...], dict[str, Any]]] = []
        self.put: list[bytes] = []
        self.cancelled: list[tuple[int, bool]] = []
        self.most_at_once = 0
        exceptions = SimpleNamespace(
            RayError=RayError, RayTaskError=RayTaskError, TaskCancelledError=TaskCancelledError
        )
        self.ray = SimpleNamespace(put=self._put, wait=self._wait, cancel=self._cancel, exceptions=exceptions)

    def submit(self, function: str, data: bytes, source: Any, needs: tuple[str, ...], **options: Any) -> int:
        assert function == "do"
        self.submitted.append((pickle.loads(data), source, needs, options))  # noqa: S301 - our own
        return len(self.submitted) - 1

    def get(self, reference: int) -> Worked | ToolError:
        found = self.answer(self.submitted[reference][0])
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        self.closed = True

    def _put(self, data: bytes) -> str:
        self.put.append(data)
        return f"source {len(self.put)}"

    def _wait(self, references: list[int], *, timeout: float) -> tuple[list[int], list[int]]:
        assert 0 < timeout <= 1
        self.most_at_once = max(self.most_at_once, len(references))
        return references[:1], references[1:]

    def _cancel(self, reference: int, *, force: bool, recursive: bool) -> None:
        assert not recursive
        self.cancelled.append((reference, force))


def order(number: int, workspace: Path, context: AgentContext = CONTEXT, **changed: Any) -> WorkOrder:
    task = BatchTask(id=f"t{number}", prompt="Do it.", workspace=str(workspace))
    return WorkOrder("b", task, context.model_dump_json(), "/here/t", **changed)


def worked(one: WorkOrder) -> Worked:
    return Worked(TaskResult(id=one.task.id, kind=OutcomeKind.FINISHED, reason="answered", tries=one.tries))


def played(cluster: Played, workers: int | None = None) -> RayExecutor:
    return RayExecutor(cluster, workers)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_model_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.txt").write_text("a\n")
    return tmp_path / "project"


def test_a_source_that_cannot_be_sent_is_its_tasks_result_and_the_next_one_is_tried(project: Path) -> None:
    cluster, full = Played(worked), [RayError("the object store is full")]
    put = cluster.ray.put

    def refuse_once(data: bytes) -> str:
        if full:
            raise full.pop()
        return str(put(data))

    cluster.ray.put = refuse_once
    first, second = played(cluster).run(iter([order(0, project), order(1, project)]))
    assert first.result.error == ToolError(
        code=ToolErrorCode.UNAVAILABLE,
        message=(
            "The source of the task 't0' could not be put into the cluster's object store (RayError): give Ray more"
            " memory or disk, as with `ray start --object-store-memory=...`."
        ),
    )
    assert (second.result.kind, cluster.closed) == (OutcomeKind.FINISHED, True)


def test_a_source_is_sent_once_and_few_orders_are_taken_ahead(project: Path) -> None:
    cluster, taken = Played(worked), itertools.count()
    orders = (order(next(taken), project) for _ in range(5))
    results = played(cluster).run(orders)
    assert next(results).result.id == "t0"
    assert next(taken) == 2
    assert [each.result.id for each in results] == ["t1", "t3", "t4", "t5"]
    assert (cluster.most_at_once, len(cluster.put), cluster.closed) == (2, 1, True)
    assert {source for _, source, _, _ in cluster.submitted} == {"source 1"}
    assert cluster.submitted[0][3] == {"num_cpus": 1.0, "scheduling_strategy": "SPREAD"}


@pytest.mark.parametrize(("workers", "cpu"), [(1, 1.0), (2, 1.0), (8, 0.25), (10_000, 0.001)])
def test_more_workers_than_cpus_share_them(project: Path, workers: int, cpu: float) -> None:
    cluster = Played(worked)
    assert len([*played(cluster, workers).run(order(number, project) for number in range(9))]) == 9
    assert cluster.most_at_once == min(workers, 9)
    assert {options["num_cpus"] for *_, options in cluster.submitted} == {cpu}


def test_sources_that_no_task_needs_any_more_are_let_go(tmp_path: Path) -> None:
    cluster = Played(worked)
    places = [tmp_path / str(number) for number in range(6)]
    for place in places:
        place.mkdir()
        (place / "a.txt").write_text(place.name)
    executor = played(cluster)
    results = executor.run(order(number, place) for number, place in enumerate([*places, places[5], places[0]]))
    assert [each.result.id for each in itertools.islice(results, 7)] == [f"t{number}" for number in range(7)]
    assert len(executor._sources) == 4
    assert [each.result.id for each in results] == ["t7"]
    assert len(cluster.put) == 7


def test_what_cannot_be_packed_is_a_result(tmp_path: Path) -> None:
    cluster = Played(worked)
    (result,) = [each.result for each in played(cluster).run(iter([order(1, tmp_path / "none")]))]
    assert (result.kind, result.reason) == (OutcomeKind.SYSTEM_ERROR, "workspace_failed")
    assert cluster.submitted == []


def test_a_task_whose_node_dies_is_tried_again_some_times(project: Path) -> None:
    died = Played(lambda one: NodeDiedError() if one.tries < MOST_TRIES else worked(one))
    assert [each.result.tries for each in played(died).run(iter([order(1, project)]))] == [MOST_TRIES]
    lost = Played(lambda _: NodeDiedError("who knows"))
    (result,) = [each.result for each in played(lost).run(iter([order(1, project)]))]
    assert len(lost.submitted) == MOST_TRIES
    assert (result.reason, result.tries) == ("worker_failed", MOST_TRIES)
    assert result.message == (
        "The Ray worker or node that worked on the task died, 3 times in all; the last one with NodeDiedError."
    )


def test_what_nobody_expected_is_not_tried_again_and_tells_no_text_of_the_node(project: Path) -> None:
    cluster = Played(lambda _: RayTaskError())
    (result,) = [each.result for each in played(cluster).run(iter([order(1, project)]))]
    assert result.message == ("The worker met an error that nobody expected (ValueError): see Ray's logs of that node.")
    other = ToolError(code=ToolErrorCode.UNAVAILABLE, message="Another version.")
    (result,) = [each.result for each in played(Played(lambda _: other)).run(iter([order(1, project)]))]
    assert (result.error, result.reason) == (other, "worker_failed")


def test_after_a_stop_nothing_is_begun_and_each_order_has_its_result(project: Path) -> None:
    cluster = Played(lambda one: TaskCancelledError() if one.task.id == "t1" else NodeDiedError())
    executor = played(cluster)

    def orders() -> Iterator[WorkOrder]:
        yield order(0, project)
        yield order(1, project)
        executor.cancel("by Ctrl-C")
        executor.cancel("by somebody later")
        yield order(2, project)

    executor._workers = 3
    results = [each.result for each in executor.run(orders())]
    assert [(each.id, each.reason, each.message) for each in results] == [
        (f"t{number}", "cancelled", "The task was stopped by Ctrl-C.") for number in range(3)
    ]
    assert cluster.cancelled == [(0, False), (1, False), (2, False)]


def test_what_was_to_be_tried_again_is_left_when_it_is_stopped(project: Path) -> None:
    executor = played(cluster := Played(lambda _: NodeDiedError()), 1)
    results = executor.run(iter([order(0, project), order(1, project)]))
    monkey = cluster.get

    def get(reference: int) -> Any:
        try:
            return monkey(reference)
        finally:
            cluster.answer = lambda _: TaskCancelledError()
            executor._again.append(order(7, project))
            executor.cancel("by Ctrl-C")

    cluster.get = get  # type: ignore[method-assign]
    assert [(each.result.id, each.result.reason) for each in results] == [("t0", "cancelled"), ("t7", "cancelled")]


def test_a_batch_that_is_left_ends_what_is_at_work(project: Path) -> None:
    cluster = Played(worked)
    results = played(cluster).run(order(number, project) for number in range(5))
    next(results)
    results.close()
    assert (cluster.cancelled, cluster.closed) == ([(1, True)], True)


def test_the_model_goes_with_the_order_and_its_key_does_not(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    key = "sk-of-nobody"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.example/v1")
    sent, needs = for_nodes(order(1, project, AgentContext(model="m")))
    assert (sent.given, needs) == ('{"base_url": "https://models.example/v1"}', ("OPENAI_API_KEY",))
    assert key.encode() not in pickle.dumps(sent)
    own = AgentContext(model="m", base_url="https://other.example/v1")
    for context in (own, AgentContext(model="anthropic:claude-sonnet-4-5")):  # whose package knows its address
        assert for_nodes(order(1, project, context))[0].given == "{}"
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:word@models.example/v1")
    sent, needs = for_nodes(order(1, project, AgentContext(model="m")))
    assert (sent.given, needs) == ("{}", ("OPENAI_API_KEY", "OPENAI_BASE_URL"))


def test_the_embedded_model_is_that_of_the_nodes_as_well(project: Path) -> None:
    sent, needs = for_nodes(order(1, project, AgentContext()))
    assert (AgentContext.model_validate_json(sent.context).model, needs) == ("local", ())


def test_an_endpoint_without_a_key_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert needed(CONTEXT) == ()
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert needed(CONTEXT) == ("OPENAI_API_KEY",)
    broken = AgentContext.model_construct(**{**dict(CONTEXT), "fallback_models": ("m",)})
    assert needed(broken) == ()


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        ("anthropic:claude-sonnet-4-6", ("ANTHROPIC_API_KEY",)),
        ("deepseek:deepseek-chat", ("DEEPSEEK_API_KEY",)),
        ("google_genai:gemini-3-pro", ("GEMINI_API_KEY",)),
        ("langsmith:gpt-5", ("LANGSMITH_API_KEY",)),
        ("mistralai:m", ()),  # whose key is not set here
        ("ollama:qwen3:8b", ()),
        ("perplexity:sonar", ()),  # whose package is not installed here
    ],
)
def test_a_providers_key_is_that_of_its_chat_model(
    monkeypatch: pytest.MonkeyPatch, model: str, keys: tuple[str, ...]
) -> None:
    for name in ("GOOGLE_API_KEY", "LANGSMITH_GATEWAY_API_KEY", "MISTRAL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    named = ("ANTHROPIC", "DEEPSEEK", "GEMINI", "LANGSMITH", "OPENAI", "PERPLEXITY")
    for name in named:
        monkeypatch.setenv(f"{name}_API_KEY", "a-key-of-nobody")
    assert needed(AgentContext(model=model)) == keys
    assert needed(AgentContext(model="m", fallback_models=(model,))) == tuple(sorted({*keys, "OPENAI_API_KEY"}))


def test_an_address_with_a_login_is_needed_where_a_model_is_asked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:word@models.example/v1")
    for model in ("anthropic:claude-sonnet-4-6", "local"):
        assert needed(AgentContext(model=model)) == ()
        assert needed(AgentContext(model=model, fallback_models=("m @ https://other.example/v1",))) == ()
        assert needed(AgentContext(model=model, fallback_models=("m",))) == ("OPENAI_BASE_URL",)
    assert needed(CONTEXT) == ()


def test_what_the_cluster_lacks_is_told_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ToolError(code=ToolErrorCode.UNAVAILABLE, message="No cluster.")
    monkeypatch.setattr(on_ray, "connect", lambda _: gone)
    assert ray_executor(address="10.0.0.1:6379") is gone
    cluster = Played(worked)
    monkeypatch.setattr(on_ray, "connect", lambda _: cluster)
    lacks = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="No key.")
    monkeypatch.setattr(on_ray, "look_at_nodes", lambda _, names: lacks if "OPENAI_API_KEY" in names else None)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert ray_executor(context=CONTEXT) is lacks
    assert cluster.closed
    assert isinstance(ray_executor(), RayExecutor)

    def stopped(_: Any, __: Any) -> None:
        raise KeyboardInterrupt

    cluster.closed = False
    monkeypatch.setattr(on_ray, "look_at_nodes", stopped)
    with pytest.raises(KeyboardInterrupt):
        ray_executor()
    assert cluster.closed
