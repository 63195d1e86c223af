"""What a Python text defines or imports under which name: functions, classes, methods, constants, imports."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from nodes.execute_tools.tools.python_units import DOCSTRING, MAIN_GUARD, PythonText, Unit, UnitKind

_NAMED = frozenset({UnitKind.FUNCTION, UnitKind.CLASS, UnitKind.STATEMENT})


class NamedUnit(NamedTuple):
    """A definition by its full name (`load`, `Cart.total`), and the class that it stands in."""

    name: str
    unit: Unit
    home: Unit | None = None

    @property
    def last(self) -> str:
        """The name without its class."""
        return self.name.rpartition(".")[2]


class ImportedName(NamedTuple):
    """A name that a top-level import binds, and the statement and part of it that do so."""

    name: str
    unit: Unit
    alias: ast.alias

    @property
    def origin(self) -> tuple[str, int]:
        """The module from which it is imported, and how many dots stand before it; ("", -1) for a module itself."""
        node = self.unit.node
        return (node.module or "", node.level) if isinstance(node, ast.ImportFrom) else ("", -1)


def named_units(text: PythonText) -> list[NamedUnit]:
    """All definitions at the top and in the bodies of classes at the top, in order.

    The parts of a property are several with one name.
    """
    return list(_named_units(text))


def _named_units(text: PythonText) -> Iterator[NamedUnit]:
    for unit in text.units:
        if _is_named(unit):
            yield NamedUnit(_plain(unit), unit)
        if unit.kind is UnitKind.CLASS:
            for member in text.members(unit):
                if _is_named(member):
                    yield NamedUnit(f"{unit.key}.{_plain(member)}", member, unit)


def imported_names(text: PythonText) -> list[ImportedName]:
    """What the imports at the top bind, in order."""
    found = []
    for unit in text.units:
        if isinstance(unit.node, ast.Import | ast.ImportFrom) and unit.kind is UnitKind.IMPORT:
            for alias in unit.node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                found.append(ImportedName(bound, unit, alias))
    return found


def _is_named(unit: Unit) -> bool:
    return unit.kind in _NAMED and unit.key not in {DOCSTRING, MAIN_GUARD}


def _plain(unit: Unit) -> str:
    """The name without what sets the parts of a property apart."""
    return unit.key.partition(".")[0]
