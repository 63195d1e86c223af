"""Imports that a block needs and a file lacks, and where they belong."""

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from nodes.execute_tools.tools.line_edits import moved
from nodes.execute_tools.tools.python_units import DOCSTRING, PythonText, Unit, UnitKind, statements_in

_Alias: TypeAlias = tuple[str | None, int, str, str | None]
_Import: TypeAlias = ast.Import | ast.ImportFrom


class NewImport(NamedTuple):
    """One statement to add, without a final line end; one from `__future__` has to come before all others."""

    code: str
    from_future: bool


class Place(NamedTuple):
    """Where to insert: after this many lines, with so many blank lines before and after."""

    line: int
    blank_before: int = 0
    blank_after: int = 0


def missing_imports(source: PythonText, block: PythonText) -> tuple[NewImport, ...]:
    """The block's top-level imports that the source does not have, reduced to the names that are missing there."""
    present = set(_aliases(statements_in(node for unit in source.units for node in unit.nodes)))
    found = []
    for unit in block.units:
        if unit.kind is not UnitKind.IMPORT or not isinstance(unit.node, _Import):
            continue
        missing = [name for name in unit.node.names if _alias(unit.node, name) not in present]
        present.update(_aliases([unit.node]))
        if missing:
            found.append(NewImport(_code(block, unit, missing), getattr(unit.node, "module", "") == "__future__"))
    return tuple(found)


def place_of_imports(source: PythonText, *, from_future: bool) -> Place:
    """After the last import that stands before the first definition, else after the docstring, else at the top."""
    units = source.units
    docstring = units[0] if units and units[0].key == DOCSTRING else None
    rest = units[1:] if docstring else units
    imports = list(_leading_imports(rest))
    if imports:
        return Place(imports[0].first - 1 if from_future else imports[-1].last)
    if docstring:
        return Place(docstring.last, blank_before=1)
    if not rest:
        return Place(len(source.lines), blank_before=1 if source.lines else 0)
    blank = 2 if rest[0].kind in {UnitKind.FUNCTION, UnitKind.CLASS} else 1
    return Place(source.head(rest[0]) - 1, blank_after=blank)


def _leading_imports(units: Iterable[Unit]) -> Iterator[Unit]:
    for unit in units:
        if unit.kind in {UnitKind.FUNCTION, UnitKind.CLASS}:
            return
        if unit.kind is UnitKind.IMPORT:
            yield unit


def _aliases(nodes: Iterable[ast.stmt]) -> Iterator[_Alias]:
    for node in nodes:
        if isinstance(node, _Import):
            yield from (_alias(node, name) for name in node.names)


def _alias(node: _Import, name: ast.alias) -> _Alias:
    if isinstance(node, ast.Import):
        return None, 0, name.name, name.asname
    return node.module or "", node.level, name.name, name.asname


def _code(block: PythonText, unit: Unit, missing: list[ast.alias]) -> str:
    node = unit.node
    if isinstance(node, _Import) and len(missing) < len(node.names):
        reduced = (
            ast.ImportFrom(node.module, missing, node.level)
            if isinstance(node, ast.ImportFrom)
            else ast.Import(missing)
        )
        return ast.unparse(reduced)
    return "\n".join(moved(block.lines, range(unit.first, unit.last + 1), (unit.indent, ""), block.frozen))
