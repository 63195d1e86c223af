import errno
import os
from pathlib import Path
from typing import Any

import pytest

from nodes.execute_tools.environment.atomic_write import TEMPORARY_SUFFIX
from nodes.execute_tools.environment.workspace import (
    Change,
    ChangedFile,
    DeleteFile,
    MoveFile,
    Workspace,
    WriteFile,
)
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.file_trees import A, B, all_kinds, everything, failing, modes
from tests.nodes.execute_tools.environment.layout import DENIAL, no_env, sha, tree_of
from tests.nodes.execute_tools.environment.recorder_doubles import WatchingJournal


def test_a_moved_file_is_the_same_file_with_its_mode_and_its_other_names(root: Path, workspace: Workspace) -> None:
    (root / "a.py").chmod(0o444)
    os.link(root / "a.py", root / "second.py")
    before = (root / "a.py").stat()
    assert workspace.change_files([MoveFile("a.py", "b.py", A)]) == (ChangedFile("a.py", "b.py", A),)
    after = (root / "b.py").stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert (after.st_nlink, (root / "second.py").read_bytes(), (root / "a.py").exists()) == (2, b"a = 1\r\n", False)


def test_deleting_takes_away_one_name_of_a_file(root: Path, workspace: Workspace) -> None:
    os.link(root / "a.py", root / "second.py")
    assert workspace.change_files([DeleteFile("a.py", A)]) == (ChangedFile("a.py"),)
    assert ((root / "a.py").exists(), (root / "second.py").read_bytes()) == (False, b"a = 1\r\n")
    assert (root / "second.py").stat().st_nlink == 1


def test_a_directory_that_becomes_empty_stays(root: Path, workspace: Workspace) -> None:
    workspace.change_files([DeleteFile("src/b.py", B)])
    assert (root / "src").is_dir()


def test_a_file_is_written_through_a_link(root: Path, workspace: Workspace) -> None:
    done = workspace.change_files([WriteFile("link.py", b"n", B), WriteFile("new.py", b"")])
    assert done == (ChangedFile("src/b.py", sha256=sha(b"n")), ChangedFile("new.py", sha256=sha(b"")))
    assert ((root / "link.py").is_symlink(), (root / "src" / "b.py").read_bytes()) == (True, b"n")


INVALID, CONFLICT, PERMISSION = (
    ToolErrorCode.INVALID_ARGUMENT,
    ToolErrorCode.CONFLICT,
    ToolErrorCode.PERMISSION_DENIED,
)
OLD = sha(b"something else")

REFUSED: list[tuple[Change, ToolErrorCode, str]] = [
    (WriteFile("a.py", b"", OLD), CONFLICT, "Cannot write 'a.py': it has changed since it was read; read it again."),
    (DeleteFile("a.py", OLD), CONFLICT, "Cannot delete 'a.py': it has changed since it was read; read it again."),
    (MoveFile("a.py", "n", OLD), CONFLICT, "Cannot move 'a.py': it has changed since it was read; read it again."),
    (DeleteFile("src", A), INVALID, "Cannot delete 'src': it is a directory, and a file is needed."),
    (DeleteFile(".", A), INVALID, "Cannot delete '.': it is a directory, and a file is needed."),
    (MoveFile("src", "n", A), INVALID, "Cannot move 'src': it is a directory, and a file is needed."),
    (DeleteFile("pipe", A), INVALID, "Cannot delete 'pipe': it is not a regular file (a pipe, socket or device)."),
    (MoveFile("pipe", "n", A), INVALID, "Cannot move 'pipe': it is not a regular file (a pipe, socket or device)."),
    (WriteFile("locked.py", b"", A), PERMISSION, "Cannot write 'locked.py': the file permissions do not allow it."),
    (DeleteFile("locked.py", A), PERMISSION, "Cannot delete 'locked.py': the file permissions do not allow it."),
    (
        MoveFile("locked.py", "n", A, b"x"),
        PERMISSION,
        "Cannot move 'locked.py': the file permissions do not allow it.",
    ),
]


@pytest.mark.parametrize(("change", "code", "message"), REFUSED)
def test_one_change_that_cannot_be_made_leaves_all_as_it_was(
    root: Path, workspace: Workspace, change: Change, code: ToolErrorCode, message: str
) -> None:
    os.mkfifo(root / "pipe")
    (root / "locked.py").write_bytes(b"a = 1\r\n")
    (root / "locked.py").chmod(0o444)
    before = everything(root)
    others: list[Change] = [WriteFile("x/y/new.py", b"new"), MoveFile("src/b.py", "x/b.py", B)]
    for order in ([change, *others], [*others, change]):
        assert workspace.change_files(order) == ToolError(code=code, message=message)
        assert everything(root) == before


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EMLINK])
def test_where_a_file_cannot_have_two_names_it_is_copied(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    link = os.link

    def one_name(source: str, name: str, **named: Any) -> None:
        if source.endswith(TEMPORARY_SUFFIX) and number == errno.EXDEV:
            link(source, name, **named)  # inside one disk it works
            return
        raise OSError(number, os.strerror(number))

    changes = all_kinds(root)
    contents, old_modes = tree_of(root), modes(root)
    for nth in (3, None):
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", one_name)
            if nth:
                patch.setattr(os, "rename", failing(os.rename, nth)[0])
            done = workspace.change_files(changes)
        assert isinstance(done, ToolError if nth else tuple)
        if nth:
            assert (tree_of(root), modes(root)) == (contents, old_modes)
    assert (tree_of(root)["x/c.py"], tree_of(root)["z/d.py"], modes(root)["z/d.py"]) == (b"c", b"dd", 0o751)
    assert [name for name in everything(root) if name.endswith(TEMPORARY_SUFFIX)] == []


def test_a_directory_that_is_moved_to_where_nothing_may_be_written_gets_no_new_file(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def late(name: str, **named: Any) -> None:
        mkdir(name, **named)
        if name == "hooks":
            os.rename(root / "hooks", root / ".git" / "hooks")
            (root / "hooks").symlink_to(".git/hooks")

    monkeypatch.setattr(os, "mkdir", late)
    done = workspace.change_files([WriteFile("hooks/pre-commit", b"x")])
    assert isinstance(done, ToolError)
    assert not (root / ".git" / "hooks" / "pre-commit").exists()


def test_a_directory_that_is_moved_after_the_plan_gets_no_new_file(root: Path, workspace: Workspace) -> None:
    def move() -> None:
        if (root / "src").exists():
            os.rename(root / "src", root / ".git" / "hooks")

    journal = WatchingJournal(move)
    changes: list[Change] = [WriteFile("src/pre-commit", b"x"), WriteFile("a.py", b"x", A)]
    done = workspace.recorded(journal).change_files(changes)
    assert done == ToolError(
        code=ToolErrorCode.CONFLICT,
        message="Cannot write 'src/pre-commit': it changed while it was being opened; try again.",
    )
    assert os.listdir(root / ".git" / "hooks") == ["b.py"]
    assert ((root / "a.py").read_bytes(), journal.told) == (b"a = 1\r\n", ["intended", "undone"])


@pytest.mark.parametrize("linkable", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_file_that_is_changed_after_the_plan_is_not_moved(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, linkable: bool, in_place: bool
) -> None:
    def change() -> None:
        (root / "theirs").write_bytes(b"theirs")
        if in_place:
            (root / "a.py").write_bytes(b"theirs")
        else:
            os.rename(root / "theirs", root / "a.py")

    def no_link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    journal = WatchingJournal(change)
    if not linkable:
        monkeypatch.setattr(os, "link", no_link)
    done = workspace.recorded(journal).change_files([MoveFile("a.py", "x/a.py", A)])
    assert isinstance(done, ToolError)
    assert (done.code, journal.told) == (CONFLICT, ["intended", "undone"])
    assert ((root / "a.py").read_bytes(), (root / "x").exists()) == (b"theirs", False)


def test_the_real_name_of_the_directory_is_judged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "nodes.execute_tools.environment.open_folders.handle_name",
        lambda descriptor: f"{root}/.git" if os.fstat(descriptor).st_ino == (root / "src").stat().st_ino else str(root),
    )
    workspace, before = Workspace(str(root), no_env), everything(root)
    assert workspace.change_files([WriteFile("src/new", b"x")]) == DENIAL
    assert workspace.change_files([MoveFile("a.py", "src/new", A)]) == DENIAL
    assert workspace.write_file("src/new", b"x", expected_sha256="") == DENIAL
    assert everything(root) == before
