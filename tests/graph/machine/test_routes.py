"""Where a run goes next: the table, the routers, the compiled graph and the README say the same."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings, strategies as st
from langchain_core.messages import HumanMessage

from mendgraph.graph.configuration.context import MAX_CALLS_PER_TURN_LIMIT, AgentContext
from mendgraph.graph.machine import routes
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.routes import NODES, TRANSITIONS, recursion_limit
from mendgraph.graph.machine.state import AgentState
from mendgraph.nodes.call_model.budget import APIUsageStats
from mendgraph.nodes.call_model.ledger import Spending, exhausted_limit
from mendgraph.nodes.records import (
    LoopRecord,
    LoopVerdict,
    OutcomeKind,
    Profile,
    Protocol,
    Reading,
    StopCause,
    StopReason,
    Verdict,
    VerdictKind,
)
from tests.architecture.product import text_of
from tests.doubles.replies import Message, Say
from tests.doubles.scripted_model import ScriptedModel
from tests.runs.scenario import message_of, use

ROUTERS: dict[str, Callable[[AgentState], str]] = {
    "begin_turn": routes.after_begin_turn,
    "call_model": routes.after_call_model,
    "parse": routes.after_parse,
    "heal": routes.after_heal,
    "guard": routes.after_guard,
    "loop_check": routes.after_loop_check,
}

counts = st.integers(0, 12)
usages = st.builds(APIUsageStats, counts, counts, counts, counts)
spendings = st.builds(Spending, usage=usages, steps=counts, seconds=st.floats(0, 12))
causes = st.none() | st.builds(StopCause, reason=st.sampled_from(StopReason), message=st.just("because"))
contexts = st.builds(
    AgentContext,
    max_calls_per_session=st.integers(1, 12),
    max_calls_per_turn=st.integers(1, 12),
    max_output_tokens_per_session=st.integers(1, 12),
    max_steps=st.none() | st.integers(1, 12),
    max_seconds=st.none() | st.floats(1, 12),
)
states: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "stop": causes,
        "reading": st.sampled_from(Reading),
        "verdicts": st.lists(st.builds(Verdict, kind=st.sampled_from(VerdictKind)), max_size=3),
        "loop": st.builds(LoopRecord, verdict=st.sampled_from(LoopVerdict)),
        "spending": spendings,
        "context": contexts,
    }
)


def words(source: str) -> set[str]:
    return {t.label for t in TRANSITIONS if t.source == source}


def after(source: str, state: Any) -> str:
    """Where the run goes on."""
    return routes.path_map(source)[ROUTERS[source](state)]


@pytest.mark.parametrize("source", ROUTERS)
def test_a_router_declares_its_words(source: str) -> None:
    assert set(get_args(get_type_hints(ROUTERS[source])["return"])) == words(source)


@settings(max_examples=50)
@given(state=states)
def test_what_a_node_has_said_decides_where_the_run_goes_on(state: Any) -> None:
    cause, allowed = state["stop"], any(verdict.kind is VerdictKind.ALLOW for verdict in state["verdicts"])
    assert all(ROUTERS[source](state) in words(source) for source in ROUTERS)
    assert (after("begin_turn", state) == "call_model") is (cause is None)
    stopped = "BUDGET_STOP" if cause and cause.reason.is_limit else "SYSTEM_ERROR"
    assert after("call_model", state) == ("parse" if cause is None else stopped)
    ways = {Reading.CALLS: "guard", Reading.MALFORMED: "heal", Reading.ANSWER: "FINISHED"}
    assert after("parse", state) == ways[state["reading"]]
    assert after("guard", state) == ("BUDGET_STOP" if cause else "execute_tools" if allowed else "loop_check")


@settings(max_examples=30)
@given(state=states)
def test_the_verdict_on_progress_decides_after_loop_check(state: Any) -> None:
    broken = (LoopVerdict.PERSISTED, LoopVerdict.BROKEN, LoopVerdict.GAVE_UP)
    ends = dict.fromkeys(broken, "SYSTEM_ERROR") | {LoopVerdict.ANSWERED: "FINISHED"}
    way, verdict = after("loop_check", state), state["loop"].verdict
    assert way == ends.get(verdict, way)
    assert routes.after_loop_check(state) == routes.LOOP_ENDS.get(verdict, routes.after_loop_check(state))
    assert (way in {"call_model", "BUDGET_STOP"}) is (verdict not in ends)


@settings(max_examples=30)
@given(state=states)
def test_healing_is_given_up_repaired_or_tried_again(state: Any) -> None:
    way = after("heal", state)
    assert (way == "SYSTEM_ERROR") is (state["stop"] is not None)
    assert (way == "guard") is (state["stop"] is None and state["reading"] is Reading.CALLS)


@pytest.mark.parametrize("source", ["heal", "loop_check"])
@settings(max_examples=50)
@given(state=states)
def test_no_way_back_to_the_model_passes_the_budget(source: str, state: Any) -> None:
    limits = state["context"].limits()
    spent = exhausted_limit(state["spending"], limits)
    way = after(source, state)
    assert way != ("call_model" if spent else "BUDGET_STOP")


@pytest.mark.parametrize(
    ("more", "way"),
    [
        ({"max_steps": 3}, "call_model"),
        ({"max_steps": 2}, "BUDGET_STOP"),
        ({"max_steps": 2, "max_calls_per_turn": 2}, "BUDGET_STOP"),
        ({"max_calls_per_turn": 2}, "BUDGET_STOP"),
        ({"max_seconds": 5.0}, "BUDGET_STOP"),
    ],
)
@pytest.mark.parametrize("source", ["heal", "loop_check"])
def test_a_limit_that_is_reached_ends_the_cycle(more: Any, way: str, source: str) -> None:
    state: Any = {
        "stop": None,
        "reading": Reading.MALFORMED,
        "loop": LoopRecord(),
        "spending": Spending(usage=APIUsageStats(2, 10, 10, 2), steps=2, seconds=6.0),
        "context": AgentContext(**more),
        "profile": Profile(),
    }
    assert after(source, state) == way


def test_the_table_is_the_compiled_graph() -> None:
    drawn = build_graph().get_graph()
    assert {(edge.source, edge.target) for edge in drawn.edges} == {(t.source, t.target) for t in TRANSITIONS}
    assert set(drawn.nodes) == {"__start__", "__end__", *NODES}
    assert {edge.source for edge in drawn.edges if edge.conditional} == set(ROUTERS)


def test_studio_is_given_the_words_of_each_edge() -> None:
    drawn: Any = build_graph().get_graph().to_json()
    shown = {(edge["source"], edge["target"]): edge.get("data", "").split(", ") for edge in drawn["edges"]}
    for source, target in EDGES:
        assert shown[source, target] == [t.label for t in TRANSITIONS if (t.source, t.target) == (source, target)]


def test_the_table_is_the_picture_in_the_readme() -> None:
    block = re.compile(r"<!-- machine\b[^>]*-->\n+```mermaid\n(.*?)\n```\n+<!-- /machine -->", re.DOTALL)
    found = block.search(text_of("README.md"))
    assert found is not None, "README.md has no Mermaid block between <!-- machine --> and <!-- /machine -->"
    assert found[1] == routes.mermaid()


def reachable(start: str, edges: set[tuple[str, str]]) -> set[str]:
    found, waiting = {start}, [start]
    while waiting:
        at = waiting.pop()
        new = {target for source, target in edges if source == at} - found
        found |= new
        waiting += new
    return found


EDGES = {(t.source, t.target) for t in TRANSITIONS}


def test_every_node_is_reached_and_reaches_an_end() -> None:
    assert reachable("__start__", EDGES) == {"__start__", "__end__", *NODES}
    assert {node for node in NODES if "__end__" not in reachable(node, EDGES)} == set()


def test_every_cycle_calls_the_model() -> None:
    without = {edge for edge in EDGES if "call_model" not in edge}
    assert {node for source, node in without if source in reachable(node, without)} == set()


def test_nothing_runs_but_what_guard_has_judged() -> None:
    assert {source for source, target in EDGES if target == "execute_tools"} == {"guard"}


def line_of_notes(number: int) -> Message:
    return message_of(use(("read_file", {"path": "n.txt", "start_line": number, "limit": 1})), Protocol.TEXT)


def printed(number: int) -> Message:
    return Say(f'{{"name": "read_file", "arguments": {{"path": "n.txt", "start_line": {number}}}}}')


@pytest.mark.parametrize("calls", [1, 7, 12])
@pytest.mark.parametrize("speak", [line_of_notes, printed])
def test_our_counters_stop_a_run_before_langgraph_does(
    speak: Callable[[int], Message], calls: int, tmp_path: Path
) -> None:
    """The longest way for each call: the file that is named read ahead, each reply rescued, each call run."""
    (tmp_path / "n.txt").write_text("x\n" * 20, encoding="utf-8")
    model = ScriptedModel([speak(number) for number in range(1, calls + 1)])
    context = AgentContext(workspace=str(tmp_path), protocol="text", edit_form="blocks", max_calls_per_turn=calls)
    config: Any = {"recursion_limit": recursion_limit(calls)}
    request: Any = {"messages": [HumanMessage("Read n.txt line by line.")]}
    outcome = build_graph(model=model).invoke(request, config, context=context)["outcome"]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.BUDGET_STOP, StopReason.MAX_CALLS_PER_TURN)
    assert len(model.calls) == calls


def test_a_graph_of_its_own_has_the_widest_net() -> None:
    config: Any = build_graph().config
    assert config["recursion_limit"] == recursion_limit(MAX_CALLS_PER_TURN_LIMIT)
