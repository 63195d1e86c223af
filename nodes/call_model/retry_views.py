"""What a fresh request shows after a failed try: another view of the same work, so that another reply comes.

A small model that is shown the same copies the same. Where examples tell right from wrong, its second look at a faulty
function is at its name, its documentation and the file around it, without the body that it would copy.
Source: measured on a 1.5B model with one-line bugs: shown the body it repeated it unchanged in 5 of 7 first tries; two
of those five it wrote right where the body was left out.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nodes.language.python_source import parse_quietly

_WORD = re.compile(r"\w+")
_FOUND = re.compile(r"^(?>(.*?) (?:gives|raises) ).*, but must (give|raise) (.*)$", re.MULTILINE)
_ELISION = "..."


class Focus(NamedTuple):
    """The one definition that the work is about, and its file."""

    path: str
    name: str


def find_focus(words: Sequence[str], files: Mapping[str, str]) -> Focus | None:
    """The definition that these texts speak of, the earlier ones first; None where it is none or not the only one.

    A text that begins with a call speaks of what is called.
    """
    defined: dict[str, list[str]] = {}
    for path, text in files.items():
        for name in _functions(path, text):
            defined.setdefault(name, []).append(path)
    for text in words:
        named = [name for name in dict.fromkeys(_WORD.findall(text)) if name in defined]
        if named:
            places = defined[named[0]]
            certain = len(named) == 1 or text.startswith(f"{named[0]}(")
            return Focus(places[0], named[0]) if certain and len(places) == 1 else None
    return None


def without_body(text: str, name: str) -> str | None:
    """The file with `...` in place of this function's body, its documentation kept; None where it has no one body."""
    found = [node for node in _nodes(text) if node.name == name]
    if len(found) != 1:
        return None
    whole, body, lines = found[0], found[0].body, text.split("\n")
    documented = ast.get_docstring(whole) is not None
    if documented and len(body) == 1:
        return None
    code = body[documented]
    starts = min([code.lineno, *(each.lineno for each in getattr(code, "decorator_list", ()))])
    kept, ends = (body[0].end_lineno or 0) if documented else starts - 1, whole.end_lineno or starts
    if not whole.lineno <= kept < starts or ends > len(lines):
        return None
    indent = re.match(r"\s*", lines[starts - 1])
    hidden = "\n".join([*lines[:kept], f"{indent[0] if indent else ''}{_ELISION}", *lines[ends:]])
    return hidden if any(node.name == name for node in _nodes(hidden)) else None


def what_must_be(found: str) -> str:
    """What examples found, without what is wrong: of code that is not shown only the right value says something."""
    return _FOUND.sub(r"\1 must \2 \3", found)


def _functions(path: str, text: str) -> list[str]:
    return [node.name for node in _nodes(text)] if path.endswith((".py", ".pyi")) else []


def _nodes(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    try:
        tree = parse_quietly(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
