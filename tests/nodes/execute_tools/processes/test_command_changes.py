import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.files.change_records import FileEffect, FileState
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_root
from mendgraph.nodes.execute_tools.files.sandbox import JudgedPaths, PathJudge
from mendgraph.nodes.execute_tools.files.tree_walk import Entry, IgnoreRules
from mendgraph.nodes.execute_tools.files.workspace import BeneathReader, Workspace
from mendgraph.nodes.execute_tools.processes.command_changes import (
    CommandChange,
    CommandChanges,
    FileIndex,
    Tree,
    Unwatched,
    WatchedRun,
    WatchLimits,
    changed,
    look_through,
    snapshot,
    watched,
)
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import ChangeKind, ToolError
from tests.nodes.execute_tools.files.layout import DENIAL, allow, no_env, sha

CREATED, EDITED, DELETED = ChangeKind.CREATED, ChangeKind.EDITED, ChangeKind.DELETED
LIMITS = WatchLimits(before_s=600.0, after_s=600.0)
NO_FILE = FileState()


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
    root: Path,
    run: Callable[[], object],
    limits: WatchLimits = LIMITS,
    judge: PathJudge = no_env,
    index: FileIndex | None = None,
) -> CommandChanges:
    paths, index = JudgedPaths(str(root), judge), index or FileIndex()
    before = snapshot(paths, index, limits, monotonic() + 600)
    run()
    found = changed(paths, index, limits, before)
    assert isinstance(found, CommandChanges)
    return found


def is_(data: bytes, mode: int = 0o644) -> FileState:
    return FileState(sha(data), mode)


def unknown(mode: int | None = 0o644) -> FileState:
    return FileState("?", mode)


def test_file_that_takes_the_place_of_another_is_a_change_although_it_looks_the_same(place: Path) -> None:
    before = os.stat(place / "a.py")

    def run() -> None:
        (place / "a.py").write_bytes(b"a = 2\n")
        os.utime(place / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert [change.path for change in watch(place, run).files] == ["a.py"]


def test_what_is_denied_by_now_is_not_given_from_memory(place: Path) -> None:
    index = FileIndex()
    watch(place, lambda: None, index=index)

    def judge(path: str, for_write: bool) -> ToolError | None:
        return DENIAL if path == "a.py" and not for_write else None

    found = watch(place, lambda: (place / "a.py").write_bytes(b"a = 22\n"), judge=judge, index=index)
    assert found.files == (CommandChange("a.py", EDITED, unknown(), unknown()),)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_directory_that_is_closed_at_one_end_makes_no_file_new_or_gone(
    place: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    closed = moment == "before"

    def open_some(root_fd: int, parts: list[str]) -> int:
        if closed and parts == ["src"]:
            raise PermissionError
        return open_directory(root_fd, parts)

    def run() -> None:
        nonlocal closed
        closed = not closed
        (place / "a.py").unlink()

    monkeypatch.setattr("mendgraph.nodes.execute_tools.processes.command_changes.open_directory", open_some)
    found = watch(place, run)
    assert ([change.path for change in found.files], found.made) == (["a.py"], ())


# --- What is too much


def test_only_name_that_is_left_of_an_unknown_file_cannot_be_taken_back(place: Path) -> None:
    for name in ("one", "two", "three"):
        (place / name).write_bytes(name.encode())
        os.utime(place / name, (1_000, 1_000))

    def run() -> None:
        (place / "one").rename(place / "moved")
        os.link(place / "two", place / "linked")
        (place / "three").rename(place / "a.py")

    assert watch(place, run, LIMITS._replace(files=2)).files == (
        CommandChange("a.py", EDITED, is_(b"a = 1\n"), unknown(), b"a = 1\n"),
        CommandChange("linked", CREATED, NO_FILE, is_(b"two"), None, b"two"),
        CommandChange("moved", CREATED, NO_FILE, unknown()),
        CommandChange("one", DELETED, unknown(), NO_FILE),
        CommandChange("three", DELETED, unknown(), NO_FILE),
        CommandChange("two", EDITED, unknown(), is_(b"two")),
    )


def test_what_was_changed_last_is_known_first_as_far_as_it_fits(place: Path) -> None:
    files = {"new": b"0123456789", "newer": b"0123456789", "large": b"012345", "fits": b"01234", "old": b""}
    for age, (name, data) in enumerate(files.items()):
        (place / name).write_bytes(data)
        os.utime(place / name, (2**33 - age, 2**33 - age))
    limits = LIMITS._replace(files=3, all_bytes=25)
    found = snapshot(JudgedPaths(str(place), no_env), FileIndex(), limits, monotonic() + 600)
    assert not isinstance(found, Unwatched)
    assert {name: each.data for name, each in found.contents.items()} == {
        name: files[name] for name in ("new", "newer", "fits")
    }


# --- All of it, over random trees

_NAMES = ("a", "b", "d/a", "d/b", "d/e/a", "f/a", ".env", "x.log", "d/x.log")
_FILES = st.dictionaries(
    st.sampled_from(_NAMES),
    st.tuples(st.sampled_from([b"", b"1", b"2", b"larger", b"large file"]), st.booleans()),
    max_size=6,
)


def put(root: Path, files: Mapping[str, tuple[bytes, bool]], *, in_place: Callable[[str], bool]) -> None:
    """Make the tree hold exactly these files, each with its bytes and whether it is executable."""
    for name in set(_NAMES) - files.keys():
        (root / name).unlink(missing_ok=True)
    for name, (data, executable) in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if not in_place(name):
            (root / name).unlink(missing_ok=True)
        (root / name).write_bytes(data)
        (root / name).chmod(0o755 if executable else 0o644)


def state_of(name: str, file: tuple[bytes, bool] | None, largest: int) -> FileState:
    if file is None:
        return NO_FILE
    is_known = len(file[0]) <= largest and name != ".env"
    return FileState(sha(file[0]) if is_known else "?", 0o755 if file[1] else 0o644)


@given(before=_FILES, after=_FILES, in_place=st.sets(st.sampled_from(_NAMES)))
def test_exactly_what_differs_is_told_and_can_be_restored(
    before: dict[str, tuple[bytes, bool]], after: dict[str, tuple[bytes, bool]], in_place: set[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        (root / ".gitignore").write_text("*.log\n")
        put(root, before, in_place=lambda _: True)
        found = watch(
            root,
            lambda: put(root, after, in_place=in_place.__contains__),
            LIMITS._replace(file_bytes=5, hashed_bytes=8),
        )
        told = {change.path: (change.before, change.after) for change in found.files}
        visible = {name for name in {*before, *after} if not name.endswith(".log")}
        states = {name: (state_of(name, before.get(name), 5), state_of(name, after.get(name), 8)) for name in visible}
        assert told.items() <= states.items()
        # What was not looked at may be told although it is the same; all else is told exactly where it differs.
        assert {name for name, (was, now) in states.items() if was != now} <= told.keys()
        assert all(was != now or was.sha256 == "?" for was, now in told.values())
        for change in found.files:
            assert (change.before_data is None) == (change.before.sha256 in {"", "?"})
            assert (change.after_data is None) == (change.after.sha256 in {"", "?", sha(b"larger")})
            restore(root, change)
        now = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for name in visible - {change.path for change in found.files if "?" in (change.before[0], change.after[0])}:
            assert now.get(name) == (before[name][0] if name in before else None)


def restore(root: Path, change: CommandChange) -> None:
    if change.before_data is not None:
        (root / change.path).parent.mkdir(parents=True, exist_ok=True)
        (root / change.path).write_bytes(change.before_data)
        (root / change.path).chmod(stat.S_IMODE(change.before.mode or 0))
    elif change.before == NO_FILE and change.after.sha256 != "?":
        (root / change.path).unlink()


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


def watched_changes(
    root: Path, run: Callable[[], object], limits: WatchLimits = LIMITS, recorder: Recorder | None = None
) -> CommandChanges:
    found = watched(Workspace(str(root), no_env).recorded(recorder), run, 600.0, limits)
    assert (isinstance(found.changes, CommandChanges), found.unrecorded) == (True, "")
    return found.changes if isinstance(found.changes, CommandChanges) else CommandChanges()


@pytest.mark.parametrize("entries", [3, 4])
def test_workspace_that_is_or_becomes_too_large_is_not_watched(place: Path, entries: int) -> None:
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


def test_workspace_that_takes_too_long_is_not_watched(place: Path) -> None:
    late = Unwatched("the workspace could not be looked through in time")
    workspace = Workspace(str(place), no_env)
    assert watched(workspace, lambda: 1, 600.0, LIMITS._replace(before_s=-1.0)).changes == late
    assert watched(workspace, lambda: 1, 600.0, LIMITS._replace(after_s=-1.0)).changes == late
    assert watched(workspace, lambda: 1, -1.0, LIMITS).changes == late


def test_second_command_reads_only_what_is_new(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    original = BeneathReader.read

    def noting(self: BeneathReader, name: str, most: int) -> bytes | None:
        read.append(name)
        return original(self, name, most)

    monkeypatch.setattr(BeneathReader, "read", noting)
    watched_changes(place, lambda: (place / "c.py").write_bytes(b"c"))
    first = sorted(read)
    read.clear()
    watched_changes(place, lambda: (place / "c.py").write_bytes(b"cc"))
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

    watched_changes(place, run, LIMITS._replace(file_bytes=10), recorder)
    effects = [
        FileEffect("a.py", is_(b"a = 1\n"), is_(b"2")),
        FileEffect("big", FileState("?", 0o644), NO_FILE),
        FileEffect("new/c", NO_FILE, is_(b"3")),
        FileEffect("src/b.py", is_(b"b = 1\n"), NO_FILE),
    ]
    backups = {sha(data): data for data in (b"a = 1\n", b"b = 1\n")}
    assert recorder.told == [(effects, backups, ["new"])]


@pytest.mark.parametrize("problem", ["", "the disk is full"])
def test_what_a_command_changed_before_it_was_cut_off_is_recorded(place: Path, problem: str) -> None:
    recorder = Recorder(problem)

    def run() -> None:
        (place / "a.py").write_bytes(b"2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(Workspace(str(place), no_env).recorded(recorder), run, 600.0, LIMITS)
    effects = [FileEffect("a.py", is_(b"a = 1\n"), is_(b"2"))]
    told: list[tuple[object, ...]] = [(effects, {sha(b"a = 1\n"): b"a = 1\n"}, [])]
    assert recorder.told == ([] if problem else told)


# --- What one look sees


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def look(
    root: Path, known: Tree | None = None, *, again: bool = False, most: int = 1_000, seconds: float = 600.0
) -> Tree | Unwatched:
    with closing(open_root(str(root))) as handle:
        paths = JudgedPaths(str(root), no_env)
        return look_through(
            paths, handle, most=most, deadline=monotonic() + seconds, known=known or Tree(), again=again
        )


def tree(root: Path, known: Tree | None = None, *, again: bool = False) -> Tree:
    found = look(root, known, again=again)
    assert isinstance(found, Tree)
    return found


def names(root: Path, known: Tree | None = None, *, again: bool = False) -> tuple[list[str], list[str]]:
    found = tree(root, known, again=again)
    return sorted(found.files), sorted(found.folders)


def test_denied_directories_and_git_are_not_entered(tmp_path: Path) -> None:
    make(tmp_path, ".git/config", "sub/.git", "secret/.env/key", "src/a")
    assert names(tmp_path) == (["src/a"], ["", "secret/", "src/", "sub/"])


def test_bytecode_is_not_looked_at(tmp_path: Path) -> None:
    make(tmp_path, "src/a.py", "src/__pycache__/a.cpython-311.pyc", "src/b.pyc", "src/c.pyi")
    assert names(tmp_path) == (["src/a.py", "src/c.pyi"], ["", "src/"])


def test_second_look_knows_what_the_first_one_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "src/a.py", "src/a.log", "build/x")
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n")
    first = tree(tmp_path)
    asked: list[str] = []
    ignores = IgnoreRules.ignores

    def noting(self: IgnoreRules, entry: Entry) -> bool:
        asked.append(entry.path)
        return ignores(self, entry)

    monkeypatch.setattr(IgnoreRules, "ignores", noting)
    make(tmp_path, "src/b.py", "src/b.log")
    assert names(tmp_path, first) == ([".gitignore", "src/a.py", "src/b.py"], ["", "src/"])
    assert sorted(asked) == ["src/b.log", "src/b.py"]


def test_look_again_keeps_the_rules_of_what_it_knows(tmp_path: Path) -> None:
    make(tmp_path, "a.log", "a.py", "deep/b.log", "deep/b.py")
    (tmp_path / ".gitignore").write_text("*.log\n")
    first = tree(tmp_path)
    (tmp_path / ".gitignore").write_text("*.py\n")
    (tmp_path / "deep" / ".gitignore").write_text("*\n")
    make(tmp_path, "new.py", "new.log", "made/c.log", "made/c.py")
    assert names(tmp_path, first, again=True) == (
        [".gitignore", "a.py", "deep/.gitignore", "deep/b.py", "made/c.py", "new.py"],
        ["", "deep/", "made/"],
    )


def test_no_ignore_file_is_read_through_a_link(root: Path) -> None:
    (root.parent / "outside" / "rules").write_text("*\n")
    (root / ".gitignore").symlink_to(root.parent / "outside" / "rules")
    with closing(open_root(str(root))) as handle:
        found = look_through(JudgedPaths(str(root), allow), handle, most=100, deadline=monotonic() + 600, known=Tree())
    assert isinstance(found, Tree)
    assert "a.py" in found.files
    (root.parent / "outside" / "rules").unlink()
