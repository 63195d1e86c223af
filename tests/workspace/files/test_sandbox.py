import os
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.sandbox import (
    PathAccess,
    PathSandbox,
    check_workspace,
    extension_denial,
    is_system_directory,
    malformed,
)
from mendgraph.nodes.workspace.files.workspace import FileContent, Workspace

READ, WRITE, LIST = PathAccess.READ_FILE, PathAccess.WRITE_FILE, PathAccess.LIST_DIR
DENIED, INVALID, MISSING = (ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.INVALID_ARGUMENT, ToolErrorCode.NOT_FOUND)
Form = Literal["NFC", "NFD"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace with links that lead in and out, and a folder outside it."""
    outside, root = tmp_path.resolve() / "outside", tmp_path.resolve() / "root"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (root / "src").mkdir(parents=True)
    (root / "README.md").write_text("readme")
    (root / "src" / "calc.py").write_text("calc")
    links = {
        "dir_out": "../outside",
        "new_out": "../outside/new.txt",
        "up": "..",
        "new_in": "src/new.py",
        "loop": "loop",
        "odd": os.fsdecode(b"\xff"),
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


PATHS: list[tuple[str, PathAccess, str | ToolErrorCode]] = [
    ("src/", LIST, "src"),
    ("src/", WRITE, INVALID),
    ("a\0b", READ, INVALID),
    ("a\ud800b", READ, INVALID),
    ("README.md/", READ, INVALID),
    ("README.md/x", READ, INVALID),
    ("dir_out/../README.md", READ, "README.md"),
    ("..hidden", WRITE, "..hidden"),
    ("~$draft.md", WRITE, "~$draft.md"),
    ("/proc/self/cwd", READ, DENIED),
    ("/proc/self/root{root}/README.md", READ, DENIED),
    ("new_out", WRITE, DENIED),
    ("new_in", WRITE, "src/new.py"),
    ("up", LIST, DENIED),
    ("up/root/README.md", READ, "README.md"),
    ("loop", READ, INVALID),
    ("odd", WRITE, INVALID),
]
"""What the rows of tests/specs/test_spec_2_sandbox.py and tests/workspace/attacks do not have."""


def test_path_is_resolved_or_refused(root: Path) -> None:
    for path, access, expected in PATHS:
        resolved = PathSandbox(str(root)).resolve(path.replace("{root}", str(root)), access)
        if isinstance(expected, ToolErrorCode):
            assert isinstance(resolved, ToolError), path
            assert resolved.code is expected, path
        else:
            assert resolved == os.path.normpath(root / expected), path


@pytest.mark.parametrize("name", ["C:", "~old", "http:"])
def test_existing_name_takes_precedence_over_its_special_meaning(tmp_path: Path, name: str) -> None:
    """Whatever its special meaning; a repository may contain a folder of such a name."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "f.py").touch()
    files = Workspace(str(tmp_path), lambda *_: None)
    assert [entry.path for entry in files.walk() if entry.kind == "file"] == [f"{name}/f.py"]
    assert isinstance(files.read_file(f"{name}/f.py"), FileContent)
    denial = files.denied("/home/x/f.py")
    assert denial is not None
    assert denial.suggestions == (f"{name}/f.py",)
    assert isinstance(files.read_file(f"{name}/other.py"), ToolError)


def test_path_outside_is_answered_with_a_relative_suggestion(root: Path) -> None:
    rows = {
        "/etc/hosts": ".",
        "/etc/README.md/.": "README.md",
        "/workspace/src/calc.py": "src/calc.py",
        "dir_out/secret.txt": ".",
    }
    for path, suggestion in rows.items():
        meant = "." if suggestion == "." else f"; did you mean {suggestion!r}?"
        assert PathSandbox(str(root)).resolve(path, READ) == ToolError(
            code=DENIED,
            message=f"{path!r} is outside the workspace{meant} Use a relative path under '.'.",
            suggestions=(suggestion,),
        )


def test_path_that_is_not_a_string_is_refused_with_its_type(root: Path) -> None:
    for path in (b"README.md", None, 7):
        refused: Any = PathSandbox(str(root)).resolve(path, READ)  # type: ignore[arg-type]
        assert refused.message == (
            f"The path is {type(path).__name__}, not a text: name a file or directory of the workspace."
        )
    assert "The path is empty" in str(PathSandbox(str(root)).resolve(" ", READ))


def test_refusal_is_observed_with_root_cleaned_path_and_relation(root: Path) -> None:
    seen: list[dict[str, Any]] = []
    jail = PathSandbox(str(root), observe=seen.append)
    jail.resolve("README.md", READ)
    jail.resolve("./../outside//secret.txt", READ)
    jail.resolve("dir_out/secret.txt", READ)
    jail.resolve("src/nope", READ)
    outside = "../outside/secret.txt"
    rows = [
        ("./../outside//secret.txt", outside, outside, "permission_denied"),
        ("dir_out/secret.txt", "dir_out/secret.txt", outside, "permission_denied"),
        ("src/nope", "src/nope", "src/nope", "not_found"),
    ]
    keys = ("root", "path", "clean", "relative", "code")
    assert seen == [dict(zip(keys, (str(root), *row), strict=True)) for row in rows]


def test_no_message_contains_the_name_of_the_workspace(root: Path) -> None:
    jail = PathSandbox(str(root))
    for path in ("README.md/", "none/", "README.md/x", "x" * 300):
        full, short = jail.resolve(f"{root}/{path}", READ), jail.resolve(path, READ)
        assert isinstance(full, ToolError)
        assert full == short


def test_other_extension_is_refused_with_the_allowed_ones() -> None:
    rows = {"a.exe": "'.exe'", ".md": "''", "a.\u202edm": r"'.\u202edm'"}
    for name, extension in rows.items():
        message = f"Extension {extension} not allowed. Allowed: .md, .txt."
        assert extension_denial(name, {".txt", ".md"}) == ToolError(code=DENIED, message=message)
    assert extension_denial("a/README.MD", {".txt", ".md"}) is None
    assert extension_denial("a/b.exe", frozenset()) is None


SYSTEM = (
    *("/", "/etc", "/usr", "/bin", "/sbin", "/var", "/System", "/Library", "/private/etc", "/private/var/db"),
    *("/boot", "/dev", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sys", "/usr/bin", "/run/user/0", "/dev/shm"),
)
PERSONAL = (
    *("/home/a", "/tmp/a", "/opt/a", "/etcetera", "/variable", "/srv", "/private/tmp/a"),
    *("/var/folders/a", "/private/var/folders/a", "/var/tmp/a", "/usr/src/a", "/usr/local/src/a"),
)


def test_system_directory_is_refused_as_a_workspace(tmp_path: Path) -> None:
    assert [path for path in SYSTEM if not is_system_directory(path)] == []
    assert [path for path in PERSONAL if is_system_directory(path)] == []
    for path, code in (
        ("/", DENIED),
        ("/etc", DENIED),
        ("/usr/bin", DENIED),
        ("/proc/self", DENIED),
        ("a\0b", INVALID),
    ):
        error = check_workspace(path)
        assert isinstance(error, ToolError)
        assert error.code is code
    assert check_workspace(f"{tmp_path}/no") == ToolError(
        code=MISSING, message=f"The workspace '{tmp_path}/no' does not exist: create the folder, or name another one."
    )


def test_file_is_refused_as_a_root(root: Path) -> None:
    with pytest.raises(NotADirectoryError):
        PathSandbox(str(root / "README.md"))


def test_name_and_path_lengths_are_limited_in_bytes() -> None:
    assert [malformed(path) for path in ("a" * 255, "é" * 127, "é/" * 1_365 + "a")] == [None] * 3
    assert None not in [malformed(path) for path in ("a" * 256, "é" * 128, "é/" * 1_366)]


@pytest.mark.parametrize(("existing", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_name_in_another_unicode_form_is_the_existing_file(tmp_path: Path, existing: Form, other: Form) -> None:
    name = "Größe/Über.txt"
    (tmp_path / normalize(existing, name)).parent.mkdir()
    (tmp_path / normalize(existing, name)).write_text("text")
    workspace = Workspace(str(tmp_path), lambda *_: None)

    content = workspace.read_file(normalize(other, name))
    assert isinstance(content, FileContent)
    assert content.path == normalize(existing, name)
    assert PathSandbox(str(tmp_path)).resolve(normalize(other, "Größe/new.txt"), WRITE) == str(
        tmp_path / normalize(existing, "Größe") / "new.txt"
    )
