"""Where imports stand in a Python file, and those that a new text lacks. Pure."""

import ast
import builtins
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from typing import Final

from mendgraph.nodes.execute_tools.edits.python_text import (
    DEFINITIONS,
    DOCSTRING,
    LineEdit,
    PythonText,
    SyntaxProblem,
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
    """After how many lines, and with how many blank lines before and after.

    That is after the last import before the first definition, else after the docstring, else at the top.
    """
    units_left = source.units
    first = takewhile(lambda unit: unit.kind not in DEFINITIONS, units_left)
    if imports := [unit for unit in first if unit.kind is UnitKind.IMPORT]:
        return imports[0].first - 1 if from_future else imports[-1].last, 0, 0
    if units_left[0].key == DOCSTRING:
        return units_left[0].last, 1, 0

    return source.head(units_left[0]) - 1, 0, 2 if units_left[0].kind in DEFINITIONS else 1


def without_imports_of(block: PythonText, path: str) -> PythonText:
    """The block without what it imports from the file at this path, which it is a text for."""
    module = module_of(path)
    levels = {0: module not in sys.stdlib_module_names, 1: not path.endswith("__init__.py")}
    imports = {
        unit: unit.node for unit in block.units if isinstance(unit.node, ast.ImportFrom) and len(unit.nodes) == 1
    }
    own_imports = [unit for unit, node in imports.items() if node.module == module and levels.get(node.level)]

    return replace(block, units=tuple(unit for unit in block.units if unit not in own_imports))


def with_imports(text: str, before: str, modules: Mapping[str, str]) -> str:
    """The text with an import of what it, unlike `before`, uses and never binds.

    That are modules of the standard library, and what exactly one of the `modules` defines: their texts, by the names
    under which this text imports them.
    """
    code = read_python(text)
    new = _unbound(text)
    names = sorted(new.keys() - _unbound(before).keys())

    if not names or isinstance(code, SyntaxProblem):
        return text

    defined = {module: definitions_in(module_source) for module, module_source in modules.items()}
    places = {name: [module for module, names_defined in defined.items() if name in names_defined] for name in names}
    whole_modules = {
        name for name in modules.keys() | sys.stdlib_module_names if new.get(name) and not places.get(name)
    }
    imports = [f"import {name}" for name in names if name in whole_modules]
    imports += [
        f"from {modules_found[0]} import {name}" for name, modules_found in places.items() if len(modules_found) == 1
    ]
    line, above, below = place_of_imports(code, from_future=False)
    lines = [*[""] * above, *imports, *[""] * below] if imports else []

    return apply_edits(
        code.lines, [LineEdit(line, line, tuple(import_line + dominant_newline(text) for import_line in lines))]
    )


def definitions_in(text: str) -> frozenset[str]:
    """The names that a text defines at its top, without imports; none where it is no Python."""
    code = read_python(text)
    if isinstance(code, SyntaxProblem):
        return frozenset()

    return frozenset(unit.name for unit in named_units(code))


def _unbound(text: str) -> dict[str, bool]:
    """The names that a text uses and gives no meaning, and whether it uses them as it uses a module (`re.sub`)."""
    tree = parse(text)
    nodes = [] if isinstance(tree, SyntaxProblem) else [*ast.walk(tree)]
    owners = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    bound_names = {getattr(node, field, None) for node in nodes for field in ("name", "asname", "arg", "rest")}
    bound_names |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound = {name.partition(".")[0] for name in bound_names if isinstance(name, str)} | _BUILTINS
    names_read = {node.id for node in nodes if isinstance(node, ast.Name)} - bound

    if "*" in bound_names:
        return {}

    return {name: name in owners for name in names_read}
