"""In: a reply with nothing to run. Out: its calls read as they are, one more correction, or the end. No effect."""

from typing import Any

from typing_extensions import TypedDict

from mendgraph.nodes.heal.corrective_prompt import HealingAttempt, SelfHealingConfig, reminder_style
from mendgraph.nodes.heal.healing import correction_of, next_attempt, only_wrote_calls
from mendgraph.nodes.records import (
    CallError,
    Correction,
    ExtractionError,
    ModelReply,
    Profile,
    Protocol,
    Reading,
    StopCause,
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
    """Read the calls if nothing has to be guessed; otherwise ask again, a bounded number of times.

    With `brief` the correction has the errors alone. With `may_switch` a turn whose native calls come as
    unreadable text switches to the text protocol.
    """
    items = state.get("items") or []
    if any(isinstance(item, ToolCall) for item in items):
        cleared: dict[str, Any] = {"errors": [], "corrections": [], "verdicts": [], "results": []}
        return {"reading": Reading.CALLS, "items": items, **cleared}

    reply = state.get("reply") or ModelReply()
    errors = state["errors"]
    corrections = state.get("corrections") or []
    attempts = state.get("healing_attempts") or []
    profile = state["profile"]
    style = reminder_style(profile.protocol, errors, brief=brief)
    attempt = next_attempt(errors, reply.text, corrections, attempts, config, style)
    if not isinstance(attempt, StopCause):
        correction = correction_of(attempt, reply)
        return {"corrections": [*corrections, correction], "healing_attempts": [*attempts, attempt]}

    if may_switch and profile.protocol is Protocol.NATIVE and only_wrote_calls(attempt, errors):
        return {"profile": profile.model_copy(update={"protocol": Protocol.TEXT}), "corrections": []}

    return {"stop": attempt}
