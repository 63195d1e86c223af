"""Which file is the cassette of which test: `<library>/<module's path without .py>/<test's name>.yaml`. Pure.

tests/test_calc.py::test_adds              cassettes/tests/test_calc/test_adds.yaml
tests/test_calc.py::TestBig::test_adds     cassettes/tests/test_calc/TestBig.test_adds.yaml
tests/test_calc.py::test_adds[one-two]     cassettes/tests/test_calc/test_adds-one-two.yaml
@pytest.mark.mendgraph_cassette("sums")    cassettes/tests/test_calc/sums.yaml
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

SUFFIX: Final = ".yaml"
LONGEST: Final = 120
"""Characters of a file's name; file systems allow 255 bytes, and a draft has more to its name."""

_CHOSEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_HASH_DIGITS: Final = 8


def is_name(name: object) -> bool:
    """Whether a test may choose this name for its cassette: letters, digits, `.`, `_` and `-`, but no folder."""
    return isinstance(name, str) and _CHOSEN.fullmatch(name) is not None


def cassette_name(node_id: str, chosen: str = "") -> str:
    """The cassette of the test `node_id`, relative to the library and with "/"; `chosen` stands for the test's name."""
    module, _, test = node_id.partition("::")
    function, bracket, parameters = test.partition("[")
    name = chosen or _safe(function.replace("::", "."), exact=True)
    own = parameters.removesuffix("]")
    if bracket:
        # Some file systems do not tell capital letters from small ones, and parameters often differ in nothing else.
        name = f"{name}-{_safe(own, exact=own == own.lower())}"
    return f"{folder_of(module)}/{_bounded(name)}{SUFFIX}"


def folder_of(module: str) -> str:
    """The folder of a module's cassettes, relative to the library; one outside of the root directory has its name's."""
    path = module.removesuffix(".py")
    parts = [part for part in path.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return "/".join(parts)


def unused(files: Iterable[str], named: Iterable[str], whole: Iterable[str]) -> list[str]:
    """The cassettes among `files` that no test names, of the modules that were collected `whole`."""
    folders, known = {folder_of(module) for module in whole}, set(named)
    return sorted(file for file in files if file.rpartition("/")[0] in folders and file not in known)


def _safe(text: str, *, exact: bool) -> str:
    """A part of a file's name; where something had to be replaced, a hash of the whole keeps names apart."""
    clean = _UNSAFE.sub("_", text)
    return clean if exact and clean == text else f"{clean}-{_hash(text)}"


def _bounded(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - _HASH_DIGITS - 1]}-{_hash(name)}"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]


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
