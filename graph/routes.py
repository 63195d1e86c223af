"""The transition table and the routers that read it: nothing else decides where a run goes.

Each router is a pure function of the state. It never looks into messages or replies: a node has already said, in a
closed enum or a `StopCause`, what happened, and the router turns that word into the next node's name. Its return type
lists the targets, which is what LangGraph draws and checks; `TRANSITIONS` lists them once more with their labels, for
the README's picture and for the test that all three agree.

Two rules hold for every cycle. The way back to `call_model` always passes `_call_again`, which asks the ledger first;
and `execute_tools` is reached from `guard` alone.
"""

from typing import Literal, NamedTuple

from typing_extensions import TypedDict

from graph.context import AgentContext
from nodes.call_model.ledger import Spending, exhausted_limit
from nodes.call_model.wrap_up import may_wrap_up
from nodes.records import LoopRecord, LoopVerdict, Profile, Reading, StopCause, StopReason, Verdict, VerdictKind


class Routed(TypedDict, total=False):
    """What the routers look at. They are read anew at each edge, so the history is not among them."""

    context: AgentContext
    profile: Profile
    spending: Spending
    reading: Reading | None
    verdicts: list[Verdict]
    loop: LoopRecord
    stop: StopCause | None


class Transition(NamedTuple):
    """One edge of the machine: from where, on what word, to where."""

    source: str
    label: str
    target: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition("__start__", "", "begin_turn"),
    Transition("begin_turn", "accepted", "call_model"),
    Transition("begin_turn", "invalid request", "SYSTEM_ERROR"),
    Transition("call_model", "replied", "parse"),
    Transition("call_model", "provider failed", "SYSTEM_ERROR"),
    Transition("call_model", "budget exhausted", "BUDGET_STOP"),
    Transition("parse", "calls", "guard"),
    Transition("parse", "only malformed", "heal"),
    Transition("parse", "an answer", "FINISHED"),
    Transition("heal", "try again", "call_model"),
    Transition("heal", "repaired as it is", "guard"),
    Transition("heal", "budget exhausted", "BUDGET_STOP"),
    Transition("heal", "exhausted", "SYSTEM_ERROR"),
    Transition("guard", "some call may run", "execute_tools"),
    Transition("guard", "all denied", "loop_check"),
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

NODES: tuple[str, ...] = tuple(dict.fromkeys(t.source for t in TRANSITIONS if t.source != "__start__"))

SUPERSTEPS_PER_CALL = 6
"""call_model, parse, heal, guard, execute_tools, loop_check: a reply that is repaired as it is passes them all."""


def recursion_limit(max_calls_per_turn: int) -> int:
    """LangGraph's own limit in supersteps: wide enough that our counters always stop a run first.

    One call more for files read ahead, then begin_turn, a terminal, and one to spare.
    """
    return SUPERSTEPS_PER_CALL * (max_calls_per_turn + 1) + 3


BUDGET_REASONS = frozenset(
    {
        StopReason.MAX_CALLS_PER_SESSION,
        StopReason.MAX_CALLS_PER_TURN,
        StopReason.MAX_INPUT_TOKENS,
        StopReason.MAX_OUTPUT_TOKENS,
        StopReason.MAX_STEPS,
        StopReason.WALL_CLOCK,
        StopReason.MAX_COST,
        StopReason.DAY_LIMIT,
        StopReason.ACCOUNT_LIMIT,
        StopReason.CANCELLED,
    }
)


def after_begin_turn(state: Routed) -> Literal["call_model", "SYSTEM_ERROR"]:
    """A request that cannot be worked on ends here, before anything is spent."""
    return "SYSTEM_ERROR" if state.get("stop") else "call_model"


def after_call_model(state: Routed) -> Literal["parse", "BUDGET_STOP", "SYSTEM_ERROR"]:
    """A reply, a budget that the call did not fit into, or an endpoint that failed for good."""
    cause = state.get("stop")
    if cause is None:
        return "parse"
    return "BUDGET_STOP" if cause.reason in BUDGET_REASONS else "SYSTEM_ERROR"


def after_parse(state: Routed) -> Literal["guard", "heal", "FINISHED"]:
    """Calls go to guard even when some of the reply is malformed; heal is for replies with nothing to run."""
    reading = state["reading"]
    if reading is Reading.CALLS:
        return "guard"
    return "FINISHED" if reading is Reading.ANSWER else "heal"


def after_heal(state: Routed) -> Literal["call_model", "guard", "BUDGET_STOP", "SYSTEM_ERROR"]:
    """Repaired without a call, asked again within the budget, or given up."""
    if state.get("stop"):
        return "SYSTEM_ERROR"
    return "guard" if state["reading"] is Reading.CALLS else _call_again(state)


def after_guard(state: Routed) -> Literal["execute_tools", "loop_check", "BUDGET_STOP"]:
    """Something may run, nothing may, or the person who was asked wants the run to end."""
    if state.get("stop"):
        return "BUDGET_STOP"
    allowed = any(verdict.kind is VerdictKind.ALLOW for verdict in state["verdicts"])
    return "execute_tools" if allowed else "loop_check"


def after_loop_check(state: Routed) -> Literal["call_model", "FINISHED", "BUDGET_STOP", "SYSTEM_ERROR"]:
    """Go on while there is progress and budget; a loop after its override, used-up tries and a full disk end it."""
    verdict = state["loop"].verdict
    if verdict in {LoopVerdict.PERSISTED, LoopVerdict.BROKEN, LoopVerdict.GAVE_UP}:
        return "SYSTEM_ERROR"
    return "FINISHED" if verdict is LoopVerdict.ANSWERED else _call_again(state)


def _call_again(state: Routed) -> Literal["call_model", "BUDGET_STOP"]:
    """Within the limits; of a limit on steps the call that wraps up may still be made, and then the run ends there."""
    spending, limits = state["spending"], state["context"].limits(state.get("profile"))
    cause = exhausted_limit(spending, limits)
    return "call_model" if cause is None or may_wrap_up(spending, limits, cause) else "BUDGET_STOP"


def mermaid() -> str:
    """The machine as a Mermaid flowchart, for the README: words that lead the same way share an arrow."""
    shape = {"__start__": "__start__([START])", "__end__": "__end__([END])"}
    lines = ["flowchart TD"]
    for source, target in dict.fromkeys((each.source, each.target) for each in TRANSITIONS):
        label = "<br>".join(each.label for each in TRANSITIONS if (each.source, each.target) == (source, target))
        arrow = f" -->|{label}| " if label else " --> "
        lines.append(f"    {shape.get(source, source)}{arrow}{shape.get(target, target)}")
    return "\n".join(lines)
