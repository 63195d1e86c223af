"""A result that is too large for a model's window loses its middle, and says what it lost."""

from collections.abc import Callable
from typing import Any, Final

import orjson

from nodes.records import JsonMap, ToolError, ToolResult

LARGEST_RESULT: Final = 65_536
"""Bytes of JSON, about 16,000 tokens."""

LONGEST_MESSAGE: Final = 4_000
MOST_SUGGESTIONS: Final = 20

_STEPS: Final = ((16_384, 1_000), (4_096, 200), (1_024, 50), (256, 20))
"""The most characters of a string and items of a list, tried in this order until the result fits."""


def clip(result: ToolResult, largest: int = LARGEST_RESULT) -> ToolResult:
    """The result itself if its data is at most `largest` bytes of JSON, else one that is.

    Strings and lists keep their head and tail; `clipped` names what was left out, and where.
    """
    if result.error is not None:
        return ToolResult(ok=False, error=_clip_error(result.error))
    if _size(result.data) <= largest:
        return result
    for characters, items in _STEPS:
        notes: list[str] = []
        data = _clip(result.data, "", characters, items, notes.append)
        clipped = {**data, "clipped": notes[:MOST_SUGGESTIONS]}
        if _size(clipped) <= largest:
            return ToolResult(ok=True, data=clipped)
    note = f"the whole result ({_size(result.data)} bytes of JSON) was left out; ask for less at a time"
    return ToolResult(ok=True, data={"clipped": [note]})


def _size(data: JsonMap) -> int:
    return len(orjson.dumps(data))


def _clip_error(error: ToolError) -> ToolError:
    message = _head_and_tail(error.message, LONGEST_MESSAGE)
    return error.model_copy(update={"message": message, "suggestions": error.suggestions[:MOST_SUGGESTIONS]})


def _clip(value: Any, where: str, characters: int, items: int, note: Callable[[str], None]) -> Any:
    if isinstance(value, str) and len(value) > characters:
        note(f"{where}: {len(value) - characters} of {len(value)} characters left out")
        return _head_and_tail(value, characters)
    if isinstance(value, list):
        kept = value if len(value) <= items else [*value[: items - items // 2], *value[-(items // 2) :]]
        if len(value) > items:
            note(f"{where}: {len(value) - items} of {len(value)} items left out after item {items - items // 2}")
        return [_clip(each, f"{where}[{index}]", characters, items, note) for index, each in enumerate(kept)]
    if isinstance(value, dict):
        return {
            key: _clip(each, f"{where}.{key}" if where else key, characters, items, note) for key, each in value.items()
        }
    return value


def _head_and_tail(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    tail = characters // 2
    return f"{text[: characters - tail]}\n[... {len(text) - characters} characters left out ...]\n{text[-tail:]}"
