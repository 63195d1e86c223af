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
    lines = list(_of_requests(parsed(recorded), parsed(sent))) or ["the bodies differ"]
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
    return next((each for each in found if _are_maps(each)), [])


def text_of(message: JsonMap) -> str:
    """What a message says, in one line; its blocks or parts one after the other."""
    content = message.get("content") or message.get("parts") or ""
    blocks = content if isinstance(content, list) else [content]
    texts = (each.get("text") or each.get("content") or each if isinstance(each, dict) else each for each in blocks)
    return " ".join(" ".join(map(str, texts)).split())


def _of_requests(ours: Any, theirs: Any) -> Iterator[str]:
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        yield from _of_values("the body", ours, theirs)
        return
    for key in {**ours, **theirs}:
        if key not in {"tools", *CONVERSATIONS}:
            yield from _of_values(key, ours.get(key, _ABSENT), theirs.get(key, _ABSENT))
    yield from _of_tools(ours.get("tools", _ABSENT), theirs.get("tools", _ABSENT))
    for key in CONVERSATIONS:
        yield from _of_messages(key, ours.get(key, _ABSENT), theirs.get(key, _ABSENT))


def _of_tools(ours: Any, theirs: Any) -> Iterator[str]:
    if not _are_maps(ours) or not _are_maps(theirs):
        yield from _of_values("tools", ours, theirs)
        return
    left, right = _by_name(ours), _by_name(theirs)
    if left is None or right is None:
        yield from _of_values("tools", ours, theirs)
        return
    for name in {**left, **right}:
        if name not in right:
            yield f"tools: {name} was recorded and is not sent"
        elif name not in left:
            yield f"tools: {name} is sent and was not recorded"
        else:
            yield from _of_values(f"tools[{name}]", left[name], right[name])
    if left == right and list(left) != list(right):
        yield f"tools: they were recorded in the order {', '.join(left)}, and sent as {', '.join(right)}"


def _of_messages(at: str, ours: Any, theirs: Any) -> Iterator[str]:
    if not _are_maps(ours) or not _are_maps(theirs):
        yield from _of_values(at, ours, theirs)
        return
    if len(ours) != len(theirs):
        yield f"{at}: {len(ours)} were recorded, {len(theirs)} were sent"
    for index, (left, right) in enumerate(zip(ours, theirs, strict=False)):
        yield from _of_values(f"{at}[{index}] ({_who(right)})", left, right)
    longer, word = (ours, "recorded") if len(ours) > len(theirs) else (theirs, "sent")
    for index in range(min(len(ours), len(theirs)), len(longer)):
        text = _short(next(filter(None, map(longer[index].get, ("content", "tool_calls", "parts"))), None))
        yield f"{at}[{index}] ({_who(longer[index])}): only {word}, {text}"


def _who(message: JsonMap) -> str:
    return str(message.get("role", message.get("type", "no role")))


def _of_values(at: str, ours: Any, theirs: Any) -> Iterator[str]:
    """One line for each leaf in which two JSON values differ."""
    if ours is theirs:
        return
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in {**ours, **theirs}:
            yield from _of_values(f"{at}.{key}", ours.get(key, _ABSENT), theirs.get(key, _ABSENT))
    elif isinstance(ours, list) and isinstance(theirs, list):
        for index in range(max(len(ours), len(theirs))):
            yield from _of_values(f"{at}[{index}]", _at(ours, index), _at(theirs, index))
    elif isinstance(ours, str) and isinstance(theirs, str):
        if ours != theirs:
            yield _of_texts(at, ours, theirs)
    elif repr(ours) != repr(theirs):  # which tells 1 from True and from 1.0
        yield f"{at}: {_worded('recorded', ours)}, {_worded('sent', theirs)}"


def _of_texts(at: str, ours: str, theirs: str) -> str:
    """The first line in which two texts differ, and of that line the part around the first letter that does."""
    left, right = ours.split("\n"), theirs.split("\n")
    number = next(
        (index for index, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]),
        min(len(left), len(right)),
    )
    if len(left) > 1 or len(right) > 1:
        at = f"{at}, line {number + 1}"
    if number >= len(left) or number >= len(right):
        longer, word, other = (left, "recorded", "sent") if len(left) > len(right) else (right, "sent", "recorded")
        return f"{at}: {word} {_short(longer[number])}, and what was {other} ends before it"
    one, two = left[number], right[number]
    start = next(
        (i for i, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1]), min(len(one), len(two))
    )
    return f"{at}: recorded {_around(one, start)}, sent {_around(two, start)}"


def _around(text: str, start: int) -> str:
    begin, end = max(start - SHOWN, 0), start + SHOWN
    return f"{'...' if begin else ''}{text[begin:end]!r}{'...' if end < len(text) else ''}"


def _worded(word: str, value: Any) -> str:
    return f"not {word}" if value is _ABSENT else f"{word} {_short(value)}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, bytes)) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 2 * SHOWN else f"{text[: 2 * SHOWN]}..."


def _at(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else _ABSENT


def _are_maps(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) for each in value)


def _by_name(tools: list[JsonMap]) -> dict[str, JsonMap] | None:
    """Tools by their names; None where some have none, or the same."""
    named = {}
    for tool in tools:
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or name in named:
            return None
        named[name] = tool
    return named
