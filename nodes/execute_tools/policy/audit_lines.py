"""One event as one line of JSON, in which no name can forge a line or steer a terminal."""

import json
from collections.abc import Mapping
from enum import Enum
from itertools import islice
from typing import Final

from nodes.records import JsonMap

LONGEST_LINE = 16 * 1024
"""Bytes of one line, its end included."""

_DEEPEST = 12
_LONGEST_INTEGER = 256
"""In bits; Python refuses to write very long ones."""

_SIZES: Final = ((4_000, 1_000), (1_000, 250), (250, 60), (40, 8))
"""Characters of a string and values in all, tried one after the other. The last fits, whatever the characters are."""


def audit_line(record: JsonMap) -> bytes:
    r"""The record as JSON, in UTF-8 with one line end, within `LONGEST_LINE` bytes. Never raises.

    What cannot be printed (control, bidirectional, invisible and unassigned characters, line separators, lone
    surrogates) is escaped as in \u202e. What JSON has no form for is shown by its type, like <bytes>. Long strings
    and large collections are cut, and say so.
    """
    try:
        lines = (_line_of(record, *size) for size in _SIZES)
        return next(line for line in lines if line)
    except Exception as error:  # noqa: BLE001 - a record that fights back must not break a run
        return _line({"unloggable": type(error).__name__})


def _line_of(record: object, characters: int, values: int) -> bytes:
    """The line with strings and collections cut to these sizes, nothing where that is still too long."""
    try:
        line = _line(_Plain(characters, values).form(record))
    except _TooLongError:
        return b""
    return line if len(line) <= LONGEST_LINE else b""


def _line(plain: object) -> bytes:
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    if not text.isprintable():
        text = "".join(each if each.isprintable() else _escape(each) for each in text)
    return text.encode() + b"\n"


def _escape(character: str) -> str:
    r"""`\uXXXX`, and two of these for a character beyond U+FFFF. Source: RFC 8259, section 7."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


class _TooLongError(Exception):
    """It is certain already that the line will not fit."""


class _Plain:
    """Makes JSON values of anything, with strings of `characters` and no more than `values` values in all.

    Raises:
        _TooLongError: all of these strings will not fit, so that nobody need look at the rest of them.
    """

    def __init__(self, characters: int, values: int) -> None:
        self._characters = characters
        self._left = values
        self._room = LONGEST_LINE

    def form(self, value: object, depth: int = 0) -> object:
        """The value as JSON knows it."""
        self._left -= 1
        if isinstance(value, Enum):
            value = value.value
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if value.bit_length() <= _LONGEST_INTEGER else f"<int of {value.bit_length()} bits>"
        if isinstance(value, float):
            return float(value) if abs(value) < float("inf") else f"<{value}>"
        if isinstance(value, str):
            return self._cut(value)
        if isinstance(value, Mapping | list | tuple) and depth >= _DEEPEST:
            return self._cut(f"<{type(value).__name__} too deep>")
        if isinstance(value, Mapping):
            return self._map(value, depth)
        if isinstance(value, list | tuple):
            return self._list(value, depth)
        return self._cut(f"<{type(value).__name__}>")

    def _map(self, value: Mapping[object, object], depth: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for at, (key, each) in enumerate(value.items()):
            if self._left <= 0:
                found["…"] = f"{len(value) - at} more"
                break
            found[self._key(key)] = self.form(each, depth + 1)
        return found

    def _list(self, value: list[object] | tuple[object, ...], depth: int) -> list[object]:
        found: list[object] = []
        for each in islice(value, len(value)):
            if self._left <= 0:
                found.append(f"… {len(value) - len(found)} more")
                break
            found.append(self.form(each, depth + 1))
        return found

    def _key(self, key: object) -> str:
        known = isinstance(key, str | int | float | bool) or key is None
        return self._cut(str(self.form(key)) if known else f"<{type(key).__name__}>")

    def _cut(self, text: str) -> str:
        if len(text) > self._characters:
            text = f"{text[: self._characters]}… ({len(text)} characters)"
        self._room -= len(text)
        if self._room < 0:
            raise _TooLongError
        return text
