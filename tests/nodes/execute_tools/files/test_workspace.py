from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, ScopeOverError
from mendgraph.nodes.execute_tools.files.tree_walk import Entry
from mendgraph.nodes.execute_tools.files.workspace import DeleteFile, FileContent, MoveFile, Workspace, WriteFile
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.files.layout import code_of, content, no_env, sha, tree_of
from tests.nodes.execute_tools.files.recorder_doubles import MemoryJournal


def test_after_its_time_a_call_changes_no_files(root: Path, workspace: Workspace) -> None:
    scope = CancellationScope()
    in_scope = workspace.in_scope(scope)
    assert isinstance(in_scope.change_files([WriteFile("new.py", b"")]), tuple)
    scope.revoke()
    before = tree_of(root)
    with pytest.raises(ScopeOverError):
        in_scope.change_files([WriteFile("newer.py", b""), DeleteFile("a.py", sha(b"a = 1\r\n"))])
    assert tree_of(root) == before


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


def test_directory_is_listed_directories_first_and_without_git(workspace: Workspace) -> None:
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
    ],
)
def test_what_cannot_be_listed(workspace: Workspace, path: str, code: ToolErrorCode) -> None:
    assert code_of(workspace.list_directory(path)) is code
    assert list(workspace.walk(path)) == []
