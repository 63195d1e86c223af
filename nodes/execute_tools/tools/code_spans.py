"""Where a piece of Python begins and ends inside of prose: a call, a literal. Pure.

Brackets and strings are followed, nothing else is understood; a parser has the last word.
"""

import re
from typing import Final, NamedTuple

LONGEST_CODE: Final = 500
"""Characters of one piece."""

_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
_WORD = re.compile(r"(?:[rbuRBU]{0,2})(?=['\"])|[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_PLAIN = {"true": "True", "false": "False", "none": "None", "null": "None"}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}

_AFTER_A_CALL = re.compile(r"\.[^\W\d]\w*(?=[(.])|\.[^\W\d]\w*\b(?=\s)")
_GLUED = re.compile(r"\w|\.\d")


class Span(NamedTuple):
    """Code in a text: itself, and where it ends."""

    code: str
    end: int


def call_span(text: str, start: int, end: int) -> Span | None:
    """A call that begins with a name, and what is called, taken or looked up of its result."""
    while end < len(text) and text[end] in "([":
        closed = _balanced(text, end)
        if closed is None:
            return None
        end = closed
        more = _AFTER_A_CALL.match(text, end)
        end = more.end() if more else end
    return Span(text[start:end], end)


def value_span(text: str, start: int) -> Span | None:
    """A number, a string, something in brackets, or a name with what is called."""
    if start >= len(text):
        return None
    if text[start] in _CLOSERS:
        end = _balanced(text, start)
        return None if end is None else Span(text[start:end], end)
    number = _NUMBER.match(text, start)
    if number:
        return None if _GLUED.match(text, number.end()) else Span(number[0], number.end())
    word = _WORD.match(text, start)
    if word is None:
        return None
    if text[word.end() : word.end() + 1] in {"'", '"'}:
        end = _string_end(text, word.end())
        return None if end is None else Span(text[start:end], end)
    if text[word.end() : word.end() + 1] == "(":
        return call_span(text, start, word.end())
    code = _PLAIN.get(word[0].lower(), "")
    return Span(code, word.end()) if code else None


def _balanced(text: str, start: int) -> int | None:
    """Where the bracket that opens at `start` is closed; strings inside are passed over."""
    waiting: list[str] = []
    at = start
    while at < min(len(text), start + LONGEST_CODE):
        letter = text[at]
        if letter in _CLOSERS:
            waiting.append(_CLOSERS[letter])
        elif letter in "'\"":
            end = _string_end(text, at)
            if end is None:
                return None
            at = end
            continue
        elif letter in ")]}":
            if not waiting or waiting.pop() != letter:
                return None
            if not waiting:
                return at + 1
        at += 1
    return None


def _string_end(text: str, start: int) -> int | None:
    """Where the string that opens at `start` ends; strings over several lines are not read."""
    mark, at = text[start], start + 1
    while at < min(len(text), start + LONGEST_CODE):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == "\n":
            return None
        if text[at] == mark:
            return at + 1
        at += 1
    return None
