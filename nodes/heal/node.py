"""In: a reply with nothing to run. Out: its calls read as they are, one more correction, or the end. No effect."""

from collections.abc import Callable
from typing import Any

from typing_extensions import TypedDict

from mendgraph.nodes.heal.corrective_prompt import HealingAttempt, SelfHealingConfig, manner_of
from mendgraph.nodes.heal.healing import correction_of, next_attempt
from mendgraph.nodes.records import (
    CallError,
    Correction,
    ExtractionError,
    ExtractionErrorType,
    ModelReply,
    Profile,
    Protocol,
    Reading,
    StopCause,
    ToolCall,
)

Rescue = Callable[[str, int], list[ToolCall | CallError]]
"""Reads a reply in another dialect as it is: its calls, or nothing."""


class HealState(TypedDict, total=False):
    """What the node reads."""

    reply: ModelReply | None
    errors: list[ExtractionError]
    corrections: list[Correction]
    healing_attempts: list[HealingAttempt]
    profile: Profile
    step: int


def heal(state: HealState, config: SelfHealingConfig, rescue: Rescue) -> dict[str, Any]:
    """Repair without a call where nothing has to be guessed; otherwise ask again, a bounded number of times."""
    reply, errors = state.get("reply") or ModelReply(), state["errors"]
    in_another_form = [error.error_type for error in errors] == [ExtractionErrorType.MISSING_TOOL_PREFIX]
    items = rescue(reply.text, state["step"]) if in_another_form else []
    if any(isinstance(item, ToolCall) for item in items):
        # What the history keeps of it is the calls in the right form, which the model then imitates.
        lines = [f"tool: {item.tool}({item.raw_arguments})" for item in items]
        text = "" if state["profile"].protocol is Protocol.NATIVE else "\n".join(lines)
        rescued = reply.model_copy(update={"text": text})
        forgotten: dict[str, Any] = {"errors": [], "corrections": [], "verdicts": [], "results": []}
        return {"reading": Reading.CALLS, "items": items, "reply": rescued, **forgotten}
    corrections = state.get("corrections") or []
    attempts = state.get("healing_attempts") or []
    protocol = manner_of(state["profile"], errors)
    attempt = next_attempt(errors, reply.text, corrections, attempts, config, protocol)
    if isinstance(attempt, StopCause):
        return {"stop": attempt}
    said = "\n".join(filter(None, [reply.text, *(f"{call.tool}({call.arguments})" for call in reply.calls)]))
    return {"corrections": [*corrections, correction_of(attempt, said)], "healing_attempts": [*attempts, attempt]}
