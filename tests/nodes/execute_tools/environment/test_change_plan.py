import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nodes.execute_tools.environment import change_plan
from nodes.execute_tools.environment.atomic_write import OpenFolders, identity
from nodes.execute_tools.environment.change_plan import (
    MOST_CHANGES,
    Change,
    ChangedFile,
    CurrentFile,
    DeleteFile,
    Expected,
    MoveFile,
    Original,
    PlacedChange,
    Plan,
    PlannedEffect,
    WriteFile,
    conflict,
    current_file,
    in_the_way,
    listed,
    new_name,
    placed_changes,
    plan_changes,
)
from nodes.execute_tools.environment.change_records import FileEffect, FileState
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.sandbox import Place
from nodes.execute_tools.environment.workspace import Workspace
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.file_trees import all_kinds, everything, modes
from tests.nodes.execute_tools.environment.layout import DENIAL, SECRET, no_env, sha, tree_of
from tests.nodes.execute_tools.environment.recorder_doubles import MemoryJournal

A, B = sha(b"a = 1\r\n"), sha(b"b = 2\n")


def placed(root: Path, *changes: Change) -> list[PlacedChange] | ToolError:
    before = tree_of(root)
    found = placed_changes(JudgedPaths(str(root), no_env), changes)
    assert tree_of(root) == before
    return found


def test_each_change_gets_the_places_of_its_paths(root: Path) -> None:
    changes: Sequence[Change] = (
        WriteFile("./a.py", b"", A),
        WriteFile("new/file.py", b""),
        MoveFile("src/b.py", "src/c.py", B),
    )
    assert placed(root, *changes) == [
        PlacedChange(changes[0], Place("a.py", "a.py")),
        PlacedChange(changes[1], Place("new/file.py", "new/file.py", missing=True)),
        PlacedChange(changes[2], Place("src/b.py", "src/b.py"), Place("src/c.py", "src/c.py", missing=True)),
    ]


def test_a_file_is_written_through_a_link_and_moved_out_of_a_linked_directory(root: Path) -> None:
    (root / "folder").symlink_to("src")
    found = placed(root, WriteFile("link.py", b"", B))
    assert isinstance(found, list)
    assert found[0].names == ("src/b.py",)
    found = placed(root, MoveFile("folder/b.py", "folder/c.py", B))
    assert isinstance(found, list)
    assert found[0].names == ("src/b.py", "src/c.py")


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


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        (["a"], "'a'"),
        (["a", "b", "a"], "'a', 'b'"),
        (["a", "b\n", "c"], "'a', 'b\\n', 'c'"),
        (["a", "b", "c", "d", "e"], "'a', 'b', 'c' and 2 more"),
    ],
)
def test_paths_are_listed_in_a_sentence(paths: list[str], text: str) -> None:
    assert listed(paths) == text


NO_FILE = FileState()


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


def original(root: Path, name: str) -> Original:
    return Original(Place(name, name), identity((root / name).stat()))


def test_each_change_is_one_effect_and_a_move_is_two(root: Path, plan: Callable[..., Plan]) -> None:
    (root / "a.py").chmod(0o640)
    (root / "c.py").write_bytes(b"c")
    (root / "c.py").chmod(0o4755)
    new, target = Place("x/new.py", "x/new.py", missing=True), Place("x/y/c.py", "x/y/c.py", missing=True)
    found = plan(
        WriteFile("x/new.py", b"new"),
        WriteFile("a.py", b"a = 2\n", A),
        DeleteFile("src/b.py", B),
        MoveFile("c.py", "x/y/c.py", sha(b"c"), b"cc"),
    )
    a, b, c = (FileState(A, 0o640), FileState(B, modes(root)["src/b.py"]), FileState(sha(b"c"), 0o755))
    assert found == Plan(
        effects=[
            PlannedEffect(FileEffect("x/new.py", NO_FILE, FileState(sha(b"new"))), "write", new, b"new"),
            PlannedEffect(
                FileEffect("a.py", a, FileState(sha(b"a = 2\n"), 0o640)),
                "write",
                Place("a.py", "a.py"),
                b"a = 2\n",
                original(root, "a.py"),
            ),
            PlannedEffect(
                FileEffect("src/b.py", b, NO_FILE),
                "delete",
                Place("src/b.py", "src/b.py"),
                None,
                original(root, "src/b.py"),
            ),
            PlannedEffect(
                FileEffect("x/y/c.py", NO_FILE, FileState(sha(b"cc"), 0o755)),
                "move to",
                target,
                b"cc",
                original(root, "c.py"),
            ),
            PlannedEffect(FileEffect("c.py", c, NO_FILE), "move", Place("c.py", "c.py"), None, original(root, "c.py")),
        ],
        done=[
            ChangedFile("x/new.py", sha256=sha(b"new")),
            ChangedFile("a.py", sha256=sha(b"a = 2\n")),
            ChangedFile("src/b.py"),
            ChangedFile("c.py", "x/y/c.py", sha(b"cc")),
        ],
        made=["x", "x/y"],
        backups={A: b"a = 1\r\n", B: b"b = 2\n", sha(b"c"): b"c"},
    )
    assert [(each.comes, each.goes) for each in found.effects] == [
        (True, False),
        (False, False),
        (False, True),
        (True, False),
        (False, True),
    ]


def test_a_file_that_only_moves_is_the_original_itself(root: Path, plan: Callable[..., Plan]) -> None:
    arrival, departure = plan(MoveFile("a.py", "src/a.py", A)).effects
    state = FileState(A, modes(root)["a.py"])
    assert (arrival.effect, departure.effect) == (
        FileEffect("src/a.py", NO_FILE, state),
        FileEffect("a.py", state, NO_FILE),
    )
    assert (arrival.data, arrival.original) == (None, original(root, "a.py"))


@pytest.mark.parametrize(("mode", "expected"), [(None, 0o640), (0o755, 0o755), (0o4711, 0o711), (0, 0)])
def test_a_mode_is_that_of_the_file_or_the_one_that_is_given(
    root: Path, plan: Callable[..., Plan], mode: int | None, expected: int
) -> None:
    (root / "a.py").chmod(0o640)
    replaced = plan(WriteFile("a.py", b"x", A, mode=mode)).effects[0].effect
    created = plan(WriteFile("new.py", b"x", mode=mode)).effects[0].effect
    assert (replaced.before.mode, replaced.after.mode) == (0o640, expected)
    assert created.after.mode == (None if mode is None else expected)


def test_real_names_are_planned(root: Path, plan: Callable[..., Plan]) -> None:
    (root / "folder").symlink_to("src")
    found = plan(WriteFile("link.py", b"x", B), WriteFile("folder/x/new.py", b""))
    assert [each.effect.path for each in found.effects] == ["src/b.py", "src/x/new.py"]
    assert found.made == ["src/x"]


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


def at(name: str) -> Place:
    return Place(name, name)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("writable", [False, True])
def test_a_file_that_is_as_expected(
    root: Path, paths: JudgedPaths, folders: OpenFolders, whole: bool, writable: bool
) -> None:
    found = current_file(paths, folders, at("src/b.py"), Expected("write", B, writable=writable, whole=whole))
    assert found == CurrentFile("src/b.py", (root / "src" / "b.py").stat(), b"b = 2\n" if whole else None)


@pytest.mark.parametrize("whole", [False, True])
def test_a_file_that_is_not_as_expected(paths: JudgedPaths, folders: OpenFolders, whole: bool) -> None:
    found = current_file(paths, folders, at("a.py"), Expected("move", B, writable=False, whole=whole))
    assert found == ToolError(
        code=ToolErrorCode.CONFLICT,
        message="Cannot move 'a.py': it has changed since it was read; read it again.",
    )


def test_a_file_that_vanished_is_a_conflict(paths: JudgedPaths, folders: OpenFolders) -> None:
    found = current_file(paths, folders, at("gone.py"), Expected("write", A, writable=True, whole=False))
    assert found == ToolError(code=ToolErrorCode.CONFLICT, message="Cannot write 'gone.py': it is gone.")


def test_the_real_name_of_the_opened_file_is_judged(paths: JudgedPaths, folders: OpenFolders) -> None:
    expected = Expected("write", sha(SECRET), writable=True, whole=True)
    assert current_file(paths, folders, at(".env"), expected) == DENIAL


@pytest.mark.parametrize(("writable", "refused"), [(True, True), (False, False)])
def test_a_read_only_file_is_refused_where_it_has_to_be_writable(
    root: Path, paths: JudgedPaths, folders: OpenFolders, writable: bool, refused: bool
) -> None:
    (root / "a.py").chmod(0o444)
    expected = Expected("delete", A, writable=writable, whole=False)
    if not refused:
        assert isinstance(current_file(paths, folders, at("a.py"), expected), CurrentFile)
        return
    with pytest.raises(PermissionError) as caught:
        current_file(paths, folders, at("a.py"), expected)
    assert caught.value.errno == errno.EACCES


@pytest.mark.parametrize(("name", "number"), [("src", errno.EISDIR), ("link.py", errno.ESTALE), ("pipe", errno.ENXIO)])
def test_what_is_no_file_is_refused(
    root: Path, paths: JudgedPaths, folders: OpenFolders, name: str, number: int
) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(OSError, match=os.strerror(number)):
        current_file(paths, folders, at(name), Expected("write", A, writable=True, whole=False))


def test_a_file_that_is_too_large_for_a_backup_is_refused_where_one_is_wanted(
    root: Path, paths: JudgedPaths, folders: OpenFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_plan, "LARGEST_BACKUP", 6)
    for name, sha256, fits in (("src/b.py", B, True), ("a.py", A, False)):
        found = current_file(paths, folders, at(name), Expected("delete", sha256, writable=True, whole=True))
        assert isinstance(found, CurrentFile) is fits
        assert isinstance(current_file(paths, folders, at(name), Expected("move", sha256, False, False)), CurrentFile)
    assert found == ToolError(
        code=ToolErrorCode.IO_ERROR,
        message="Cannot delete 'a.py': it has 7 bytes, and what a file of more than 6 held cannot be kept, so it could"
        " not be restored. Go on without it.",
    )
    assert (root / "a.py").exists()


def test_a_new_name_is_judged_as_what_it_really_is(
    root: Path, paths: JudgedPaths, folders: OpenFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folders.open(("src",))
    assert new_name(paths, folders, folder, ("x", "y.py"), at("src/x/y.py")) == "src/x/y.py"
    os.rename(root / "src", root / ".git" / "hooks")
    assert new_name(paths, folders, folder, ("pre-commit",), at("src/pre-commit")) == DENIAL
    monkeypatch.setattr("nodes.execute_tools.environment.atomic_write.handle_name", lambda _: None)
    assert new_name(paths, folders, folder, ("y.py",), at("src/y.py")) == "src/y.py"


def test_what_is_in_the_way_is_said(paths: JudgedPaths) -> None:
    assert in_the_way(paths, at("a.py")) == conflict(
        at("a.py"), "write", "it exists already; read it first, then replace it"
    )
    with pytest.raises(IsADirectoryError):
        in_the_way(paths, at("src"))
