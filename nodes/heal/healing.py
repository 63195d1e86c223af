"""Decide whether to ask the model again after an unusable reply, or to stop."""

from collections.abc import Mapping, Sequence
from typing import Final

from mendgraph.nodes.heal.corrective_prompt import (
    MAX_DETAILS_CHARS,
    MAX_ERRORS_SHOWN,
    HealingAttempt,
    ReminderStyle,
    SelfHealingConfig,
    generate_corrective_prompt,
)
from mendgraph.nodes.records import (
    SCHEMA_ERRORS,
    Correction,
    ExtractionError,
    ExtractionErrorType,
    ModelReply,
    StopCause,
    StopReason,
)

_EMPTY = frozenset({ExtractionErrorType.EMPTY_REPLY, ExtractionErrorType.THOUGHT_ONLY_REPLY})
_SENTENCES: Final[Mapping[ExtractionErrorType, str]] = {
    ExtractionErrorType.EMPTY_REPLY: "The model's reply was {still}empty",
    ExtractionErrorType.THOUGHT_ONLY_REPLY: "The model {still}only thought, without an answer or a tool call",
    ExtractionErrorType.TRUNCATED_REPLY: "The model's reply was {still}cut at the token limit",
    ExtractionErrorType.OVERSIZED_ARGUMENTS: "The arguments of the model's tool call were {still}too large",
    ExtractionErrorType.UNKNOWN_TOOL_NAME: "The model {still}called a tool that does not exist",
    ExtractionErrorType.MISSING_TOOL_PREFIX: "The model {still}wrote its tool call in a form that does not run",
    ExtractionErrorType.INVALID_ARGUMENTS: "The arguments of the model's tool call {still}did not fit the tool",
    ExtractionErrorType.INVALID_ANSWER: "The model's answer was {still}not valid",
}
_UNREAD: Final = "The model's reply {still}could not be read as a tool call"


def next_attempt(
    errors: list[ExtractionError],
    response: str,
    corrections: Sequence[Correction],
    attempts: Sequence[HealingAttempt],
    config: SelfHealingConfig,
    protocol: ReminderStyle = "text",
) -> HealingAttempt | StopCause:
    """Return the next corrective prompt after a reply with these errors, or why the run ends instead.

    Replies with schema errors alone are limited by `max_schema_repairs`, others by `max_retries`, counted by open
    corrections of the same sort; unfounded answers by `max_claims`, counted by all attempts of the turn. A refusal is
    never corrected.
    """
    kinds = {error.error_type for error in errors}
    claims = sum(is_unfounded(attempt.errors) for attempt in attempts)
    repairs = sum(correction.schema_repair for correction in corrections)
    retries = len(corrections) - repairs - sum(correction.claim for correction in corrections)
    reason = None
    message = ""

    if ExtractionErrorType.REFUSED_REPLY in kinds:
        reason = StopReason.REFUSED
        message = "The model refused to reply."
    elif ExtractionErrorType.FILTERED_REPLY in kinds:
        reason = StopReason.REFUSED
        message = "The endpoint's content filter stopped the model's reply."
    elif is_unfounded(errors):
        if claims >= config.max_claims:
            reason = StopReason.NOTHING_CHANGED
            message = "This run has to change a file."
    elif errors and kinds <= SCHEMA_ERRORS:
        if repairs >= config.max_schema_repairs:
            reason = StopReason.SCHEMA_REPAIR_EXHAUSTED
            message = _what_happened(errors, repairs, "repairs")
    elif retries >= config.max_retries:
        empty = bool(errors) and errors[0].error_type in _EMPTY
        reason = StopReason.EMPTY_REPLY if empty else StopReason.HEALING_EXHAUSTED
        message = _what_happened(errors, retries, "retries")

    if reason is not None:
        claim = reason is StopReason.NOTHING_CHANGED
        evidence = [f"the answer: {errors[0].line_content}"] if claim else map(_diagnostic, errors[:MAX_ERRORS_SHOWN])
        return StopCause(reason=reason, message=message, diagnostics=tuple(evidence))

    prompt = generate_corrective_prompt(errors, response, config, protocol=protocol)
    return HealingAttempt(len(attempts), response, errors, prompt)


def only_wrote_calls(cause: StopCause, errors: Sequence[ExtractionError]) -> bool:
    """Return whether the retries are used up by calls written as text that cannot be read."""
    kinds = {error.error_type for error in errors}
    return cause.reason is StopReason.HEALING_EXHAUSTED and kinds == {ExtractionErrorType.MISSING_TOOL_PREFIX}


def correction_of(attempt: HealingAttempt, reply: ModelReply) -> Correction:
    """Return what the prompt shows of an attempt until the turn has healed: the reply and the corrective prompt."""
    calls = [f"{call.tool}({call.arguments})" for call in reply.calls]
    text = "\n".join([reply.text, *calls] if reply.text else calls)
    schema = bool(attempt.errors) and all(error.error_type in SCHEMA_ERRORS for error in attempt.errors)
    claim = is_unfounded(attempt.errors)
    return Correction(reply=text, prompt=attempt.corrective_prompt, schema_repair=schema, claim=claim)


def is_unfounded(errors: Sequence[ExtractionError]) -> bool:
    """Return whether this is an answer that contradicts what happened."""
    return any(error.error_type is ExtractionErrorType.UNFOUNDED_CLAIM for error in errors)


def _what_happened(errors: Sequence[ExtractionError], failures: int, tries: str) -> str:
    """Return the outcome's sentence on unusable replies, by the first error of the last reply."""
    sentence = _SENTENCES.get(errors[0].error_type, _UNREAD) if errors else _UNREAD
    if not failures:
        return f"{sentence.format(still='')}."
    return f"{sentence.format(still='still ')} after {failures} {tries}."


def _diagnostic(error: ExtractionError) -> str:
    place = f"line {error.line_number}: " if error.line_number else ""
    return f"{place}{error.error_type.name}: {error.details}"[:MAX_DETAILS_CHARS]
