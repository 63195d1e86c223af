"""Where imports stand in a Python file, and those of the standard library that a new text lacks. Pure."""

import ast
import sys
from itertools import takewhile

from mendgraph.nodes.execute_tools.edits.python_text import (
    DEFINITIONS,
    DOCSTRING,
    LineEdit,
    PythonText,
    SyntaxProblem,
    UnitKind,
    apply_edits,
    parse,
    read_python,
)
from mendgraph.nodes.execute_tools.files.text_files import dominant_newline


def place_of_imports(source: PythonText, *, from_future: bool) -> tuple[int, int, int]:
    """After how many lines, and with how many blank lines before and after.

    That is after the last import before the first definition, else after the docstring, else at the top.
    """
    rest = source.units
    first = takewhile(lambda unit: unit.kind not in DEFINITIONS, rest)
    if imports := [unit for unit in first if unit.kind is UnitKind.IMPORT]:
        return imports[0].first - 1 if from_future else imports[-1].last, 0, 0
    if rest[0].key == DOCSTRING:
        return rest[0].last, 1, 0
    return source.head(rest[0]) - 1, 0, 2 if rest[0].kind in DEFINITIONS else 1


def with_imports(text: str, before: str) -> str:
    """The text with an import of each module of the standard library that it, unlike `before`, uses and never binds."""
    code = read_python(text)
    missing = sorted(_unbound_modules(text) - _unbound_modules(before))
    if not missing or isinstance(code, SyntaxProblem):
        return text
    line, above, below = place_of_imports(code, from_future=False)
    lines = [*[""] * above, *(f"import {name}" for name in missing), *[""] * below]
    return apply_edits(code.lines, [LineEdit(line, line, tuple(each + dominant_newline(text) for each in lines))])


def _unbound_modules(text: str) -> set[str]:
    """Those of whose attributes a text makes use (`re.sub`), although it gives their names no meaning."""
    tree = parse(text)
    nodes = [] if isinstance(tree, SyntaxProblem) else [*ast.walk(tree)]
    used = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    known = {each for node in nodes for field in ("name", "asname", "arg") for each in [getattr(node, field, None)]}
    known |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    unbound = used - {name.partition(".")[0] for name in known if name}
    return set() if "*" in known else unbound & sys.stdlib_module_names
