"""Cassettes that no test names: those of tests that were renamed or removed. Pure; it reads tests and runs none."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from graph.cassettes.naming import SUFFIX, folder_of


@dataclass(frozen=True)
class _Names:
    """What a module of tests calls by name: its tests, with their classes, and every text that it holds."""

    tests: frozenset[str]
    texts: frozenset[str]


def orphans(cassettes: Sequence[str], modules: Mapping[str, str]) -> list[str]:
    """Those of the cassettes that no test plays, as far as one can see.

    `cassettes` are paths relative to their library, `modules` the sources of tests by their paths from pytest's root.
    A cassette is played by a test of its module (`graph.cassettes.naming`), or where its name stands in a text: the
    whole of it without its ending, its file's name in its own module, or its folder's name alone, which tests put
    names together with. A module that cannot be read counts as playing all that are its own.
    """
    names = {folder_of(path): _names(source) for path, source in modules.items()}
    texts = frozenset().union(*(each.texts for each in names.values() if each))
    return [path for path in cassettes if not _is_played(path.removesuffix(SUFFIX), names, texts)]


def _is_played(name: str, names: Mapping[str, _Names | None], texts: frozenset[str]) -> bool:
    folder, _, file = name.rpartition("/")
    if name in texts or (folder and folder in texts):
        return True
    if folder not in names:
        return False
    own = names[folder]
    return own is None or any(file == each or file.startswith(f"{each}-") for each in own.tests | own.texts if each)


def _names(source: str) -> _Names | None:
    """What is named there; None where it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts = frozenset(value for value in constants if isinstance(value, str))
    return _Names(frozenset(_tests(tree.body, "")), texts)


def _tests(body: Sequence[ast.stmt], inside: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{inside}{node.name}"
        elif isinstance(node, ast.ClassDef):
            yield from _tests(node.body, f"{inside}{node.name}.")
