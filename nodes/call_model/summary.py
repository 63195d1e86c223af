"""The request for a summary of a conversation's beginning, and the reader of its reply."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from pydantic import ConfigDict, Field, ValidationError

from mendgraph.nodes.call_model.window import is_result
from mendgraph.nodes.language.chat_messages import message_of
from mendgraph.nodes.records import JsonMap, Record

SizeOf = Callable[[AnyMessage], int]
"""Returns the estimated tokens of a message; called often, so it should cache them."""

SUMMARY_TOKENS: Final = 800  # of a summary, at most
LONGEST_EARLIER: Final = 1_000  # characters of an earlier request that are quoted
MOST_ITEMS: Final = 20

SUMMARY_SYSTEM: Final = f"""\
You sum up the first part of a coding agent's work, so that it can go on without seeing that part again.
Answer with one JSON object and nothing else:
{{"done": [...], "findings": [...], "left": [...], "files": [...]}}
Each is a list of at most {MOST_ITEMS} short texts: what was done, what was found out (names, causes, exact values, \
errors), what is left to do, and which files matter and why. Keep only what is still needed; do not repeat the \
request."""

_CLIPPINGS: Final = ((2_000, 0.0), (600, 0.0), (200, 0.0), (200, 0.5), (200, 0.75))
"""Steps to fit a conversation into a request: characters of each message, and the share that is omitted."""

_Item = Annotated[str, Field(max_length=400)]


class Summary(Record):
    """The schema of a summary; the titles are shown above its sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    done: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Done so far:")
    findings: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Found out:")
    left: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Left to do:")
    files: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Files that matter:")


def read_summary(reply: str) -> str:
    """Return the summary in a reply with one line for each item, or "" if it is invalid or empty.

    Text around the JSON object is ignored.
    """
    start = reply.find("{")
    end = reply.rfind("}")

    try:
        summary = Summary.model_validate_json(reply[start : end + 1])
    except (ValidationError, ValueError):
        return ""

    lines = []
    has_text = False

    for name, section in Summary.model_fields.items():
        items: tuple[str, ...] = getattr(summary, name)
        if not items:
            continue

        lines.append(section.title or "")
        lines += [f"- {' '.join(item.split())}" for item in items]
        has_text = has_text or any(item.strip() for item in items)

    return "\n".join(lines) if has_text else ""


def summary_request(
    old: Sequence[AnyMessage], request: str, earlier_summary: str, size_of: SizeOf, most_tokens: int
) -> tuple[JsonMap, ...] | None:
    """Return the messages that request a summary of `old`, at most `most_tokens` long, or None if they cannot fit.

    Long messages are clipped, and if that is not enough, the oldest are omitted.
    """
    parts = ["The request of the person:", quote_bounded(request, 2_000)]
    if earlier_summary:
        parts += ["The summary of what was before that:", earlier_summary]

    parts.append("What happened:")
    words = SUMMARY_TOKENS // 2  # names and JSON have more tokens than prose
    closing = f"Now answer with the JSON object: {words} words at most."
    system_tokens = size_of(HumanMessage(SUMMARY_SYSTEM))

    for clipping, share in _CLIPPINGS:
        first = int(len(old) * share)
        lines = [quote_bounded(_line_of(message), clipping) for message in old[first:]]
        text = "\n\n".join([*parts, *lines, closing])
        if system_tokens + size_of(HumanMessage(text)) <= most_tokens:
            return message_of("system", SUMMARY_SYSTEM), message_of("user", text)

    return None


def _line_of(message: AnyMessage) -> str:
    if isinstance(message, AIMessage):
        calls = [f"{call['name']}({json.dumps(call['args'], ensure_ascii=False)})" for call in message.tool_calls]
        return "AGENT: " + "\n".join([str(message.text), *calls] if message.text else calls)

    if is_result(message):
        return f"RESULT: {message.text}"

    return f"PERSON: {message.text}"


def quote_bounded(text: str, longest: int = LONGEST_EARLIER) -> str:
    """Return the text, or its head and tail with the number of omitted characters."""
    if len(text) <= longest:
        return text

    tail = longest // 3
    return f"{text[: longest - tail]} [... {len(text) - longest} characters ...] {text[-tail:]}"
