import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from nodes.execute_tools.environment import file_index
from nodes.execute_tools.environment.change_records import FileEffect, FileState
from nodes.execute_tools.environment.command_changes import CommandChange, CommandChanges
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.file_index import WatchLimits
from nodes.execute_tools.environment.file_reads import BeneathReader
from nodes.execute_tools.environment.tree_status import Unwatched
from nodes.execute_tools.environment.watched_command import WatchedRun, record_changes, watched
from nodes.execute_tools.environment.workspace import Workspace
from nodes.records import ChangeKind
from tests.nodes.execute_tools.environment.layout import no_env, sha

LIMITS = WatchLimits(before_s=600.0, after_s=600.0)
NO_FILE = FileState()


class Recorder:
    """Remembers what it was told; fails where it is told to. What was done already is not intended any more."""

    def __init__(self, problem: str = "") -> None:
        self.told: list[tuple[object, ...]] = []
        self.problem = problem

    def add(self, token: str, effects: Sequence[FileEffect], backups: Mapping[str, bytes], made: Sequence[str]) -> None:
        if self.problem:
            raise StoreError(self.problem)
        assert (len(token), int(token, 16) >= 0) == (16, True)
        self.told.append((list(effects), dict(backups), list(made)))

    def intend(self, *_: object) -> None:
        raise AssertionError

    def settle(self, *_: object) -> None:
        raise AssertionError


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    umask = os.umask(0o022)
    root = tmp_path.resolve() / "root"
    (root / "src").mkdir(parents=True)
    (root / "a.py").write_bytes(b"a = 1\n")
    (root / "src" / "b.py").write_bytes(b"b = 1\n")
    yield root
    os.umask(umask)


def watch(
    root: Path, run: Callable[[], object], limits: WatchLimits = LIMITS, recorder: Recorder | None = None
) -> CommandChanges:
    found = watched(Workspace(str(root), no_env).recorded(recorder), run, 600.0, limits)
    assert (isinstance(found.changes, CommandChanges), found.unrecorded) == (True, "")
    return found.changes if isinstance(found.changes, CommandChanges) else CommandChanges()


def is_(data: bytes) -> FileState:
    return FileState(sha(data), 0o644)


def test_what_was_run_gives_its_result_and_what_it_changed(place: Path) -> None:
    def run() -> str:
        (place / "a.py").unlink()
        return "done"

    change = CommandChange("a.py", ChangeKind.DELETED, is_(b"a = 1\n"), NO_FILE, b"a = 1\n")
    found = watched(Workspace(str(place), no_env), run, 600.0, LIMITS)
    assert found == WatchedRun("done", CommandChanges((change,)))


def test_extensions_bind_tools_and_not_programs(place: Path) -> None:
    os.link(place / "a.py", place / "linked.py")
    workspace = Workspace(str(place), no_env, allowed_extensions=frozenset({".md"}))
    found = watched(workspace, lambda: (place / "a.py").write_bytes(b""), 600.0, LIMITS)
    change = CommandChange("a.py", ChangeKind.EDITED, is_(b"a = 1\n"), is_(b""), b"a = 1\n", b"")
    assert found.changes == CommandChanges((change, change._replace(path="linked.py")))


@pytest.mark.parametrize("entries", [3, 4])
def test_a_workspace_that_is_or_becomes_too_large_is_not_watched(place: Path, entries: int) -> None:
    recorder = Recorder()

    def run() -> int:
        (place / "c").write_bytes(b"")
        (place / "d").write_bytes(b"")
        return 7

    (place / "src" / "c").write_bytes(b"")
    workspace = Workspace(str(place), no_env).recorded(recorder)
    found = watched(workspace, run, 600.0, LIMITS._replace(entries=entries))
    reason = f"the workspace has more than {entries} files and directories"
    assert (found, recorder.told) == (WatchedRun(7, Unwatched(reason)), [])


def test_a_workspace_that_takes_too_long_is_not_watched(place: Path) -> None:
    late = Unwatched("the workspace could not be looked through in time")
    workspace = Workspace(str(place), no_env)
    assert watched(workspace, lambda: 1, 600.0, LIMITS._replace(before_s=-1.0)).changes == late
    assert watched(workspace, lambda: 1, 600.0, LIMITS._replace(after_s=-1.0)).changes == late
    assert watched(workspace, lambda: 1, -1.0, LIMITS).changes == late


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_workspace_that_is_gone_is_not_watched(place: Path, at: str) -> None:
    workspace = Workspace(str(place), no_env)
    if at == "before":
        shutil.rmtree(place)
    found = watched(workspace, lambda: shutil.rmtree(place, ignore_errors=True), 600.0, LIMITS)
    assert found.changes == Unwatched("the workspace cannot be opened")


def test_who_has_waited_in_vain_runs_unwatched(place: Path) -> None:
    with file_index.file_index(str(place)).turn:
        found = watched(Workspace(str(place), no_env), lambda: 7, 0.0, LIMITS)
    assert found == WatchedRun(7, Unwatched("another command was at work in the workspace"))


def test_one_command_at_a_time_has_its_turn(place: Path) -> None:
    turn = file_index.file_index(str(place)).turn
    seen: list[bool] = []
    watch(place, lambda: seen.append(turn.locked()))
    with pytest.raises(ZeroDivisionError):
        watch(place, lambda: 1 // 0)
    assert (seen, turn.locked()) == ([True], False)


def test_a_second_command_reads_only_what_is_new(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_index, "COARSEST_CLOCK_NS", -(10**18))
    read: list[str] = []

    original = BeneathReader.read

    def noting(self: BeneathReader, name: str, most: int) -> bytes | None:
        read.append(name)
        return original(self, name, most)

    monkeypatch.setattr(BeneathReader, "read", noting)
    watch(place, lambda: (place / "c.py").write_bytes(b"c"))
    first = sorted(read)
    read.clear()
    watch(place, lambda: (place / "c.py").write_bytes(b"cc"))
    assert (first, read) == (["a.py", "c.py", "src/b.py"], ["c.py"])


# --- What is recorded


def test_changes_are_recorded_with_the_bytes_before(place: Path) -> None:
    (place / "big").write_bytes(b"1" * 20)
    recorder = Recorder()

    def run() -> None:
        (place / "a.py").write_bytes(b"2")
        (place / "src" / "b.py").unlink()
        (place / "big").unlink()
        (place / "new").mkdir()
        (place / "new" / "c").write_bytes(b"3")

    watch(place, run, LIMITS._replace(file_bytes=10), recorder)
    effects = [
        FileEffect("a.py", is_(b"a = 1\n"), is_(b"2")),
        FileEffect("big", FileState("?", 0o644), NO_FILE),
        FileEffect("new/c", NO_FILE, is_(b"3")),
        FileEffect("src/b.py", is_(b"b = 1\n"), NO_FILE),
    ]
    backups = {sha(data): data for data in (b"a = 1\n", b"b = 1\n", b"2", b"3")}
    assert recorder.told == [(effects, backups, ["new"])]


def test_a_directory_alone_is_recorded(place: Path) -> None:
    recorder = Recorder()
    watch(place, lambda: os.mkdir(place / "new"), recorder=recorder)
    assert recorder.told == [([], {}, ["new"])]


def test_where_nothing_changed_nothing_is_recorded(place: Path) -> None:
    recorder = Recorder()
    watch(place, lambda: None, recorder=recorder)
    record_changes(recorder, Unwatched("it is large"))
    record_changes(None, CommandChanges((), ("a",)))
    assert recorder.told == []


@pytest.mark.parametrize("problem", ["", "the disk is full"])
def test_what_a_command_changed_before_it_was_cut_off_is_recorded(place: Path, problem: str) -> None:
    recorder = Recorder(problem)

    def run() -> None:
        (place / "a.py").write_bytes(b"2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(Workspace(str(place), no_env).recorded(recorder), run, 600.0, LIMITS)
    effects = [FileEffect("a.py", is_(b"a = 1\n"), is_(b"2"))]
    told: list[tuple[object, ...]] = [(effects, {sha(data): data for data in (b"a = 1\n", b"2")}, [])]
    assert recorder.told == ([] if problem else told)


def test_a_record_that_cannot_be_written_is_told_with_the_changes(place: Path) -> None:
    workspace = Workspace(str(place), no_env).recorded(Recorder("the disk is full"))
    found = watched(workspace, lambda: (place / "c").write_bytes(b""), 600.0, LIMITS)
    change = CommandChange("c", ChangeKind.CREATED, NO_FILE, is_(b""), None, b"")
    assert found == WatchedRun(0, CommandChanges((change,)), "the disk is full")
