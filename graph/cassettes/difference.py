"""What differs between the request that was recorded and the one that is sent: which message, which field, which line.

Pure. Equal parts are left out, however long they are: of two prompts only the first line is shown in which they part.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from mendgraph.nodes.records import JsonMap

MOST_LINES: Final = 12
"""Lines of one difference: what follows from the first few is seldom of use."""

SHOWN: Final = 60
"""Characters that are shown before and after the place where two lines part."""

CONVERSATIONS: Final = ("messages", "contents", "input")
"""Where the messages of a request are: Gemini calls them contents, and OpenAI's Responses input."""

_ABSENT: Final = object()


def difference(recorded: bytes, sent: bytes) -> list[str]:
    """Readable lines, none where both bodies are the same JSON; a body that is no JSON is compared as text."""
    if canonical(recorded) == canonical(sent):
        return []
    lines = list(_of_values("", parsed(recorded), parsed(sent))) or ["the tools are sent in another order"]
    more = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], f"... and {more} more differences"] if more > 0 else lines


def canonical(body: bytes) -> str | bytes:
    """The same for two bodies that say the same: JSON with its keys in order; a body that is no JSON, as it is.

    As text, since in Python `1`, `1.0` and `True` are equal.
    """
    try:
        return json.dumps(json.loads(body), sort_keys=True)
    except (ValueError, RecursionError):
        return body


def parsed(body: bytes) -> Any:
    """A body as JSON; where it is none, its text; where it is no text, its bytes."""
    try:
        return json.loads(body) if body else None
    except (ValueError, RecursionError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body


def conversation(body: Any) -> list[JsonMap]:
    """The messages of a request, whichever API it is for; none where it has no list of maps for them."""
    found = (body[key] for key in CONVERSATIONS if key in body) if isinstance(body, dict) else ()
    return next((each for each in found if isinstance(each, list) and all(isinstance(one, dict) for one in each)), [])


def text_of(message: JsonMap) -> str:
    """What a message says, in one line; its blocks or parts one after the other."""
    content = message.get("content") or message.get("parts") or ""
    blocks = content if isinstance(content, list) else [content]
    texts = (each.get("text") or each.get("content") or each if isinstance(each, dict) else each for each in blocks)
    return " ".join(" ".join(map(str, texts)).split())


def _of_values(at: str, ours: Any, theirs: Any) -> Iterator[str]:
    """One line for each leaf in which two JSON values differ."""
    if isinstance(ours, str) and isinstance(theirs, str):
        if ours != theirs:
            yield _of_texts(at or "the body", ours, theirs)
        return
    parts = [_parts(each, tools=at == "tools") for each in (ours, theirs)]
    left, right = parts
    if left is None or right is None or isinstance(ours, list) != isinstance(theirs, list):
        if repr(ours) != repr(theirs):  # which tells 1 from True and from 1.0
            yield f"{at or 'the body'}: {_worded('recorded', ours)}, {_worded('sent', theirs)}"
        return
    for key in {**left, **right}:
        one, other = left.get(key, _ABSENT), right.get(key, _ABSENT)
        who = _who(one if other is _ABSENT else other) if at in CONVERSATIONS else ""
        place = f"{at}[{key}]{who}" if isinstance(ours, list) else f"{at}.{key}" if at else key
        yield from _of_values(place, one, other)


def _parts(value: Any, *, tools: bool) -> dict[Any, Any] | None:
    """The parts of a map, or of a list by their places, tools by their names; None for a leaf."""
    if not isinstance(value, list):
        return value if isinstance(value, dict) else None
    names = [_name(each) for each in value] if tools else []
    by_name = names and None not in names and len({*names}) == len(names)
    return dict(zip(names, value, strict=True)) if by_name else dict(enumerate(value))


def _name(tool: Any) -> str | None:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _who(message: Any) -> str:
    return f" ({message.get('role', message.get('type', 'no role'))})" if isinstance(message, dict) else ""


def _of_texts(at: str, ours: str, theirs: str) -> str:
    """The first line in which two texts differ, and of that line the part around the first letter that does."""
    left, right = ours.split("\n"), theirs.split("\n")
    number = _parting(left, right)
    if len(left) > 1 or len(right) > 1:
        at = f"{at}, line {number + 1}"
    if number >= len(left) or number >= len(right):
        longer, word, other = (left, "recorded", "sent") if len(left) > len(right) else (right, "sent", "recorded")
        return f"{at}: {word} {_short(longer[number])}, and what was {other} ends before it"
    start = _parting(left[number], right[number])
    return f"{at}: recorded {_around(left[number], start)}, sent {_around(right[number], start)}"


def _parting(one: Any, other: Any) -> int:
    """The first place in which two sequences differ."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))


def _around(text: str, start: int) -> str:
    begin, end = max(start - SHOWN, 0), start + SHOWN
    return f"{'...' if begin else ''}{text[begin:end]!r}{'...' if end < len(text) else ''}"


def _worded(word: str, value: Any) -> str:
    return f"not {word}" if value is _ABSENT else f"{word} {_short(value)}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, bytes)) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN]}..."
