"""In: a reply with nothing to run. Out: its calls read as they are, one more correction, or the end. No effect."""

from typing import Any

from typing_extensions import TypedDict

from mendgraph.nodes.heal.corrective_prompt import HealingAttempt, SelfHealingConfig, reminder_style
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


def heal(
    state: HealState, config: SelfHealingConfig, *, brief: bool = False, may_switch: bool = False
) -> dict[str, Any]:
    """Repair without a call where nothing has to be guessed; otherwise ask again, a bounded number of times.

    With `brief` the model is told nothing but the errors. With `may_switch` a turn whose native calls only come as text
    that cannot be read goes on in the text protocol.
    """
    reply = state.get("reply") or ModelReply()
    errors = state["errors"]
    items = state.get("items") or []

    if any(isinstance(item, ToolCall) for item in items):
        # The history holds the calls in the protocol's form, which the model then imitates.
        return {
            "reading": Reading.CALLS,
            "items": items,
            "errors": [],
            "corrections": [],
            "verdicts": [],
            "results": [],
        }

    corrections = state.get("corrections") or []
    attempts = state.get("healing_attempts") or []
    profile = state["profile"]
    style = reminder_style(profile.protocol, errors, brief=brief)
    attempt = next_attempt(errors, reply.text, corrections, attempts, config, style)

    if not isinstance(attempt, StopCause):
        calls = [f"{call.tool}({call.arguments})" for call in reply.calls]
        reply_text = "\n".join([reply.text, *calls] if reply.text else calls)
        correction = correction_of(attempt, reply_text)
        return {"corrections": [*corrections, correction], "healing_attempts": [*attempts, attempt]}

    only_unread_text = {error.error_type for error in errors} == {ExtractionErrorType.MISSING_TOOL_PREFIX}
    exhausted = attempt.reason is StopReason.HEALING_EXHAUSTED
    if may_switch and exhausted and only_unread_text and profile.protocol is Protocol.NATIVE:
        return {"profile": profile.model_copy(update={"protocol": Protocol.TEXT}), "corrections": []}

    return {"stop": attempt}
