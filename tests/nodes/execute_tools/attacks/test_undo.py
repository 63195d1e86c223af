"""Random runs, kills at random instants and people who edit meanwhile: an undo restores all of it, or says what not."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, given, settings, strategies as st

from mendgraph.nodes.execute_tools.files.change_records import ChangeState, FileState
from mendgraph.nodes.execute_tools.files.workspace import Change, DeleteFile, MoveFile, WriteFile
from mendgraph.nodes.execute_tools.journal.recovery import recover
from mendgraph.nodes.execute_tools.journal.restoring import LeftFile, Obstacle, Restored, net_effects, restore
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.memory_folder import memory_folder
from tests.nodes.execute_tools.files.journaled_runs import Tree, World, directories, files, killed, swap, tree

NAMES = ("a", "b", "d/a", "d/b", "d/e/a", "n/m/a", "n/m/b", "ü/ b", "d")
CONTENTS = (b"", b"1", b"2\r\n", b"\xff\x00", b"long " * 2000)
MODES = (0o644, 0o600, 0o755, 0o444)
Start = dict[str, tuple[bytes, int]]

# A run of 50 changes is one example, so there are few of them; they are large by intent.
SETTINGS = settings(
    max_examples=4,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@contextmanager
def new_world(start: Start) -> Iterator[World]:
    """A workspace with these files and empty directories."""
    with memory_folder() as folder:
        world = World(folder)
        for name in ("d", "empty/inside"):
            (world.root / name).mkdir(parents=True)
        for name, (data, mode) in start.items():
            put(world.root, name, data, mode)
        yield world


def same(one: Mapping[str, FileState], other: Mapping[str, FileState], name: str) -> bool:
    return one.get(name) == other.get(name)


def in_the_way(world: World, run: str, before: Mapping[str, FileState]) -> list[str]:
    """The files that are neither as the run left them, as far as it knows their modes, nor as they were before."""
    now, found = files(tree(world.root)), list[str]()
    for effect in net_effects(world.journal.changes_of(run)):
        is_now, left = now.get(effect.path, FileState()), effect.after
        as_left = is_now.sha256 == left.sha256 and left.mode in {None, is_now.mode}
        if not as_left and not same(before, now, effect.path):
            found.append(effect.path)
    return found


def edit(data: st.DataObject, path: Path) -> None:
    """A person writes, removes or changes the mode of a file, or makes one."""
    what = data.draw(st.sampled_from(("write", "remove", "chmod")))
    if not path.parent.is_dir() or path.is_dir():
        return
    if what == "write":
        path.write_bytes(b"theirs")
    elif path.exists() and what == "remove":
        path.unlink()
    elif path.exists():
        path.chmod(data.draw(st.sampled_from(MODES)))


def set_modes(root: Path, mode: int) -> None:
    for path in root.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def put(root: Path, name: str, data: bytes, mode: int) -> None:
    swap(root, name, data)
    (root / name).chmod(mode)


STARTS = st.dictionaries(st.sampled_from(NAMES[:-1]), st.tuples(st.sampled_from(CONTENTS), st.sampled_from(MODES)))


def change(data: st.DataObject, root: Path) -> Change:
    """Something that a tool may do with what is there."""
    now = files(tree(root))
    new = WriteFile(data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(CONTENTS)))
    if not now:
        return new
    path, content = data.draw(st.sampled_from(sorted(now))), data.draw(st.sampled_from(CONTENTS))
    found = now[path].sha256
    changes: list[Change] = [
        new,
        WriteFile(path, content, found),
        WriteFile(path, content, found, data.draw(st.sampled_from(MODES)), even_read_only=True),
        DeleteFile(path, found, even_read_only=True),
        MoveFile(path, data.draw(st.sampled_from(NAMES)), found, data.draw(st.none() | st.just(content))),
    ]
    return data.draw(st.sampled_from(changes))


def command(data: st.DataObject) -> Callable[[Path], object]:
    """Something that only a program does."""
    name, content = data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(CONTENTS))
    mode = data.draw(st.sampled_from(MODES))
    acts: list[Callable[[Path], object]] = [
        lambda root: put(root, name, content, mode),
        lambda root: shutil.rmtree(root / name.split("/")[0], ignore_errors=True),
        lambda root: set_modes(root, mode),
        lambda root: (root / "made" / name).mkdir(parents=True, exist_ok=True),
    ]
    return data.draw(st.sampled_from(acts))


def run(data: st.DataObject, world: World, changes: int, kinds: Sequence[str], name: str = "run") -> None:
    """So many changes of these kinds, one in a step. What is refused, or killed, is not done, and the run goes on."""
    for step in range(changes):
        kind = data.draw(st.sampled_from(kinds))
        if kind == "command":
            world.command(step, command(data), run=name)
            continue
        wanted = [change(data, world.root) for _ in range(data.draw(st.sampled_from((1, 1, 1, 2, 3))))]
        if kind == "tool":
            world.tool(step, *wanted, run=name)
        else:
            killed(data.draw(st.integers(1, 60)), partial(world.tool, step, *wanted, run=name))
            ended = {each.state for each in recover(world.journal, str(world.root))}
            assert ended <= {ChangeState.DONE, ChangeState.UNDONE}


def undo(world: World, from_step: int = 0, *, name: str = "run", skip_changed: bool = False) -> Restored:
    done = restore(world.journal, world.workspace, name, from_step, skip_changed=skip_changed)
    assert isinstance(done, Restored), done
    return done


TOOLS, COMMANDS, KILLS = ["tool"], ["tool"] * 4 + ["command"], ["tool"] * 3 + ["killed"]


@SETTINGS
@given(STARTS, st.data())
def test_after_fifty_changes_and_kills_every_byte_bit_and_directory_is_as_before(
    start: Start, data: st.DataObject
) -> None:
    with new_world(start) as world:
        before = tree(world.root)
        run(data, world, 50, KILLS)
        undo(world)
        assert tree(world.root) == before
        assert undo(world) == Restored()


@SETTINGS
@given(STARTS, st.data())
def test_what_people_changed_meanwhile_is_named_and_never_lost(start: Start, data: st.DataObject) -> None:
    with new_world(start) as world:
        before = tree(world.root)
        run(data, world, 15, TOOLS)
        left_by_run = tree(world.root)
        for name in data.draw(st.sets(st.sampled_from([*NAMES[:-1], "d/theirs", "n/theirs"]), max_size=4)):
            edit(data, world.root / name)
        now = tree(world.root)
        was, run_left, is_now = files(before), files(left_by_run), files(now)
        theirs = in_the_way(world, "run", was)
        error = restore(world.journal, world.workspace, "run")
        if theirs:
            assert isinstance(error, ToolError)
            assert (error.code, list(error.suggestions)) == (ToolErrorCode.CONFLICT, theirs)
            assert tree(world.root) == now
        else:
            assert isinstance(error, Restored)
        left = [file.path for file in undo(world, skip_changed=True).left]
        assert left == theirs
        after = files(tree(world.root))
        for name in was.keys() | run_left.keys() | is_now.keys():
            by_run = not same(was, run_left, name)
            assert same(was if by_run and name not in theirs else is_now, after, name), name


@SETTINGS
@given(STARTS, st.data())
def test_undo_that_is_killed_again_and_again_ends_as_if_nothing_had_been(start: Start, data: st.DataObject) -> None:
    with new_world(start) as world:
        before = tree(world.root)
        run(data, world, 12, COMMANDS)
        old, new = files(before), files(tree(world.root))
        for nth in data.draw(st.lists(st.integers(1, 200), min_size=1, max_size=3)):
            killed(nth, partial(undo, world))
            recover(world.journal, str(world.root))
            halfway = files(tree(world.root))
            assert all(same(old, halfway, name) or same(new, halfway, name) for name in old.keys() | halfway.keys())
        undo(world)
        after = tree(world.root)
        assert (files(after), directories(after) - directories(before)) == (old, set())


# --- Files and directories in each other's place


@contextmanager
def swapped() -> Iterator[tuple[World, Tree]]:
    """A command made a directory of a file, and a file of a directory; with what was there before."""
    with new_world({"a": (b"a", 0o640), "z/in/x": (b"x", 0o444), "z/.env": (b"secret", 0o600)}) as world:
        before = tree(world.root)
        world.command(1, lambda root: swap(root, "a/b/c", b"new"))
        world.command(2, lambda root: swap(root, "z", b"file"))
        yield world, before


def test_what_took_the_place_of_something_else_makes_room_for_it() -> None:
    with swapped() as (world, before):
        assert undo(world).removed == ("a/b", "a")
        assert tree(world.root) == before


def test_room_that_somebody_else_uses_is_not_made() -> None:
    with swapped() as (world, before):
        (world.root / "a/theirs").write_bytes(b"theirs")
        then = tree(world.root)
        error = restore(world.journal, world.workspace, "run")
        assert isinstance(error, ToolError)
        assert (error.suggestions, tree(world.root)) == (("a",), then)
        assert undo(world, skip_changed=True).left == (LeftFile("a", Obstacle.CHANGED_SINCE, "it is a directory now"),)
        after = tree(world.root)
        assert after.pop("a")[1] is None
        assert after.pop("a/theirs")[1] == b"theirs"
        assert after == {name: each for name, each in before.items() if name != "a"}
