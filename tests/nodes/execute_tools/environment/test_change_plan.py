from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nodes.execute_tools.environment import current_files
from nodes.execute_tools.environment.change_places import Change, DeleteFile, MoveFile, WriteFile, placed_changes
from nodes.execute_tools.environment.change_plan import ChangedFile, Original, Plan, PlannedEffect, plan_changes
from nodes.execute_tools.environment.journal_records import FileEffect, FileState
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.name_steps import identity
from nodes.execute_tools.environment.open_folders import OpenFolders
from nodes.execute_tools.environment.sandbox import Place
from nodes.execute_tools.environment.workspace import Workspace
from nodes.records import ToolError, ToolErrorCode
from tests.nodes.execute_tools.environment.file_trees import A, B, all_kinds, everything, modes
from tests.nodes.execute_tools.environment.layout import no_env, sha
from tests.nodes.execute_tools.environment.recorder_doubles import MemoryJournal

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
    monkeypatch.setattr(current_files, "LARGEST_BACKUP", 3)
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
