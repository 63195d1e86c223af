"""A mutant takes the place of a module's code: of one function that is loaded, or of the module when it is imported."""

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
"""A function's qualified name, and its first line."""
CALLED: Final[set[Key]] = set()
"""The functions of the module that `import_noting` was told of that have been called since this was last cleared."""


def loaded_caches(root: str) -> list[Any]:
    """The functions of files below `root` that remember what they were asked; `cache_clear` makes them forget it."""
    found = [each for each in gc.get_objects() if type(each) is _CACHED and isinstance(each.__wrapped__, FunctionType)]
    return [each for each in found if each.__wrapped__.__code__.co_filename.startswith(f"{root}/")]


def loaded_functions(path: str) -> dict[Key, list[FunctionType]]:
    """All functions of the file at `path` that have been defined, however they are decorated."""
    found: dict[Key, list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename == path:
            found.setdefault(_key(each.__code__), []).append(each)
    return found


def key_of(mutant: Mutant, source: str, functions: dict[Key, list[FunctionType]]) -> Key | None:
    """The loaded function that the mutant changes; None where there is none, as for a change of the module."""
    line = source.encode()[: mutant.start].count(b"\n") + 1
    return max((key for key in functions if key[0] == mutant.function and key[1] <= line), default=None)


def mutated_code(text: str, path: str, key: Key) -> CodeType | None:
    """The code that this function of the file at `path` has in the mutated `text`; None where it is not there."""
    return next((each for each in _codes(compile(text, path, "exec", dont_inherit=True)) if _key(each) == key), None)


def import_mutated(name: str, path: str, text: str) -> None:
    """From now on, the module is imported from the mutated `text`."""
    _import_from(name, path, ast.parse(text))


def import_noting(name: str, path: str, text: str) -> None:
    """From now on, the module is imported so that each of its functions puts its key into `CALLED` when it is called.

    A profile function would be told of every call of every module: tests take ten times as long with one.
    """
    tree = ast.parse(text)
    for key, function in _outermost(tree.body):
        note = ast.parse(f"__called__({key!r})").body[0]
        function.body.insert(ast.get_docstring(function) is not None, note)
        for each in ast.walk(note):
            ast.copy_location(each, function)
    _import_from(name, path, tree)


def _outermost(body: Sequence[ast.stmt], *names: str) -> Iterator[tuple[Key, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield (".".join([*names, node.name]), line), node
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node.body, *names, node.name)
        else:
            yield from _outermost([each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)], *names)


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
        return importlib.util.spec_from_loader(fullname, self._loader) if fullname == self._name else None


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
