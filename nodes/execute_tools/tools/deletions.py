"""Taking named definitions and imports out of a Python text, with the lines that belong to nothing else."""

import ast
from collections.abc import Collection
from typing import NamedTuple

from nodes.execute_tools.tools.line_edits import LineEdit, apply_edits
from nodes.execute_tools.tools.named_units import ImportedName, NamedUnit, imported_names, named_units
from nodes.execute_tools.tools.python_units import PythonText, SyntaxProblem, read_python
from nodes.execute_tools.tools.renames import bare_uses


class Pruned(NamedTuple):
    """A text without what was deleted, and the names of that."""

    text: str
    deleted: tuple[str, ...]


def delete_names(source: str, names: Collection[str]) -> Pruned:
    """Delete the definitions of these names (`load`, `Cart.total`), and imports of them that nothing uses any more.

    Decorators, and the comments directly above, go with a definition. A class that would be left without a body keeps
    `pass`. The rest is kept to the byte, but for the blank lines on one side of the gap.
    """
    deleted: list[str] = []
    for name in sorted(names):
        shorter = _without_definition(source, name)
        if shorter is None:
            shorter = _without_import(source, name)
        if shorter is not None:
            source = shorter
            deleted.append(name)
    return Pruned(source, tuple(deleted))


def _without_definition(source: str, name: str) -> str | None:
    """The text without all definitions of this name; None where it has none."""
    shorter: str | None = None
    while True:
        text = read_python(source)
        found = [] if isinstance(text, SyntaxProblem) else [each for each in named_units(text) if each.name == name]
        if isinstance(text, SyntaxProblem) or not found:
            return shorter
        source = shorter = apply_edits(text.lines, [_deletion(text, found[0])])


def _deletion(text: PythonText, named: NamedUnit) -> LineEdit:
    """The lines of a definition, and the smaller of the gaps around it."""
    first, last = text.head(named.unit), text.tail(named.unit)
    if named.home is not None and len(text.members(named.home)) == 1:
        newline = _newline(text, last)
        return LineEdit(first - 1, last, (f"{named.unit.indent}pass{newline}",))
    above, below = _blank_above(text, first), _blank_below(text, last)
    opens = named.home is not None and text.members(named.home)[0].first == named.unit.first
    at_end, at_start = last + below == len(text.lines), opens or first - above == 1
    if at_end or (above < below and not at_start):
        return LineEdit(first - 1 - above, last, ())
    return LineEdit(first - 1, last + below, ())


def _newline(text: PythonText, line: int) -> str:
    return "\r\n" if text.lines[line - 1].endswith("\r\n") else "\n"


def _blank_above(text: PythonText, first: int) -> int:
    """How many blank lines stand directly before this line."""
    count = 0
    while first - 2 - count >= 0 and not text.lines[first - 2 - count].strip():
        count += 1
    return count


def _blank_below(text: PythonText, last: int) -> int:
    count = 0
    while last + count < len(text.lines) and not text.lines[last + count].strip():
        count += 1
    return count


def _without_import(source: str, name: str) -> str | None:
    """The text without this import; None where the name is used, or the statement has comments that would be lost."""
    text = read_python(source)
    if isinstance(text, SyntaxProblem) or bare_uses(source, name):
        return None
    found = [each for each in imported_names(text) if each.name == name]
    if len(found) != 1:
        return None
    [imported] = found
    lines = range(imported.unit.first, imported.unit.last + 1)
    if any(number in text.comments for number in lines) and len(_names(imported)) > 1:
        return None
    kept = _reduced(imported)
    ended = (kept + _newline(text, imported.unit.last),) if kept else ()
    return apply_edits(text.lines, [LineEdit(lines.start - 1, lines.stop - 1, ended)])


def _names(imported: ImportedName) -> list[ast.alias]:
    node = imported.unit.node
    return node.names if isinstance(node, ast.Import | ast.ImportFrom) else []


def _reduced(imported: ImportedName) -> str:
    """The statement without the name, "" where it imports nothing else."""
    node = imported.unit.node
    rest = [alias for alias in _names(imported) if alias is not imported.alias]
    if not rest:
        return ""
    if isinstance(node, ast.ImportFrom):
        return ast.unparse(ast.ImportFrom(node.module, rest, node.level))
    return ast.unparse(ast.Import(rest))
