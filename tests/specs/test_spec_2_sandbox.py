"""Spec 2's sandbox, tool schemas and result envelope. Its rules for a path stand here in Python, to compare with."""

import inspect
import os
from pathlib import Path

import pytest

from mendgraph import default_tools
from mendgraph.documents import PathAccess, PathSandbox, ToolError, ToolErrorCode, ToolResult

READ, WRITE = PathAccess.READ_FILE, PathAccess.WRITE_FILE


class Refused(Exception):  # noqa: N818 - the document's codes, as an exception
    """Why the document refuses a path."""


def documented(root: str, user_path: str, access: PathAccess) -> str:
    """The six rules of the document's Resolve. Raises Refused with the document's code."""
    if not user_path.strip():  # 1
        raise Refused("invalid_argument")
    clean = os.path.normpath(user_path)  # 2; absolute paths are allowed, if they lie under the root
    candidate = clean if os.path.isabs(clean) else os.path.join(root, clean)  # 3
    candidate = os.path.abspath(candidate)
    try:  # 4
        real = os.path.realpath(candidate, strict=True)
    except FileNotFoundError:
        if access is not WRITE:
            raise Refused("not_found") from None
        try:
            parent = os.path.realpath(os.path.dirname(candidate), strict=True)
        except FileNotFoundError:
            raise Refused("not_found") from None
        real = os.path.join(parent, os.path.basename(candidate))
    relative = os.path.relpath(real, root)  # 5
    if relative == ".." or relative.startswith("../"):
        raise Refused("permission_denied")
    return real  # 6


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with links of each kind, a folder outside it, and one whose name has the same prefix."""
    base = tmp_path.resolve()
    for folder in ("root/src/deep", "outside/sub", "root-evil"):
        (base / folder).mkdir(parents=True)
    for file in ("root/README.md", "root/src/calc.py", "outside/secret.txt", "root-evil/secret.txt"):
        (base / file).write_text(file)
    links = {
        "to_etc": "/etc", "to_outside": "../outside", "secret_link.txt": "../outside/secret.txt", "inside": "src",
        "file_inside": "src/calc.py", "src/deep/far": "../../../outside", "chain": "to_outside",
    }  # fmt: skip
    for name, target in links.items():
        (base / "root" / name).symlink_to(target)
    return base / "root"


THERE = [
    "", " ", "\t\n", ".", "README.md", "./src//calc.py", "src/../README.md", "src/deep/../calc.py", "{root}/README.md",
    "{root}", "inside/calc.py", "inside/deep", "file_inside", "nope/../README.md", "{root}/src/new.py",
    "..", "../", "../outside/secret.txt", "../root/README.md", "../root-evil/secret.txt", "{root}-evil/secret.txt",
    "src/../../outside/secret.txt", "/etc/hosts", "/", "to_etc/hosts", "to_outside", "to_outside/secret.txt",
    "secret_link.txt", "src/deep/far/secret.txt", "chain/secret.txt", "{root}/../outside/secret.txt",
]  # fmt: skip
"""Paths that are there, or that lead out."""
INSIDE = ["new.txt", "src/new.txt", "inside/new.txt", "nope/new.txt"]
NEW = [*INSIDE, "to_outside/new.txt", "src/deep/far/new.txt", "chain/sub/new.txt", "../new.txt", "../outside/new.txt"]
"""Paths where nothing is yet."""


def differing(root: Path, paths: list[str], *accesses: PathAccess) -> list[tuple[str, PathAccess]]:
    """The paths that ours resolves differently from the document, or differently as a `Path` and as text."""
    differences = []
    for path in paths:
        user_path = path.replace("{root}", str(root))
        for access in accesses:
            ours = PathSandbox(str(root)).resolve(user_path, access)
            try:
                expected = documented(str(root), user_path, access)
            except Refused as refused:
                expected = str(refused)
            if (ours.code.value if isinstance(ours, ToolError) else ours) != expected:
                differences.append((path, access))
            if user_path and not user_path.endswith("/"):
                plain = Path(user_path)
                if PathSandbox(root).resolve(plain, access) != PathSandbox(root).resolve(str(plain), access):
                    differences.append((path, access))
    return differences


def test_path_resolves_by_the_documents_rules(root: Path) -> None:
    assert differing(root, THERE, *PathAccess) == []


def test_new_file_resolves_by_its_real_parent(root: Path) -> None:
    assert differing(root, NEW, WRITE) == []


def test_missing_file_can_be_neither_read_nor_listed(root: Path) -> None:
    assert differing(root, INSIDE, READ, PathAccess.LIST_DIR) == []


def test_absolute_directory_outside_is_denied_with_a_suggestion_inside(root: Path) -> None:
    refused = PathSandbox(str(root)).resolve("/etc/", READ)
    assert isinstance(refused, ToolError)
    assert refused.code is ToolErrorCode.PERMISSION_DENIED
    assert refused.suggestions
    assert not any(os.path.isabs(suggestion) for suggestion in refused.suggestions)


def test_sandbox_has_the_documents_names(root: Path, tmp_path: Path) -> None:
    assert [access.value for access in PathAccess] == ["read_file", "write_file", "list_dir"]
    assert next(iter(inspect.signature(PathSandbox).parameters)) == "root"
    assert list(inspect.signature(PathSandbox.resolve).parameters) == ["self", "path", "access"]
    (tmp_path / "alias").symlink_to(root)
    assert PathSandbox(str(tmp_path / "alias")).root == str(root)
    with pytest.raises(FileNotFoundError):
        PathSandbox(str(root / "nope"))


def test_path_description_in_a_schema_says_where_it_may_lead() -> None:
    specs = {tool.name: tool.spec.parameters["properties"] for tool in default_tools()}
    descriptions = [specs[name]["path"]["description"] for name in ("read_file", "write_file", "list_files")]
    file = "Workspace-relative path under the project root."
    assert descriptions == [file, file, "Directory under the project root (use `.` for root)."]


def test_success_and_failure_as_maps() -> None:
    assert list(ToolResult.model_fields) == ["ok", "data", "error"]
    assert list(ToolError.model_fields)[:3] == ["code", "message", "suggestions"]
    codes = [code.value for code in ToolErrorCode]
    assert codes[:4] == ["not_found", "invalid_argument", "permission_denied", "io_error"]
    failure = {"code": "not_found", "message": "No such file.", "suggestions": ["calc.py"]}
    error = ToolError(code=ToolErrorCode.NOT_FOUND, message="No such file.", suggestions=("calc.py",))
    assert ToolResult(ok=True, data={"n": 1}).as_map() == {"ok": True, "data": {"n": 1}}
    assert ToolResult(ok=False, error=error).as_map() == {"ok": False, "error": failure}
    assert error.as_map() == failure


def test_suggestions_are_prefixes_then_substrings_then_edit_distance_at_most_three(tmp_path: Path) -> None:
    for name in ("calc.py", "Calculus.txt", "old_calc.py", "very_old_calc.txt"):
        (tmp_path / name).touch()
    rows: list[tuple[str, list[str]]] = [
        ("CALC", ["calc.py", "Calculus.txt", "old_calc.py"]),  # prefixes in any case, then what contains it
        ("lus", ["Calculus.txt"]),  # a substring
        ("clac.py", ["calc.py", "old_calc.py"]),  # the fewest edits, where nothing else is like it
        ("zzzzzzzz", []),
    ]
    for missing, suggestions in rows:
        refused = PathSandbox(str(tmp_path)).resolve(missing, READ)
        assert isinstance(refused, ToolError)
        assert (refused.code, list(refused.suggestions)) == (ToolErrorCode.NOT_FOUND, suggestions)
        assert ("Did you mean" in refused.message) == bool(suggestions)
