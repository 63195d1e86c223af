"""Imports of Python files: those that a block adds, and those that a new text lacks. Pure."""

import ast
import builtins
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import dropwhile
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem, parse
from mendgraph.nodes.execute_tools.edits.units import (
    BLANK,
    DOCSTRING,
    PythonSource,
    Statement,
    Unit,
    UnitKind,
    code_of,
    read_units,
    statement_of,
)
from mendgraph.nodes.language.request import module_of

Import: TypeAlias = ast.Import | ast.ImportFrom
_BUILTINS: Final = frozenset({*dir(builtins), "__file__"})


class ImportedName(NamedTuple):
    """A name that a statement at the top of a module imports."""

    unit: Unit
    node: Import
    alias: ast.alias

    @property
    def bound(self) -> str:
        """The name that the module gets."""
        return self.alias.asname or self.alias.name.partition(".")[0]


def imports_of(units: Sequence[Unit]) -> Iterator[ImportedName]:
    """Yield what a module imports at its top."""
    for unit in units:
        if unit.kind is UnitKind.IMPORT and isinstance(unit.tree, Import):
            for alias in unit.tree.names:
                yield ImportedName(unit, unit.tree, alias)


def imported_names(units: Sequence[Unit]) -> set[str]:
    """Return the names that a module gets by imports at its top."""
    return {imported.bound for imported in imports_of(units)}


def origins(node: Import) -> list[tuple[object, ...]]:
    """Return a value for each name that a statement imports; the values of equal imports are equal."""
    module = getattr(node, "module", None), getattr(node, "level", -1)
    return [(*module, alias.name, alias.asname) for alias in node.names]


def reduced_import(node: Import, names: list[ast.alias]) -> str:
    """Return the text of the statement with these names only."""
    if isinstance(node, ast.ImportFrom):
        return ast.unparse(ast.ImportFrom(node.module, names, node.level))
    return ast.unparse(ast.Import(names))


def add_imports(units: list[Unit], imports: Sequence[Statement], *, from_future: bool = False) -> None:
    """Insert import statements behind the last import before the first definition, else behind the docstring."""
    if not imports:
        return

    nodes = [node.with_changes(leading_lines=()) for node in imports]
    index = 0
    last_import = -1
    for at, unit in enumerate(units):
        if unit.is_definition:
            break
        if unit.kind is UnitKind.IMPORT:
            last_import = at
            if from_future:
                break

    if last_import >= 0 and from_future:
        index = last_import
        node = units[index].node
        nodes[0] = nodes[0].with_changes(leading_lines=node.leading_lines)
        units[index] = replace(units[index], node=node.with_changes(leading_lines=()))
    elif last_import >= 0:
        index = last_import + 1
    elif units and units[0].key == DOCSTRING:
        index = 1
        nodes[0] = nodes[0].with_changes(leading_lines=[BLANK])
    elif units:
        gap = [BLANK] * (2 if units[0].is_definition else 1)
        comments = dropwhile(lambda line: line.comment is None, units[0].node.leading_lines)
        units[0] = replace(units[0], node=units[0].node.with_changes(leading_lines=[*gap, *comments]))

    units[index:index] = [Unit("", UnitKind.IMPORT, node, ast.parse(code_of(node)).body) for node in nodes]


def remove_imports(units: list[Unit], names: set[str], among: Sequence[Unit]) -> None:
    """Remove these names from those `from` imports of a module that are `among` some units."""
    for unit in among:
        node = unit.tree if unit.kind is UnitKind.IMPORT else None
        if unit not in units or not isinstance(node, ast.ImportFrom):
            continue

        remaining = [alias for alias in node.names if (alias.asname or alias.name) not in names]
        if len(remaining) == len(node.names):
            continue

        index = units.index(unit)
        if remaining:
            lines = unit.node.leading_lines
            units[index] = replace(unit, node=statement_of(reduced_import(node, remaining)))
            units[index].node = units[index].node.with_changes(leading_lines=lines)
            continue

        del units[index]
        if index < len(units):
            below = units[index].node
            lines = [*unit.node.leading_lines, *below.leading_lines]
            units[index] = replace(units[index], node=below.with_changes(leading_lines=lines))


def without_imports_of(units: list[Unit], path: str) -> list[Unit]:
    """Return the units of a block without imports from the file at `path`, which the block is for."""
    module = module_of(path)
    levels: set[int] = set()
    if module not in sys.stdlib_module_names:
        levels.add(0)
    if not path.endswith("__init__.py"):
        levels.add(1)

    remaining: list[Unit] = []
    for unit in units:
        node = unit.tree if unit.kind is UnitKind.IMPORT else None
        if not (isinstance(node, ast.ImportFrom) and node.module == module and node.level in levels):
            remaining.append(unit)

    return remaining


def with_imports(text: str, before: str, homes: Mapping[str, str]) -> str:
    """Return the text with imports of what it uses and does not bind, unless `before` lacked it as well.

    Imported are modules of the standard library, and names that have a module in `homes`.
    """
    unbound = _unbound_names(text)
    of_modules: list[str] = []
    of_names: list[str] = []

    for name in sorted(unbound.keys() - _unbound_names(before).keys()):
        if name in homes:
            of_names.append(f"from {homes[name]} import {name}")
        elif unbound[name] and name in sys.stdlib_module_names:
            of_modules.append(f"import {name}")

    source = read_units(text) if of_modules or of_names else None
    if not isinstance(source, PythonSource):
        return text

    add_imports(source.units, list(map(statement_of, of_modules + of_names)))
    return source.code


def definitions_in(text: str) -> frozenset[str]:
    """Return the names that a text defines at its top, without imports; none of a text that is not Python."""
    source = read_units(text)
    if isinstance(source, SyntaxProblem):
        return frozenset()

    return frozenset(source.names)


def _unbound_names(text: str) -> dict[str, bool]:
    """Return the names that a text uses and does not bind, and whether it uses them like a module (`re.sub`)."""
    tree = parse(text)
    if isinstance(tree, SyntaxProblem):
        return {}

    owners: set[str] = set()
    bound = set(_BUILTINS)
    used_names: set[str] = set()

    for node in ast.walk(tree):
        for field in ("name", "asname", "arg", "rest"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                bound.add(name.partition(".")[0])

        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owners.add(node.value.id)

        if isinstance(node, ast.Name):
            used_names.add(node.id)
            if not isinstance(node.ctx, ast.Load):
                bound.add(node.id)

    if "*" in bound:
        return {}

    return {name: name in owners for name in used_names - bound}
