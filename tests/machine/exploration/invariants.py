"""The invariants of CONTRIBUTING.md, checked on each edge that a run of the machine takes."""

from itertools import pairwise
from typing import Final

from mendgraph.graph.machine.routes import TRANSITIONS
from mendgraph.nodes.call_model.ledger import exhausted_limit
from mendgraph.nodes.records import LoopVerdict, OutcomeKind, StopReason
from tests.doubles.history import history_problems
from tests.machine.exploration.alphabet import FILES, WRITE
from tests.machine.exploration.explorer import Edge, Ended, Explorer

WAYS: Final = {(transition.source, transition.target) for transition in TRANSITIONS}
TERMINALS: Final = {kind.value for kind in OutcomeKind}
HIDDEN: Final = FILES[".env"].strip().partition("=")[2]


def check_edge(explorer: Explorer, edge: Edge) -> None:
    """Raises AssertionError where an invariant does not hold of what the machine has just done."""
    check_path(edge)
    check_guarded(edge)
    check_limits(explorer)
    check_end(explorer, edge)
    check_patience(explorer, edge)
    wrote = explorer.letter is WRITE and edge.results == ("ok",)
    assert explorer.files_written == ({f"{explorer.number}.txt": f"{explorer.number}\n"} if wrote else {})
    values = explorer.values
    assert history_problems(values["messages"], explorer.protocol) == []
    assert (values.get("outcome") is not None) is isinstance(edge.to, Ended)
    assert HIDDEN not in "".join(message.text for message in values["messages"])
    for name, text in FILES.items():
        assert (explorer.folder / name).read_text() == text, f"{name} was changed"


def check_path(edge: Edge) -> None:
    """Invariant 1: the path uses the table, from one model call to the next or to exactly one terminal."""
    path = edge.path
    assert path[:1] == ("call_model",)
    assert set(pairwise(path)) <= WAYS, f"not in the table: {set(pairwise(path)) - WAYS}"
    ends = [node for node in path if node in TERMINALS]
    if isinstance(edge.to, Ended):
        assert ends == [path[-1]] == [edge.to.kind]
    else:
        assert ends == []
        assert (path[-1], "call_model") in WAYS


def check_guarded(edge: Edge) -> None:
    """Invariant 2: only calls that guard has just allowed ran, and denied ones have guard's own error."""
    before = dict(zip(edge.path[1:], edge.path, strict=False))
    allowed = [verdict.startswith("allow") for verdict in edge.verdicts]
    assert before.get("execute_tools", "guard") == "guard"
    assert ("execute_tools" in edge.path) is any(allowed)
    assert len(edge.results) == len(edge.verdicts)
    assert not [status for status, may in zip(edge.results, allowed, strict=True) if status == "ok" and not may]


def check_end(explorer: Explorer, edge: Edge) -> None:
    """Invariant 1: a run ends when there is a cause, and continues only if a further call is allowed."""
    values, context = explorer.values, explorer.context
    if isinstance(edge.to, Ended):
        assert (values.get("answer") is not None) is (edge.to.kind == OutcomeKind.FINISHED)
        return
    assert (values.get("stop"), values.get("answer")) == (None, None), "there is a cause to end, and it goes on"
    spending, limits = values["spending"], context.limits(values["profile"])
    cause = exhausted_limit(spending, limits)
    assert cause is None, f"it goes on, although {cause}"


def check_patience(explorer: Explorer, edge: Edge) -> None:
    """Malformed and repeated calls are tolerated exactly as often as the context allows."""
    standing, context, loop = explorer.standing, explorer.context, explorer.context.loop()
    most = (context.max_healing_attempts, context.max_schema_repairs)
    borne = loop.max_overrides
    lasting = [repeats - loop.threshold - (obeyed and borne > 0) for _, repeats, obeyed in standing.overrides]
    assert (standing.malformed <= most[0], standing.schema_failures <= most[1]) == (True, True)
    assert (standing.malformed == most[0]) or not ended_with(edge, StopReason.HEALING_EXHAUSTED, StopReason.EMPTY_REPLY)
    assert (standing.schema_failures == most[1]) or not ended_with(edge, StopReason.SCHEMA_REPAIR_EXHAUSTED)
    assert (max(lasting, default=0) >= borne) == ended_with(edge, StopReason.LOOP_PERSISTED)
    if edge.path[-1:] == ("loop_check",) and explorer.values["loop"].verdict is LoopVerdict.OVERRIDE:
        last_text = explorer.values["messages"][-1].text
        assert "loop_override" in last_text or "It is refused until" in last_text, (
            "nobody told the model of the override"
        )


def ended_with(edge: Edge, *reasons: StopReason) -> bool:
    return isinstance(edge.to, Ended) and edge.to.reason in reasons


def check_limits(explorer: Explorer) -> None:
    """Invariants 1 and 4: no more calls, steps or tokens than the context allows."""
    spending, context = explorer.values["spending"], explorer.context
    usage = spending.usage
    used_and_allowed = [
        (usage.total_calls, context.max_calls_per_session),
        (usage.calls_in_current_turn, context.max_calls_per_turn),
        (usage.total_input_tokens, context.max_input_tokens_per_session),
        (usage.total_output_tokens, context.max_output_tokens_per_session),
        (spending.steps, context.max_steps),
    ]
    assert [pair for pair in used_and_allowed if None not in pair and pair[0] > pair[1]] == []
    assert usage.total_calls == explorer.calls, "a call that was not counted"
