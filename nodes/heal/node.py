"""In: a reply with nothing to run. Out: its calls read as they are, one more correction, or the end. No effect."""

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
    StopReason,
    ToolCall,
)


class HealState(TypedDict, total=False):
    """What the node reads."""

    reply: ModelReply | None
    items: list[ToolCall | CallError]
    errors: list[ExtractionError]
    corrections: list[Correction]
    healing_attempts: list[HealingAttempt]
    profile: Profile


def heal(state: HealState, config: SelfHealingConfig, *, may_switch: bool = False) -> dict[str, Any]:
    """Repair without a call where nothing has to be guessed; otherwise ask again, a bounded number of times.

    With `may_switch` a turn whose native calls only come as text that cannot be read goes on in the text protocol.
    """
    reply, errors = state.get("reply") or ModelReply(), state["errors"]
    items = state.get("items") or []
    if any(isinstance(item, ToolCall) for item in items):
        # What the history keeps of it is the calls in the protocol's form, which the model then imitates.
        forgotten: dict[str, Any] = {"errors": [], "corrections": [], "verdicts": [], "results": []}
        return {"reading": Reading.CALLS, "items": items, **forgotten}
    corrections = state.get("corrections") or []
    attempts = state.get("healing_attempts") or []
    protocol = manner_of(state["profile"], errors)
    attempt = next_attempt(errors, reply.text, corrections, attempts, config, protocol)
    if isinstance(attempt, StopCause):
        exhausted = may_switch and attempt.reason is StopReason.HEALING_EXHAUSTED
        native = state["profile"].protocol is Protocol.NATIVE
        if exhausted and native and {error.error_type for error in errors} == {ExtractionErrorType.MISSING_TOOL_PREFIX}:
            return {"profile": state["profile"].model_copy(update={"protocol": Protocol.TEXT}), "corrections": []}
        return {"stop": attempt}
    reply_text = "\n".join(filter(None, [reply.text, *(f"{call.tool}({call.arguments})" for call in reply.calls)]))
    return {"corrections": [*corrections, correction_of(attempt, reply_text)], "healing_attempts": [*attempts, attempt]}
