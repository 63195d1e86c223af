"""Only the effect files access files: import-linter sees imports, these tests see calls."""

import ast
import re
import tomllib
from typing import Any

from tests.architecture.product import EFFECT_FILES, EFFECT_PACKAGES, PACKAGES, is_pure, module_name, sources, text_of

OPENERS = frozenset({"open", "os.open", "io.open", "io.FileIO", "codecs.open", "pathlib.Path.open", "Path.open"})
PATH_EFFECTS = re.compile(
    r"\.(open|(read|write)_(text|bytes)|unlink|mkdir|rmdir|touch|iterdir|r?glob|walk|l?stat|chmod|exists|is_(file|dir|symlink)"
    r"|readlink|resolve|absolute|expanduser|(sym|hard)link_to|rename|cwd|home)$"
)
"""What a `pathlib.Path` can do to, or ask of, the disk."""

EXCUSED = {
    # spec 1 section 3: system paths, and paths of the protected edit tool, are checked where their links lead
    "nodes/documents/protected_edit_tool.py": {"Path(path).expanduser"},
    "nodes/guard/file_rules.py": {"path.resolve"},
    # a `Workspace`, which is no path
    "graph/machine/workspace.py": {
        "workspace.exists",
        "self.workspace.exists",
        "self.workspace.walk",
        "workspace.workspace.walk",
    },
    "graph/terminal/options.py": {"formatter.write_text"},  # a paragraph of a help text
}
"""The calls that a pure file may make nevertheless, and why."""


def file_accesses(source: str) -> set[str]:
    """The calls in a file's text that would access the file system."""
    tree = ast.parse(source)
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    imported = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    }
    on_paths = {name for name in calls if PATH_EFFECTS.search(name)} if {"Path", "pathlib"} & imported else set()
    return on_paths | (calls & OPENERS)


def test_pure_files_do_not_access_files() -> None:
    accesses = {path: file_accesses(text_of(path)) for path in sources(*PACKAGES) if is_pure(path)}
    assert {path: calls for path, calls in accesses.items() if calls} == EXCUSED


def test_file_access_is_detected() -> None:
    assert file_accesses("open('a')") == {"open"}
    assert file_accesses("import os\nos.open('a', 0)") == {"os.open"}
    assert file_accesses("from pathlib import Path\nPath('a').read_text()") == {"Path('a').read_text"}
    assert file_accesses("from pathlib import PurePosixPath\nregistry.resolve('a')") == set()


def test_settings_exempt_exactly_the_effect_files() -> None:
    """The report of coverage, and the contract of import-linter."""
    settings: dict[str, Any] = tomllib.loads(text_of("pyproject.toml"))["tool"]
    omitted = settings["coverage"]["report"]["omit"]
    assert set(omitted) == {*EFFECT_FILES, *(f"{package}*" for package in EFFECT_PACKAGES)}
    assert sorted(EFFECT_FILES - {*sources(*PACKAGES)}) == []

    contract = next(contract for contract in settings["importlinter"]["contracts"] if contract["id"] == "pure")
    excused = {exemption.split(" -> ")[0] for exemption in contract["ignore_imports"]}
    packages = [module_name(package.rstrip("/")) for package in EFFECT_PACKAGES]
    files = {module_name(path) for path in EFFECT_FILES if path.startswith("nodes/")}
    assert excused == files | {name for package in packages for name in (package, f"{package}.**")}
