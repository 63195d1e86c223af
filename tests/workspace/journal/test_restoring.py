import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest

from mendgraph.graph.runs.applying import apply_again
from mendgraph.nodes.records import ChangeKind, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.files import handles
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, FileState, RecordedChange
from mendgraph.nodes.workspace.files.file_changes import MOST_CHANGES
from mendgraph.nodes.workspace.files.workspace import Change, DeleteFile, MoveFile, WriteFile
from mendgraph.nodes.workspace.journal.journal import CallKey
from mendgraph.nodes.workspace.journal.restoring import (
    A_DIRECTORY,
    BELOW_A_FILE,
    LeftFile,
    Obstacle,
    Restored,
    RestoredFile,
    net_effects,
    restore,
    restoring_effect,
    state_at,
)
from mendgraph.nodes.workspace.store.database import FILE_NAME, open_database, transaction
from tests.doubles.system_calls import failing, noted
from tests.extent import slow
from tests.memory_folder import memory_folder
from tests.workspace.files.journaled_runs import Tree, World, files, swap, tree
from tests.workspace.files.layout import no_env, sha

CREATED, EDITED, DELETED = ChangeKind.CREATED, ChangeKind.EDITED, ChangeKind.DELETED
REMEDY = "Review these files. With skip_changed, they stay as they are and all others are restored."


@pytest.fixture
def world() -> Iterator[World]:
    """Three files, an empty directory, and no handle that stays open."""
    with memory_folder() as folder:
        world = World(folder, no_env)
        for name in ("a", "b", "d/c"):
            (world.root / name).parent.mkdir(exist_ok=True)
            (world.root / name).write_bytes(name.encode())
            (world.root / name).chmod(0o640)
        (world.root / "empty").mkdir()
        before = len(os.listdir("/dev/fd"))
        yield world
        assert len(os.listdir("/dev/fd")) == before, "a handle was left open"


A, B, C = sha(b"a"), sha(b"b"), sha(b"d/c")


def undo(world: World, from_step: int = 0, run: str = "run", *, skip_changed: bool = False) -> Restored | ToolError:
    return restore(world.journal, world.workspace, run, from_step, skip_changed=skip_changed)


def refused(world: World, run: str = "run") -> ToolError:
    """The refusal of an undo, which changes nothing."""
    before = tree(world.root)
    error = undo(world, run=run)
    assert isinstance(error, ToolError)
    assert tree(world.root) == before
    return error


def test_run_without_changes_restores_nothing_and_names_unfinished_commands(world: World) -> None:
    assert undo(world) == Restored()
    assert world.journal.calls_of_step("run", 0) == {}
    world.journal.begin(CallKey("run", "e", 2, 0, "run_command", "execute", "f" * 64))
    assert (undo(world), undo(world, 3)) == (Restored(cut_off=("run_command",)), Restored())


# --- Obstacles


def test_nothing_is_restored_if_a_file_was_changed_since(world: World) -> None:
    world.done(1, WriteFile("a", b"A", A), WriteFile("b", b"B", B), DeleteFile("d/c", C), WriteFile("x", b"x"))
    (world.root / "b").chmod(0o700)
    (world.root / "d/c").write_bytes(b"theirs")
    (world.root / "x").write_bytes(b"theirs")
    assert refused(world) == ToolError(
        code=ToolErrorCode.CONFLICT,
        message=f"Nothing was restored. Changed since the run: 'b', 'd/c', 'x'. {REMEDY}",
        suggestions=("b", "d/c", "x"),
    )


def test_other_files_are_restored_with_skip_changed(world: World) -> None:
    world.done(1, WriteFile("a", b"A", A), WriteFile("b", b"B", B), WriteFile("new/x", b"x"))
    (world.root / "b").write_bytes(b"theirs")
    assert undo(world, skip_changed=True) == Restored(
        files=(RestoredFile("a", EDITED), RestoredFile("new/x", DELETED)),
        left=(LeftFile("b", Obstacle.CHANGED_SINCE),),
        removed=("new",),
        steps=(1,),
    )
    assert ((world.root / "a").read_bytes(), (world.root / "b").read_bytes()) == (b"a", b"theirs")
    assert isinstance(undo(world), ToolError), "what was left can still be restored, once it is as the run left it"
    (world.root / "b").write_bytes(b"B")
    again = undo(world)
    assert isinstance(again, Restored)
    assert again.files == (RestoredFile("b", EDITED),)
    assert (world.root / "b").read_bytes() == b"b"


def test_foreign_change_between_two_changes_of_the_run_is_kept(world: World) -> None:
    world.done(1, WriteFile("a", b"1", A))
    (world.root / "a").write_bytes(b"theirs")
    world.done(2, WriteFile("a", b"2", sha(b"theirs")))
    assert refused(world).message == (
        f"Nothing was restored. Changed between two recorded changes of the run: 'a'. {REMEDY}"
    )
    assert isinstance(undo(world, 2), Restored)
    assert (world.root / "a").read_bytes() == b"theirs"


def test_path_rules_apply_to_undo(world: World) -> None:
    world.command(1, lambda root: (root / ".env").write_bytes(b"secret"))
    world.done(2, WriteFile("a", b"A", A))
    assert refused(world) == ToolError(
        code=ToolErrorCode.PERMISSION_DENIED,
        message=f"Nothing was restored. May not be written: '.env' (a rule says no). {REMEDY}",
        suggestions=(".env",),
    )
    done = undo(world, skip_changed=True)
    assert isinstance(done, Restored)
    assert done.left == (LeftFile(".env", Obstacle.DENIED, "a rule says no"),)
    assert ((world.root / ".env").read_bytes(), (world.root / "a").read_bytes()) == (b"secret", b"a")


def test_missing_backup_is_an_error_that_names_the_file(world: World) -> None:
    world.done(1, WriteFile("a", b"A", A), WriteFile("x", b"x"))
    error = ToolError(
        code=ToolErrorCode.IO_ERROR,
        message=f"Nothing was restored. The backup is missing or damaged: 'a'. {REMEDY}",
        suggestions=("a",),
    )
    for damage in ("UPDATE backups SET data = x'789c030000000001'", "DELETE FROM backups"):
        with closing(open_database(str(world.folder / "records"))) as database, transaction(database):
            database.execute(damage)
        assert refused(world) == error
    done = undo(world, skip_changed=True)
    assert isinstance(done, Restored)
    assert (done.left, (world.root / "x").exists()) == ((LeftFile("a", Obstacle.BACKUP_MISSING),), False)


def test_undo_follows_no_link_out_of_the_workspace(world: World) -> None:
    (world.folder / "outside").mkdir()
    (world.folder / "outside/x").write_bytes(b"x")
    world.done(1, WriteFile("new/x", b"x"), WriteFile("new/y", b"y"))
    (world.root / "new/x").unlink()
    (world.root / "new/y").unlink()
    (world.root / "new").rmdir()
    (world.root / "new").symlink_to(world.folder / "outside")
    assert refused(world).suggestions == ("new/x", "new/y")
    done = undo(world, skip_changed=True)
    assert isinstance(done, Restored)
    assert (done.files, done.removed) == ((), ())
    assert ((world.folder / "outside/x").read_bytes(), (world.root / "new").is_symlink()) == (b"x", True)


# --- How it is recorded


def many(world: World, number: int) -> Tree:
    """A command changes this many files. Returns the tree before."""
    for index in range(number):
        (world.root / f"f{index:03}").write_bytes(b"old")
    before = tree(world.root)
    world.command(1, lambda root: [(root / f"f{index:03}").write_bytes(b"new") for index in range(number)])
    return before


@slow
def test_many_files_are_restored_in_batches(world: World) -> None:
    before = many(world, 2 * MOST_CHANGES + 5)
    assert isinstance(undo(world), Restored)
    assert tree(world.root) == before
    after = tree(world.root)
    (world.root / "f400").write_bytes(b"mine")
    (world.root / "f401").unlink()
    refused = apply_again(world.journal, world.workspace, "run")
    assert isinstance(refused, ToolError)
    assert refused.message.startswith("Nothing was applied. ")
    assert (world.root / "f000").read_bytes() == b"old", "nor was the first part of many"
    for name in ("f400", "f401"):
        (world.root / name).write_bytes(b"old")
    applied = apply_again(world.journal, world.workspace, "run")
    assert not isinstance(applied, ToolError)
    assert [effect.path for effect in applied] == [f"f{index:03}" for index in range(2 * MOST_CHANGES + 5)]
    assert isinstance(undo(world), Restored)
    assert tree(world.root) == after


@slow
def test_failed_undo_is_reported_and_continued_by_the_next(world: World) -> None:
    before = many(world, MOST_CHANGES + 5)
    with failing("rename", MOST_CHANGES + 2):
        error = undo(world)
    assert error == ToolError(
        code=ToolErrorCode.IO_ERROR,
        message="Cannot write 'f201': the disk reports an error. Files that were restored before that: 200. Undo again"
        " to continue.",
        fatal=True,
    )
    done = undo(world)
    assert isinstance(done, Restored)
    assert [file.path for file in done.files] == [f"f{number}" for number in range(200, 205)]
    assert tree(world.root) == before


def test_file_that_the_run_made_too_large_is_not_restored(world: World) -> None:
    world.done(1, WriteFile("a", bytes(10_000_001), A), WriteFile("b", bytes(10_000_000), B))
    assert refused(world).message == f"Nothing was restored. Too large to be replaced: 'a'. {REMEDY}"
    done = undo(world, skip_changed=True)
    assert isinstance(done, Restored)
    assert done.left == (LeftFile("a", Obstacle.TOO_LARGE),)
    assert (world.root / "b").read_bytes() == b"b"


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EACCES, errno.EPERM, errno.ENOTEMPTY])
def test_directory_that_cannot_be_removed_is_kept(world: World, number: int) -> None:
    world.done(1, WriteFile("new/x", b"x"))
    with failing("rmdir", number=number, ever_after=True):
        done = undo(world)
    assert isinstance(done, Restored)
    assert (done.files, done.removed) == ((RestoredFile("new/x", DELETED),), ())
    assert os.listdir(world.root / "new") == []


def test_disk_error_on_a_directory_is_reported_and_the_next_undo_continues(world: World) -> None:
    before = tree(world.root)
    world.done(1, WriteFile("new/x", b"x"))
    with failing("rmdir", number=errno.EIO):
        error = undo(world)
    assert isinstance(error, ToolError)
    assert error.message == "Cannot delete 'new': the disk reports an error."
    assert isinstance(undo(world), Restored)
    assert tree(world.root) == before


def test_undo_without_its_workspace_is_an_error(world: World) -> None:
    world.done(1, WriteFile("a", b"A", A))
    world.root.rename(world.folder / "away")
    error = undo(world)
    assert isinstance(error, ToolError)
    assert (error.code, (world.folder / "away/a").read_bytes()) == (ToolErrorCode.NOT_FOUND, b"A")


def test_reverted_work_is_applied_once_and_only_with_its_backup(world: World) -> None:
    world.done(1, WriteFile("a", b"A", A))
    assert isinstance(undo(world), Restored)
    (world.root / "a").write_bytes(b"A")
    assert apply_again(world.journal, world.workspace, "run") == ()
    (world.root / "a").write_bytes(b"a")
    with closing(open_database(str(world.folder / "records"))) as database, transaction(database):
        database.execute("DELETE FROM backups")
    refused = apply_again(world.journal, world.workspace, "run")
    assert isinstance(refused, ToolError)
    assert "The run's content of 'a' was not stored, or is damaged." in refused.message
    assert (world.root / "a").read_bytes() == b"a"


def test_removal_of_a_directory_is_synced(world: World) -> None:
    world.done(1, WriteFile("new/x", b"x"))
    with noted("rmdir", "fsync") as calls:
        assert isinstance(undo(world), Restored)
    assert calls[-2:] == [("rmdir", "new"), ("fsync", str(world.root))]


IS_A, IS_B, IS_C, IS_D = (FileState(letter, 0o644) for letter in "ABCD")
UNKNOWN = FileState("?", 0o644)
NO_FILE = FileState()
LINK = "it is a symbolic link now"


def changes_of_one_file(*states: tuple[FileState, FileState]) -> list[RecordedChange]:
    """Changes with these states before and after, given oldest first; as in the journal, the newest comes first."""
    changes = [
        RecordedChange(f"t{number}", number, number, (FileEffect("f", *pair),), (), ChangeState.DONE)
        for number, pair in enumerate(states)
    ]
    return changes[::-1]


def step(now: FileState, goal: FileState) -> FileEffect:
    return FileEffect("f", now, goal)


PLANS: list[tuple[list[tuple[FileState, FileState]], FileState | str, FileEffect | LeftFile | None]] = [
    ([(IS_A, IS_B), (IS_B, IS_C)], IS_C, step(IS_C, IS_A)),
    ([(IS_A, IS_B), (IS_B, IS_C)], IS_A, None),
    ([(IS_A, IS_B)], NO_FILE, LeftFile("f", Obstacle.CHANGED_SINCE)),
    ([(IS_A, IS_B)], IS_B._replace(mode=0o600), LeftFile("f", Obstacle.CHANGED_SINCE)),
    ([(IS_A, IS_B)], LINK, LeftFile("f", Obstacle.CHANGED_SINCE, LINK)),
    ([(IS_A, IS_B)], A_DIRECTORY, LeftFile("f", Obstacle.CHANGED_SINCE, A_DIRECTORY)),
    ([(IS_A, NO_FILE)], BELOW_A_FILE, LeftFile("f", Obstacle.CHANGED_SINCE, BELOW_A_FILE)),
    ([(IS_A, IS_B), (IS_C, IS_D)], IS_D, LeftFile("f", Obstacle.CHANGED_BETWEEN)),
    ([(UNKNOWN, IS_B)], IS_B, LeftFile("f", Obstacle.NOT_KEPT)),
    ([(IS_A, UNKNOWN)], IS_A, None),
    ([(IS_A, UNKNOWN), (UNKNOWN, IS_B)], IS_B, step(IS_B, IS_A)),
    ([(NO_FILE, FileState("B"))], IS_B, step(IS_B, NO_FILE)),
    ([(IS_A, NO_FILE)], NO_FILE, step(NO_FILE, IS_A)),
]


def test_file_unchanged_since_the_run_is_restored() -> None:
    for states, now, expected in PLANS:
        [effect] = net_effects(changes_of_one_file(*states))
        assert restoring_effect(effect, now) == expected, (states, now)


def test_directory_in_place_of_a_file_is_kept_and_reported(world: World) -> None:
    world.done(1, WriteFile("new", b"x"))
    (world.root / "new").unlink()
    (world.root / "new").mkdir()
    assert undo(world) == Restored(steps=(1,))
    world.done(2, WriteFile("a", b"A", A))
    (world.root / "a").unlink()
    (world.root / "a").mkdir()
    error = undo(world)
    assert isinstance(error, ToolError)
    assert A_DIRECTORY in error.message
    assert (os.listdir(world.root / "new"), os.listdir(world.root / "a")) == ([], [])


def test_links_and_special_files_are_reported_and_not_followed(world: World) -> None:
    (world.root / "link").symlink_to("a")
    os.mkfifo(world.root / "pipe")
    a_link = "it is a symbolic link now, or reached through one"
    a_pipe = "Cannot read 'pipe': it is not a regular file (a pipe, socket or device)."
    expected = {"link": a_link, "pipe": a_pipe, "d": A_DIRECTORY, "a/x": BELOW_A_FILE, "no": NO_FILE}
    with handles.closing(handles.open_root(str(world.root))) as root:
        assert {path: state_at(root, path) for path in expected} == expected


def test_unusable_journal_is_an_error(world: World) -> None:
    (world.folder / "records" / FILE_NAME).write_bytes(b"no database" * 100)
    for error in (undo(world), apply_again(world.journal, world.workspace, "run")):
        assert isinstance(error, ToolError)
        assert error.code is ToolErrorCode.IO_ERROR
        assert "is damaged, or not a database" in error.message


# --- Many changes

NAMES = ("a", "b", "d/a", "d/e/a", "n/m/a", "ü/ b", "d")
CONTENTS = (b"", b"1", b"2\r\n", b"\xff\x00", b"long " * 2000)
MODES = (0o644, 0o600, 0o755, 0o444)


def tool_change(some: Random, root: Path) -> Change:
    """A change that a tool can make to the current files."""
    now = files(tree(root))
    new = WriteFile(some.choice(NAMES), some.choice(CONTENTS))
    if not now:
        return new
    path, data = some.choice(sorted(now)), some.choice(CONTENTS)
    sha256 = now[path].sha256
    changes: list[Change] = [
        new,
        WriteFile(path, data, sha256),
        WriteFile(path, data, sha256, some.choice(MODES), even_read_only=True),
        DeleteFile(path, sha256, even_read_only=True),
        MoveFile(path, some.choice(NAMES), sha256, some.choice((None, data))),
    ]
    return some.choice(changes)


def act(some: Random, root: Path) -> None:
    """A change that only a program can make."""
    name = some.choice(NAMES)
    match some.choice(("swap", "remove", "chmod", "mkdir")):
        case "swap":
            swap(root, name, some.choice(CONTENTS))
        case "remove":
            shutil.rmtree(root / name.split("/")[0], ignore_errors=True)
        case "chmod":
            for path in filter(Path.is_file, root.rglob("*")):
                path.chmod(some.choice(MODES))
        case "mkdir":
            (root / "made" / name).mkdir(parents=True, exist_ok=True)


@slow
@pytest.mark.parametrize("seed", range(5))
def test_undo_restores_every_file_and_mode_after_many_changes(world: World, seed: int) -> None:
    some, before = Random(seed), files(tree(world.root))
    for number in range(40):
        if some.random() < 0.2:
            world.command(number, partial(act, some))
        else:
            world.tool(number, *(tool_change(some, world.root) for _ in range(some.choice((1, 1, 2, 3)))))
    assert isinstance(undo(world), Restored)
    assert files(tree(world.root)) == before
    assert undo(world) == Restored()


def test_directory_with_a_foreign_file_is_not_replaced(world: World) -> None:
    """A command replaced a file by a directory; then somebody puts a file into it."""
    world.command(1, lambda root: swap(root, "a/b/c", b"new"))
    (world.root / "a/theirs").write_bytes(b"theirs")
    then = tree(world.root)
    error = undo(world)
    assert isinstance(error, ToolError)
    assert (error.suggestions, tree(world.root)) == (("a",), then)
    done = undo(world, skip_changed=True)
    assert isinstance(done, Restored)
    assert done.left == (LeftFile("a", Obstacle.CHANGED_SINCE, "it is a directory now"),)
    assert (world.root / "a/theirs").read_bytes() == b"theirs"
