"""Small things that the wire formats share."""

import json
from collections.abc import Iterator
from typing import Any

JsonMap = dict[str, Any]

CREATED = 1_700_000_000


class RefusedError(Exception):
    """A request breaks a rule: the provider's status and body, and the rule in a word or two."""

    def __init__(self, status: int, body: JsonMap | str, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.body = body
        self.why = why


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def sse(data: Any, event: str = "") -> bytes:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {data if isinstance(data, str) else dumps(data)}\n\n".encode()


def pieces(text: str, size: int = 9) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    for one in inner:
        yield from strings(one)


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def tokens(value: Any) -> int:
    """A count of tokens that is the same each time: a fourth of the characters."""
    text = value if isinstance(value, str) else dumps(value)
    return (len(text) + 3) // 4


def arguments_of(text: str) -> JsonMap | None:
    """The object that arguments are, where a wire format has no place for their text."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
