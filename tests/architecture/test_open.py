"""Files are touched in the effect files alone: import-linter sees imports, these tests see calls."""

import ast
import re
import tomllib
from fnmatch import fnmatch
from typing import Any

import pytest

from tests.architecture.product import EFFECT_FILES, EFFECT_PACKAGES, PACKAGES, is_pure, module_name, sources, text_of

OPENERS = frozenset({"open", "os.open", "io.open", "io.FileIO", "codecs.open", "pathlib.Path.open", "Path.open"})
PATH_EFFECTS = re.compile(
    r"\.(open|(read|write)_(text|bytes)|unlink|mkdir|rmdir|touch|iterdir|r?glob|walk|l?stat|chmod|exists|is_(file|dir|symlink)"
    r"|readlink|resolve|absolute|expanduser|(sym|hard)link_to|rename|cwd|home)$"
)
"""What a `pathlib.Path` can do to, or ask of, the disk."""

EXCUSED = {
    # spec 1 section 3: system paths are recognised, and its edit tool's wrapper judges, where the links lead
    "nodes/guard/file_rules.py": {"Path(path).expanduser()", "path.resolve()"},
    # a `Workspace`, which is no path
    "graph/machine/workspace.py": {"workspace.exists()", "self.workspace.exists()", "self.workspace.walk()"},
}
"""The calls that a pure file may make nevertheless, and why."""


def touches(source: str) -> list[str]:
    """The calls in a file's text by which it would touch the file system, with their lines."""
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [(call.lineno, ast.unparse(call.func)) for call in calls]
    found = [(line, name) for line, name in names if name in OPENERS]
    if _imports_path(tree):
        found += [(line, name) for line, name in names if PATH_EFFECTS.search(name)]
    return [f"line {line}: {name}()" for line, name in sorted(set(found))]


def _imports_path(tree: ast.AST) -> bool:
    """Whether a file has the word `Path`: only then can `x.exists()` be meant for the disk."""
    whole = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    parts = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "pathlib"]
    return "pathlib" in whole or any(alias.name == "Path" for node in parts for alias in node.names)


def test_pure_files_touch_no_file() -> None:
    found = {path: touches(text_of(path)) for path in sources(*PACKAGES) if is_pure(path)}
    excused = {
        path: [each for each in calls if each.split(": ")[1] not in EXCUSED.get(path, set())]
        for path, calls in found.items()
    }
    assert {path: calls for path, calls in excused.items() if calls} == {}


@pytest.mark.parametrize(("path", "calls"), EXCUSED.items())
def test_no_excuse_outlives_its_call(path: str, calls: set[str]) -> None:
    assert {each.split(": ")[1] for each in touches(text_of(path))} == calls


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("open('a')", ["line 1: open()"]),
        ("import os\nos.open('a', 0)", ["line 2: os.open()"]),
        ("from pathlib import Path\nPath('a').read_text()", ["line 2: Path('a').read_text()"]),
        ("import pathlib\npathlib.Path.home()", ["line 2: pathlib.Path.home()"]),
        ("from pathlib import PurePosixPath\nregistry.resolve('a')", []),
        ("from pathlib import Path\ndef is_env(path: Path) -> bool:\n    return path.name == '.env'", []),
    ],
)
def test_touch_is_seen(source: str, found: list[str]) -> None:
    assert touches(source) == found


def settings() -> dict[str, Any]:
    tool: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))["tool"]
    return tool


def test_coverage_leaves_out_the_effect_files_and_no_other() -> None:
    omitted = settings()["coverage"]["report"]["omit"]
    assert set(omitted) == {*EFFECT_FILES, *(f"{each}*" for each in EFFECT_PACKAGES)}
    assert [path for path in sources(*PACKAGES) if is_pure(path) == any(fnmatch(path, each) for each in omitted)] == []


def test_import_linter_excuses_the_effect_files_and_no_other() -> None:
    contract = next(each for each in settings()["importlinter"]["contracts"] if each["id"] == "pure")
    excused = {each.split(" -> ")[0] for each in contract["ignore_imports"]}
    packages = [module_name(each.rstrip("/")) for each in EFFECT_PACKAGES]
    files = {module_name(path) for path in EFFECT_FILES if path.startswith("nodes/")}
    assert excused == files | {name for each in packages for name in (each, f"{each}.**")}
