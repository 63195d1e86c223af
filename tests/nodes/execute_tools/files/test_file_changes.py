import errno
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files.atomic_write import TEMPORARY_SUFFIX
from mendgraph.nodes.execute_tools.files.change_records import ChangeState
from mendgraph.nodes.execute_tools.files.handles import handle_name
from mendgraph.nodes.execute_tools.files.workspace import (
    Change,
    ChangedFile,
    DeleteFile,
    MoveFile,
    Workspace,
    WriteFile,
)
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.files.file_trees import A, B, all_kinds, everything, failing, modes
from tests.nodes.execute_tools.files.layout import DENIAL, SECRET, build, no_env, sha, tree_of
from tests.nodes.execute_tools.files.recorder_doubles import BrokenJournal, MemoryJournal, WatchingJournal, recovered

INVALID, CONFLICT, PERMISSION = (
    ToolErrorCode.INVALID_ARGUMENT,
    ToolErrorCode.CONFLICT,
    ToolErrorCode.PERMISSION_DENIED,
)


# --- All of them, or none


def test_files_are_made_changed_moved_and_deleted_together(root: Path, workspace: Workspace) -> None:
    (root / "c.py").write_bytes(b"c")
    (root / "d.py").write_bytes(b"d")
    (root / "d.py").chmod(0o640)
    (root / "a.py").chmod(0o755)
    done = workspace.change_files(
        [
            WriteFile("x/y/new.py", b"new"),
            WriteFile("a.py", b"a = 2\n", A),
            DeleteFile("src/b.py", B),
            MoveFile("c.py", "x/c.py", sha(b"c")),
            MoveFile("d.py", "src/b2.py", sha(b"d"), b"dd"),
        ]
    )
    assert done == (
        ChangedFile("x/y/new.py", sha256=sha(b"new")),
        ChangedFile("a.py", sha256=sha(b"a = 2\n")),
        ChangedFile("src/b.py"),
        ChangedFile("c.py", "x/c.py", sha(b"c")),
        ChangedFile("d.py", "src/b2.py", sha(b"dd")),
    )
    assert tree_of(root) == {
        ".env": SECRET,
        ".git/config": SECRET,
        "a.py": b"a = 2\n",
        "innocent.txt": SECRET,
        "out.txt": SECRET,
        "src/b2.py": b"dd",
        "x/c.py": b"c",
        "x/y/new.py": b"new",
    }
    assert (modes(root)["a.py"], modes(root)["src/b2.py"]) == (0o755, 0o640)


# --- Each call to the disk that fails

CALLS = ("rename", "link", "fsync", "mkdir", "write", "open")


@pytest.mark.parametrize("function", CALLS)
def test_whichever_call_fails_everything_is_as_it_was_or_that_is_said(
    root: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    failed = 0
    for nth in count(1):
        (root.parent / str(nth)).mkdir()
        tree = build(root.parent / str(nth))
        changes, journal = all_kinds(tree), MemoryJournal()
        workspace, before = Workspace(str(tree), no_env).recorded(journal), everything(tree)
        call, calls = failing(getattr(os, function), nth)
        monkeypatch.setattr(os, function, call)
        done = workspace.change_files(changes)
        monkeypatch.undo()
        if isinstance(done, ToolError):
            assert done.code is ToolErrorCode.IO_ERROR
            failed += 1
        if isinstance(done, tuple) or "does not confirm" in done.message:
            assert (tree_of(tree)["last.py"], journal.told) == (b"last", ["intended", "done"])
        else:
            assert everything(tree) == before, f"{function} number {nth} failed"
            assert journal.told in ([], ["intended", "undone"])
        assert [name for name in everything(tree) if name.endswith(TEMPORARY_SUFFIX)] == []
        if len(calls) < nth:
            break
    assert failed >= 2, "nothing was shown"


@pytest.mark.parametrize("function", ["rename", "link"])
def test_interrupt_leaves_everything_as_it_was(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    changes, real, journal = all_kinds(root), getattr(os, function), MemoryJournal()
    before, calls = everything(root), 0

    def stop(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(*args, **named)

    monkeypatch.setattr(os, function, stop)
    with pytest.raises(KeyboardInterrupt):
        workspace.recorded(journal).change_files(changes)
    monkeypatch.undo()
    assert (everything(root), journal.told) == (before, ["intended", "undone"])


def test_what_cannot_even_be_taken_back_is_kept_and_said(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "c.py").write_bytes(b"c")
    before, journal = tree_of(root), MemoryJournal()
    call, _ = failing(os.rename, 2, ever_after=True)
    monkeypatch.setattr(os, "rename", call)
    done = workspace.recorded(journal).change_files(
        [WriteFile("new.py", b""), WriteFile("a.py", b"x", A), WriteFile("c.py", b"y", sha(b"c"))]
    )
    monkeypatch.undo()
    [kept] = root.glob(f".*{TEMPORARY_SUFFIX}")
    assert kept.read_bytes() == b"a = 1\r\n"
    assert done == ToolError(
        code=ToolErrorCode.IO_ERROR,
        message="Cannot write 'c.py': the disk reports an error. Undoing the rest failed as well:"
        f" 'a.py' is kept as '{kept.name}' beside it.",
        fatal=True,
    )
    assert ((root / "c.py").read_bytes(), (root / "new.py").exists()) == (b"c", False)
    assert journal.told == ["intended"]
    assert [each.state for each in recovered(journal, root)] == [ChangeState.UNDONE]
    assert (tree_of(root), kept.exists()) == (before, False)


# --- The record


def test_change_is_recorded_before_it_begins_and_settled_when_all_of_it_is_on_the_disk(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    journal, fsync = WatchingJournal(lambda: (everything(root), set(synced))), os.fsync
    changes = all_kinds(root)
    before = everything(root)

    def sync(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.path.relpath(handle_name(descriptor) or "", root))

    monkeypatch.setattr(os, "fsync", sync)
    assert isinstance(workspace.recorded(journal).change_files(changes), tuple)
    assert journal.told == ["intended", "done"]
    assert journal.seen == [(before, set()), (everything(root), synced)]
    assert {".", "x", "x/y", "src", "z"} <= synced
    assert len([name for name in synced if name.endswith(TEMPORARY_SUFFIX)]) == 4


def test_names_of_new_directories_are_on_the_disk_as_well(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.add(os.path.relpath(handle_name(handle) or "", root)))
    assert isinstance(workspace.change_files([WriteFile("new/deep/file", b"x")]), tuple)
    assert {".", "new", "new/deep"} <= synced


def test_removal_of_the_old_file_is_on_the_disk_before_the_change_is_settled(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    journal, unlink = WatchingJournal(lambda: events.append("journal")), os.unlink

    def remove(name: str, **named: Any) -> None:
        unlink(name, **named)
        events.append("unlink")

    monkeypatch.setattr(os, "unlink", remove)
    monkeypatch.setattr(os, "fsync", lambda _: events.append("fsync"))
    assert isinstance(workspace.recorded(journal).change_files([DeleteFile("a.py", A)]), tuple)
    assert events[-3:] == ["unlink", "fsync", "journal"]


def test_without_a_record_nothing_is_changed(root: Path, workspace: Workspace) -> None:
    changes, journal = all_kinds(root), BrokenJournal("intend")
    before = everything(root)
    assert workspace.recorded(journal).change_files(changes) == ToolError(
        code=ToolErrorCode.IO_ERROR,
        message="Nothing was changed, because the record of it could not be written: The disk is full.",
        fatal=True,
    )
    assert (everything(root), journal.told) == (before, [])


def test_change_that_cannot_be_settled_stands_and_stays_open(root: Path, workspace: Workspace) -> None:
    journal = BrokenJournal("settle")
    done = workspace.recorded(journal).change_files([WriteFile("a.py", b"new", A)])
    assert done == (ChangedFile("a.py", sha256=sha(b"new")),)
    assert ((root / "a.py").read_bytes(), journal.change.state) == (b"new", ChangeState.INTENDED)
    journal.method = ""
    assert [each.state for each in recovered(journal, root)] == [ChangeState.DONE]


@pytest.mark.parametrize("function", ["unlink", "fsync"])
def test_what_cannot_be_cleaned_up_stays_open_for_the_next_start(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    before, journal = tree_of(root), MemoryJournal()
    monkeypatch.setattr(os, "write", failing(os.write, 1)[0])
    monkeypatch.setattr(os, function, failing(getattr(os, function), 1, ever_after=True)[0])
    done = workspace.recorded(journal).change_files([WriteFile("a.py", b"new", A)])
    monkeypatch.undo()
    assert isinstance(done, ToolError)
    assert (done.code, journal.told) == (ToolErrorCode.IO_ERROR, ["intended"])
    assert [each.state for each in recovered(journal, root)] == [ChangeState.UNDONE]
    assert tree_of(root) == before


# --- Another program at the same time


def test_file_that_appears_at_the_target_is_not_overwritten(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, before = os.link, tree_of(root)

    def late(source: str, name: str, **named: Any) -> None:
        if name == "new.py":
            (root / "new.py").write_bytes(b"theirs")
        link(source, name, **named)

    monkeypatch.setattr(os, "link", late)
    done = workspace.change_files([WriteFile("src/b.py", b"x", B), MoveFile("a.py", "new.py", A)])
    assert done == ToolError(code=ToolErrorCode.CONFLICT, message="Cannot move to 'new.py': it exists already.")
    assert tree_of(root) == {**before, "new.py": b"theirs"}


def test_moved_file_is_the_same_file_with_its_mode_and_its_other_names(root: Path, workspace: Workspace) -> None:
    (root / "a.py").chmod(0o444)
    os.link(root / "a.py", root / "second.py")
    before = (root / "a.py").stat()
    assert workspace.change_files([MoveFile("a.py", "b.py", A)]) == (ChangedFile("a.py", "b.py", A),)
    after = (root / "b.py").stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert (after.st_nlink, (root / "second.py").read_bytes(), (root / "a.py").exists()) == (2, b"a = 1\r\n", False)


OLD = sha(b"something else")

REFUSED: list[tuple[Change, ToolErrorCode, str]] = [
    (WriteFile("a.py", b"", OLD), CONFLICT, "Cannot write 'a.py': it has changed since it was read; read it again."),
    (MoveFile("a.py", "n", OLD), CONFLICT, "Cannot move 'a.py': it has changed since it was read; read it again."),
    (DeleteFile("src", A), INVALID, "Cannot delete 'src': it is a directory, and a file is needed."),
    (DeleteFile("pipe", A), INVALID, "Cannot delete 'pipe': it is not a regular file (a pipe, socket or device)."),
    (WriteFile("locked.py", b"", A), PERMISSION, "Cannot write 'locked.py': the file permissions do not allow it."),
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


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV])
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


def test_directory_that_is_moved_to_where_nothing_may_be_written_gets_no_new_file(
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


def test_directory_that_is_moved_into_a_denied_one_while_it_is_opened_gets_no_new_file(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file = os.open

    def open_late(name: str, *args: Any, **named: Any) -> int:
        handle = open_file(name, *args, **named)
        if name == "src" and (root / "src").exists():
            os.rename(root / "src", root / ".git" / "hooks")
        return handle

    monkeypatch.setattr(os, "open", open_late)
    assert workspace.change_files([WriteFile("src/pre-commit", b"x")]) == DENIAL
    assert os.listdir(root / ".git" / "hooks") == ["b.py"]


def test_directory_that_is_moved_after_the_plan_gets_no_new_file(root: Path, workspace: Workspace) -> None:
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
def test_file_that_is_changed_after_the_plan_is_not_moved(
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


def test_file_with_another_text_of_the_same_length_is_not_moved(root: Path, workspace: Workspace) -> None:
    os.utime(root / "a.py", (1_000_000_000, 1_000_000_000))
    journal = WatchingJournal(lambda: (root / "a.py").write_bytes(b"a = 9\r\n"))
    done = workspace.recorded(journal).change_files([MoveFile("a.py", "x/a.py", A)])
    assert isinstance(done, ToolError)
    assert (done.code, (root / "a.py").read_bytes(), (root / "x").exists()) == (CONFLICT, b"a = 9\r\n", False)


def test_file_that_is_swapped_while_it_goes_comes_back(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, before = os.rename, tree_of(root)

    def swap(*args: Any, **named: Any) -> None:
        monkeypatch.undo()
        (root / "theirs").write_bytes(b"theirs")
        rename(root / "theirs", root / "a.py")
        rename(*args, **named)

    monkeypatch.setattr(os, "rename", swap)
    done = workspace.change_files([DeleteFile("a.py", A)])
    assert isinstance(done, ToolError)
    assert (done.code, tree_of(root)) == (CONFLICT, {**before, "a.py": b"theirs"})
