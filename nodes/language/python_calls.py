"""A call of a known tool that is written as a Python call: `read_file(path="a.py")`.

Nothing is evaluated. The arguments must be literals that JSON has as well (strings, numbers, True, False, None, lists,
dictionaries with string keys), so that a name, an expression or an f-string leaves the call unread. Reading is linear
in the text. Python's own parser is not used: its time and its warnings depend on what a model wrote.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from nodes.language.json_arguments import MAX_ARGUMENT_CHARS, MAX_NESTING, Pairs, decode_arguments
from nodes.language.repeated_edits import join_edits, split_call
from nodes.records import JsonMap, ToolInvocation

_HEAD = re.compile(r"\s*+(?:tool:[ \t]*+)?(?P<tool>[\w.-]++)[ \t]*+\(")
_KEYWORD = re.compile(r"(?P<name>[A-Za-z_]\w*+)\s*+=(?!=)")
_BETWEEN = re.compile(r"(?:[ \t]*+;)?[ \t]*+(?:\#[^\n]*+)?(?:\r?\n\s*+|\Z)|[ \t]*+;[ \t]*+")
_GAP = re.compile(r"(?:\s++|\#[^\n]*+|\\\r?\n)*")
_STRING = re.compile(
    r"""(?P<raw>[rRuU]?)(?:
        \"\"\"(?P<long>(?:[^"\\]++|\\.|"(?!""))*)\"\"\"
      | '''(?P<long2>(?:[^'\\]++|\\.|'(?!''))*)'''
      | "(?!"")(?P<short>(?:[^"\\\n]++|\\.)*)"
      | '(?!'')(?P<short2>(?:[^'\\\n]++|\\.)*)'
    )""",
    re.DOTALL | re.VERBOSE,
)
_NUMBER = re.compile(r"(?P<whole>-?(?:0|[1-9]\d{0,40}))(?P<rest>(?:\.\d{1,40})?(?:[eE][+-]?\d{1,4})?)(?![\w.])")
_WORD = re.compile(r"[A-Za-z_]\w*+")
_ESCAPE = re.compile(
    r"\\(?:(?P<line>\r?\n)|(?P<octal>[0-7]{1,3})|x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})"
    r"|U(?P<U>[0-9A-Fa-f]{8})|(?P<other>.))",
    re.DOTALL,
)
_NAMED: Final = {
    "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_HALF: Final = frozenset("xuUN")
"""Escapes that name a character, where they are not whole or ask for its name."""
_LARGEST_OCTAL: Final = 0o377
"""Python warns of larger ones, and will refuse them."""
_CONSTANTS: Final[Mapping[str, Any]] = {"True": True, "False": False, "None": None}

_Read: TypeAlias = tuple[Any, int]
"""A value and where the text goes on after it."""


class _UnreadError(ValueError):
    """Leaves the reading of what is no literal call."""


class _Call(NamedTuple):
    tool: str
    pairs: Pairs
    positional: tuple[Any, ...]
    end: int


def read_python_calls(
    body: str, known_tools: frozenset[str], only_required: Mapping[str, str]
) -> list[ToolInvocation] | None:
    """The calls of a body that is nothing but such calls, one after the other on lines of their own; else None.

    Before each may stand `tool:`. `only_required` names for a tool with exactly one required argument which it is: that
    may be given first and without its name.
    """
    if len(body) > MAX_ARGUMENT_CHARS:
        return None
    calls: list[ToolInvocation] = []
    try:
        at = _skipped(body, 0)
        while at < len(body):
            call = _call(body, at, known_tools)
            calls.append(_invocation(call, known_tools, only_required))
            at = _skipped(body, _expect(_BETWEEN, body, call.end))
    except _UnreadError:
        return None
    return calls or None


def _invocation(call: _Call, known_tools: frozenset[str], only_required: Mapping[str, str]) -> ToolInvocation:
    pairs = call.pairs
    if call.positional:
        if len(call.positional) > 1 or call.tool not in only_required:
            raise _UnreadError
        pairs = [(only_required[call.tool], call.positional[0]), *pairs]
    arguments: JsonMap | None = dict(pairs)
    if len(dict(pairs)) < len(pairs):
        arguments = join_edits(pairs)
    decoded = split_call(call.tool, arguments, known_tools) if arguments is not None else None
    if decoded is None or decode_arguments(json.dumps(decoded.arguments)) != decoded.arguments:
        raise _UnreadError
    return ToolInvocation(decoded.tool, decoded.arguments, 0)


def _call(text: str, at: int, known_tools: frozenset[str]) -> _Call:
    head = _HEAD.match(text, at)
    if head is None or head["tool"] not in known_tools:
        raise _UnreadError
    pairs: Pairs = []
    positional: list[Any] = []
    at = _skipped(text, head.end())
    while not text.startswith(")", at):
        keyword = _KEYWORD.match(text, at)
        value, at = _value(text, _skipped(text, keyword.end()) if keyword else at, 1)
        if keyword:
            pairs.append((keyword["name"], value))
        elif pairs:
            raise _UnreadError
        else:
            positional.append(value)
        at = _after_element(text, at, ")")
    return _Call(head["tool"], pairs, tuple(positional), at + 1)


def _value(text: str, at: int, depth: int) -> _Read:
    if depth > MAX_NESTING:
        raise _UnreadError
    if text.startswith("[", at):
        return _list(text, at, depth)
    if text.startswith("{", at):
        return _dictionary(text, at, depth)
    if _STRING.match(text, at):
        return _string(text, at)
    number = _NUMBER.match(text, at)
    if number:
        return (float(number[0]) if number["rest"] else int(number[0])), number.end()
    word = _WORD.match(text, at)
    if word is None or word[0] not in _CONSTANTS:
        raise _UnreadError
    return _CONSTANTS[word[0]], word.end()


def _list(text: str, at: int, depth: int) -> _Read:
    values: list[Any] = []
    at = _skipped(text, at + 1)
    while not text.startswith("]", at):
        value, at = _value(text, at, depth + 1)
        values.append(value)
        at = _after_element(text, at, "]")
    return values, at + 1


def _dictionary(text: str, at: int, depth: int) -> _Read:
    values: JsonMap = {}
    at = _skipped(text, at + 1)
    while not text.startswith("}", at):
        key, at = _string(text, at)
        at = _skipped(text, at)
        if key in values or not text.startswith(":", at):
            raise _UnreadError
        values[key], at = _value(text, _skipped(text, at + 1), depth + 1)
        at = _after_element(text, at, "}")
    return values, at + 1


def _string(text: str, at: int) -> _Read:
    """One string, or several that stand next to each other, which Python joins."""
    parts: list[str] = []
    while string := _STRING.match(text, at):
        inside = next(string[name] for name in ("long", "long2", "short", "short2") if string[name] is not None)
        parts.append(inside if string["raw"] in {"r", "R"} else _ESCAPE.sub(_unescaped, inside))
        at = string.end()
        after = _skipped(text, at)
        if not _STRING.match(text, after):
            break
        at = after
    if not parts:
        raise _UnreadError
    return "".join(parts), at


def _unescaped(escape: re.Match[str]) -> str:
    """What an escape stands for; like Python, one that stands for nothing stays as it is written."""
    if escape["line"]:
        return ""
    if escape["other"]:
        if escape["other"] in _HALF:
            raise _UnreadError
        return _NAMED.get(escape["other"], escape[0])
    code = int(escape["octal"], 8) if escape["octal"] else int(escape["x"] or escape["u"] or escape["U"], 16)
    if code > (_LARGEST_OCTAL if escape["octal"] else 0x10FFFF):
        raise _UnreadError
    return chr(code)


def _after_element(text: str, at: int, closing: str) -> int:
    """Where the next element begins, or the bracket that closes; a comma may stand before it."""
    at = _skipped(text, at)
    if text.startswith(",", at):
        return _skipped(text, at + 1)
    if not text.startswith(closing, at):
        raise _UnreadError
    return at


def _skipped(text: str, at: int) -> int:
    """Past white space and comments."""
    return _expect(_GAP, text, at)


def _expect(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    if found is None:
        raise _UnreadError
    return found.end()
