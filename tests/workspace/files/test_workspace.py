import os
from pathlib import Path

import pytest

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.workspace.files.handles import closing, open_root
from mendgraph.nodes.workspace.files.sandbox import JudgedPaths, PathJudge
from mendgraph.nodes.workspace.files.tree_walk import Entry
from mendgraph.nodes.workspace.files.workspace import (
    DeleteFile,
    FileContent,
    MoveFile,
    OpenedFile,
    Workspace,
    WriteFile,
    read_beneath,
)
from tests.doubles.system_calls import after_each
from tests.workspace.files.layout import allow, code_of, content, no_env, sha, tree_of
from tests.workspace.files.recorder_doubles import MemoryJournal


def test_call_changes_no_files_after_its_timeout(root: Path, workspace: Workspace) -> None:
    scope = CancellationScope()
    in_scope = workspace.in_scope(scope)
    assert isinstance(in_scope.change_files([WriteFile("new.py", b"")]), tuple)
    scope.revoke()
    before = tree_of(root)
    with pytest.raises(ScopeOverError):
        in_scope.change_files([WriteFile("newer.py", b""), DeleteFile("a.py", sha(b"a = 1\r\n"))])
    assert tree_of(root) == before


def test_every_change_is_recorded_if_a_recorder_is_given(workspace: Workspace) -> None:
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


def test_files_with_other_extensions_are_neither_read_nor_changed(root: Path) -> None:
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


def test_directory_listing_has_directories_first_and_omits_git(workspace: Workspace) -> None:
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


def test_unusable_path_is_neither_read_nor_listed(workspace: Workspace) -> None:
    denied, invalid, missing = (
        ToolErrorCode.PERMISSION_DENIED,
        ToolErrorCode.INVALID_ARGUMENT,
        ToolErrorCode.NOT_FOUND,
    )
    for path, code in (("nope", missing), ("a.py", invalid), (".git", denied)):
        assert code_of(workspace.list_directory(path)) is code
        assert list(workspace.walk(path)) == []
    for path, code in ((".git/config", denied), ("innocent.txt", denied), ("nope.py", missing), ("src", invalid)):
        assert code_of(workspace.read_file(path)) is code
        assert code_of(workspace.open_file(path)) is code


def test_too_large_file_is_refused_with_its_size(workspace: Workspace) -> None:
    assert workspace.read_file("a.py", max_bytes=7) == content("a.py", b"a = 1\r\n")
    assert workspace.read_file("a.py", max_bytes=6) == ToolError(
        code=ToolErrorCode.IO_ERROR, message="'a.py' is too large to read at once: 7 bytes, and 6 are allowed."
    )


def test_file_is_read_in_pieces(workspace: Workspace) -> None:
    opened = workspace.open_file("link.py")
    assert isinstance(opened, OpenedFile)
    with opened as file:
        assert (file.path, file.size, file.stream.read(3), file.stream.read()) == ("src/b.py", 6, b"b =", b" 2\n")
    assert opened.stream.closed


# --- Many files, each by its own name


def read(root: Path, *names: str, judge: PathJudge = no_env) -> list[bytes | None]:
    paths = JudgedPaths(str(root), judge)
    with closing(open_root(str(root))) as handle:
        return [read_beneath(paths, handle, name, 100) for name in names]


def test_only_regular_files_allowed_under_all_their_names_are_read(root: Path) -> None:
    os.link(root / ".env", root / "other.txt")
    os.link(root / "src" / "b.py", root / "linked.py")
    os.mkfifo(root / "pipe")
    assert read(root, "a.py", "src/b.py", "linked.py") == [b"a = 1\r\n", b"b = 2\n", b"b = 2\n"]
    refused = ("link.py", "out.txt", ".env", "other.txt", "missing", "pipe")
    assert read(root, *refused) == [None] * len(refused)


def test_directory_moved_to_a_denied_place_while_opened_is_not_read(root: Path) -> None:
    def move(name: str, *_: object) -> None:
        if name == "src" and (root / "src").exists():
            os.rename(root / "src", root / ".git" / "src")

    with after_each("open", move):
        assert read(root, "src/b.py") == [None]


def test_hard_linked_file_renamed_while_opened_is_not_read(root: Path) -> None:
    os.link(root / "src" / "b.py", root / "linked.py")

    def move(name: str, *_: object) -> None:
        if name == "b.py":
            os.rename(root / "src" / "b.py", root / "src" / "c.py")

    with after_each("open", move):
        assert read(root, "src/b.py", judge=allow) == [None]
