"""Every regular expression of ours, with how it is used."""

import ast
import dataclasses
import importlib
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

from tests.architecture.product import PACKAGES, module_name, sources, text_of

NOT_IMPORTED: Final = frozenset({"mendgraph.graph.agent", "mendgraph.nodes.call_model.local_server"})
"""Modules that do something when they are imported."""
FROM_THE_START: Final = frozenset({"match", "fullmatch"})
CALLS: Final = frozenset({"search", "finditer", "findall", "sub", "subn", "split"}) | FROM_THE_START
STAND_IN: Final = "ab"
"""What stands for a value in an f-string."""


class Found(NamedTuple):
    """A pattern. `anchored`: it is only compared with a text from one position on, never searched for."""

    name: str
    pattern: str
    flags: int
    anchored: bool


@cache
def patterns() -> tuple[Found, ...]:
    """Those in variables of modules, also inside of tables and records, and those that a function writes down."""
    collected: dict[tuple[str, int], Found] = {}
    variable_uses = _uses()

    def note(name: str, pattern: str, flags: int, uses: set[str]) -> None:
        anchored = bool(uses) and uses <= FROM_THE_START
        collected.setdefault((pattern, flags), Found(name, pattern, flags, anchored))

    for path in sources(*PACKAGES):
        module = module_name(path)
        if module not in NOT_IMPORTED and not path.endswith("__main__.py"):
            for name, value in vars(importlib.import_module(module)).items():
                for compiled in _inside(value):
                    if isinstance(compiled.pattern, str):
                        note(
                            f"{module}.{name}",
                            compiled.pattern,
                            compiled.flags & ~re.UNICODE,
                            variable_uses.get((module, name), set()),
                        )
        for function, method, pattern, flags in _written_down(path):
            note(f"{module}.{function}", pattern, flags, {method})
    return tuple(collected.values())


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(text_of(path))


def _inside(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 4:
        parts: Any = ()
        if isinstance(value, Mapping):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            parts = value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            cached = [name for name, member in vars(type(value)).items() if isinstance(member, cached_property)]
            parts = [
                getattr(value, name, None) for name in (*(field.name for field in dataclasses.fields(value)), *cached)
            ]
        for part in parts:
            yield from _inside(part, depth + 1)


@cache
def _uses() -> dict[tuple[str, str], set[str]]:
    """(module, name of a variable) -> the methods of it that are called, in the module and where it is imported."""
    uses: dict[tuple[str, str], set[str]] = {}
    for path in sources(*PACKAGES):
        tree, module = _tree(path), module_name(path)
        homes = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in CALLS:
                uses.setdefault(homes.get(node.value.id, (module, node.value.id)), set()).add(node.attr)
    return uses


def _written_down(path: str) -> Iterator[tuple[str, str, str, int]]:
    """(function, method, pattern, flags) of each call of `re` in a function with a literal pattern."""
    for function, node, pattern in _calls_of_re(path):
        words = [attribute.attr for attribute in ast.walk(node) if isinstance(attribute, ast.Attribute)]
        flags = sum({re.RegexFlag[word].value for word in words if word in re.RegexFlag.__members__})
        if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str):
            yield function, node.func.attr, pattern.value, flags
        elif isinstance(pattern, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else STAND_IN for part in pattern.values)
            yield function, node.func.attr, "".join(map(str, parts)), flags


def _calls_of_re(path: str) -> Iterator[tuple[str, Any, ast.AST]]:
    """(function, call, its first argument) of each call of `re` in a function."""
    functions = [
        function for function in ast.walk(_tree(path)) if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                of = node.func.value
                if isinstance(of, ast.Name) and of.id == "re" and node.func.attr in CALLS | {"compile"}:
                    yield function.name, node, node.args[0]


def unseen() -> set[str]:
    """Functions that call `re` with a computed pattern, as "module.function"."""
    return {
        f"{module_name(path)}.{function}"
        for path in sources(*PACKAGES)
        for function, _, pattern in _calls_of_re(path)
        if not isinstance(pattern, ast.Constant | ast.JoinedStr)
    }
