"""In: how the run came to its end. Out: the outcome, set exactly once, and the last message. No effect."""

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage
from typing_extensions import TypedDict

from mendgraph.nodes.records import Answer, CallResult, FileChange, JsonMap, Outcome, OutcomeKind, Plan, StopCause
from mendgraph.nodes.stop.report import checks_of, finished, stopped, wrap_up


class StopState(TypedDict, total=False):
    """What the terminals read."""

    answer: Answer | None
    stop: StopCause | None
    plan: Plan
    changes: list[FileChange]
    results: list[CallResult]


def finish(state: StopState, usage: JsonMap) -> dict[str, Any]:
    """End with the final answer, which becomes the thread's last message."""
    changes = state.get("changes", [])
    outcome = finished(state.get("answer") or Answer(text=""), changes, usage, _checks(state))
    return {"outcome": outcome, "messages": [AIMessage(outcome.message)]}


def give_up(
    state: StopState, kind: OutcomeKind, cause: StopCause, usage: JsonMap, restored: Sequence[str] = ()
) -> dict[str, Any]:
    """End early, with an account of what was done and what is left as the thread's last message."""
    plan = state.get("plan") or Plan()
    results = state.get("results", [])
    outcome: Outcome = stopped(kind, cause, plan, state.get("changes", []), usage, _checks(state), restored)
    return {"outcome": outcome, "messages": [AIMessage(wrap_up(outcome, plan, results))]}


def _checks(state: StopState) -> str:
    """What the checks of the turn's changes came to: nothing where files were only looked at before."""
    return checks_of(state.get("results", [])) if state.get("changes") else ""
