from collections.abc import Callable
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.files import file_changes
from mendgraph.nodes.execute_tools.files.file_changes import MOST_CHANGES
from mendgraph.nodes.execute_tools.files.workspace import Change, DeleteFile, MoveFile, Workspace, WriteFile
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.files.file_trees import A, B
from tests.nodes.execute_tools.files.layout import DENIAL, no_env, sha, tree_of
from tests.nodes.execute_tools.files.recorder_doubles import MemoryJournal

INVALID, CONFLICT, PERMISSION = (
    ToolErrorCode.INVALID_ARGUMENT,
    ToolErrorCode.CONFLICT,
    ToolErrorCode.PERMISSION_DENIED,
)


def refused(root: Path, *changes: Change) -> ToolError:
    """The refusal of these changes, of which none is made."""
    before = tree_of(root)
    found = Workspace(str(root), no_env).change_files(changes)
    assert isinstance(found, ToolError)
    assert tree_of(root) == before
    return found


UNPLACED: list[tuple[Change, ToolErrorCode, str]] = [
    (WriteFile("nope", b"", A), CONFLICT, "Cannot write 'nope': it is gone."),
    (WriteFile("a.py", b""), CONFLICT, "Cannot write 'a.py': it exists already; read it first, then replace it."),
    (
        DeleteFile("link.py", B),
        INVALID,
        "Cannot delete 'link.py': it is a symbolic link to 'src/b.py'. Name the file itself.",
    ),
    (
        MoveFile("link.py", "new", B),
        INVALID,
        "Cannot move 'link.py': it is a symbolic link to 'src/b.py'. Name the file itself.",
    ),
    (
        MoveFile("a.py", "dangling", A),
        INVALID,
        "Cannot move to 'dangling': it is a symbolic link to 'src/nothing'. Name the file itself.",
    ),
    (MoveFile("a.py", "src/b.py", A), CONFLICT, "Cannot move to 'src/b.py': it exists already."),
    (MoveFile("a.py", "a.py", A), CONFLICT, "Cannot move to 'a.py': it exists already."),
    (
        MoveFile("a.py", "src/b.py/c", A),
        INVALID,
        "Cannot resolve 'src/b.py/c': a part of it is a file where a directory is needed.",
    ),
    (DeleteFile("src/b.js", B), ToolErrorCode.NOT_FOUND, "No such file: 'src/b.js'. Did you mean 'src/b.py'?"),
]


@pytest.mark.parametrize(("change", "code", "message"), UNPLACED)
def test_what_cannot_be_done(root: Path, change: Change, code: ToolErrorCode, message: str) -> None:
    (root / "dangling").symlink_to("src/nothing")
    found = refused(root, change)
    assert (found.code, found.message) == (code, message)


SPELLINGS: dict[str, Callable[[str], Change]] = {
    "write": lambda path: WriteFile(path, b"", ""),
    "replace": lambda path: WriteFile(path, b"", sha(b"secret")),
    "delete": lambda path: DeleteFile(path, sha(b"secret")),
    "move from": lambda path: MoveFile(path, "new.py", sha(b"secret")),
    "move to": lambda path: MoveFile("a.py", path, A),
}


@pytest.mark.parametrize("kind", SPELLINGS)
@pytest.mark.parametrize("path", [".env", "innocent.txt", "new/.env"])
def test_what_the_judge_denies_is_denied_at_both_ends(root: Path, kind: str, path: str) -> None:
    assert refused(root, SPELLINGS[kind](path)) == DENIAL


OVERLAPS: list[tuple[tuple[Change, ...], str]] = [
    ((WriteFile("a.py", b"1", A), DeleteFile("./src/../a.py", A)), "'a.py'"),
    ((WriteFile("src/b.py", b"1", B), WriteFile("link.py", b"2", B)), "'src/b.py'"),
    ((WriteFile("folder/b.py", b"1", B), DeleteFile("src/b.py", B)), "'src/b.py'"),
    ((MoveFile("a.py", "src/new.py", A), WriteFile("folder/new.py", b"1")), "'src/new.py'"),
    ((MoveFile("a.py", "new.py", A), DeleteFile("a.py", A)), "'a.py'"),
]


@pytest.mark.parametrize(("changes", "name"), OVERLAPS)
def test_two_changes_of_one_file_are_refused_under_whatever_names(
    root: Path, changes: tuple[Change, ...], name: str
) -> None:
    (root / "folder").symlink_to("src")
    for order in (changes, changes[::-1]):
        assert refused(root, *order) == ToolError(
            code=INVALID, message=f"Two of these changes concern {name}: make one of them."
        )


def test_number_of_changes_is_bounded(root: Path, workspace: Workspace) -> None:
    changes = [WriteFile(f"new/{number}", b"") for number in range(MOST_CHANGES + 1)]
    assert refused(root, *changes).message == "201 files are too many for one change: 200 are allowed."
    assert isinstance(workspace.change_files(changes[1:]), tuple)


def test_without_a_recorder_no_file_is_too_large(
    root: Path, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_changes, "LARGEST_BACKUP", 3)
    for change in (WriteFile("a.py", b"x", A), DeleteFile("a.py", A), MoveFile("a.py", "n", A)):
        refused = workspace.recorded(MemoryJournal()).change_files([change])
        assert isinstance(refused, ToolError)
        assert (refused.code, "it has 7 bytes" in refused.message) == (ToolErrorCode.IO_ERROR, True)
        assert isinstance(workspace.change_files([change]), tuple)
        (root / "a.py").write_bytes(b"a = 1\r\n")


def test_file_of_the_largest_size_is_recorded_and_changed(root: Path, workspace: Workspace) -> None:
    data, journal = bytes(10_000_000), MemoryJournal()
    (root / "a.py").write_bytes(data)
    done = workspace.recorded(journal).change_files([WriteFile("a.py", b"new", sha(data))])
    assert isinstance(done, tuple)
    assert journal.backups == {sha(data): data}


def test_text_that_may_not_be_held_is_neither_written_nor_moved_there(root: Path) -> None:
    def judge(name: str) -> Callable[[bytes], ToolError | None] | None:
        return (lambda data: DENIAL if b"secret" in data else None) if name.endswith(".cfg") else None

    (root / "notes.txt").write_bytes(b"a secret")
    workspace, before = Workspace(str(root), no_env, contents=judge), tree_of(root)
    changes: list[Change] = [
        WriteFile("new.cfg", b"a secret"),
        MoveFile("notes.txt", "new.cfg", sha(b"a secret")),
        MoveFile("a.py", "new.cfg", A, b"a secret"),
    ]

    for change in changes:
        assert workspace.change_files([change]) == DENIAL
        assert tree_of(root) == before
    assert isinstance(workspace.change_files([WriteFile("new.cfg", b"harmless")]), tuple)


@pytest.mark.parametrize("even", [False, True])
def test_read_only_file_is_changed_only_where_that_is_said(root: Path, workspace: Workspace, even: bool) -> None:
    for change in (WriteFile("a.py", b"", A, even_read_only=even), DeleteFile("a.py", A, even)):
        (root / "a.py").unlink(missing_ok=True)
        (root / "a.py").write_bytes(b"a = 1\r\n")
        (root / "a.py").chmod(0o444)
        assert isinstance(workspace.change_files([change]), tuple) is even
