"""The summary of a conversation's beginning: the request for one, and how its reply is read."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from pydantic import ConfigDict, Field, ValidationError

from mendgraph.nodes.call_model.window import is_result
from mendgraph.nodes.language.chat_messages import message_of
from mendgraph.nodes.records import JsonMap, Record

SizeOf = Callable[[AnyMessage], int]
"""The estimated tokens of a message. Called for each message of a view at each call, so it should remember them."""

SUMMARY_TOKENS: Final = 800  # what a summary may have
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
"""Ways to fit a conversation into a request: the characters of each message, and the share that is left out."""

_Item = Annotated[str, Field(max_length=400)]


class Summary(Record):
    """What a summary has to look like; a section's title is what the model is shown above it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    done: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Done so far:")
    findings: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Found out:")
    left: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Left to do:")
    files: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Files that matter:")


def read_summary(reply: str) -> str:
    """The summary in a reply as the model is shown it, one line an item; "" where it fits no schema or is empty.

    A fence or words around it do no harm.
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
    """The messages that ask for a summary of `old`, at most `most_tokens` as `size_of` counts them.

    The reply is told how many words it may have, so that it is complete. Long messages are clipped, and if that is not
    enough, the oldest are left out. None where nothing fits.
    """
    parts = ["The request of the person:", quote_bounded(request, 2_000)]
    if earlier_summary:
        parts += ["The summary of what was before that:", earlier_summary]

    parts.append("What happened:")
    words = SUMMARY_TOKENS // 2  # a high rate for prose: the names and the JSON around it have more tokens
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
    """The text, or its head and its tail with the number of characters between them."""
    if len(text) <= longest:
        return text

    tail = longest // 3
    return f"{text[: longest - tail]} [... {len(text) - longest} characters ...] {text[-tail:]}"
