"""Calls and their results in a few words, for the lines that a terminal shows while tools run. Pure."""

from collections.abc import Mapping
from typing import Any

from graph.terminal.plain_text import one_line
from nodes.records import ExtractionError, ToolResult

_LONGEST_TARGET = 80


def target_of(arguments: Mapping[str, Any]) -> str:
    """What a call is about, its pattern and its path, on one line; "" where it has neither."""
    pattern, path = arguments.get("pattern"), arguments.get("path")
    if not isinstance(pattern, str):
        return one_line(path, _LONGEST_TARGET) if isinstance(path, str) else ""
    place = f" in {path}" if isinstance(path, str) and path != "." else ""
    return one_line(f"{pattern!r}{place}", _LONGEST_TARGET)


def result_words(result: ToolResult) -> str:
    """What a result amounts to: `35 lines`, `1 replacement`, `not found: ...`; "ok" for what has no number."""
    if result.error is not None:
        return f"{result.error.code.value.replace('_', ' ')}: {one_line(result.error.message)}"
    data = result.data
    for key, words in _WORDS.items():
        if key in data:
            return one_line(words(data))
    return "ok"


def error_words(errors: tuple[ExtractionError, ...]) -> str:
    """The first error of a reply, and how many more there are."""
    if not errors:
        return "it could not be read"
    first = errors[0]
    place = f" in line {first.line_number}" if first.line_number else ""
    more = f" and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"{first.error_type.name}{place}{more}"


def count_of(number: int, noun: str, plural: str = "") -> str:
    """`1 line`, `2 lines`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _page(data: Mapping[str, Any]) -> str:
    shown, remaining = data["lines_shown"], data.get("lines_remaining", 0)
    return count_of(shown, "line") + (f", {remaining:,} more" if remaining else "")


def _found(key: str, noun: str, plural: str = "") -> Any:
    def words(data: Mapping[str, Any]) -> str:
        return count_of(len(data[key]), noun, plural) + (" and more" if data.get("has_more") else "")

    return words


def _edit(data: Mapping[str, Any]) -> str:
    return count_of(data["replacements"], "replacement") if data["replacements"] else "created"


def _merged(data: Mapping[str, Any]) -> str:
    names = ", ".join(map(str, data["changed"]))
    return f"{data.get('action', 'changed')} {names}".strip()


def _written(data: Mapping[str, Any]) -> str:
    return f"{data.get('action', 'written')}, {count_of(data['lines'], 'line')}"


def _listing(data: Mapping[str, Any]) -> str:
    return f"{count_of(data['files'], 'file')}, {count_of(data['directories'], 'directory', 'directories')}"


def _plan(data: Mapping[str, Any]) -> str:
    return f"{data['done']} done, {data['in_progress']} in progress, {data['pending']} pending"


_WORDS: Mapping[str, Any] = {
    "lines_shown": _page,
    "replacements": _edit,
    "changed": _merged,
    "lines": _written,
    "directories": _listing,
    "paths": _found("paths", "file"),
    "matches": _found("matches", "match", "matches"),
    "in_progress": _plan,
}
"""The key by which a tool's result is known, and the words for it."""
