from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mendgraph.nodes.execute_tools.files import change_plan
from mendgraph.nodes.execute_tools.files.atomic_write import OpenFolders
from mendgraph.nodes.execute_tools.files.change_plan import (
    MOST_CHANGES,
    Change,
    ChangedFile,
    DeleteFile,
    MoveFile,
    PlacedChange,
    Plan,
    WriteFile,
    placed_changes,
    plan_changes,
)
from mendgraph.nodes.execute_tools.files.change_records import FileEffect, FileState
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.files.file_trees import all_kinds, everything, modes
from tests.nodes.execute_tools.files.layout import DENIAL, no_env, sha, tree_of
from tests.nodes.execute_tools.files.recorder_doubles import MemoryJournal

A, B = sha(b"a = 1\r\n"), sha(b"b = 2\n")


def placed(root: Path, *changes: Change) -> list[PlacedChange] | ToolError:
    before = tree_of(root)
    found = placed_changes(JudgedPaths(str(root), no_env), changes)
    assert tree_of(root) == before
    return found


INVALID, CONFLICT = ToolErrorCode.INVALID_ARGUMENT, ToolErrorCode.CONFLICT

REFUSED: list[tuple[Change, ToolErrorCode, str]] = [
    (WriteFile("nope", b"", A), CONFLICT, "Cannot write 'nope': it is gone."),
    (
        WriteFile("a.py", b""),
        CONFLICT,
        "Cannot write 'a.py': it exists already; read it first, then replace it.",
    ),
    (WriteFile("src", b""), INVALID, "Cannot write 'src': it is a directory, and a file is needed."),
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
    (MoveFile("a.py", "link.py", A), CONFLICT, "Cannot move to 'link.py': it exists already."),
    (MoveFile("a.py", "src", A), CONFLICT, "Cannot move to 'src': it exists already."),
    (MoveFile("a.py", "a.py", A), CONFLICT, "Cannot move to 'a.py': it exists already."),
    (
        MoveFile("a.py", "src/b.py/c", A),
        INVALID,
        "Cannot resolve 'src/b.py/c': a part of it is a file where a directory is needed.",
    ),
    (DeleteFile("src/b.js", B), ToolErrorCode.NOT_FOUND, "No such file: 'src/b.js'. Did you mean 'src/b.py'?"),
]


@pytest.mark.parametrize(("change", "code", "message"), REFUSED)
def test_what_cannot_be_done(root: Path, change: Change, code: ToolErrorCode, message: str) -> None:
    (root / "dangling").symlink_to("src/nothing")
    found = placed(root, change)
    assert isinstance(found, ToolError)
    assert (found.code, found.message) == (code, message)


SPELLINGS: dict[str, Callable[[str], Change]] = {
    "write": lambda path: WriteFile(path, b"", ""),
    "replace": lambda path: WriteFile(path, b"", sha(b"secret")),
    "delete": lambda path: DeleteFile(path, sha(b"secret")),
    "move from": lambda path: MoveFile(path, "new.py", sha(b"secret")),
    "move to": lambda path: MoveFile("a.py", path, A),
}


@pytest.mark.parametrize("kind", SPELLINGS)
@pytest.mark.parametrize("path", [".env", "innocent.txt", ".git/config", "src/../.env", "new/.env", ".git/new"])
def test_what_the_judge_denies_is_denied_at_both_ends(root: Path, kind: str, path: str) -> None:
    assert placed(root, SPELLINGS[kind](path)) == DENIAL


@pytest.mark.parametrize("kind", SPELLINGS)
@pytest.mark.parametrize("path", ["../new.py", "/etc/passwd", "out/secret.txt", "out/new.py", "out.txt", "~/x"])
def test_nothing_leads_out_at_either_end(root: Path, kind: str, path: str) -> None:
    found = placed(root, SPELLINGS[kind](path))
    assert isinstance(found, ToolError)
    assert found.code is ToolErrorCode.PERMISSION_DENIED


OVERLAPS: list[tuple[tuple[Change, ...], str]] = [
    ((WriteFile("a.py", b"1", A), WriteFile("a.py", b"2", A)), "'a.py'"),
    ((WriteFile("a.py", b"1", A), DeleteFile("./src/../a.py", A)), "'a.py'"),
    ((WriteFile("src/b.py", b"1", B), WriteFile("link.py", b"2", B)), "'src/b.py'"),
    ((WriteFile("folder/b.py", b"1", B), DeleteFile("src/b.py", B)), "'src/b.py'"),
    ((WriteFile("new.py", b"1"), MoveFile("a.py", "new.py", A)), "'new.py'"),
    ((MoveFile("a.py", "src/new.py", A), WriteFile("folder/new.py", b"1")), "'src/new.py'"),
    ((MoveFile("a.py", "new.py", A), MoveFile("src/b.py", "new.py", B)), "'new.py'"),
    ((MoveFile("a.py", "new.py", A), DeleteFile("a.py", A)), "'a.py'"),
]


@pytest.mark.parametrize(("changes", "name"), OVERLAPS)
def test_two_changes_of_one_file_are_refused_under_whatever_names(
    root: Path, changes: tuple[Change, ...], name: str
) -> None:
    (root / "folder").symlink_to("src")
    for order in (changes, changes[::-1]):
        assert placed(root, *order) == ToolError(
            code=INVALID, message=f"Two of these changes concern {name}: make one of them."
        )


def test_a_new_file_is_no_directory_of_another_one(root: Path) -> None:
    assert placed(root, WriteFile("x/y/z", b""), WriteFile("x", b"")) == ToolError(
        code=INVALID, message="'x' cannot be a file here, because 'x/y/z' needs it as a directory."
    )


@pytest.mark.parametrize(("count", "fits"), [(MOST_CHANGES, True), (MOST_CHANGES + 1, False)])
def test_the_number_of_changes_is_bounded(root: Path, count: int, fits: bool) -> None:
    found = placed(root, *(WriteFile(f"new/{number}", b"") for number in range(count)))
    assert isinstance(found, list) is fits
    if isinstance(found, ToolError):
        assert found.message == "201 files are too many for one change: 200 are allowed."


@pytest.fixture
def plan(root: Path) -> Callable[..., Plan | ToolError]:
    """Plans, and sees to it that nothing is changed."""

    def planned(*changes: Change, backups: bool = True) -> Plan | ToolError:
        paths, before = JudgedPaths(str(root), no_env), everything(root)
        placed = placed_changes(paths, changes)
        assert not isinstance(placed, ToolError), placed
        with OpenFolders(str(root)) as folders:
            found = plan_changes(paths, folders, placed, backups=backups)
        assert everything(root) == before
        return found

    return planned


def test_without_backups_no_bytes_are_held_and_no_file_is_too_large(
    plan: Callable[..., Plan | ToolError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_plan, "LARGEST_BACKUP", 3)
    changes: Sequence[Change] = [WriteFile("a.py", b"x", A), DeleteFile("a.py", A), MoveFile("a.py", "n", A)]
    for change in changes:
        found = plan(change, backups=False)
        assert isinstance(found, Plan)
        assert found.backups == {}
        refused = plan(change)
        assert isinstance(refused, ToolError)
        assert (refused.code, "it has 7 bytes" in refused.message) == (ToolErrorCode.IO_ERROR, True)


@pytest.mark.parametrize("even", [False, True])
def test_a_read_only_file_is_changed_only_where_that_is_said(
    root: Path, plan: Callable[..., Plan | ToolError], even: bool
) -> None:
    (root / "a.py").chmod(0o444)
    changes: Sequence[Change] = [WriteFile("a.py", b"", A, even_read_only=even), DeleteFile("a.py", A, even)]
    assert [isinstance(plan(change), Plan) for change in changes] == [even, even]
    assert isinstance(plan(MoveFile("a.py", "b.py", A)), Plan)
    assert isinstance(plan(MoveFile("a.py", "b.py", A, b"x")), ToolError)


# --- What restoring needs


def test_recorded_changes_can_be_taken_back_by_other_changes(root: Path, workspace: Workspace) -> None:
    changes, journal = all_kinds(root), MemoryJournal()
    (root / "a.py").chmod(0o755)
    before = {name: (mode, data) for name, (mode, _, data) in everything(root).items()}
    assert isinstance(workspace.recorded(journal).change_files(changes), tuple)
    back: list[Change] = [
        WriteFile(path, journal.backups[old.sha256], new.sha256, mode=old.mode)
        if old.sha256
        else DeleteFile(path, new.sha256)
        for path, old, new in journal.change.effects
    ]
    assert isinstance(workspace.recorded(MemoryJournal()).change_files(back), tuple)
    for name in reversed(journal.change.made):
        (root / name).rmdir()
    assert {name: (mode, data) for name, (mode, _, data) in everything(root).items()} == before


def test_a_change_of_the_mode_alone(root: Path, workspace: Workspace) -> None:
    journal, mode = MemoryJournal(), modes(root)["a.py"]
    done = workspace.recorded(journal).change_files([WriteFile("a.py", b"a = 1\r\n", A, mode=0o711)])
    assert done == (ChangedFile("a.py", sha256=A),)
    assert (modes(root)["a.py"], (root / "a.py").read_bytes()) == (0o711, b"a = 1\r\n")
    assert journal.change.effects == (FileEffect("a.py", FileState(A, mode), FileState(A, 0o711)),)


@pytest.fixture
def paths(root: Path) -> JudgedPaths:
    return JudgedPaths(str(root), no_env)


@pytest.fixture
def folders(root: Path) -> Iterator[OpenFolders]:
    with OpenFolders(str(root)) as opened:
        yield opened
