"""The corrective prompt after a reply that could not be used (spec 1, section 2)."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, Protocol, ToolInvocation

ReminderStyle = Literal["text", "native", "brief"]
"""The format of which a correction reminds the model: `tool:` lines, native calls, or none."""

MAX_ERRORS_SHOWN = 5
MAX_DETAILS_CHARS = 500


class SelfHealingConfig(NamedTuple):
    """How often and how explicitly to ask again. `max_claims` is the number of corrections of unfounded answers.

    Source: spec 1 section 2.1; `max_schema_repairs` from spec 3.
    """

    max_retries: int = 3
    include_error_details: bool = True
    include_format_reminder: bool = True
    max_schema_repairs: int = 2
    max_claims: int = 1


DEFAULT_SELF_HEALING_CONFIG = SelfHealingConfig()


class HealingAttempt(NamedTuple):
    """One corrective prompt and why it was sent. `attempt_number` counts from 0."""

    attempt_number: int
    original_response: str
    errors: list[ExtractionError]
    corrective_prompt: str


class HealingResult(NamedTuple):
    """The result of `attempt_extraction_with_healing`. No invocations and `success` means a plain answer."""

    success: bool
    invocations: list[ToolInvocation]
    final_response: str
    attempts: tuple[HealingAttempt, ...]


_REMEDIES = {
    ExtractionErrorType.INVALID_ARGUMENTS: "Repeat the call with arguments that fit the tool's parameters.",
    ExtractionErrorType.INVALID_ANSWER: "Give the final answer again, with a value that fits the asked schema.",
    ExtractionErrorType.OVERSIZED_ARGUMENTS: "Send less in one call: make several smaller edits.",
    ExtractionErrorType.EMPTY_REPLY: "Reply with a tool call or with an answer.",
    ExtractionErrorType.THOUGHT_ONLY_REPLY: "You only thought. Now answer, or make the tool call.",
    ExtractionErrorType.TRUNCATED_REPLY: (
        "The reply was cut at the token limit and nothing ran. Send a shorter reply or smaller edits."
    ),
    ExtractionErrorType.REFUSED_REPLY: "Reply to the task as it is, or say in the answer what cannot be done.",
    ExtractionErrorType.FILTERED_REPLY: "Reply in other words.",
    ExtractionErrorType.TOO_MANY_CALLS: "Make the first calls alone.",
}
"""For our own kinds only: the texts of the six kinds of spec 1 are those of the spec."""

_OPENINGS = {
    "text": "I could not parse your tool invocation. Please fix the following issues:",
    "native": "I could not use your tool call. Please fix the following issues:",
}

_CLOSING = "Please retry your response with the correct format."

_REMINDERS = {
    "text": (
        "",
        "Reminder of correct format:",
        '  tool: TOOL_NAME({"param": "value"})',
        "",
        "Requirements:",
        "  - Use compact single-line JSON",
        "  - Use double quotes for strings",
        "  - Ensure parentheses are balanced",
    ),
    "native": (
        "",
        "Requirements:",
        "  - Call one of the given tools as a function call, do not write the call as text",
        "  - Send the arguments as one JSON object with every required parameter",
        "  - Use double quotes for strings",
    ),
}


def generate_corrective_prompt(
    errors: Sequence[ExtractionError],
    original_response: str,  # noqa: ARG001 - the spec's signature; the model would repeat a quoted reply
    config: SelfHealingConfig,
    *,
    protocol: ReminderStyle = "text",
) -> str:
    """Return the message that asks for a corrected reply.

    It names at most 5 errors, each with at most 500 characters of details. Source: spec 1 section 2.2. For an unfounded
    answer it is the facts alone.
    """
    facts = [error.details for error in errors if error.error_type is ExtractionErrorType.UNFOUNDED_CLAIM]
    if facts:
        return facts[0]
    if protocol == "brief" and config.include_error_details:
        return "\n".join(_cut(error.details) for error in errors[:MAX_ERRORS_SHOWN])
    if protocol == "brief":
        return _CLOSING

    parts = [_OPENINGS[protocol]]

    if config.include_error_details:
        parts += [_error_line(error) for error in errors[:MAX_ERRORS_SHOWN]]
        if len(errors) > MAX_ERRORS_SHOWN:
            parts.append(f"- and {len(errors) - MAX_ERRORS_SHOWN} more")

    if config.include_format_reminder:
        parts += _REMINDERS[protocol]

    parts += ["", _CLOSING]
    return "\n".join(parts)


def reminder_style(protocol: Protocol, errors: Sequence[ExtractionError], *, brief: bool) -> ReminderStyle:
    """Return the style of the reminder; with `brief` none, unless the model wrote a `tool:` line as text."""
    wrote_line = any(error.line_content.lstrip().startswith("tool:") for error in errors)
    if protocol is Protocol.TEXT and (wrote_line or not brief):
        return "text"
    if brief:
        return "brief"

    return "native"


def _error_line(error: ExtractionError) -> str:
    remedy = _REMEDIES.get(error.error_type)
    return f"- {error.error_type.name}: {_cut(error.details)}" + (f" {remedy}" if remedy else "")


def _cut(details: str) -> str:
    if len(details) <= MAX_DETAILS_CHARS:
        return details
    return details[: MAX_DETAILS_CHARS - 3] + "..."
