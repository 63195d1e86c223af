"""The numbers that bound the product: constants, defaults and bounds of fields, defaults of parameters.

`limits.txt` holds the reviewed ones: a change of a number is a decision.
"""

import ast
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tests.architecture.product import PACKAGES, sources, text_of
from tests.snapshots import Snapshots

SNAPSHOT = Path(__file__).with_name("limits.txt")
LONGEST_VALUE = 120
BOUNDS = frozenset({"default", "ge", "gt", "le", "lt", "max_length", "min_length"})


def limits() -> list[str]:
    """Return one line for each number: the package, the name and the value as the code writes it."""
    lines = set()
    for path in sources(*PACKAGES):
        package = PurePosixPath(path).parent
        for name, value in _numbers(ast.parse(text_of(path))):
            lines.add(f"{package}: {name} = {value}")
    return sorted(lines)


def _numbers(module: ast.Module) -> Iterator[tuple[str, str]]:
    for name, value in _assignments(module):
        plain = name.replace("_", "").isupper()
        if plain and _has_number(value) and len(ast.unparse(value)) <= LONGEST_VALUE:
            yield name, ast.unparse(value)

    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield from _fields(node)
            yield from _parameters(node, f"{node.name}.")
    yield from _parameters(module, "")


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for name, value in _assignments(node):
        if isinstance(value, ast.Call):
            bounds = [keyword for keyword in value.keywords if keyword.arg in BOUNDS and _has_number(keyword.value)]
            if bounds:
                yield f"{node.name}.{name}", ", ".join(ast.unparse(keyword) for keyword in bounds)
        elif _has_number(value) and ast.unparse(value) not in {"0", "0.0"}:
            yield f"{node.name}.{name}", ast.unparse(value)


def _parameters(scope: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, str]]:
    for function in scope.body:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        positional = positional[len(positional) - len(arguments.defaults) :]
        parameters = [*positional, *arguments.kwonlyargs]
        defaults = [*arguments.defaults, *arguments.kw_defaults]
        for parameter, value in zip(parameters, defaults, strict=True):
            if value is not None and _has_number(value) and ast.unparse(value) not in {"0", "0.0", "1"}:
                yield f"{prefix}{function.name}({parameter.arg})", ast.unparse(value)


def _assignments(node: ast.Module | ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            yield ast.unparse(statement.targets[0]), statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield ast.unparse(statement.target), statement.value


def _has_number(value: ast.expr) -> bool:
    constants = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)]
    calls = [ast.unparse(node.func) for node in ast.walk(value) if isinstance(node, ast.Call)]
    if set(calls) - {"frozenset"} or any(isinstance(node, ast.JoinedStr | ast.Lambda) for node in ast.walk(value)):
        return False
    return any(type(constant) in {int, float} for constant in constants)


def test_every_limit_is_as_reviewed(snapshots: Snapshots) -> None:
    snapshots.check(SNAPSHOT, "\n".join(limits()) + "\n")
