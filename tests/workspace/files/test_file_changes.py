import errno
import os
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.atomic_write import TEMPORARY_SUFFIX
from mendgraph.nodes.workspace.files.change_records import ChangeState
from mendgraph.nodes.workspace.files.workspace import Change, ChangedFile, DeleteFile, MoveFile, Workspace, WriteFile
from tests.doubles.system_calls import after_each, before_each, failing, noted, replaced
from tests.extent import slow
from tests.workspace.files.file_trees import A, B, changes_of_all_kinds, file_states, modes
from tests.workspace.files.layout import DENIAL, SECRET, build, no_env, sha, tree_of
from tests.workspace.files.recorder_doubles import BrokenJournal, MemoryJournal, WatchingJournal, recovered

# --- All changes or none


def test_files_are_created_changed_moved_and_deleted_together(root: Path, workspace: Workspace) -> None:
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


# --- Each failing system call


@slow
@pytest.mark.parametrize("function", ["rename", "link", "fsync", "mkdir", "write", "open"])
def test_failed_change_is_rolled_back_or_reported(root: Path, function: str) -> None:
    failed = 0
    for nth in count(1):
        (root.parent / str(nth)).mkdir()
        tree = build(root.parent / str(nth))
        changes, journal = changes_of_all_kinds(tree), MemoryJournal()
        workspace, before = Workspace(str(tree), no_env).recorded(journal), file_states(tree)
        with failing(function, nth) as calls:
            done = workspace.change_files(changes)
        if isinstance(done, ToolError):
            assert done.code is ToolErrorCode.IO_ERROR
            failed += 1
        if isinstance(done, tuple) or "does not confirm" in done.message:
            assert (tree_of(tree)["last.py"], journal.told) == (b"last", ["intended", "done"])
        else:
            assert file_states(tree) == before, f"{function} number {nth} failed"
            assert journal.told in ([], ["intended", "undone"])
        assert [name for name in file_states(tree) if name.endswith(TEMPORARY_SUFFIX)] == []
        if len(calls) < nth:
            break
    assert failed >= 2, "nothing was shown"


@pytest.mark.parametrize("function", ["rename", "link"])
def test_interrupted_change_is_rolled_back(root: Path, workspace: Workspace, function: str) -> None:
    changes, journal, calls = changes_of_all_kinds(root), MemoryJournal(), count(1)
    before = file_states(root)

    def stop(*_: object) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt

    with before_each(function, stop), pytest.raises(KeyboardInterrupt):
        workspace.recorded(journal).change_files(changes)
    assert (file_states(root), journal.told) == (before, ["intended", "undone"])


def test_file_that_cannot_be_restored_is_kept_and_named(root: Path, workspace: Workspace) -> None:
    (root / "c.py").write_bytes(b"c")
    before, journal = tree_of(root), MemoryJournal()
    with failing("rename", 2, ever_after=True):
        done = workspace.recorded(journal).change_files(
            [WriteFile("new.py", b""), WriteFile("a.py", b"x", A), WriteFile("c.py", b"y", sha(b"c"))]
        )
    [temporary] = root.glob(f".*{TEMPORARY_SUFFIX}")
    assert temporary.read_bytes() == b"a = 1\r\n"
    assert done == ToolError(
        code=ToolErrorCode.IO_ERROR,
        message="Cannot write 'c.py': the disk reports an error. Undoing the rest failed as well:"
        f" 'a.py' is kept as '{temporary.name}' beside it.",
        fatal=True,
    )
    assert ((root / "c.py").read_bytes(), (root / "new.py").exists()) == (b"c", False)
    assert journal.told == ["intended"]
    assert [change.state for change in recovered(journal, root)] == [ChangeState.UNDONE]
    assert (tree_of(root), temporary.exists()) == (before, False)


# --- The record


def test_change_is_recorded_before_it_starts_and_settled_once_on_disk(root: Path, workspace: Workspace) -> None:
    changes = changes_of_all_kinds(root)
    before = file_states(root)
    with noted("fsync") as calls:
        journal = WatchingJournal(lambda: (file_states(root), {name for _, name in calls}))
        assert isinstance(workspace.recorded(journal).change_files(changes), tuple)
    assert journal.told == ["intended", "done"]
    synced = {name for _, name in calls}
    assert journal.seen == [(before, set()), (file_states(root), synced)]
    assert {str(root / name) for name in (".", "x", "x/y", "src", "z")} <= synced
    assert len([name for name in synced if name.endswith(TEMPORARY_SUFFIX)]) == 4


def test_removal_of_the_old_file_is_on_disk_before_the_change_is_settled(workspace: Workspace) -> None:
    with noted("unlink", "fsync") as calls:
        journal = WatchingJournal(lambda: calls.append(("journal", "")))
        assert isinstance(workspace.recorded(journal).change_files([DeleteFile("a.py", A)]), tuple)
    assert [name for name, _ in calls[-3:]] == ["unlink", "fsync", "journal"]


def test_nothing_is_changed_if_it_cannot_be_recorded(root: Path, workspace: Workspace) -> None:
    changes, journal = changes_of_all_kinds(root), BrokenJournal("intend")
    before = file_states(root)
    assert workspace.recorded(journal).change_files(changes) == ToolError(
        code=ToolErrorCode.IO_ERROR,
        message="Nothing was changed, because the record of it could not be written: The disk is full.",
        fatal=True,
    )
    assert (file_states(root), journal.told) == (before, [])


def test_change_that_cannot_be_settled_is_kept_and_stays_open(root: Path, workspace: Workspace) -> None:
    journal = BrokenJournal("settle")
    done = workspace.recorded(journal).change_files([WriteFile("a.py", b"new", A)])
    assert done == (ChangedFile("a.py", sha256=sha(b"new")),)
    assert ((root / "a.py").read_bytes(), journal.change.state) == (b"new", ChangeState.INTENDED)
    journal.method = ""
    assert [change.state for change in recovered(journal, root)] == [ChangeState.DONE]


@pytest.mark.parametrize("function", ["unlink", "fsync"])
def test_change_that_cannot_be_cleaned_up_stays_open_until_recovery(
    root: Path, workspace: Workspace, function: str
) -> None:
    before, journal = tree_of(root), MemoryJournal()
    with failing("write"), failing(function, ever_after=True):
        done = workspace.recorded(journal).change_files([WriteFile("a.py", b"new", A)])
    assert isinstance(done, ToolError)
    assert (done.code, journal.told) == (ToolErrorCode.IO_ERROR, ["intended"])
    assert [change.state for change in recovered(journal, root)] == [ChangeState.UNDONE]
    assert tree_of(root) == before


# --- Another program at the same time


def test_file_that_appears_at_the_target_is_not_overwritten(root: Path, workspace: Workspace) -> None:
    before = tree_of(root)

    def appear(_: str, name: str) -> None:
        if name == "new.py":
            (root / "new.py").write_bytes(b"theirs")

    with before_each("link", appear):
        done = workspace.change_files([WriteFile("src/b.py", b"x", B), MoveFile("a.py", "new.py", A)])
    assert done == ToolError(code=ToolErrorCode.CONFLICT, message="Cannot move to 'new.py': it exists already.")
    assert tree_of(root) == {**before, "new.py": b"theirs"}


def test_moved_file_keeps_its_inode_mode_and_hard_links(root: Path, workspace: Workspace) -> None:
    (root / "a.py").chmod(0o444)
    os.link(root / "a.py", root / "second.py")
    before = (root / "a.py").stat()
    assert workspace.change_files([MoveFile("a.py", "b.py", A)]) == (ChangedFile("a.py", "b.py", A),)
    after = (root / "b.py").stat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert (after.st_nlink, (root / "second.py").read_bytes(), (root / "a.py").exists()) == (2, b"a = 1\r\n", False)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV])
def test_file_is_copied_if_hard_links_are_unsupported(root: Path, workspace: Workspace, number: int) -> None:
    link = os.link

    def one_name(source: str, name: str, **named: Any) -> None:
        if source.endswith(TEMPORARY_SUFFIX) and number == errno.EXDEV:
            link(source, name, **named)  # inside one disk it works
            return
        raise OSError(number, os.strerror(number))

    changes = changes_of_all_kinds(root)
    contents, old_modes = tree_of(root), modes(root)
    with replaced(link=one_name), failing("rename", 3):
        assert isinstance(workspace.change_files(changes), ToolError)
    assert (tree_of(root), modes(root)) == (contents, old_modes)

    with replaced(link=one_name):
        assert isinstance(workspace.change_files(changes), tuple)
    assert (tree_of(root)["x/c.py"], tree_of(root)["z/d.py"], modes(root)["z/d.py"]) == (b"c", b"dd", 0o751)
    assert [name for name in file_states(root) if name.endswith(TEMPORARY_SUFFIX)] == []


def test_directory_moved_to_a_protected_place_gets_no_new_file(root: Path, workspace: Workspace) -> None:
    def move(name: str, *_: object) -> None:
        if name == "hooks":
            os.rename(root / "hooks", root / ".git" / "hooks")
            (root / "hooks").symlink_to(".git/hooks")

    with after_each("mkdir", move):
        assert isinstance(workspace.change_files([WriteFile("hooks/pre-commit", b"x")]), ToolError)
    assert not (root / ".git" / "hooks" / "pre-commit").exists()


def test_directory_moved_into_a_denied_one_while_opened_gets_no_new_file(root: Path, workspace: Workspace) -> None:
    def move(name: str, *_: object) -> None:
        if name == "src" and (root / "src").exists():
            os.rename(root / "src", root / ".git" / "hooks")

    with after_each("open", move):
        assert workspace.change_files([WriteFile("src/pre-commit", b"x")]) == DENIAL
    assert os.listdir(root / ".git" / "hooks") == ["b.py"]


def test_directory_moved_after_planning_gets_no_new_file(root: Path, workspace: Workspace) -> None:
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
def test_file_changed_after_planning_is_not_moved(
    root: Path, workspace: Workspace, linkable: bool, in_place: bool
) -> None:
    def change() -> None:
        (root / "theirs").write_bytes(b"theirs")
        if in_place:
            (root / "a.py").write_bytes(b"theirs")
        else:
            os.rename(root / "theirs", root / "a.py")

    journal = WatchingJournal(change)
    with nullcontext() if linkable else failing("link", number=errno.EXDEV, ever_after=True):
        done = workspace.recorded(journal).change_files([MoveFile("a.py", "x/a.py", A)])
    assert isinstance(done, ToolError)
    assert (done.code, journal.told) == (ToolErrorCode.CONFLICT, ["intended", "undone"])
    assert ((root / "a.py").read_bytes(), (root / "x").exists()) == (b"theirs", False)


def test_file_with_different_text_of_the_same_length_is_not_moved(root: Path, workspace: Workspace) -> None:
    os.utime(root / "a.py", (1_000_000_000, 1_000_000_000))
    journal = WatchingJournal(lambda: (root / "a.py").write_bytes(b"a = 9\r\n"))
    done = workspace.recorded(journal).change_files([MoveFile("a.py", "x/a.py", A)])
    assert isinstance(done, ToolError)
    code, data = ToolErrorCode.CONFLICT, b"a = 9\r\n"
    assert (done.code, (root / "a.py").read_bytes(), (root / "x").exists()) == (code, data, False)


def test_file_swapped_during_deletion_is_restored(root: Path, workspace: Workspace) -> None:
    before, swaps = tree_of(root), count()

    def swap(*_: object) -> None:
        if next(swaps) == 0:
            (root / "theirs").write_bytes(b"theirs")
            os.replace(root / "theirs", root / "a.py")

    with before_each("rename", swap):
        done = workspace.change_files([DeleteFile("a.py", A)])
    assert isinstance(done, ToolError)
    assert (done.code, tree_of(root)) == (ToolErrorCode.CONFLICT, {**before, "a.py": b"theirs"})
