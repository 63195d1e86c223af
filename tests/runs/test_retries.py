"""Retries and fallbacks are visits of `call_model`: each is an update, and a run that is cut off goes on in between."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import AgentContext, Session, ToolError, Waiting, build_graph, fork_run, serializer, steps_of
from mendgraph.graph.machine.routes import recursion_limit
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import (
    JsonMap,
    ModelReply,
    Outcome,
    OutcomeKind,
    Protocol,
    ProviderErrorKind,
    ProviderFailure,
    RawCall,
    StopReason,
)
from tests.doubles.call_model import CallModel
from tests.doubles.model_clock import set_clock
from tests.doubles.scripted_server import Calls, Reply, Say, ScriptedServer, Status
from tests.graph.runs.run_plays import Killed, state_of
from tests.runs.test_providers import timeless

DOWN = Status(503)
READ = Calls([("read_file", '{"path": "calc.py"}')], usage=(100, 10))
DONE = Say("All is well.", usage=(100, 10))
CONFIG: Any = {"configurable": {"thread_id": "t"}}
REQUEST: Any = {"messages": [HumanMessage("Is all well?")]}
WAYS = pytest.mark.parametrize("in_loop", [False, True], ids=["sync", "async"])
PROTOCOLS = pytest.mark.parametrize("protocol", Protocol)

Updates = list[tuple[str, JsonMap]]


class Run:
    """A thread of the compiled graph, against an endpoint with this script."""

    def __init__(self, folder: Path, script: list[Reply], *, in_loop: bool, **settings: Any) -> None:
        (folder / "calc.py").write_text("x = 1\n", encoding="utf-8")
        self.server = ScriptedServer(script)
        self.graph = build_graph(InMemorySaver(serde=serializer()))
        self._settings = {
            "workspace": str(folder),
            "model": "model-1",
            "evidence": False,
            "read_ahead": False,
            **settings,
        }
        self._in_loop = in_loop

    def __enter__(self) -> Self:
        self.context = AgentContext(base_url=self.server.__enter__().base_url, **self._settings)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__(None, None, None)

    def stream(self, given: Any = REQUEST, until: Callable[[JsonMap], bool] = lambda _: False) -> Updates:
        """The updates of the nodes, up to the first one where the run is to be left."""
        return asyncio.run(self._astream(given, until)) if self._in_loop else self._stream(given, until)

    def _stream(self, given: Any, until: Callable[[JsonMap], bool]) -> Updates:
        updates: Updates = []
        for part in self.graph.stream(given, CONFIG, context=self.context, durability="sync"):
            updates += part.items()
            if until(updates[-1][1]):
                break
        return updates

    async def _astream(self, given: Any, until: Callable[[JsonMap], bool]) -> Updates:
        updates: Updates = []
        async for part in self.graph.astream(given, CONFIG, context=self.context, durability="sync"):
            updates += part.items()
            if until(updates[-1][1]):
                break
        return updates

    @property
    def outcome(self) -> Outcome:
        outcome: Outcome = self.graph.get_state(CONFIG).values["outcome"]
        return outcome

    @property
    def models(self) -> list[str]:
        """The models that were asked, in order."""
        return [request["model"] for request in self.server.requests]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-scripted-key")


@WAYS
@PROTOCOLS
def test_provider_that_fails_twice_shows_three_visits_and_one_step(
    protocol: Protocol, in_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = set_clock(monkeypatch)
    with Run(tmp_path, [DOWN, DOWN, DONE], in_loop=in_loop, protocol=protocol.value) as run:
        updates = run.stream()
    assert [node for node, _ in updates] == ["begin_turn", *["call_model"] * 3, "parse", "FINISHED"]
    assert [update["step"] for _, update in updates if "step" in update] == [1]
    assert (waits, run.outcome.usage["total_calls"]) == ([0.5, 1.0], 3)


@WAYS
def test_run_that_is_killed_in_a_wait_waits_again_and_makes_the_same_try(
    in_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise Killed

    set_clock(monkeypatch, sleep=sleep)
    with Run(tmp_path, [DOWN, DOWN, DOWN], in_loop=in_loop) as run:
        with pytest.raises(Killed):
            run.stream()
        run.stream(None)
    assert waits == [0.5, 1.0, 1.0]
    assert len(run.models) == run.outcome.usage["total_calls"] == 3
    assert run.outcome.diagnostics == ("provider error: server_error (3 tries)",)
    assert run.outcome.usage["seconds_in_current_turn"] == 3 * 1.0 + 0.5 + 1.0


@WAYS
@PROTOCOLS
def test_run_that_is_left_after_every_visit_ends_as_one_that_is_not(
    protocol: Protocol, in_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: list[Reply] = [DOWN, Status(401), DOWN, READ, DOWN, Status(401), DONE]
    more: JsonMap = {"protocol": protocol.value, "fallback_models": ("model-2",)}
    models = ["model-1", "model-1", "model-2", "model-2", "model-1", "model-1", "model-2"]
    if protocol is Protocol.TEXT:
        script[3] = Say('tool: read_file({"path": "calc.py"})', usage=(100, 10))
    ends = []
    for until in (lambda _: False, lambda _: True):
        waits = set_clock(monkeypatch)
        with Run(tmp_path, [*script], in_loop=in_loop, **more) as run:
            updates = run.stream(REQUEST, until)
            while run.graph.get_state(CONFIG).next:
                updates += run.stream(None, until)
        assert run.models == models
        ends.append((timeless(run.outcome), waits, [node for node, _ in updates]))
    assert ends[0] == ends[1]
    assert ends[0][0].kind is OutcomeKind.FINISHED


@WAYS
def test_run_that_is_left_between_two_models_asks_the_next_one(
    in_loop: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch)
    with Run(tmp_path, [Status(401), Status(404)], in_loop=in_loop, fallback_models=("model-2",)) as run:
        updates = run.stream(until=lambda update: bool(update.get("pending_call")))
        assert (updates[-1][1]["pending_call"].edge, run.models) == ("next model", ["model-1"])
        run.stream(None)
    assert run.models == ["model-1", "model-2"]
    assert run.outcome.diagnostics == ("model-1: authentication; model-2: model unavailable",)
    assert run.graph.get_state(CONFIG).values["pending_call"] is None


@WAYS
def test_stop_ends_a_wait_and_resume_makes_the_call_as_if_nothing_had_been(in_loop: bool, tmp_path: Path) -> None:
    busy = Status(429, headers={"Retry-After": "30"})
    with Run(tmp_path, [busy, DONE], in_loop=in_loop) as run, Session(run.context) as session:
        stopped = asyncio.run(_astopped(session)) if in_loop else _stopped(session)
        assert (stopped.kind, stopped.reason) == (OutcomeKind.BUDGET_STOP, StopReason.CANCELLED)
        assert state_of(tmp_path, session.thread_id)["pending_call"] is None
        assert not any(isinstance(event, Waiting) for event in session.resume())
    assert (session.result().outcome.kind, len(run.models)) == (OutcomeKind.FINISHED, 2)


def _stopped(session: Session) -> Outcome:
    for event in session.stream("Is all well?"):
        if isinstance(event, Waiting):
            session.stop()
    return session.result().outcome


async def _astopped(session: Session) -> Outcome:
    async for event in session.astream("Is all well?"):
        if isinstance(event, Waiting):
            session.stop()
    return session.result().outcome


def test_next_turn_begins_with_a_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = set_clock(monkeypatch)
    with Run(tmp_path, [DOWN, DONE], in_loop=False, fallback_models=("model-2",)) as run:
        run.stream(until=lambda update: bool(update.get("pending_call")))
        updates = run.stream()
    assert [node for node, _ in updates] == ["begin_turn", "call_model", "parse", "FINISHED"]
    assert waits == []


def test_run_is_forked_before_the_first_try_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch)
    with Run(tmp_path, [DOWN, READ, DOWN, DOWN, DONE], in_loop=False) as run, Session(run.context) as session:
        session.work("Is all well?")
    steps = steps_of(session.thread_id, tmp_path)
    assert not isinstance(steps, ToolError)
    assert [(step.number, step.can_fork) for step in steps] == [(0, True), (1, True), (2, False)]
    fork = fork_run(session.thread_id, 1, tmp_path)
    assert not isinstance(fork, ToolError)
    values = state_of(tmp_path, fork.run_id)
    assert (values["pending_call"], values["spending"].usage.total_calls) == (None, 2)


class Unreachable(CallModel):
    """Fails so often before each reply, without that anything is sent."""

    def __init__(self, failures: int) -> None:
        self._results = iter(self._script(failures))

    @staticmethod
    def _script(failures: int) -> Iterator[ModelReply | ProviderFailure]:
        unsent = ProviderFailure(
            kind=ProviderErrorKind.CONNECTION, message="The circuit is open.", retry_after_s=0.0, sent=False
        )
        for number in range(1, 4):
            yield from [unsent] * failures
            call = RawCall(call_id="c", tool="read_file", arguments=f'{{"path": "calc.py", "limit": {number}}}')
            yield ModelReply(calls=(call,), input_tokens=100, output_tokens=10)

    def complete(self, _: Call, __: Callable[[str], None]) -> ModelReply | ProviderFailure:
        return next(self._results)


def test_tries_that_are_not_sent_are_within_the_recursion_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch)
    (tmp_path / "calc.py").write_text("x = 1\n", encoding="utf-8")
    calls, retries = 2, 10
    given: JsonMap = {"protocol": "native", "evidence": False, "read_ahead": False}
    context = AgentContext(workspace=str(tmp_path), max_calls_per_turn=calls, provider_retries=retries, **given)
    config: Any = {"recursion_limit": recursion_limit(calls, retries, 0)}
    outcome = build_graph(model=Unreachable(retries)).invoke(REQUEST, config, context=context)["outcome"]
    assert (outcome.kind, outcome.usage["total_calls"]) == (OutcomeKind.BUDGET_STOP, calls)
