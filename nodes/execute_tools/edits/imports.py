"""Where imports stand in a Python file, and those that a new text lacks. Pure."""

import ast
import builtins
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mendgraph.nodes.execute_tools.edits.python_text import (
    DEFINITIONS,
    DOCSTRING,
    LineEdit,
    PythonText,
    SyntaxProblem,
    Unit,
    UnitKind,
    apply_edits,
    named_units,
    parse,
    read_python,
)
from mendgraph.nodes.execute_tools.files.text_files import dominant_newline
from mendgraph.nodes.language.request import module_of

_BUILTINS: Final = frozenset({*dir(builtins), "__file__"})


def place_of_imports(source: PythonText, *, from_future: bool) -> tuple[int, int, int]:
    """After how many lines new imports go, and with how many blank lines before and after.

    That is after the last import before the first definition, else after the docstring, else at the top.
    """
    imports: list[Unit] = []
    for unit in source.units:
        if unit.kind in DEFINITIONS:
            break
        if unit.kind is UnitKind.IMPORT:
            imports.append(unit)

    if imports and from_future:
        return imports[0].first - 1, 0, 0
    if imports:
        return imports[-1].last, 0, 0

    first = source.units[0]
    if first.key == DOCSTRING:
        return first.last, 1, 0

    below = 2 if first.kind in DEFINITIONS else 1
    return source.head(first) - 1, 0, below


def without_imports_of(block: PythonText, path: str) -> PythonText:
    """The block without what it imports from the file at this path, which it is a text for."""
    module = module_of(path)
    levels: set[int] = set()
    if module not in sys.stdlib_module_names:
        levels.add(0)
    if not path.endswith("__init__.py"):
        levels.add(1)

    units: list[Unit] = []
    for unit in block.units:
        node = unit.node
        is_import = isinstance(node, ast.ImportFrom) and len(unit.nodes) == 1
        if not (is_import and getattr(node, "module", None) == module and getattr(node, "level", -1) in levels):
            units.append(unit)

    return replace(block, units=tuple(units))


def with_imports(text: str, before: str, modules: Mapping[str, str]) -> str:
    """The text with an import of what it, unlike `before`, uses and never binds.

    That are modules of the standard library, and what exactly one of the `modules` defines: their texts, by the names
    under which this text imports them.
    """
    code = read_python(text)
    unbound = _unbound(text)
    names = sorted(unbound.keys() - _unbound(before).keys())
    if not names or isinstance(code, SyntaxProblem):
        return text

    defined = {module: definitions_in(source) for module, source in modules.items()}
    of_modules: list[str] = []
    of_names: list[str] = []

    for name in names:
        homes = [module for module, definitions in defined.items() if name in definitions]
        if len(homes) == 1:
            of_names.append(f"from {homes[0]} import {name}")
        elif not homes and unbound[name] and (name in modules or name in sys.stdlib_module_names):
            of_modules.append(f"import {name}")

    imports = [*of_modules, *of_names]
    if not imports:
        return text

    line, above, below = place_of_imports(code, from_future=False)
    newline = dominant_newline(text)
    lines = [*[""] * above, *imports, *[""] * below]
    return apply_edits(code.lines, [LineEdit(line, line, tuple(added + newline for added in lines))])


def definitions_in(text: str) -> frozenset[str]:
    """The names that a text defines at its top, without imports; none where it is no Python."""
    code = read_python(text)
    if isinstance(code, SyntaxProblem):
        return frozenset()

    return frozenset(unit.name for unit in named_units(code))


def _unbound(text: str) -> dict[str, bool]:
    """The names that a text uses and gives no meaning, and whether it uses them as it uses a module (`re.sub`)."""
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
