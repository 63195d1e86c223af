"""When to ask again and when to give up, and spec 1's self-healing extraction built on the same parts."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from nodes.heal.corrective_prompt import (
    DEFAULT_SELF_HEALING_CONFIG,
    HealingAttempt,
    HealingResult,
    SelfHealingConfig,
    generate_corrective_prompt,
)
from nodes.language.text_protocol import extract_tool_invocations_with_errors
from nodes.records import (
    SCHEMA_ERRORS,
    CallError,
    Correction,
    ExtractionError,
    ExtractionErrorType,
    Protocol,
    StopCause,
    StopReason,
    ToolCall,
)

__all__ = [
    "DEFAULT_SELF_HEALING_CONFIG",
    "HealingAction",
    "HealingAttempt",
    "HealingDecision",
    "HealingResult",
    "SelfHealingConfig",
    "attempt_extraction_with_healing",
    "canonical_text",
    "decide_healing",
    "decide_next",
    "generate_corrective_prompt",
    "is_call_in_another_form",
    "is_incomplete",
    "is_schema_failure",
    "is_unfounded",
]

_NEVER_RETRIED = frozenset({ExtractionErrorType.REFUSED_REPLY, ExtractionErrorType.FILTERED_REPLY})
_INCOMPLETE = _NEVER_RETRIED | {ExtractionErrorType.TRUNCATED_REPLY}
_OTHER_FORMS = frozenset({ExtractionErrorType.MISSING_TOOL_PREFIX, ExtractionErrorType.INVALID_JSON_SYNTAX})
"""No prefix, or a prefix before arguments that are no JSON, as in `tool: read_file(path="a.py")`."""

_MAX_DIAGNOSTICS = 5
_MAX_DIAGNOSTIC_CHARS = 500


class HealingAction(StrEnum):
    """What to do about a reply that could not be used."""

    TRY_AGAIN = "try_again"
    EXHAUSTED = "exhausted"


class HealingDecision(NamedTuple):
    """The action, and for EXHAUSTED why the run ends."""

    action: HealingAction
    cause: StopCause | None = None


def decide_healing(
    errors: Sequence[ExtractionError],
    extraction_failures: int,
    schema_failures: int,
    config: SelfHealingConfig,
    claims_met: int = 0,
) -> HealingDecision:
    """Whether a reply with these errors is worth another try.

    The counts are the failures of each sort before this reply: consecutive ones, but for `claims_met`, which are those
    of the turn. A reply whose
    errors all are schema errors is measured against `max_schema_repairs`, any other against `max_retries`; a refusal
    is never asked again.
    """
    if any(error.error_type in _NEVER_RETRIED for error in errors):
        return _give_up(StopReason.REFUSED, "The model refused to reply, or its reply was filtered.", errors)
    if is_unfounded(errors):
        if claims_met < config.max_claims:
            return HealingDecision(HealingAction.TRY_AGAIN)
        return _give_up(StopReason.NOTHING_CHANGED, "No file was changed, although a change was asked for.", errors)
    if is_schema_failure(errors):
        if schema_failures < config.max_schema_repairs:
            return HealingDecision(HealingAction.TRY_AGAIN)
        message = f"The model's arguments or answer still did not fit their schema after {schema_failures} repairs."
        return _give_up(StopReason.SCHEMA_REPAIR_EXHAUSTED, message, errors)
    if extraction_failures < config.max_retries:
        return HealingDecision(HealingAction.TRY_AGAIN)
    if errors and errors[-1].error_type is ExtractionErrorType.EMPTY_REPLY:
        message = f"The model's reply was still empty after {extraction_failures} retries."
        return _give_up(StopReason.EMPTY_REPLY, message, errors)
    if errors and errors[-1].error_type is ExtractionErrorType.THOUGHT_ONLY_REPLY:
        message = (
            f"The model still only thought, without an answer or a tool call, after {extraction_failures} retries."
        )
        return _give_up(StopReason.EMPTY_REPLY, message, errors)
    message = f"The model's reply still could not be read as a tool call after {extraction_failures} retries."
    return _give_up(StopReason.HEALING_EXHAUSTED, message, errors)


def decide_next(
    errors: Sequence[ExtractionError],
    corrections: Sequence[Correction],
    attempts: Sequence[HealingAttempt],
    config: SelfHealingConfig,
) -> HealingDecision:
    """The same, counted from the open corrections and from all attempts of the turn."""
    met = sum(is_unfounded(attempt.errors) for attempt in attempts)
    schema_failures = sum(correction.schema_repair for correction in corrections)
    malformed = len(corrections) - schema_failures - sum(correction.claim for correction in corrections)
    return decide_healing(errors, malformed, schema_failures, config, met)


def is_schema_failure(errors: Sequence[ExtractionError]) -> bool:
    """Whether there are errors and all of them are schema errors, so that the schema count is the one to raise."""
    return bool(errors) and all(error.error_type in SCHEMA_ERRORS for error in errors)


def is_unfounded(errors: Sequence[ExtractionError]) -> bool:
    """Whether this is an answer that what happened does not bear out."""
    return any(error.error_type is ExtractionErrorType.UNFOUNDED_CLAIM for error in errors)


def is_incomplete(errors: Sequence[ExtractionError]) -> bool:
    """Whether not all of the reply came, so that the model was told nothing about its calls."""
    return any(error.error_type in _INCOMPLETE for error in errors)


def is_call_in_another_form(errors: Sequence[ExtractionError]) -> bool:
    """Whether the reply may be read as it is: it is whole, and a call in all but its form; a cut one never may."""
    return len(errors) == 1 and errors[0].error_type in _OTHER_FORMS


def canonical_text(items: Sequence[ToolCall | CallError], protocol: Protocol) -> str:
    """What the history keeps of a rescued reply: the calls in the right form, which the model then imitates."""
    if protocol is Protocol.NATIVE:
        return ""
    return "\n".join(f"tool: {item.tool}({item.raw_arguments})" for item in items)


def attempt_extraction_with_healing(
    get_llm_response: Callable[[list[dict[str, Any]]], str],
    conversation: list[dict[str, Any]],
    known_tools: frozenset[str],
    config: SelfHealingConfig = DEFAULT_SELF_HEALING_CONFIG,
) -> HealingResult:
    """Ask, extract, and ask again with a corrective prompt until calls or a plain answer come, or retries run out.

    `conversation` is not changed; each call of `get_llm_response` gets a list of its own, and what it raises passes
    through. A reply with any well-formed call is a success. Source: spec 1 section 2.3.
    """
    messages = list(conversation)
    attempts: list[HealingAttempt] = []
    while True:
        response = get_llm_response(list(messages))
        invocations, errors = extract_tool_invocations_with_errors(response, known_tools)
        healed = bool(invocations) or not errors
        if healed or len(attempts) >= config.max_retries:
            return HealingResult(healed, invocations, response, tuple(attempts))
        prompt = generate_corrective_prompt(errors, response, config)
        attempts.append(HealingAttempt(len(attempts), response, errors, prompt))
        messages += [_message("assistant", response), _message("user", prompt)]


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def _give_up(reason: StopReason, message: str, errors: Sequence[ExtractionError]) -> HealingDecision:
    diagnostics = tuple(_diagnostic(error) for error in errors[:_MAX_DIAGNOSTICS])
    return HealingDecision(HealingAction.EXHAUSTED, StopCause(reason=reason, message=message, diagnostics=diagnostics))


def _diagnostic(error: ExtractionError) -> str:
    place = f"line {error.line_number}: " if error.line_number else ""
    return f"{place}{error.error_type.name}: {error.details}"[:_MAX_DIAGNOSTIC_CHARS]
