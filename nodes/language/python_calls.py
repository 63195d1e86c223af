"""A call of a known tool that is written as a Python call: `read_file(path="a.py")`.

Nothing is evaluated. The arguments must be literals that JSON has as well (strings, numbers, True, False, None, lists,
dictionaries with string keys), so that a name, an expression or an f-string leaves the call unread.
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from mendgraph.nodes.language.documents import parse_quietly
from mendgraph.nodes.language.json_arguments import (
    MAX_ARGUMENT_CHARS,
    MAX_NESTING,
    Pairs,
    decode_arguments,
    join_edits,
    split_call,
)
from mendgraph.nodes.records import JsonMap, ToolInvocation

_HEAD = re.compile(r"(?:tool:[ \t]*+)?(?P<tool>[\w.-]++)[ \t]*+(?=\()")
_BETWEEN = re.compile(r"(?:[ \t]*+;)?[ \t]*+(?:\#[^\n]*+)?(?:\r?\n\s*+|\Z)|[ \t]*+;[ \t]*+")
_GAP = re.compile(r"(?:\s++|\#[^\n]*+)*")
_TOKEN = re.compile(
    r"""\"\"\"(?:[^"\\]++|\\.|"(?!""))*+\"\"\" | '''(?:[^'\\]++|\\.|'(?!''))*+'''
      | "(?!"")(?:[^"\\\n]++|\\.)*+" | '(?!'')(?:[^'\\\n]++|\\.)*+'
      | \#[^\n]*+ | (?P<open>[(\[{]) | (?P<close>[)\]}]) | [^"'\#()\[\]{}]++""",
    re.DOTALL | re.VERBOSE,
)


class _UnreadError(ValueError):
    """Leaves the reading of what is no literal call."""


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
        at = _expect(_GAP, body, 0).end()
        while at < len(body):
            head = _expect(_HEAD, body, at)
            end = _call_end(body, head.end())
            calls.append(_invocation(head["tool"], body[head.end() : end], known_tools, only_required))
            at = _expect(_GAP, body, _expect(_BETWEEN, body, end).end()).end()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls or None


def _call_end(text: str, at: int) -> int:
    """Just after the parenthesis that closes the one at `at`."""
    depth = 0
    while token := _TOKEN.match(text, at):
        at = token.end()
        depth += (token["open"] is not None) - (token["close"] is not None)
        if depth == 0:
            return at
        if depth > MAX_NESTING + 1:
            break
    raise _UnreadError


def _invocation(
    tool: str, arguments: str, known_tools: frozenset[str], only_required: Mapping[str, str]
) -> ToolInvocation:
    [statement] = parse_quietly(f"_{arguments}").body if tool in known_tools else [None]
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        raise _UnreadError
    pairs: Pairs = [(keyword.arg or "", _literal(keyword.value)) for keyword in call.keywords]
    if call.args:
        if len(call.args) > 1 or tool not in only_required:
            raise _UnreadError
        pairs = [(only_required[tool], _literal(call.args[0])), *pairs]
    joined: JsonMap | None = dict(pairs) if len(dict(pairs)) == len(pairs) else join_edits(pairs)
    decoded = split_call(tool, joined, known_tools) if joined is not None and "" not in joined else None
    if decoded is None or decode_arguments(json.dumps(decoded.arguments)) != decoded.arguments:
        raise _UnreadError
    return ToolInvocation(decoded.tool, decoded.arguments, 0)


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List():
            return [_literal(each) for each in node.elts]
        case ast.Dict():
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            if len(set(keys)) == len(keys) and all(isinstance(key, str) for key in keys):
                return dict(zip(keys, map(_literal, node.values), strict=True))
    raise _UnreadError


def _expect(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    found = pattern.match(text, at)
    if found is None:
        raise _UnreadError
    return found
