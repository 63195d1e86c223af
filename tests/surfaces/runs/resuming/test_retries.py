"""Retries and fallbacks are visits of `call_model`: an interrupted run resumes between them.

The scenarios `endpoint_busy` and `fallback_model` are interrupted after every visit.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import AgentContext, Outcome, Session, ToolError, Waiting, build_graph, fork_run, serializer, steps_of
from mendgraph.graph.machine.routes import recursion_limit
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, ProviderErrorKind, ProviderFailure, RawCall
from tests.doubles.call_model import CallModel
from tests.doubles.model_clock import set_clock
from tests.doubles.scripted_server import Calls, Reply, Say, ScriptedServer, Status
from tests.surfaces.runs.run_plays import Killed, state_of

DOWN = Status(503)
READ = Calls([("read_file", '{"path": "calc.py"}')], usage=(100, 10))
DONE = Say("All is well.", usage=(100, 10))
CONFIG: Any = {"configurable": {"thread_id": "t"}}
REQUEST: Any = {"messages": [HumanMessage("Is all well?")]}

Updates = list[tuple[str, dict[str, Any]]]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-scripted-key")


def context(folder: Path, server: ScriptedServer, **settings: Any) -> AgentContext:
    (folder / "calc.py").write_text("x = 1\n", encoding="utf-8")
    off: dict[str, Any] = {"evidence": False, "read_ahead": False}
    return AgentContext(workspace=str(folder), model="model-1", base_url=server.base_url, **off, **settings)


class Run:
    """A thread of the compiled graph."""

    def __init__(self, context: AgentContext) -> None:
        self.graph = build_graph(InMemorySaver(serde=serializer()))
        self._context = context

    def stream(self, turn_input: Any = REQUEST, until: Callable[[dict[str, Any]], bool] = lambda _: False) -> Updates:
        """The updates of the nodes, up to the first one where the run is to be left."""
        updates: Updates = []
        for part in self.graph.stream(turn_input, CONFIG, context=self._context, durability="sync"):
            updates += part.items()
            if until(updates[-1][1]):
                break
        return updates

    @property
    def outcome(self) -> Outcome:
        outcome: Outcome = self.graph.get_state(CONFIG).values["outcome"]
        return outcome


def has_pending_call(update: dict[str, Any]) -> bool:
    return bool(update.get("pending_call"))


def test_run_killed_while_waiting_waits_again_and_makes_the_same_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise Killed

    set_clock(monkeypatch, sleep=sleep)
    with ScriptedServer([DOWN, DOWN, DOWN]) as server:
        run = Run(context(tmp_path, server))
        with pytest.raises(Killed):
            run.stream()
        run.stream(None)
    assert waits == [0.5, 1.0, 1.0]
    assert len(server.requests) == run.outcome.usage["total_calls"] == 3
    assert run.outcome.diagnostics == ("provider error: server_error (3 tries)",)
    assert run.outcome.usage["seconds_in_current_turn"] == 3 * 1.0 + 0.5 + 1.0


def test_run_interrupted_between_two_models_calls_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch)
    with ScriptedServer([Status(401), Status(404)]) as server:
        run = Run(context(tmp_path, server, fallback_models=("model-2",)))
        updates = run.stream(until=has_pending_call)
        assert (updates[-1][1]["pending_call"].edge, len(server.requests)) == ("next model", 1)
        run.stream(None)
    assert [request["model"] for request in server.requests] == ["model-1", "model-2"]
    assert run.outcome.diagnostics == ("model-1: authentication; model-2: model unavailable",)
    assert run.graph.get_state(CONFIG).values["pending_call"] is None


def test_next_turn_starts_with_a_first_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = set_clock(monkeypatch)
    with ScriptedServer([DOWN, DONE]) as server:
        run = Run(context(tmp_path, server, fallback_models=("model-2",)))
        run.stream(until=has_pending_call)
        updates = run.stream()
    assert [node for node, _ in updates] == ["begin_turn", "call_model", "parse", "FINISHED"]
    assert waits == []


@pytest.mark.parametrize("in_loop", [False, True], ids=["sync", "async"])
def test_stop_ends_a_wait_and_resume_sends_the_request(in_loop: bool, tmp_path: Path) -> None:
    async def astopped() -> None:
        async for event in session.astream("Is all well?"):
            if isinstance(event, Waiting):
                session.stop()

    def stopped() -> None:
        for event in session.stream("Is all well?"):
            if isinstance(event, Waiting):
                session.stop()

    busy = Status(429, headers={"Retry-After": "30"})
    with ScriptedServer([busy, DONE]) as server, Session(context(tmp_path, server)) as session:
        if in_loop:
            asyncio.run(astopped())
        else:
            stopped()
        assert session.result().outcome.reason == "cancelled"
        assert state_of(tmp_path, session.thread_id)["pending_call"] is None
        assert not any(isinstance(event, Waiting) for event in session.resume())
    assert (session.result().outcome.kind, len(server.requests)) == ("FINISHED", 2)


def test_run_is_forked_before_the_first_try_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_clock(monkeypatch)
    script: list[Reply] = [DOWN, READ, DOWN, DOWN, DONE]
    with ScriptedServer(script) as server, Session(context(tmp_path, server)) as session:
        session.work("Is all well?")
    steps = steps_of(session.thread_id, tmp_path)
    assert not isinstance(steps, ToolError)
    assert [(step.number, step.can_fork) for step in steps] == [(0, True), (1, True), (2, False)]
    fork = fork_run(session.thread_id, 1, tmp_path)
    assert not isinstance(fork, ToolError)
    values = state_of(tmp_path, fork.run_id)
    assert (values["pending_call"], values["spending"].usage.total_calls) == (None, 2)


class Unreachable(CallModel):
    """Fails this often before each reply, without sending anything."""

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


def test_tries_that_are_not_sent_stay_within_the_recursion_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch)
    (tmp_path / "calc.py").write_text("x = 1\n", encoding="utf-8")
    calls, retries = 2, 10
    settings: dict[str, Any] = {"protocol": "native", "evidence": False, "read_ahead": False}
    limits = AgentContext(workspace=str(tmp_path), max_calls_per_turn=calls, provider_retries=retries, **settings)
    config: Any = {"recursion_limit": recursion_limit(calls, retries, 0)}
    outcome = build_graph(model=Unreachable(retries)).invoke(REQUEST, config, context=limits)["outcome"]
    assert (outcome.kind, outcome.usage["total_calls"]) == ("BUDGET_STOP", calls)
