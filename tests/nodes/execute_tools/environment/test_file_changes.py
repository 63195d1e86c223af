import errno
import os
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

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
from tests.nodes.execute_tools.environment.layout import SECRET, allow, sha, tree_of


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


def test_no_change_is_no_change(root: Path, workspace: Workspace) -> None:
    before = everything(root)
    assert workspace.change_files([]) == ()
    assert everything(root) == before


# --- Each call to the disk that fails

CALLS = ("rename", "link", "fsync", "mkdir", "write", "open", "fchmod", "stat", "fstat")


@pytest.mark.parametrize("function", CALLS)
def test_whichever_call_fails_everything_is_as_it_was(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    changes = all_kinds(root)
    before, failed = everything(root), 0
    for nth in count(1):
        call, calls = failing(getattr(os, function), nth)
        monkeypatch.setattr(os, function, call)
        done = workspace.change_files(changes)
        monkeypatch.undo()
        if isinstance(done, tuple):
            break
        assert done.code is ToolErrorCode.IO_ERROR
        assert everything(root) == before, f"{function} number {nth} failed"
        failed += 1
    assert failed >= 2, "nothing was shown"
    assert tree_of(root)["last.py"] == b"last"
    assert [name for name in everything(root) if name.endswith(TEMPORARY_SUFFIX)] == []
    assert len(calls) >= nth - 1


@pytest.mark.parametrize("function", ["rename", "link", "fsync", "write"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_everything_as_it_was(
    root: Path,
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    interrupt: type[BaseException],
) -> None:
    changes, real = all_kinds(root), getattr(os, function)
    before, calls = everything(root), 0

    def stop(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise interrupt
        return real(*args, **named)

    monkeypatch.setattr(os, function, stop)
    with pytest.raises(interrupt):
        workspace.change_files(changes)
    monkeypatch.undo()
    assert everything(root) == before


def test_an_interrupt_after_a_rename_takes_that_back_too(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, rename = all_kinds(root), os.rename
    before = everything(root)

    def stop(*args: Any, **named: Any) -> None:
        monkeypatch.undo()
        rename(*args, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        workspace.change_files(changes)
    assert everything(root) == before


def test_what_cannot_even_be_taken_back_is_kept_and_said(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "c.py").write_bytes(b"c")
    call, _ = failing(os.rename, 2, ever_after=True)
    monkeypatch.setattr(os, "rename", call)
    done = workspace.change_files(
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


def test_a_new_file_that_cannot_be_taken_back_is_said(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def fail(name: str, **named: Any) -> None:
        if name == "new.py":
            raise OSError(errno.EIO, "")
        unlink(name, **named)

    monkeypatch.setattr(os, "unlink", fail)
    monkeypatch.setattr(os, "rename", failing(os.rename, 1)[0])
    done = workspace.change_files([WriteFile("new.py", b"n"), WriteFile("a.py", b"x", A)])
    monkeypatch.undo()
    assert isinstance(done, ToolError)
    assert done.message.endswith("Undoing the rest failed as well: 'new.py' is left behind.")
    assert (root / "a.py").read_bytes() == b"a = 1\r\n"


# --- Another program at the same time


def test_a_file_that_appears_at_the_target_is_not_overwritten(
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


def test_a_file_that_is_changed_at_the_last_moment_is_not_overwritten(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, before = os.fsync, tree_of(root)

    def late(descriptor: int) -> None:
        fsync(descriptor)
        (root / "theirs").write_bytes(b"theirs")
        os.rename(root / "theirs", root / "a.py")

    monkeypatch.setattr(os, "fsync", late)
    done = workspace.change_files([WriteFile("a.py", b"x", A), WriteFile("new.py", b"n")])
    assert isinstance(done, ToolError)
    assert done.code is ToolErrorCode.CONFLICT
    assert tree_of(root) == {**before, "a.py": b"theirs"}


def test_the_names_are_written_through_to_the_disk(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, bool]] = []

    def sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, (root / "x" / "y" / "new.py").exists()))

    monkeypatch.setattr(os, "fsync", sync)
    workspace.change_files([WriteFile("x/y/new.py", b"n"), DeleteFile("src/b.py", B)])
    folders = {(root / name).stat().st_ino for name in ("", "x", "x/y", "src")}
    assert {inode for inode, done in synced if done} == folders
    assert len([inode for inode, done in synced if not done]) == 1


# --- A model

NAMES = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "n/a")
TREES = st.dictionaries(st.sampled_from(("a", "b", "d/a", "d/b", "d/e/a")), st.sampled_from((b"1", b"2")), max_size=5)


def change_of(tree: Mapping[str, bytes]) -> st.SearchStrategy[Change]:
    names = st.sampled_from(NAMES)
    honest = names.flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from((sha(tree.get(name, b"?")), sha(b"old"))))
    )
    data = st.sampled_from((b"1", b"3"))
    return st.one_of(
        st.builds(WriteFile, names, data),
        st.builds(lambda at, new: WriteFile(at[0], new, at[1]), honest, data),
        st.builds(lambda at: DeleteFile(*at), honest),
        st.builds(lambda at, to, new: MoveFile(at[0], to, at[1], new), honest, names, st.none() | data),
    )


def folders_of(names: Sequence[str]) -> set[str]:
    return {name.rsplit("/", depth)[0] for name in names for depth in range(1, name.count("/") + 1)}


def model(tree: dict[str, bytes], changes: Sequence[Change]) -> dict[str, bytes] | None:
    """The tree after the changes, or None where one of them cannot be made."""
    after, touched = dict(tree), []
    for change in changes:
        free = change.target if isinstance(change, MoveFile) else None
        if isinstance(change, WriteFile) and not change.expected_sha256:
            free = change.path
        elif change.path not in tree or sha(tree[change.path]) != change.expected_sha256:
            return None
        if free is not None and (free in tree or free in folders_of(list(tree)) or folders_of([free]) & set(tree)):
            return None
        old = after.pop(change.path, b"")
        touched.append(change.path)
        if isinstance(change, MoveFile):
            touched.append(change.target)
            after[change.target] = old if change.data is None else change.data
        elif isinstance(change, WriteFile):
            after[change.path] = change.data
    overlap = len(set(touched)) < len(touched) or folders_of(touched) & set(touched)
    return None if overlap else after


@settings(max_examples=300)
@given(st.data())
def test_any_changes_are_made_altogether_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tree = data.draw(TREES)
    changes = data.draw(st.lists(change_of(tree), max_size=4))
    root = tmp_path_factory.mktemp("tree")
    for name, content in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    before, expected = everything(root), model(tree, changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)  # the disk is slow
        done = Workspace(str(root), allow).change_files(changes)
    if expected is None:
        assert isinstance(done, ToolError)
        assert everything(root) == before
    else:
        assert isinstance(done, tuple), done
        assert (tree_of(root), len(done)) == (expected, len(changes))
