import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from mendgraph.nodes.workspace.files.atomic_write import TEMPORARY_SUFFIX
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect, FileState
from mendgraph.nodes.workspace.files.workspace import Change, DeleteFile, MoveFile, Workspace, WriteFile
from mendgraph.nodes.workspace.journal.recovery import Recovered
from tests.doubles.system_calls import after_each, before_each, failing, noted, replaced
from tests.extent import slow
from tests.workspace.files.layout import allow, sha
from tests.workspace.files.recorder_doubles import MemoryJournal, WatchingJournal, killed_at, recovered

DONE, UNDONE, FOREIGN, OPEN = ChangeState.DONE, ChangeState.UNDONE, ChangeState.FOREIGN, ChangeState.INTENDED


FILES = {"a": 0o751, "d/b": 0o644, "d/c": 0o444, "e": 0o600}
"""The files of the workspace with their modes; each holds the last letter of its name."""

Tree = dict[str, tuple[int, bytes | str]]

CHANGES: dict[str, list[Change]] = {
    "create": [WriteFile("x/y/n", b"new")],
    "mode": [WriteFile("a", b"a", sha(b"a"), mode=0o600)],
    "two replaced": [WriteFile("a", b"new a", sha(b"a")), WriteFile("d/b", b"new b", sha(b"b"), mode=0o604)],
    "all": [
        WriteFile("x/y/n", b"new"),
        WriteFile("a", b"new a", sha(b"a")),
        DeleteFile("d/b", sha(b"b")),
        MoveFile("d/c", "x/c", sha(b"c")),
        MoveFile("e", "z/e", sha(b"e"), b"new e"),
    ],
}

OUTSIDE = {"a": b"new a", "b": b"b", "c": b"c", "e": b"new e"}
"""Files outside that look like those of a change if a link to them is followed."""


class Place(NamedTuple):
    """A workspace and its journal."""

    root: Path
    journal: MemoryJournal

    def change(self, changes: list[Change]) -> object:
        return Workspace(str(self.root), allow).recorded(self.journal).change_files(changes)

    def recover(self) -> tuple[Recovered, ...]:
        return recovered(self.journal, self.root)

    def tree(self) -> Tree:
        """Every name with its mode and what it holds, folders without their times."""
        return {
            str(path.relative_to(self.root)): (
                stat.S_IMODE(path.lstat().st_mode),
                os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_bytes(),
            )
            for path in sorted(self.root.rglob("*"))
        }


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[], Place]]:
    """Makes a new copy of the same workspace. A folder beside it stays unchanged, and no handle is left open."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    for name, data in OUTSIDE.items():
        (outside / name).write_bytes(data)

    def make() -> Place:
        shutil.rmtree(root, ignore_errors=True)
        (root / "d").mkdir(parents=True)
        for name, mode in FILES.items():
            (root / name).write_bytes(name[-1:].encode())
            (root / name).chmod(mode)
        return Place(root, MemoryJournal())

    before = len(os.listdir("/dev/fd"))
    with replaced(fsync=lambda _: None):  # the disk is slow
        yield make
    assert len(os.listdir("/dev/fd")) == before, "a handle was left open"
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == OUTSIDE


def trees_by_state(fresh: Callable[[], Place], changes: list[Change]) -> dict[ChangeState, Tree]:
    """The tree before and after the complete change."""
    place = fresh()
    before = place.tree()
    assert isinstance(place.change(changes), tuple)
    return {UNDONE: before, DONE: place.tree()}


def killed_places(fresh: Callable[[], Place], changes: list[Change], first: int = 1, step: int = 1) -> Iterator[Place]:
    """A workspace for each point at which the change can be killed, or for each `step`-th point from `first` on."""
    for nth in count(first, step):
        place = fresh()
        with killed_at(nth, place.journal) as reached:
            place.change(changes)
        if not reached():
            assert nth > 5, "the change has too few points"
            return
        yield place


@slow
@pytest.mark.parametrize("kind", ["all", "mode"])
def test_change_killed_at_any_point_is_done_completely_or_not_at_all(fresh: Callable[[], Place], kind: str) -> None:
    expected = trees_by_state(fresh, CHANGES[kind])
    seen = set()
    for place in killed_places(fresh, CHANGES[kind]):
        intended = place.journal.open_changes()
        recovered = place.recover()
        assert [change.token for change in recovered] == [change.token for change in intended]
        assert [change.foreign for change in recovered] == [() for _ in intended]
        state = recovered[0].state if recovered else place.journal.change.state if place.journal.changes else UNDONE
        assert place.tree() == expected[state]
        seen.add(state)
        assert place.recover() == ()
    assert seen == {DONE} | ({UNDONE} if expected[DONE] != expected[UNDONE] else seen)


# --- Changes by somebody else


def write_foreign(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"theirs")


def remove_file(path: Path) -> None:
    path.unlink(missing_ok=True)


def replace_by_link(path: Path) -> None:
    remove_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(_outside(path) / path.name)


def replace_folder_by_link(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.symlink_to(_outside(path))


def remove_folder(path: Path) -> None:
    shutil.rmtree(path.parent, ignore_errors=True)


def _outside(path: Path) -> Path:
    return next(above / "outside" for above in path.parents if (above / "outside").is_dir())


AT_A_PATH: list[Callable[[Path], None]] = [write_foreign, remove_file, replace_by_link]
ABOVE_A_PATH: list[Callable[[Path], None]] = [replace_folder_by_link, remove_folder]

DEEDS = [
    *((deed, path) for path in ("a", "x/c") for deed in AT_A_PATH),
    *((deed, path) for path in ("d/b",) for deed in ABOVE_A_PATH),
]


EACH = 5
"""Of the points at which a change may be killed each deed is shown at each fifth, and all deeds together at all."""


@slow
def test_change_by_somebody_else_is_kept_and_reported(fresh: Callable[[], Place]) -> None:
    for number, (deed, path) in enumerate(DEEDS):
        check_foreign_changes_are_kept(fresh, deed, path, 1 + number % EACH)


def check_foreign_changes_are_kept(
    fresh: Callable[[], Place], deed: Callable[[Path], None], path: str, first: int
) -> None:
    before = fresh().tree()
    expected = trees_by_state(fresh, CHANGES["all"])
    for place in killed_places(fresh, CHANGES["all"], first, EACH):
        deed(place.root / path)
        theirs = place.tree()
        for change in place.recover():
            tree = place.tree()
            effects = [effect.path for effect in place.journal.change.effects]
            ours = [name for name in effects if name not in change.foreign]
            if change.state is FOREIGN:
                assert set(change.foreign) <= set(effects)
                assert [tree.get(name) for name in change.foreign] == [theirs.get(name) for name in change.foreign]
                assert [tree.get(name) for name in ours] == [before.get(name) for name in ours], change
            else:
                assert change.foreign == ()
                assert [tree.get(name) for name in ours] == [expected[change.state].get(name) for name in ours], change
            assert [name for name in tree if name.endswith(TEMPORARY_SUFFIX)] == []
            assert place.journal.change.state is change.state
        assert place.recover() == ()


def half_changed(fresh: Callable[[], Place], changes: list[Change]) -> Place:
    """A workspace in which the change was killed after its first file and before its second one."""
    untouched = fresh().tree()
    for place in killed_places(fresh, changes):
        visible = {name: entry for name, entry in place.tree().items() if not name.endswith(TEMPORARY_SUFFIX)}
        if visible != untouched:
            return place
    raise AssertionError("no name has ever changed")


TWO = CHANGES["two replaced"]


def test_message_names_the_file_that_somebody_else_changed(fresh: Callable[[], Place]) -> None:
    place = half_changed(fresh, TWO)
    (place.root / "d" / "b").write_bytes(b"theirs")
    [change] = place.recover()
    assert change == Recovered(
        place.journal.change.token,
        FOREIGN,
        ("d/b",),
        "A change of 'a', 'd/b' was cut off, and somebody else has changed 'd/b' meanwhile: that was left alone, and"
        " what the change did elsewhere was taken back.",
    )
    assert ((place.root / "a").read_bytes(), (place.root / "d" / "b").read_bytes()) == (b"a", b"theirs")


@pytest.mark.parametrize("kind", ["gone", "torn"])
def test_lost_old_file_is_restored_from_its_backup(fresh: Callable[[], Place], kind: str) -> None:
    before = fresh().tree()
    deleted: list[Change] = [DeleteFile("d/b", sha(b"b")), WriteFile("a", b"new a", sha(b"a"))]
    for changes in (TWO, deleted):
        place = half_changed(fresh, changes)
        [temporary] = [path for path in place.root.rglob(f".*k{TEMPORARY_SUFFIX}") if path.stat().st_nlink == 1]
        temporary.unlink()
        if kind == "torn":
            temporary.write_bytes(b"")
        assert [change.state for change in place.recover()] == [UNDONE]
        assert place.tree() == before


def test_moved_file_is_restored_before_its_new_name_is_removed(fresh: Callable[[], Place]) -> None:
    changes: list[Change] = [MoveFile("e", "z", sha(b"e")), DeleteFile("a", sha(b"a"))]
    place = next(place for place in killed_places(fresh, changes) if not (place.root / "e").exists())
    assert ((place.root / "z").exists(), (place.root / "a").exists()) == (True, True)

    def look(*_: object) -> None:
        assert (place.root / "e").exists() or (place.root / "z").exists()

    with after_each("unlink", look):
        assert [change.state for change in place.recover()] == [UNDONE]
    assert ((place.root / "e").read_bytes(), (place.root / "z").exists()) == (b"e", False)


def test_file_changed_during_rollback_is_left_unchanged(fresh: Callable[[], Place]) -> None:
    place = half_changed(fresh, TWO)
    looked_at = threading.Event()

    def look(name: str, *_: object) -> None:
        if name == "a":
            looked_at.set()

    def change(name: str, *_: object) -> None:
        if name == "a" and looked_at.is_set():
            (place.root / "a").write_bytes(b"theirs")

    with after_each("open", look), before_each("stat", change):
        assert [(record.state, record.foreign) for record in place.recover()] == [(FOREIGN, ("a",))]
    assert (place.root / "a").read_bytes() == b"theirs"


def test_file_that_cannot_be_restored_is_named_and_left_unchanged(fresh: Callable[[], Place]) -> None:
    place = half_changed(fresh, TWO)
    [temporary] = place.root.glob(f".a.*k{TEMPORARY_SUFFIX}")
    temporary.unlink()
    del place.journal.backups[sha(b"a")]
    assert [(change.state, change.foreign) for change in place.recover()] == [(FOREIGN, ("a",))]
    assert ((place.root / "a").read_bytes(), (place.root / "d" / "b").read_bytes()) == (b"new a", b"b")


# --- The disk


@slow
@pytest.mark.parametrize("function", ["rename", "unlink", "open"])
def test_failing_disk_leaves_the_change_open_for_the_next_recovery(fresh: Callable[[], Place], function: str) -> None:
    before = fresh().tree()
    sentence = "A change of 'a', 'd/b' was cut off, and cannot be brought to an end yet: Input/output error."
    for nth in count(1):
        place = half_changed(fresh, TWO)
        with failing(function, nth) as calls:
            [change] = place.recover()
        if len(calls) < nth:
            break
        open_still = Recovered(place.journal.change.token, OPEN, (), sentence)
        assert change == open_still or change.state is UNDONE  # where it was no obstacle
        place.recover()
        assert (place.journal.change.state, place.tree()) == (UNDONE, before)
    assert nth > 1


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENOTDIR])
def test_unreadable_file_counts_as_changed_by_somebody_else(fresh: Callable[[], Place], number: int) -> None:
    place = half_changed(fresh, TWO)

    def refuse(name: str, *_: object) -> None:
        if name == "b":
            raise OSError(number, os.strerror(number))

    with before_each("open", refuse):
        assert [(change.state, change.foreign) for change in place.recover()] == [(FOREIGN, ("d/b",))]
    assert (place.root / "a").read_bytes() == b"a"


@pytest.mark.parametrize(
    ("kind", "state", "folders"), [("two replaced", UNDONE, ["", "/d"]), ("create", DONE, ["", "/x", "/x/y"])]
)
def test_recovered_file_is_on_disk_before_it_is_recorded(
    fresh: Callable[[], Place], kind: str, state: ChangeState, folders: list[str]
) -> None:
    last = {"two replaced": "a", "create": "x/y/n"}[kind]
    untouched = fresh().tree().get(last)
    place = next(place for place in killed_places(fresh, CHANGES[kind]) if place.tree().get(last) != untouched)
    with noted("fsync") as synced:
        journal = WatchingJournal(lambda: sorted(name for _, name in synced))
        journal.changes, journal.backups = place.journal.changes, place.journal.backups
        assert [change.state for change in recovered(journal, place.root)] == [state]
    assert journal.seen == [[f"{place.root}{name}" for name in folders]]


# --- What is never changed


def test_path_that_leads_out_is_never_followed(fresh: Callable[[], Place]) -> None:
    place = fresh()
    effect = FileEffect("../outside/b", FileState(sha(b"x"), 0o644), FileState(sha(b"b"), 0o644))
    place.journal.intend("0" * 16, [effect], {sha(b"x"): b"x"}, ["../outside"])
    with pytest.raises(ValueError, match="not one part of a path"):
        place.recover()
