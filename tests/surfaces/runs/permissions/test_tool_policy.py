"""Whole runs against the policy of tool calls: rates, timeouts, circuits and alerts. Quotas are a scenario."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph import AgentContext, Alerted, Effect, Ended, Event, Waiting, build_graph, serializer, tool
from mendgraph.nodes.records import ProviderErrorKind, ProviderFailure
from tests.doubles.model_clock import set_clock
from tests.doubles.tool_use import Use, use
from tests.extent import slow
from tests.surfaces.runs.tool_play import (
    DONE,
    FILES,
    PROTOCOLS,
    codes,
    play,
    prompt_text,
    reads,
    results_of,
    scripted_model,
    session,
)
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

BUSY = ProviderFailure(kind=ProviderErrorKind.SERVER_ERROR, message="The endpoint failed.")
LEFT_ALONE = "The endpoint failed too often in a row, so it is not called for 30 s."


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, beside the folder with the runs' own files."""
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    write_files(tmp_path / "root", FILES)
    return tmp_path / "root"


class Clock:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the rates and circuits of every machine that is built from now on."""
    new_clock = Clock()
    for module in ("machine_tools", "models"):
        monkeypatch.setattr(f"mendgraph.graph.machine.{module}.monotonic_s", new_clock)
    return new_clock


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rate_limit_applies_across_turns_until_time_has_passed(root: Path, protocol: Protocol, clock: Clock) -> None:
    model = scripted_model(protocol, reads("a.py", "b.py", "c.py"), DONE, reads("a.py"), DONE, reads("a.py"), DONE)
    with session(root, model, protocol, tool_calls_per_minute={"read_file": 2}) as opened:
        first = list(opened.stream("Do it."))
        assert "read_file may be called 2 times in 60 s: wait 60 s." in prompt_text(model)
        clock.now += 59
        second = list(opened.stream("And again."))
        assert "read_file may be called 2 times in 60 s: wait 1 s." in prompt_text(model)
        clock.now += 1
        third = list(opened.stream("And again."))
    assert [codes(run) for run in (first, second, third)] == [["ok", "ok", "rate_limited"], ["rate_limited"], ["ok"]]


@slow
def test_rate_limits_are_per_thread_and_circuits_per_endpoint(
    root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = scripted_model(
        Protocol.NATIVE, reads("a.py"), DONE, reads("a.py"), DONE, reads("b.py"), DONE, *[BUSY] * 5, DONE
    )
    machine = build_graph(InMemorySaver(serde=serializer()), model=model)
    context = AgentContext(workspace=str(root), tool_calls_per_minute={"read_file": 1})
    allowed = []
    for thread in ("one", "two", "one"):
        config: Any = {"configurable": {"thread_id": thread}}
        machine.invoke({"messages": [HumanMessage("Do it.")]}, config, context=context)
        [result] = machine.get_state(config).values["results"]
        allowed.append(result.result.ok)
    assert allowed == [True, True, False]

    set_clock(monkeypatch)
    calls = []
    for number, name in enumerate(("one", "one", "two")):
        config = {"configurable": {"thread_id": f"circuit {number}"}}
        context = AgentContext(workspace=str(root), model=name, provider_retries=4)
        machine.invoke({"messages": [HumanMessage("Do it.")]}, config, context=context)
        calls.append(len(model.calls) - 6)
    assert (calls, clock.now) == ([5, 5, 6], 1_000.0)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_tool_that_exceeds_its_timeout_is_given_up_at_once(root: Path, kind: str) -> None:
    @tool(effect=Effect.NONE)
    def sleep_here() -> str:
        """Sleep for 30 s."""
        ended.wait(30)
        return "slept"

    @tool(effect=Effect.NONE, name="sleep_here")
    async def asleep_here() -> str:
        """Sleep for 30 s."""
        await asyncio.sleep(30)
        return "slept"

    ended = threading.Event()
    chosen = sleep_here if kind == "sync" else asleep_here
    started = time.monotonic()
    calls = use(("sleep_here", {}), ("read_file", {"path": "a.py"}))
    run = play(root, calls, DONE, tools=(chosen,), tool_timeouts_s={"sleep_here": 0.2}, tool_retries=0)
    took = time.monotonic() - started
    ended.set()
    assert (run.codes, took < 10) == (["timeout", "ok"], True)
    [slept, _] = results_of(run.events)
    assert (200 <= slept.ms < 5_000, slept.attempts) == (True, 1)


# --- Circuits


def test_circuit_opens_for_a_tool_whose_server_is_down_and_then_allows_one_call(root: Path, clock: Clock) -> None:
    requests: list[int] = []

    @tool(effect=Effect.NONE)
    def fail(number: int) -> str:
        """Fail, but for 9."""
        requests.append(number)
        if number != 9:
            raise ConnectionRefusedError("No luck.")
        return "luck"

    def fails(*numbers: int) -> Use:
        return use(*(("fail", {"number": number}) for number in numbers))

    failing = (fails(1, 2), fails(3, 4, 5, 6))  # the first two in parallel, as nothing is known yet
    model = scripted_model(Protocol.NATIVE, *failing, reads("a.py"), DONE, fails(7, 8), DONE, fails(9, 9), DONE)
    with session(root, model, tools=(fail,)) as opened:
        first = list(opened.stream("Do it."))
        assert "fail failed too often and rests for 30 s: continue without it." in prompt_text(model)
        clock.now += 30
        second = list(opened.stream("Once more."))
        clock.now += 30
        third = list(opened.stream("Once more."))
    assert codes(first) == [*["unavailable"] * 6, "ok"]
    assert (codes(second), codes(third)) == (["unavailable", "unavailable"], ["ok", "ok"])
    assert [*sorted(requests[:2]), *requests[2:]] == [1, 2, 3, 4, 5, 7, 9, 9]


@slow
def test_errors_of_callers_and_tools_open_no_circuit(root: Path) -> None:
    @tool(effect=Effect.NETWORK)
    def fail(number: int) -> str:
        """Fail."""
        raise RuntimeError(number)

    calls = use(*(("fail", {"number": number}) for number in range(8)))
    missing = reads(*(f"none{number}.py" for number in range(8)))
    run = play(root, missing, reads("a.py"), calls, DONE, tools=(fail,))
    assert run.codes == [*["not_found"] * 8, "ok", *["io_error"] * 8]

    refused = ProviderFailure(kind=ProviderErrorKind.BAD_REQUEST, message="No such parameter.")
    model = scripted_model(Protocol.NATIVE, *[refused] * 9)
    with session(root, model) as opened:
        for _ in range(9):
            list(opened.stream("Do it."))
    assert len(model.calls) == 9


def test_circuit_opens_for_an_endpoint_that_keeps_failing(
    root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = set_clock(monkeypatch)
    model = scripted_model(Protocol.NATIVE, *[BUSY] * 6, reads("a.py"), DONE)
    with session(root, model, provider_retries=7) as opened:
        first = list(opened.stream("Do it."))
        assert len(model.calls) == 5
        list(opened.stream("Once more."))
        assert len(model.calls) == 5
        clock.now += 30
        list(opened.stream("Once more."))
        assert len(model.calls) == 6
        clock.now += 60
        last = list(opened.stream("Once more."))
    reasons = [event.reason for event in first if isinstance(event, Waiting)]
    failed = ["ScriptedModel failed (The endpoint failed.)."] * 5
    assert reasons == [*failed, LEFT_ALONE]  # a third half minute would be more than is waited
    assert waits[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 30.0]
    assert isinstance(first[-1], Ended)
    assert (first[-1].outcome.reason, LEFT_ALONE in first[-1].outcome.message) == ("provider_failed", True)
    assert codes(last) == ["ok"]


# --- Alerts


def alerts(events: list[Event]) -> list[Alerted]:
    return [event for event in events if isinstance(event, Alerted)]


@slow
def test_rising_error_rate_of_tools_raises_one_alert_each_time(root: Path, tmp_path: Path) -> None:
    names = [f"none{number}.py" for number in range(20)]
    bad, worse, good = reads(*names[:5]), reads(*names[5:8]), reads(*["a.py", "b.py", "c.py"] * 3)
    run = play(root, bad, worse, good, reads(*names[8:13]), DONE)
    message = "5 of the last 5 tool calls failed: look at their errors."
    later = "5 of the last 8 tool calls failed: look at their errors."
    assert alerts(run.events) == [
        Alerted("error_rate", message, 0.625, 0.5),
        Alerted("error_rate", later, 0.625, 0.5),
    ]
    [log] = (tmp_path / "data" / "runs").glob("*/audit.jsonl")
    lines = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    logged = [line["message"] for line in lines if line["event"] == "alert"]
    assert logged == [message, later]


@slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_invalid_replies_raise_one_alert(root: Path, protocol: Protocol) -> None:
    broken = use(("read_file", '{"path": a.py}'))
    run = play(root, *[broken] * 7, reads("a.py"), DONE, protocol=protocol, max_healing_attempts=20)
    message = "5 of the last 5 replies of the model were invalid: another model or protocol may do better."
    assert alerts(run.events) == [Alerted("invalid_replies", message, 0.625, 0.5)]
    assert run.outcome.kind == "FINISHED"


@slow
def test_expensive_model_call_raises_one_alert(root: Path) -> None:
    def costing(tokens: int, name: str) -> Use:
        return use(("read_file", {"path": name}), usage=(0, tokens))

    cheap = [costing(10, f"none{number}.py") for number in range(4)]
    run = play(root, *cheap, costing(100, "a.py"), costing(100, "b.py"), DONE)
    events = [event for event in alerts(run.events) if event.kind == "cost"]
    assert [(event.value > event.threshold, "3 times the median" in event.message) for event in events] == [
        (True, True)
    ]
