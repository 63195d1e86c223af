import ctypes
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.execute_tools.files.file_reads import FileContent
from mendgraph.nodes.execute_tools.files.tree_walk import Entry
from mendgraph.nodes.execute_tools.files.workspace import DeleteFile, MoveFile, Workspace, WriteFile
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.files.layout import SECRET, allow, code_of, content, no_env, sha, tree_of
from tests.nodes.execute_tools.files.recorder_doubles import MemoryJournal


@contextmanager
def swapping(swap: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            swap()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def checked_then_opened(root: Path, name: str) -> bytes:
    """The losing control: a real name is checked, then the name is opened."""
    path = root / name
    with suppress(OSError):
        if os.path.realpath(path).startswith(f"{os.path.realpath(root)}/"):
            return path.read_bytes()
    return b""


def exchanger(one: Path, other: Path) -> Callable[[], None]:
    """Linux: swap two names in one step, so that both exist all the time."""
    exchange_flag, here = 2, -100
    renameat2, names = ctypes.CDLL(None).renameat2, (bytes(one), bytes(other))

    def swap() -> None:
        assert renameat2(here, names[0], here, names[1], exchange_flag) == 0

    return swap


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is Linux's own")
def test_changes_of_several_files_never_lead_out_of_a_directory_that_is_swapped(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the race is about names, and the disk is slow
    (root / "door").mkdir()
    (root / "door" / "f").write_bytes(b"fine")
    (root / "link").symlink_to(root.parent / "outside")
    before, lost, made = tree_of(root.parent / "outside"), 0, 0
    with swapping(exchanger(root / "door", root / "link")):
        for turn in range(200_000):
            lost += sum(checked_then_opened(root, "door/secret.txt") == SECRET for _ in range(100))
            (root / "m").write_bytes(b"m")
            done = workspace.change_files(
                [
                    WriteFile("door/f", b"fine", sha(b"fine")),
                    WriteFile(f"door/new/{turn}", b"x"),
                    MoveFile("m", f"door/m{turn}", sha(b"m")),
                ]
            )
            made += isinstance(done, tuple)
            if lost >= 3 and made >= 3:
                break
    assert (lost >= 3, made >= 3) == (True, True), "the race was not run"
    assert tree_of(root.parent / "outside") == before
    assert list(root.rglob("*.mendgraph-tmp")) == []


def test_after_its_time_a_call_changes_no_files(root: Path, workspace: Workspace) -> None:
    scope = CancellationScope()
    in_scope = workspace.in_scope(scope)
    assert isinstance(in_scope.change_files([WriteFile("new.py", b"")]), tuple)
    scope.revoke()
    before = tree_of(root)
    with pytest.raises(ScopeOverError):
        in_scope.change_files([WriteFile("newer.py", b""), DeleteFile("a.py", sha(b"a = 1\r\n"))])
    assert tree_of(root) == before


def test_all_changes_are_one_effect(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    scope, busy, rename = CancellationScope(), [], os.rename

    def watched(*args: Any, **named: Any) -> None:
        busy.append(scope.busy)
        rename(*args, **named)

    monkeypatch.setattr(os, "rename", watched)
    workspace.in_scope(scope).change_files(
        [DeleteFile("a.py", sha(b"a = 1\r\n")), DeleteFile("src/b.py", sha(b"b = 2\n"))]
    )
    assert (busy, scope.busy) == ([True, True], False)


def test_every_change_is_recorded_once_a_recorder_is_given(workspace: Workspace) -> None:
    journal = MemoryJournal()
    recorded = workspace.recorded(journal)
    assert (workspace.recorder, recorded.recorder, recorded.in_scope(CancellationScope()).recorder) == (
        None,
        journal,
        journal,
    )
    assert isinstance(recorded.write_file("new.py", b"n", expected_sha256=""), FileContent)
    assert isinstance(recorded.in_scope(CancellationScope()).change_files([DeleteFile("new.py", sha(b"n"))]), tuple)
    assert isinstance(recorded.unchangeable().write_file("newer.py", b"", expected_sha256=""), ToolError)
    assert isinstance(recorded.recorded(None).write_file("newer.py", b"", expected_sha256=""), FileContent)
    assert journal.told == ["intended", "done"] * 2


def test_files_of_other_extensions_are_neither_read_nor_changed(root: Path) -> None:
    workspace = Workspace(str(root), no_env, allowed_extensions=frozenset({".md"}))
    denial = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="Extension '.py' not allowed. Allowed: .md.")
    a = sha(b"a = 1\r\n")
    assert workspace.read_file("a.py") == denial
    assert workspace.write_file("a.py", b"", expected_sha256=a) == denial
    for change in (WriteFile("b.py", b""), DeleteFile("a.py", a), MoveFile("a.py", "a.md", a)):
        assert workspace.change_files([change]) == denial
    done = workspace.change_files([WriteFile("a.md", b"a")])
    assert isinstance(done, tuple)
    assert workspace.change_files([MoveFile("a.md", "b.py", sha(b"a"))]) == denial
    assert workspace.read_file("a.md") == content("a.md", b"a")
    (root / ".gitignore").write_bytes(b"src/\n")
    assert "src" not in {entry.path for entry in workspace.walk()}


# --- Listing ---------------------------------------------------------------------------------------------------


def test_a_directory_is_listed_directories_first_and_without_git(workspace: Workspace) -> None:
    assert workspace.list_directory(".") == (
        Entry("src", "directory", 0),
        Entry(".env", "file", 6),
        Entry("a.py", "file", 7),
        Entry("innocent.txt", "link", 0),
        Entry("link.py", "link", 0),
        Entry("out", "link", 0),
        Entry("out.txt", "link", 0),
    )
    assert workspace.list_directory("src/") == (Entry("src/b.py", "file", 6),)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("nope", ToolErrorCode.NOT_FOUND),
        ("a.py", ToolErrorCode.INVALID_ARGUMENT),
        (".git", ToolErrorCode.PERMISSION_DENIED),
        ("..", ToolErrorCode.PERMISSION_DENIED),
        ("out", ToolErrorCode.PERMISSION_DENIED),
    ],
)
def test_what_cannot_be_listed(workspace: Workspace, path: str, code: ToolErrorCode) -> None:
    assert code_of(workspace.list_directory(path)) is code
    assert list(workspace.walk(path)) == []


def test_an_unreadable_directory_is_a_typed_error(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise PermissionError(errno.EACCES, "")

    monkeypatch.setattr(os, "scandir", refuse)
    assert code_of(workspace.list_directory("src")) is ToolErrorCode.PERMISSION_DENIED
    assert list(workspace.walk()) == []


# --- Names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "there"),
    [("a.py", True), ("src", True), ("link.py", True), (".", True), ("nope", False), ("..", False), ("out", False)],
)
def test_what_is_there(workspace: Workspace, path: str, there: bool) -> None:
    assert workspace.exists(path) is there


def test_refusals_can_be_observed(root: Path) -> None:
    seen: list[dict[str, Any]] = []
    workspace = Workspace(str(root), allow, observe=seen.append)
    workspace.read_file("../x")
    workspace.read_file("nope.py")
    assert [(each["path"], each["code"]) for each in seen] == [
        ("../x", "permission_denied"),
        ("nope.py", "not_found"),
    ]
