"""What has to hold of each edge of the machine, whatever the model has said. Source: DESIGN section 2."""

from itertools import pairwise
from typing import Final

from graph.routes import TRANSITIONS
from nodes.call_model.ledger import exhausted_limit
from nodes.call_model.wrap_up import may_wrap_up
from nodes.records import OutcomeKind
from tests.machine.alphabet import FILES
from tests.machine.explorer import Edge, Ended, Explorer
from tests.runs.history import history_problems

WAYS: Final = {(transition.source, transition.target) for transition in TRANSITIONS}
TERMINALS: Final = {kind.value for kind in OutcomeKind}
HIDDEN: Final = FILES[".env"].strip().partition("=")[2]


def check_edge(explorer: Explorer, edge: Edge) -> None:
    """Raises AssertionError where an invariant does not hold of what the machine has just done."""
    check_path(edge)
    check_guarded(edge)
    check_limits(explorer)
    check_end(explorer, edge)
    values = explorer.values
    assert history_problems(values["messages"], explorer.protocol) == []
    assert (values.get("outcome") is not None) is isinstance(edge.to, Ended)
    assert HIDDEN not in "".join(message.text for message in values["messages"])
    for name, text in FILES.items():
        assert (explorer.folder / name).read_text() == text, f"{name} was changed"


def check_path(edge: Edge) -> None:
    """The first invariant: a way of the table from the model to a next call of it, or to exactly one terminal."""
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
    """The second one: nothing ran but what guard had just allowed, and what it denied has guard's own error."""
    before = dict(zip(edge.path[1:], edge.path, strict=False))
    allowed = [verdict.startswith("allow") for verdict in edge.verdicts]
    assert before.get("execute_tools", "guard") == "guard"
    assert ("execute_tools" in edge.path) is any(allowed)
    assert len(edge.results) == len(edge.verdicts)
    assert not [each for each, may in zip(edge.results, allowed, strict=True) if each == "ok" and not may]


def check_end(explorer: Explorer, edge: Edge) -> None:
    """The first one again: a run ends when there is a cause, and goes on only where a further call is allowed."""
    values, context = explorer.values, explorer.context
    if isinstance(edge.to, Ended):
        assert (values.get("answer") is not None) is (edge.to.kind == OutcomeKind.FINISHED)
        return
    assert (values.get("stop"), values.get("answer")) == (None, None), "there is a cause to end, and it goes on"
    spending, limits = values["spending"], context.limits(values["profile"])
    cause = exhausted_limit(spending, limits)
    assert cause is None or may_wrap_up(spending, limits, cause), f"it goes on, although {cause}"


def check_limits(explorer: Explorer) -> None:
    """The first and the fourth: no more calls, steps or tokens than the context allows."""
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
