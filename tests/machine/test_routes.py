"""Where a run goes next: the table, the routers, the compiled graph and the README say the same."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings, strategies as st
from langchain_core.messages import HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine import routes
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.routes import NODES, TRANSITIONS, recursion_limit
from mendgraph.graph.machine.state import AgentState
from mendgraph.nodes.call_model.budget import APIUsageStats
from mendgraph.nodes.call_model.ledger import Spending, exhausted_limit
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.records import (
    LoopRecord,
    LoopVerdict,
    OutcomeKind,
    Reading,
    StopCause,
    StopReason,
    Verdict,
    VerdictKind,
)
from tests.architecture.product import text_of
from tests.doubles.replies import Message, Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.extent import slow
from tests.vocabulary import Protocol

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
        "pending_call": st.none() | st.builds(PendingCall),
        "reading": st.sampled_from(Reading),
        "verdicts": st.lists(st.builds(Verdict, kind=st.sampled_from(VerdictKind)), max_size=3),
        "loop": st.builds(LoopRecord, verdict=st.sampled_from(LoopVerdict)),
        "spending": spendings,
        "context": contexts,
    }
)


def after(source: str, state: Any) -> str:
    """Where the run goes on."""
    return routes.PATH_MAPS[source][ROUTERS[source](state)]


@slow
@pytest.mark.parametrize("source", ["call_model", "heal", "loop_check"])
@settings(max_examples=50)
@given(state=states)
def test_no_transition_back_to_the_model_bypasses_the_budget(source: str, state: Any) -> None:
    if source == "call_model":
        state = {**state, "stop": None}
    limits = state["context"].limits()
    spent = exhausted_limit(state["spending"], limits)
    way = after(source, state)
    assert way != ("call_model" if spent else "BUDGET_STOP")


def test_transition_table_equals_the_compiled_graph() -> None:
    drawn = build_graph().get_graph()
    assert {(edge.source, edge.target) for edge in drawn.edges} == {(t.source, t.target) for t in TRANSITIONS}
    assert set(drawn.nodes) == {"__start__", "__end__", *NODES}
    assert {edge.source for edge in drawn.edges if edge.conditional} == set(ROUTERS)


def test_transition_table_equals_the_picture_in_the_readme() -> None:
    block = re.compile(r"<!-- machine\b[^>]*-->\n+```mermaid\n(.*?)\n```\n+<!-- /machine -->", re.DOTALL)
    match = block.search(text_of("README.md"))
    assert match is not None, "README.md has no Mermaid block between <!-- machine --> and <!-- /machine -->"
    assert match[1] == routes.mermaid()


def line_of_notes(number: int) -> Message:
    return message_of(use(("read_file", {"path": "n.txt", "start_line": number, "limit": 1})), Protocol.TEXT)


def printed_call(number: int) -> Message:
    return Say(f'{{"name": "read_file", "arguments": {{"path": "n.txt", "start_line": {number}}}}}')


def test_result_of_a_model_call_selects_the_next_node() -> None:
    ends = {StopReason.MAX_STEPS: "budget exhausted", StopReason.REFUSED: "provider failed"}
    assert routes.after_call_model(AgentState(stop=None)) == "replied"
    for reason, word in ends.items():
        cause = StopCause(reason=reason, message="because")
        assert routes.after_call_model(AgentState(stop=cause)) == word
    for edge in get_args(PendingCall.model_fields["edge"].annotation):
        context = AgentContext(max_calls_per_turn=1)
        state = AgentState(pending_call=PendingCall(edge=edge), context=context, spending=Spending())
        assert routes.after_call_model(state) == edge
        state["spending"] = Spending(usage=APIUsageStats(1, 0, 0, 1))
        assert routes.after_call_model(state) == "budget exhausted"


@slow
@pytest.mark.parametrize(("speak", "calls"), [(line_of_notes, 1), (line_of_notes, 7), (printed_call, 7)])
def test_own_limits_stop_a_run_before_the_recursion_limit(
    speak: Callable[[int], Message], calls: int, tmp_path: Path
) -> None:
    """The longest way for each call: the file that is named read ahead, each reply rescued, each call run."""
    (tmp_path / "n.txt").write_text("".join(f"{n}\n" for n in range(20)), encoding="utf-8")
    model = ScriptedModel([speak(number) for number in range(1, calls + 1)])
    context = AgentContext(workspace=str(tmp_path), protocol="text", edit_form="blocks", max_calls_per_turn=calls)
    config: Any = {"recursion_limit": recursion_limit(calls)}
    request: Any = {"messages": [HumanMessage("Read n.txt line by line.")]}
    outcome = build_graph(model=model).invoke(request, config, context=context)["outcome"]
    assert (outcome.kind, outcome.reason) == (OutcomeKind.BUDGET_STOP, StopReason.MAX_CALLS_PER_TURN)
    assert len(model.calls) == calls
