import errno
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from nodes.execute_tools.environment import restoring
from nodes.execute_tools.environment.change_places import MOST_CHANGES
from nodes.execute_tools.environment.current_files import LARGEST_BACKUP
from nodes.execute_tools.environment.database import FILE_NAME, open_database, transaction
from nodes.execute_tools.environment.journal import UNDO_EFFECT
from nodes.execute_tools.environment.journal_records import UNKNOWN_SHA256, CallKey, ChangeState, FileEffect, FileState
from nodes.execute_tools.environment.restore_plan import LeftFile, Obstacle
from nodes.execute_tools.environment.restoring import Restored, RestoredFile, restore
from nodes.execute_tools.environment.workspace import DeleteFile, MoveFile, WriteFile
from nodes.records import ChangeKind, ToolError, ToolErrorCode
from tests.memory_folder import memory_folder
from tests.nodes.execute_tools.environment.file_trees import failing
from tests.nodes.execute_tools.environment.journaled_runs import Tree, World, swap, tree
from tests.nodes.execute_tools.environment.layout import no_env, sha

CREATED, EDITED, DELETED = ChangeKind.CREATED, ChangeKind.EDITED, ChangeKind.DELETED
REMEDY = "Look at what is there. With skip_changed all other files are restored, and these stay as they are."


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


def test_a_run_that_changed_nothing_has_nothing_to_restore_but_names_commands_that_never_ended(world: World) -> None:
    assert undo(world) == Restored()
    assert world.journal.calls_of_step("run", 0) == {}
    world.journal.begin(CallKey("run", "e", 2, 0, "run_command", "execute", "f" * 64))
    assert (undo(world), undo(world, 3)) == (Restored(cut_off=("run_command",)), Restored())


def test_everything_that_a_run_did_is_taken_back(world: World) -> None:
    before = tree(world.root)
    world.done(1, WriteFile("new/deep/x", b"x"), WriteFile("a", b"A", A), DeleteFile("b", B))
    world.done(2, MoveFile("d/c", "moved/c", C), WriteFile("a", b"AA", sha(b"A"), 0o755))
    world.command(3, lambda root: (root / "moved/c").chmod(0o444))
    assert undo(world) == Restored(
        files=(
            RestoredFile("a", EDITED),
            RestoredFile("b", CREATED),
            RestoredFile("d/c", CREATED),
            RestoredFile("moved/c", DELETED),
            RestoredFile("new/deep/x", DELETED),
        ),
        removed=("new/deep", "moved", "new"),
        steps=(1, 2, 3),
    )
    assert tree(world.root) == before
    assert undo(world) == Restored()


def test_only_what_was_done_from_a_step_on_is_taken_back(world: World) -> None:
    world.done(1, WriteFile("a", b"1", A), WriteFile("new/x", b"x"))
    then = tree(world.root)
    world.done(2, WriteFile("a", b"2", sha(b"1")), WriteFile("new/y", b"y"), DeleteFile("b", B))
    assert undo(world, 3) == Restored()
    done = undo(world, 2)
    assert isinstance(done, Restored)
    assert (done.steps, done.removed) == ((2,), ())
    assert tree(world.root) == then
    world.done(2, WriteFile("a", b"3", sha(b"1")))
    done = undo(world)
    assert isinstance(done, Restored)
    assert [file.path for file in done.files] == ["a", "new/x"]
    assert (world.root / "a").read_bytes() == b"a"


@pytest.mark.parametrize("mode", [0o444, 0o755, 0o600, 0o1644])
def test_bytes_and_bits_come_back_together_or_alone(world: World, mode: int) -> None:
    (world.root / "a").chmod(mode)
    before = tree(world.root)
    world.command(1, lambda root: (root / "a").chmod(0o400))
    world.command(2, lambda root: swap(root, "b", b"other"))
    world.command(3, lambda root: (root / "d/c").chmod(mode))
    done = undo(world)
    assert isinstance(done, Restored), done
    assert tree(world.root) == before


def test_a_file_of_no_bytes_is_a_file(world: World) -> None:
    (world.root / "b").write_bytes(b"")
    before = tree(world.root)
    world.done(1, WriteFile("a", b"", A), DeleteFile("b", sha(b"")))
    assert isinstance(undo(world), Restored)
    assert tree(world.root) == before


def test_what_is_as_it_was_needs_nothing(world: World) -> None:
    world.done(1, WriteFile("a", b"A", A), WriteFile("new/x", b"x"))
    (world.root / "a").write_bytes(b"a")
    (world.root / "new/x").unlink()
    assert undo(world) == Restored(removed=("new",), steps=(1,))


def test_a_directory_that_somebody_removed_is_made_again(world: World) -> None:
    before = tree(world.root)
    world.done(1, DeleteFile("d/c", C))
    (world.root / "d").rmdir()
    done = undo(world)
    assert isinstance(done, Restored)
    assert (done.files, tree(world.root)) == ((RestoredFile("d/c", CREATED),), before)


def test_a_directory_in_which_somebody_else_has_put_something_stays(world: World) -> None:
    world.done(1, WriteFile("new/in/x", b"x"))
    (world.root / "new/theirs").write_bytes(b"theirs")
    done = undo(world)
    assert isinstance(done, Restored)
    assert done.removed == ("new/in",)
    assert (world.root / "new/theirs").read_bytes() == b"theirs"


# --- What stands in the way


def test_files_that_somebody_else_has_changed_are_named_and_nothing_is_restored(world: World) -> None:
    world.done(1, WriteFile("a", b"A", A), WriteFile("b", b"B", B), DeleteFile("d/c", C), WriteFile("x", b"x"))
    (world.root / "b").chmod(0o700)
    (world.root / "d/c").write_bytes(b"theirs")
    (world.root / "x").write_bytes(b"theirs")
    assert refused(world) == ToolError(
        code=ToolErrorCode.CONFLICT,
        message=f"Nothing was restored. Changed since the run: 'b', 'd/c', 'x'. {REMEDY}",
        suggestions=("b", "d/c", "x"),
    )


def test_the_other_files_are_restored_where_that_is_wanted(world: World) -> None:
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


def test_a_message_names_a_few_files_and_the_suggestions_name_all(world: World) -> None:
    names = [f"n{number}" for number in range(8)]
    world.done(1, *(WriteFile(name, b"") for name in names))
    for name in names:
        (world.root / name).write_bytes(b"theirs")
    error = refused(world)
    assert error.message.startswith(
        "Nothing was restored. Changed since the run: 'n0', 'n1', 'n2', 'n3', 'n4' and 3 more. "
    )
    assert error.suggestions == tuple(names)


def test_what_somebody_else_wrote_between_two_changes_is_not_lost(world: World) -> None:
    world.done(1, WriteFile("a", b"1", A))
    (world.root / "a").write_bytes(b"theirs")
    world.done(2, WriteFile("a", b"2", sha(b"theirs")))
    assert refused(world).message == (
        f"Nothing was restored. Changed also between two recorded changes of the run: 'a'. {REMEDY}"
    )
    assert isinstance(undo(world, 2), Restored)
    assert (world.root / "a").read_bytes() == b"theirs"


def test_what_a_command_changed_unseen_cannot_be_restored(world: World) -> None:
    unknown = FileState(UNKNOWN_SHA256, 0o640)
    world.done(1, WriteFile("b", b"B", B))
    world.journal.intend(world.call(2), "token", [FileEffect("a", unknown, FileState(A, 0o640))], {}, ())
    world.journal.settle("token", ChangeState.DONE)
    error = refused(world)
    assert (error.code, error.suggestions) == (ToolErrorCode.CONFLICT, ("a",))
    assert error.message == (
        f"Nothing was restored. Changed by a command, and what it held was not recorded: 'a'. {REMEDY}"
    )
    done = undo(world, skip_changed=True)
    assert isinstance(done, Restored)
    assert (done.files, done.left) == ((RestoredFile("b", EDITED),), (LeftFile("a", Obstacle.NOT_KEPT),))


def test_rules_hold_for_an_undo_as_well(world: World) -> None:
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


@pytest.mark.parametrize("damage", ["DELETE FROM backups", "UPDATE backups SET data = x'789c030000000001'"])
def test_a_backup_that_is_gone_is_an_error_that_names_the_file(world: World, damage: str) -> None:
    world.done(1, WriteFile("a", b"A", A), WriteFile("x", b"x"))
    with closing(open_database(str(world.folder / "records"))) as database, transaction(database):
        database.execute(damage)
    assert refused(world) == ToolError(
        code=ToolErrorCode.IO_ERROR,
        message=f"Nothing was restored. The backup is missing or damaged: 'a'. {REMEDY}",
        suggestions=("a",),
    )
    done = undo(world, skip_changed=True)
    assert isinstance(done, Restored)
    assert (done.left, (world.root / "x").exists()) == ((LeftFile("a", Obstacle.BACKUP_MISSING),), False)


def test_a_file_that_is_too_large_to_be_kept_stays(world: World) -> None:
    world.command(1, lambda root: (root / "a").write_bytes(bytes(LARGEST_BACKUP + 1)))
    error = refused(world)
    assert error.message == f"Nothing was restored. Too large to be replaced: 'a'. {REMEDY}"
    assert error.code is ToolErrorCode.CONFLICT


def test_several_obstacles_are_told_apart(world: World) -> None:
    world.command(1, lambda root: (root / ".env").write_bytes(b"secret"))
    world.done(2, WriteFile("a", b"A", A))
    (world.root / "a").unlink()
    (world.root / "a").symlink_to("b")
    error = refused(world)
    assert (error.code, error.suggestions) == (ToolErrorCode.CONFLICT, (".env", "a"))
    assert error.message == (
        "Nothing was restored. Changed since the run: 'a' (it is a symbolic link now, or reached through one)."
        f" May not be written: '.env' (a rule says no). {REMEDY}"
    )


def test_no_link_leads_out_of_the_workspace(world: World) -> None:
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


# --- How it is written down


def test_it_is_recorded_as_a_call_of_its_own_that_is_no_part_of_the_run(world: World) -> None:
    world.done(4, WriteFile("a", b"A", A))
    assert isinstance(undo(world, 2), Restored)
    with closing(open_database(str(world.folder / "records"))) as database:
        rows = database.execute(
            "SELECT thread, step, place, tool, outcome, state FROM calls JOIN changes ON calls.id = call"
            " WHERE effect = ?",
            (UNDO_EFFECT,),
        ).fetchall()
    assert rows == [("run", 2, 0, "undo", '{"restored": 1}', "done")]
    assert world.journal.changes_of("run") == []
    assert world.journal.backup(sha(b"A")) == b"A", "what the run had written is kept as well"


def sizes(world: World) -> list[int]:
    """How many files each change of the undo concerned, oldest first."""
    with closing(open_database(str(world.folder / "records"))) as database:
        rows = database.execute(
            "SELECT count(*) FROM effects JOIN changes ON changes.id = change JOIN calls ON calls.id = call"
            " WHERE effect = ? GROUP BY change ORDER BY change",
            (UNDO_EFFECT,),
        ).fetchall()
    return [size for (size,) in rows]


def many(world: World, number: int) -> Tree:
    """A command changes so many files. Gives what was there before."""
    for index in range(number):
        (world.root / f"f{index:03}").write_bytes(b"old")
    before = tree(world.root)
    world.command(1, lambda root: [(root / f"f{index:03}").write_bytes(b"new") for index in range(number)])
    return before


def test_many_files_are_restored_in_changes_of_a_bounded_size(world: World) -> None:
    before = many(world, 2 * MOST_CHANGES + 5)
    assert isinstance(undo(world), Restored)
    assert tree(world.root) == before
    assert sizes(world) == [MOST_CHANGES, MOST_CHANGES, 5]


def test_many_bytes_are_restored_in_several_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "MOST_BYTES", 7)
    before = many(world, 5)
    assert isinstance(undo(world), Restored)
    assert tree(world.root) == before
    assert sizes(world) == [3, 2]


def test_what_fails_in_the_middle_is_told_and_the_next_one_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = many(world, MOST_CHANGES + 5)
    monkeypatch.setattr(os, "rename", failing(os.rename, MOST_CHANGES + 2)[0])
    error = undo(world)
    monkeypatch.undo()
    assert error == ToolError(
        code=ToolErrorCode.IO_ERROR,
        message="Cannot write 'f201': the disk reports an error. Files that were restored before that: 200. Undo again"
        " to go on.",
        fatal=True,
    )
    done = undo(world)
    assert isinstance(done, Restored)
    assert [file.path for file in done.files] == [f"f{number}" for number in range(200, 205)]
    assert tree(world.root) == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOTEMPTY])
def test_a_directory_that_the_disk_does_not_remove_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    before = tree(world.root)
    world.done(1, WriteFile("new/x", b"x"))

    def fail(name: str, **_: object) -> None:
        raise OSError(code, os.strerror(code), name)

    monkeypatch.setattr(os, "rmdir", fail)
    done = undo(world)
    monkeypatch.undo()
    if code == errno.ENOTEMPTY:
        assert done == Restored((RestoredFile("new/x", DELETED),), steps=(1,))
        return
    message = "Cannot delete 'new': the disk reports an error."
    assert done == ToolError(code=ToolErrorCode.IO_ERROR, message=message, fatal=True)
    assert undo(world) == Restored((RestoredFile("new/x", DELETED),), removed=("new",), steps=(1,))
    assert tree(world.root) == before


def test_what_fails_at_once_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.done(1, WriteFile("a", b"A", A), WriteFile("b", b"B", B))
    then = tree(world.root)
    monkeypatch.setattr(os, "rename", failing(os.rename, 2)[0])
    error = undo(world)
    monkeypatch.undo()
    assert error == ToolError(
        code=ToolErrorCode.IO_ERROR, message="Cannot write 'b': the disk reports an error.", fatal=True
    )
    assert tree(world.root) == then


def test_a_journal_that_cannot_be_used_is_told(world: World) -> None:
    (world.folder / "records" / FILE_NAME).write_bytes(b"no database" * 100)
    error = undo(world)
    assert isinstance(error, ToolError)
    assert error.code is ToolErrorCode.IO_ERROR
    assert "is damaged, or no database at all" in error.message


def test_a_workspace_that_is_gone_is_told(world: World) -> None:
    world.done(1, WriteFile("a", b"A", A))
    world.root.rename(world.root.with_name("elsewhere"))
    assert undo(world) == ToolError(
        code=ToolErrorCode.NOT_FOUND, message="Cannot restore '.': there is no such file or directory."
    )
