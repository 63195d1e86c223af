import errno
import os
from itertools import count
from pathlib import Path

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.sandbox import HardLinks, JudgedPaths, PathAccess, Place
from mendgraph.nodes.workspace.files.workspace import FileContent, Workspace
from tests.doubles.system_calls import before_each, replaced
from tests.workspace.files.layout import DENIAL, SECRET, code_of, content, no_env, sha


def denied(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def test_requested_and_real_name_are_both_judged(root: Path) -> None:
    judgements: list[tuple[str, bool]] = []

    def judge(path: str, for_write: bool) -> ToolError | None:
        judgements.append((path, for_write))
        return None

    workspace = Workspace(str(root), judge)
    workspace.read_file("./src/../link.py")
    workspace.write_file("new/file.py", b"", expected_sha256="")
    workspace.list_directory(".")
    assert list(dict.fromkeys(judgements)) == [
        ("link.py", False),
        ("src/b.py", False),
        ("new/file.py", True),
        (".", False),
    ]


def test_name_of_the_handle_decides(root: Path, workspace: Workspace) -> None:
    def name_of_files(name: str) -> ToolError | FileContent:
        def readlink(path: str) -> str:
            descriptor = int(path.rpartition("/")[2])
            if os.path.samestat(os.fstat(descriptor), os.stat(root)):
                return str(root)
            if not name:
                raise FileNotFoundError(errno.ENOENT, "")
            return name

        with replaced(readlink=readlink):
            return workspace.read_file("a.py")

    assert name_of_files(f"{root}/.env") == DENIAL
    assert code_of(name_of_files("/moved/away")) is ToolErrorCode.CONFLICT
    assert name_of_files("") == content("a.py", b"a = 1\r\n")


def test_exception_in_the_judge_denies(root: Path) -> None:
    def broken(_path: str, _for_write: bool) -> ToolError | None:
        raise ZeroDivisionError

    workspace = Workspace(str(root), broken)
    denial = denied("'a.py' could not be judged (ZeroDivisionError), so it is denied.")
    assert workspace.read_file("a.py") == denial
    assert list(workspace.walk()) == []


def test_file_is_judged_by_all_its_names_without_being_opened(root: Path) -> None:
    os.link(root / ".env", root / "notes.txt")
    os.link(root / "a.py", root / "twin.py")
    (root / "link_to_notes").symlink_to("notes.txt")
    paths = JudgedPaths(str(root), no_env)
    assert [paths.denied_file("a.py"), paths.denied_file("twin.py")] == [None, None]
    assert paths.denied_file("nope/new.py", for_write=True) is None
    assert [paths.denied_file(".env"), paths.denied_file("innocent.txt")] == [DENIAL, DENIAL]
    for name in ("notes.txt", "link_to_notes"):
        assert code_of(paths.denied_file(name)) is ToolErrorCode.PERMISSION_DENIED
    assert code_of(paths.denied_file("a.py/")) is ToolErrorCode.INVALID_ARGUMENT


# --- Extensions


def not_allowed(extension: str) -> ToolError:
    return denied(f"Extension {extension!r} not allowed. Allowed: .md, .txt.")


EXTENSIONS: dict[str, ToolError | None] = {
    "notes.md": None,
    "src/new.txt": None,
    "a.py": not_allowed(".py"),
    "Makefile": not_allowed(""),
    ".md": not_allowed(""),
    "shows.md": not_allowed(".py"),  # its real name
    "shows.py": not_allowed(".py"),  # the name asked for
    ".env": DENIAL,
}


def test_only_files_with_allowed_extensions_are_placed(root: Path) -> None:
    (root / "notes.md").write_bytes(b"notes")
    (root / "Makefile").touch()
    (root / "shows.md").symlink_to("a.py")
    (root / "shows.py").symlink_to("notes.md")
    paths = JudgedPaths(str(root), no_env, None, frozenset({".md", ".txt"}))
    for path, expected in EXTENSIONS.items():
        for access in (PathAccess.READ_FILE, PathAccess.WRITE_FILE):
            place = paths.place(path, access)
            assert (None if isinstance(place, Place) else place) == expected, path
            assert paths.denied_file(path, for_write=access is PathAccess.WRITE_FILE) == expected, path


# --- Hard links


@pytest.mark.parametrize(
    ("of", "name"), [(".env", "notes.txt"), (".git/config", "src/deep/er/notes.txt"), (".env", "src/.hidden")]
)
def test_hard_link_to_a_denied_file_is_neither_read_nor_written(root: Path, of: str, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    os.link(root / of, root / name)
    workspace = Workspace(str(root), no_env)
    refusal = denied(f"{name!r} is the same file as {of!r}, which is denied. Go on without it.")
    assert workspace.read_file(name) == refusal
    assert workspace.open_file(name) == refusal
    assert workspace.write_file(name, b"x", expected_sha256=sha(SECRET)) == refusal
    assert ((root / of).read_bytes(), (root / name).read_bytes()) == (SECRET, SECRET)


def test_later_hard_link_is_found_and_the_workspace_walked_only_then(root: Path) -> None:
    os.link(root / "a.py", root / "b.py")
    workspace, looks = Workspace(str(root), no_env), count()
    with before_each("fwalk", lambda *_: next(looks)):
        assert isinstance(workspace.read_file("b.py"), FileContent)
        os.link(root / ".env", root / "notes.txt")
        assert code_of(workspace.read_file("notes.txt")) is ToolErrorCode.PERMISSION_DENIED
        os.rename(root / "notes.txt", root / "moved.txt")
        assert code_of(workspace.read_file("moved.txt")) is ToolErrorCode.PERMISSION_DENIED
        os.link(root / "a.py", root / ".git" / "a")
        assert code_of(workspace.read_file("b.py")) is ToolErrorCode.PERMISSION_DENIED
    assert next(looks) == 4


def test_file_is_denied_if_not_all_its_names_can_be_known(root: Path) -> None:
    os.link(root / "a.py", root / "b.py")
    with replaced(fwalk=lambda *_, onerror, **__: onerror(PermissionError(errno.EACCES, "no"))):
        refused = Workspace(str(root), no_env).read_file("b.py")
    assert isinstance(refused, ToolError)
    assert "it is unknown whether one is denied: the workspace cannot be gone through" in refused.message
    with replaced(fwalk=lambda *_, onerror, **__: onerror(FileNotFoundError(errno.ENOENT, "")) or ()):
        refused = Workspace(str(root), no_env).read_file("b.py")
    assert isinstance(refused, ToolError)
    assert "it is not where it was a moment ago" in refused.message


def test_temporary_second_name_of_a_new_file_is_not_denied(root: Path) -> None:
    answers = [os.stat(root / "a.py")]
    os.link(root / "a.py", root / ".a.tmp")
    answers.append(os.stat(root / "a.py"))
    (root / ".a.tmp").unlink()
    assert HardLinks(str(root), no_env).denial("a.py", answers.pop, for_write=False) is None
    assert answers == []
