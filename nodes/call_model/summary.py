"""The model's own summary of what will not be shown any more: how it is asked for, read and judged.

A reply counts only if it fits its schema and the view becomes clearly smaller with it.
"""

import json
from collections.abc import Callable, Sequence

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from pydantic import ConfigDict, Field, ValidationError

from nodes.call_model.cleared_results import is_result
from nodes.call_model.window_head import quote_bounded
from nodes.records import JsonMap, Record

LEAST_SAVING = 0.3
"""The share by which a view has to shrink for its summary to count."""

MOST_ITEMS = 20
LONGEST_ITEM = 400
"""Characters of one line of a summary."""

_CLIPPINGS = (2_000, 600, 200)
"""The most characters that are shown of one message, tried in this order until the request fits."""

_TOKENS_PER_WORD = 2
"""A high rate for prose, as the names and the JSON around it have more tokens than words."""

SUMMARY_SYSTEM = f"""\
You sum up the first part of a coding agent's work, so that it can go on without seeing that part again.
Answer with one JSON object and nothing else:
{{"done": [...], "findings": [...], "left": [...], "files": [...]}}
Each is a list of at most {MOST_ITEMS} short texts: what was done, what was found out (names, causes, exact values, \
errors), what is left to do, and which files matter and why. Keep only what is still needed; do not repeat the \
request."""


class Summary(Record):
    """What a summary has to look like."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    done: tuple[str, ...] = Field(default=(), max_length=MOST_ITEMS)
    findings: tuple[str, ...] = Field(default=(), max_length=MOST_ITEMS)
    left: tuple[str, ...] = Field(default=(), max_length=MOST_ITEMS)
    files: tuple[str, ...] = Field(default=(), max_length=MOST_ITEMS)


def read_summary(reply: str) -> Summary | None:
    """The summary in a reply, with or without a fence or words around it; None where it fits no schema or is empty."""
    start, end = reply.find("{"), reply.rfind("}")
    try:
        summary = Summary.model_validate_json(reply[start : end + 1])
    except (ValidationError, ValueError):
        return None
    items = [item for field in (summary.done, summary.findings, summary.left, summary.files) for item in field]
    return summary if any(map(str.strip, items)) and max(map(len, items)) <= LONGEST_ITEM else None


def summary_text(summary: Summary) -> str:
    """The summary as the model is shown it."""
    sections = (
        ("Done so far:", summary.done),
        ("Found out:", summary.findings),
        ("Left to do:", summary.left),
        ("Files that matter:", summary.files),
    )
    return "\n".join(
        line for title, items in sections if items for line in (title, *(f"- {' '.join(i.split())}" for i in items))
    )


def helps(before: int, after: int) -> bool:
    """Whether a view of `after` tokens in place of one of `before` was worth a summary."""
    return after <= before * (1 - LEAST_SAVING)


def summary_request(
    old: Sequence[AnyMessage],
    request: str,
    earlier_summary: str,
    size_of: Callable[[AnyMessage], int],
    most_tokens: int,
    reply_tokens: int,
) -> tuple[JsonMap, ...] | None:
    """The messages that ask for a summary of `old`, at most `most_tokens` as `size_of` sees them.

    The reply is told how many words it may have, so that it is whole within `reply_tokens`.

    Long messages are shown clipped, and if that is not enough, the oldest are left out. None where nothing fits.
    """
    words = reply_tokens // _TOKENS_PER_WORD
    for clipping in _CLIPPINGS:
        lines = [quote_bounded(_told(message), clipping) for message in old]
        if messages := _fitting(lines, request, earlier_summary, size_of, most_tokens, words):
            return messages
    while lines := lines[(len(lines) + 1) // 2 :]:
        if messages := _fitting(lines, request, earlier_summary, size_of, most_tokens, words):
            return messages
    return None


def _fitting(
    lines: Sequence[str], request: str, earlier: str, size_of: Callable[[AnyMessage], int], most_tokens: int, words: int
) -> tuple[JsonMap, ...] | None:
    before = ["The summary of what was before that:", earlier] if earlier else []
    asked = ["The request of the person:", quote_bounded(request, _CLIPPINGS[0])]
    told = "\n\n".join(
        [*asked, *before, "What happened:", *lines, f"Now answer with the JSON object: {words} words at most."]
    )
    tokens = size_of(HumanMessage(SUMMARY_SYSTEM)) + size_of(HumanMessage(told))
    if tokens > most_tokens:
        return None
    return ({"role": "system", "content": SUMMARY_SYSTEM}, {"role": "user", "content": told})


def _told(message: AnyMessage) -> str:
    """A message as one who was not there reads it."""
    if isinstance(message, AIMessage):
        calls = [f"{call['name']}({json.dumps(call['args'], ensure_ascii=False)})" for call in message.tool_calls]
        return "AGENT: " + "\n".join(part for part in (message.text, *calls) if part)
    return ("RESULT: " if is_result(message) else "PERSON: ") + message.text
