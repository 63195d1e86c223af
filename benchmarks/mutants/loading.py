"""The replacement of code by a mutant: in a loaded function, or in a module when it is imported."""

import ast
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from benchmarks.mutants.mutation import Mutant

_CACHED: Final = type(functools.cache(len))

Key = tuple[str, int]
"""The qualified name of a function, and its first line."""
CALLED: Final[set[Key]] = set()
"""The functions of the traced module that were called since the set was last cleared."""


def loaded_caches(root: str) -> list[Any]:
    """Return the cached functions of files below `root`. They have a method `cache_clear`."""
    caches = []
    for value in gc.get_objects():
        if type(value) is not _CACHED or not isinstance(value.__wrapped__, FunctionType):
            continue
        if value.__wrapped__.__code__.co_filename.startswith(f"{root}/"):
            caches.append(value)
    return caches


def loaded_functions(path: str) -> dict[Key, list[FunctionType]]:
    """Return all loaded functions of the file at `path`, also decorated ones."""
    functions: dict[Key, list[FunctionType]] = {}
    for value in gc.get_objects():
        if type(value) is FunctionType and value.__code__.co_filename == path:
            functions.setdefault(_key(value.__code__), []).append(value)
    return functions


def key_of(mutant: Mutant, source: str, functions: dict[Key, list[FunctionType]]) -> Key | None:
    """Return the key of the loaded function that the mutant changes; None for a change of a module or class."""
    line = source.encode()[: mutant.start].count(b"\n") + 1
    candidates = [key for key in functions if key[0] == mutant.function and key[1] <= line]
    return max(candidates, default=None)


def mutated_code(text: str, path: str, key: Key) -> CodeType | None:
    """Return the code of this function in the mutated `text`; None if the text lacks it."""
    module = compile(text, path, "exec", dont_inherit=True)
    for code in _codes(module):
        if _key(code) == key:
            return code
    return None


def import_mutated(name: str, path: str, text: str) -> None:
    """Make imports of the module load the mutated `text`."""
    _import_from(name, path, ast.parse(text))


def import_traced(name: str, path: str, text: str) -> None:
    """Make imports of the module load a version in which each called function adds its key to `CALLED`.

    A profile function would slow the tests down by a factor of ten, because it receives the calls of all modules.
    """
    tree = ast.parse(text)
    for key, function in _outermost_functions(tree.body):
        statement = ast.parse(f"__called__({key!r})").body[0]
        position = 0 if ast.get_docstring(function) is None else 1
        function.body.insert(position, statement)
        for node in ast.walk(statement):
            ast.copy_location(node, function)
    _import_from(name, path, tree)


def _outermost_functions(
    body: Sequence[ast.stmt], *names: str
) -> Iterator[tuple[Key, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield (".".join([*names, node.name]), line), node
        elif isinstance(node, ast.ClassDef):
            yield from _outermost_functions(node.body, *names, node.name)
        else:
            statements = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
            yield from _outermost_functions(statements, *names)


def _import_from(name: str, path: str, tree: ast.Module) -> None:
    sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Finder(name, path, tree))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        self._name = name
        self._loader = _Loader(name, path, tree)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != self._name:
            return None
        return importlib.util.spec_from_loader(fullname, self._loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        return compile(self._tree, self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__called__"] = CALLED.add
        super().exec_module(module)


def _key(code: CodeType) -> Key:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
