import os
from collections.abc import Callable
from pathlib import Path

from mendgraph.nodes.records import ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files.file_changes import MOST_CHANGES
from mendgraph.nodes.workspace.files.workspace import Change, DeleteFile, MoveFile, Workspace, WriteFile
from tests.workspace.files.file_trees import A, B
from tests.workspace.files.layout import DENIAL, no_env, sha, tree_of
from tests.workspace.files.recorder_doubles import MemoryJournal

INVALID, CONFLICT, PERMISSION = (
    ToolErrorCode.INVALID_ARGUMENT,
    ToolErrorCode.CONFLICT,
    ToolErrorCode.PERMISSION_DENIED,
)


def refused(root: Path, *changes: Change) -> ToolError:
    """The refusal of these changes, of which none is made."""
    before = tree_of(root)
    error = Workspace(str(root), no_env).change_files(changes)
    assert isinstance(error, ToolError)
    assert tree_of(root) == before
    return error


OLD = sha(b"something else")
IMPOSSIBLE: list[tuple[Change, ToolErrorCode, str]] = [
    (WriteFile("nope", b"", A), CONFLICT, "Cannot write 'nope': it is gone."),
    (WriteFile("a.py", b""), CONFLICT, "Cannot write 'a.py': it exists already; read it first, then replace it."),
    (WriteFile("a.py", b"", OLD), CONFLICT, "Cannot write 'a.py': it has changed since it was read; read it again."),
    (WriteFile("locked.py", b"", A), PERMISSION, "Cannot write 'locked.py': the file permissions do not allow it."),
    (MoveFile("a.py", "n", OLD), CONFLICT, "Cannot move 'a.py': it has changed since it was read; read it again."),
    (MoveFile("a.py", "c.py", A), CONFLICT, "Cannot move to 'c.py': it exists already."),
    (MoveFile("a.py", "a.py", A), CONFLICT, "Cannot move to 'a.py': it exists already."),
    (DeleteFile("link.py", B), INVALID, "Cannot delete 'link.py': it is a symbolic link to 'src/b.py'."),
    (MoveFile("link.py", "new", B), INVALID, "Cannot move 'link.py': it is a symbolic link to 'src/b.py'."),
    (MoveFile("a.py", "dangling", A), INVALID, "Cannot move to 'dangling': it is a symbolic link to 'src/nothing'."),
    (MoveFile("a.py", "c.py/c", A), INVALID, "Cannot resolve 'c.py/c': a part of it is a file where a directory"),
    (DeleteFile("c.js", B), ToolErrorCode.NOT_FOUND, "No such file: 'c.js'. Did you mean 'c.py'?"),
    (DeleteFile("src", A), INVALID, "Cannot delete 'src': it is a directory, and a file is needed."),
    (DeleteFile("pipe", A), INVALID, "Cannot delete 'pipe': it is not a regular file (a pipe, socket or device)."),
]


def test_impossible_change_refuses_all_changes(root: Path) -> None:
    (root / "dangling").symlink_to("src/nothing")
    os.mkfifo(root / "pipe")
    for name in ("c.py", "locked.py"):
        (root / name).write_bytes(b"a = 1\r\n")
    (root / "locked.py").chmod(0o444)
    others: list[Change] = [WriteFile("x/y/new.py", b"new"), MoveFile("src/b.py", "x/b.py", B)]
    for change, code, message in IMPOSSIBLE:
        for order in ([change, *others], [*others, change]):
            error = refused(root, *order)
            assert (error.code, error.message[: len(message)]) == (code, message)


SPELLINGS: dict[str, Callable[[str], Change]] = {
    "write": lambda path: WriteFile(path, b"", ""),
    "replace": lambda path: WriteFile(path, b"", sha(b"secret")),
    "delete": lambda path: DeleteFile(path, sha(b"secret")),
    "move from": lambda path: MoveFile(path, "new.py", sha(b"secret")),
    "move to": lambda path: MoveFile("a.py", path, A),
}


def test_denied_path_is_denied_as_source_and_target(root: Path) -> None:
    for path in (".env", "innocent.txt", "new/.env"):
        for kind, change in SPELLINGS.items():
            assert refused(root, change(path)) == DENIAL, (kind, path)


OVERLAPS: list[tuple[tuple[Change, ...], str]] = [
    ((WriteFile("a.py", b"1", A), DeleteFile("./src/../a.py", A)), "'a.py'"),
    ((WriteFile("src/b.py", b"1", B), WriteFile("link.py", b"2", B)), "'src/b.py'"),
    ((WriteFile("folder/b.py", b"1", B), DeleteFile("src/b.py", B)), "'src/b.py'"),
    ((MoveFile("a.py", "src/new.py", A), WriteFile("folder/new.py", b"1")), "'src/new.py'"),
    ((MoveFile("a.py", "new.py", A), DeleteFile("a.py", A)), "'a.py'"),
]


def test_two_changes_of_one_file_are_refused_under_any_names(root: Path) -> None:
    (root / "folder").symlink_to("src")
    for changes, name in OVERLAPS:
        for order in (changes, changes[::-1]):
            message = f"Two of these changes concern {name}: make one of them."
            assert refused(root, *order) == ToolError(code=INVALID, message=message)


def test_number_of_changes_is_bounded(root: Path, workspace: Workspace) -> None:
    changes = [WriteFile(f"new/{number}", b"") for number in range(MOST_CHANGES + 1)]
    assert refused(root, *changes).message == "201 files are too many for one change: 200 are allowed."
    assert isinstance(workspace.change_files(changes[1:]), tuple)


def test_recorded_file_may_have_ten_million_bytes(root: Path, workspace: Workspace) -> None:
    data, journal = bytes(10_000_000), MemoryJournal()
    (root / "a.py").write_bytes(data)
    assert isinstance(workspace.recorded(journal).change_files([WriteFile("a.py", b"new", sha(data))]), tuple)
    assert journal.backups == {sha(data): data}

    (root / "a.py").write_bytes(data + b"x")
    large = sha(data + b"x")
    for change in (WriteFile("a.py", b"x", large), DeleteFile("a.py", large), MoveFile("a.py", "n", large)):
        refused = workspace.recorded(MemoryJournal()).change_files([change])
        assert isinstance(refused, ToolError)
        assert (refused.code, "it has 10000001 bytes" in refused.message.replace(",", "")) == (
            ToolErrorCode.IO_ERROR,
            True,
        )
    assert isinstance(workspace.change_files([WriteFile("a.py", b"x", large)]), tuple)


def test_denied_content_is_neither_written_nor_moved(root: Path) -> None:
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


def test_read_only_file_is_changed_only_if_requested(root: Path, workspace: Workspace) -> None:
    for even in (False, True):
        for change in (WriteFile("a.py", b"", A, even_read_only=even), DeleteFile("a.py", A, even)):
            (root / "a.py").unlink(missing_ok=True)
            (root / "a.py").write_bytes(b"a = 1\r\n")
            (root / "a.py").chmod(0o444)
            assert isinstance(workspace.change_files([change]), tuple) is even
