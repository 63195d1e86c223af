"""Which file is the cassette of which test: `<library>/<module's path without .py>/<test's name>.yaml`. Pure.

tests/test_calc.py::test_adds              cassettes/tests/test_calc/test_adds.yaml
tests/test_calc.py::TestBig::test_adds     cassettes/tests/test_calc/TestBig.test_adds.yaml
tests/test_calc.py::test_adds[one-two]     cassettes/tests/test_calc/test_adds-one-two.yaml
@pytest.mark.mendgraph_cassette("sums")    cassettes/tests/test_calc/sums.yaml
"""

import re
from collections.abc import Iterable
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
