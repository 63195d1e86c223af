"""The transition table, and the routers that return its labels.

Each router is a pure function of the state. It does not read messages or replies: the node before has written what
happened as an enum, a `StopCause` or a `PendingCall`. The router returns a label of `TRANSITIONS`, which has the next
node. The edges of the compiled graph, LangGraph's drawing and README's picture are made of the table.

Two rules hold for every cycle: each way back to `call_model` checks the limits (`_may_call_again`), or leaves that to
`call_model` where a person may raise them; and `execute_tools` is reached from `guard` alone.
"""

from collections.abc import Hashable, Mapping
from typing import Literal, NamedTuple

from typing_extensions import TypedDict

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.settings import MAX_CALLS_PER_TURN_LIMIT, MOST_RETRIES
from mendgraph.nodes.call_model.endpoint import MOST_FALLBACKS
from mendgraph.nodes.call_model.ledger import Spending, exhausted_limit
from mendgraph.nodes.call_model.pending_call import MOST_ROUNDS, PendingCall
from mendgraph.nodes.records import LoopRecord, LoopVerdict, Profile, Reading, StopCause, Verdict, VerdictKind


class Routed(TypedDict, total=False):
    """The channels that routers read, at each edge; so the history is not one of them."""

    context: AgentContext
    profile: Profile
    spending: Spending
    pending_call: PendingCall | None
    reading: Reading | None
    verdicts: list[Verdict]
    loop: LoopRecord
    stop: StopCause | None


class Transition(NamedTuple):
    """One edge of the machine."""

    source: str
    label: str
    target: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition("__start__", "", "begin_turn"),
    Transition("begin_turn", "accepted", "call_model"),
    Transition("begin_turn", "invalid request", "SYSTEM_ERROR"),
    Transition("call_model", "replied", "parse"),
    Transition("call_model", "retry", "call_model"),
    Transition("call_model", "next model", "call_model"),
    Transition("call_model", "conversation shortened", "call_model"),
    Transition("call_model", "provider failed", "SYSTEM_ERROR"),
    Transition("call_model", "limit reached", "guard"),
    Transition("call_model", "budget exhausted", "BUDGET_STOP"),
    Transition("parse", "calls", "guard"),
    Transition("parse", "only malformed", "heal"),
    Transition("parse", "an answer", "FINISHED"),
    Transition("heal", "ask again", "call_model"),
    Transition("heal", "repaired locally", "guard"),
    Transition("heal", "budget exhausted", "BUDGET_STOP"),
    Transition("heal", "exhausted", "SYSTEM_ERROR"),
    Transition("guard", "calls allowed", "execute_tools"),
    Transition("guard", "all denied", "loop_check"),
    Transition("guard", "limit raised", "call_model"),
    Transition("guard", "stopped by a person", "BUDGET_STOP"),
    Transition("execute_tools", "", "loop_check"),
    Transition("loop_check", "fresh or override", "call_model"),
    Transition("loop_check", "answered", "FINISHED"),
    Transition("loop_check", "budget exhausted", "BUDGET_STOP"),
    Transition("loop_check", "still repeating", "SYSTEM_ERROR"),
    Transition("loop_check", "tries used up", "SYSTEM_ERROR"),
    Transition("loop_check", "workspace failed", "SYSTEM_ERROR"),
    Transition("FINISHED", "", "__end__"),
    Transition("BUDGET_STOP", "", "__end__"),
    Transition("SYSTEM_ERROR", "", "__end__"),
)

LOOP_ENDS: dict[LoopVerdict, Literal["still repeating", "tries used up", "workspace failed"]] = {
    LoopVerdict.PERSISTED: "still repeating",
    LoopVerdict.GAVE_UP: "tries used up",
    LoopVerdict.BROKEN: "workspace failed",
}
"""The verdicts of loop control that end a run as a failure, and their labels."""

NODES: tuple[str, ...] = tuple(dict.fromkeys(t.source for t in TRANSITIONS if t.source != "__start__"))

SUPERSTEPS_PER_REPLY = 5
"""parse, heal, guard, execute_tools, loop_check: a reply that is repaired locally passes them all."""


def recursion_limit(
    max_calls_per_turn: int, provider_retries: int = MOST_RETRIES, fallback_models: int = MOST_FALLBACKS
) -> int:
    """Return LangGraph's limit in supersteps: so large that our limits always stop a run first.

    Before a reply and after an overflow each model is visited for each summary and for each of its tries. One more
    reply is for files read ahead; the other supersteps are begin_turn, a terminal, and one to spare.
    """
    visits = 2 * (1 + fallback_models) * (MOST_ROUNDS + 1 + provider_retries)
    return (SUPERSTEPS_PER_REPLY + visits) * (max_calls_per_turn + 1) + 3


def limit_of_run(context: AgentContext) -> int:
    """Return the limit in supersteps of a run with this context, in which a person may raise the limit on calls."""
    most_calls = context.max_calls_per_turn
    if context.on_limit == "ask":
        most_calls = MAX_CALLS_PER_TURN_LIMIT

    return recursion_limit(most_calls, context.provider_retries, len(context.fallback_models))


def after_begin_turn(state: Routed) -> Literal["accepted", "invalid request"]:
    """End an invalid request before anything is spent."""
    if state.get("stop"):
        return "invalid request"
    return "accepted"


def after_call_model(
    state: Routed,
) -> Literal[
    "replied",
    "retry",
    "next model",
    "conversation shortened",
    "provider failed",
    "limit reached",
    "budget exhausted",
]:
    """Continue with a reply, another visit or a question about a limit, or end on a budget or a failed endpoint."""
    cause = state.get("stop")
    pending = state.get("pending_call")

    if cause is not None:
        if cause.limit and state["context"].on_limit == "ask":
            return "limit reached"
        if cause.reason.is_limit:
            return "budget exhausted"
        return "provider failed"

    if pending is None:
        return "replied"
    if _may_call_again(state):
        return pending.edge

    return "budget exhausted"


def after_parse(state: Routed) -> Literal["calls", "only malformed", "an answer"]:
    """Send calls to guard even if some of the reply is malformed; heal gets replies with nothing to run."""
    reading = state["reading"]
    if reading is Reading.CALLS:
        return "calls"
    if reading is Reading.ANSWER:
        return "an answer"

    return "only malformed"


def after_heal(state: Routed) -> Literal["ask again", "repaired locally", "budget exhausted", "exhausted"]:
    """Run repaired calls, ask again within the budget, or end."""
    if state.get("stop"):
        return "exhausted"
    if state["reading"] is Reading.CALLS:
        return "repaired locally"
    if _may_call_again(state):
        return "ask again"

    return "budget exhausted"


def after_guard(state: Routed) -> Literal["calls allowed", "all denied", "limit raised", "stopped by a person"]:
    """Run the allowed calls, skip the step, call the model within a raised limit, or end as the person wants."""
    if state.get("stop"):
        return "stopped by a person"
    if not state["verdicts"]:  # there were no calls to judge
        return "limit raised"

    allowed = any(verdict.kind is VerdictKind.ALLOW for verdict in state["verdicts"])
    return "calls allowed" if allowed else "all denied"


def after_loop_check(
    state: Routed,
) -> Literal[
    "fresh or override", "answered", "budget exhausted", "still repeating", "tries used up", "workspace failed"
]:
    """Continue while there is progress and budget; a persistent loop, failed tries and a full disk end the run."""
    verdict = state["loop"].verdict
    if verdict in LOOP_ENDS:
        return LOOP_ENDS[verdict]
    if verdict is LoopVerdict.ANSWERED:
        return "answered"
    if _may_call_again(state):
        return "fresh or override"

    return "budget exhausted"


def _may_call_again(state: Routed) -> bool:
    if state["context"].on_limit == "ask":
        return True

    return exhausted_limit(state["spending"], state["context"].limits(state.get("profile"))) is None


class EdgeLabel(str):
    """A label that LangGraph draws together with the others of its arrow; of plain labels it draws the first."""

    __slots__ = ("drawn",)

    drawn: str

    def __str__(self) -> str:
        return self.drawn


def _labels(source: str, target: str) -> list[str]:
    return [edge.label for edge in TRANSITIONS if (edge.source, edge.target) == (source, target)]


def _path_map(source: str) -> dict[Hashable, str]:
    edges: dict[Hashable, str] = {}
    for edge in TRANSITIONS:
        if edge.source == source:
            label = EdgeLabel(edge.label)
            label.drawn = ", ".join(_labels(source, edge.target))
            edges[label] = edge.target

    return edges


PATH_MAPS: Mapping[str, dict[Hashable, str]] = {node: _path_map(node) for node in NODES}
"""LangGraph's `path_map` of each node: the labels of its router, and the next node of each."""


def mermaid() -> str:
    """Return the machine as a Mermaid flowchart for the README: labels with the same nodes share an arrow."""
    shape = {"__start__": "__start__([START])", "__end__": "__end__([END])"}
    lines = ["flowchart TD"]

    for source, target in dict.fromkeys((edge.source, edge.target) for edge in TRANSITIONS):
        label = "<br>".join(_labels(source, target))
        arrow = f" -->|{label}| " if label else " --> "
        lines.append(f"    {shape.get(source, source)}{arrow}{shape.get(target, target)}")

    return "\n".join(lines)
