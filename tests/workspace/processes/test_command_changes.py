import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.execute_tools.commands.command_changes import (
    CommandChange,
    CommandChanges,
    Unwatched,
    WatchedRun,
    WatchLimits,
    watched,
)
from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.files.change_records import FileEffect, FileState
from mendgraph.nodes.workspace.files.sandbox import PathJudge
from mendgraph.nodes.workspace.files.workspace import Workspace
from tests.doubles.system_calls import before_each
from tests.extent import slow
from tests.workspace.files.layout import DENIAL, no_env, sha
from tests.workspace.files.recorder_doubles import BrokenJournal, MemoryJournal

LIMITS = WatchLimits(before_s=600.0, after_s=600.0)
NO_FILE, UNKNOWN = FileState(), FileState("?", 0o644)


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
    journal: MemoryJournal | None = None,
) -> CommandChanges:
    watched_run = watched(Workspace(str(root), judge).recorded(journal), run, 600.0, limits)
    assert isinstance(watched_run.changes, CommandChanges)
    return watched_run.changes


def is_(data: bytes) -> FileState:
    return FileState(sha(data), 0o644)


def test_change_without_new_size_or_time_is_found(place: Path) -> None:
    before = os.stat(place / "a.py")

    def run() -> None:
        (place / "a.py").write_bytes(b"a = 2\n")
        os.utime(place / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))

    assert [change.effect.path for change in watch(place, run).files] == ["a.py"]


def test_file_denied_in_the_meantime_is_not_read_from_the_cache(place: Path) -> None:
    watch(place, lambda: None)

    def judge(path: str, for_write: bool) -> ToolError | None:
        return DENIAL if path == "a.py" and not for_write else None

    changes = watch(place, lambda: (place / "a.py").write_bytes(b"a = 22\n"), judge=judge)
    assert changes.files == (CommandChange(FileEffect("a.py", UNKNOWN, UNKNOWN)),)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_directory_unreadable_before_or_after_adds_no_changes(place: Path, moment: str) -> None:
    closed = moment == "before"

    def refuse(name: str, *_: object) -> None:
        if closed and name == "src":
            raise PermissionError(13, "closed")

    def run() -> None:
        nonlocal closed
        closed = not closed
        (place / "a.py").unlink()

    with before_each("open", refuse):
        changes = watch(place, run)
    assert ([change.effect.path for change in changes.files], changes.new_folders) == (["a.py"], ())


def test_denied_git_bytecode_and_ignored_files_are_not_watched(place: Path, tmp_path: Path) -> None:
    (tmp_path / "rules").write_text("*\n")
    (place / "src" / ".gitignore").symlink_to(tmp_path / "rules")  # no ignore file is read through a link
    (place / ".gitignore").write_text("*.log\n")
    files = (".git/config", "sub/.git", "secret/.env/key", "a.log", "src/__pycache__/a.cpython-311.pyc", "src/b.pyc")

    def run() -> None:
        for name in (*files, "src/c.pyi"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("x")
        (place / ".gitignore").write_text("*.pyi\n")  # the rules are those from before

    changes = watch(place, run)
    assert [change.effect.path for change in changes.files] == [".gitignore", "src/c.pyi"]


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


@slow
@settings(max_examples=30)
@given(before=_FILES, after=_FILES, in_place=st.sets(st.sampled_from(_NAMES)))
def test_exactly_the_differences_are_reported_and_can_be_restored(
    before: dict[str, tuple[bytes, bool]], after: dict[str, tuple[bytes, bool]], in_place: set[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        (root / ".gitignore").write_text("*.log\n")
        put(root, before, in_place=lambda _: True)
        changes = watch(
            root,
            lambda: put(root, after, in_place=in_place.__contains__),
            LIMITS._replace(file_bytes=5, hashed_bytes=8),
        )
        effects = {change.effect.path: (change.effect.before, change.effect.after) for change in changes.files}
        visible = {name for name in {*before, *after} if not name.endswith(".log")}
        states = {name: (state_of(name, before.get(name), 5), state_of(name, after.get(name), 8)) for name in visible}
        assert effects.items() <= states.items()
        # A file that was not read may be reported although it is equal; all others are reported only if they differ.
        assert {name for name, (was, now) in states.items() if was != now} <= effects.keys()
        assert all(was != now or was.sha256 == "?" for was, now in effects.values())
        for change in changes.files:
            assert (change.before_data is None) == (change.effect.before.sha256 in {"", "?"})
            assert (change.after_data is None) == (change.effect.after.sha256 in {"", "?", sha(b"larger")})
            restore(root, change)
        now = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for name in visible - {
            change.effect.path for change in changes.files if "?" in (change.effect.before[0], change.effect.after[0])
        }:
            assert now.get(name) == (before[name][0] if name in before else None)


def restore(root: Path, change: CommandChange) -> None:
    if change.before_data is not None:
        (root / change.effect.path).parent.mkdir(parents=True, exist_ok=True)
        (root / change.effect.path).write_bytes(change.before_data)
        (root / change.effect.path).chmod(stat.S_IMODE(change.effect.before.mode or 0))
    elif change.effect.before == NO_FILE and change.effect.after.sha256 != "?":
        (root / change.effect.path).unlink()


# --- What is too much


@pytest.mark.parametrize("entries", [3, 4])
def test_too_large_workspace_is_not_watched(place: Path, entries: int) -> None:
    journal = MemoryJournal()

    def run() -> int:
        (place / "c").write_bytes(b"")
        (place / "d").write_bytes(b"")
        return 7

    (place / "src" / "c").write_bytes(b"")
    workspace = Workspace(str(place), no_env).recorded(journal)
    watched_run = watched(workspace, run, 600.0, LIMITS._replace(entries=entries))
    reason = f"the workspace has more than {entries} files and directories"
    assert (watched_run, journal.told) == (WatchedRun(7, Unwatched(reason), Unwatched(reason)), [])


def test_workspace_that_takes_too_long_is_not_watched(place: Path) -> None:
    late = Unwatched("the workspace could not be looked through in time")
    workspace = Workspace(str(place), no_env)
    assert watched(workspace, lambda: 1, 600.0, LIMITS._replace(before_s=-1.0)).changes == late
    assert watched(workspace, lambda: 1, 600.0, LIMITS._replace(after_s=-1.0)).changes == late
    assert watched(workspace, lambda: 1, -1.0, LIMITS).changes == late


def test_recently_changed_files_are_kept_as_far_as_they_fit(place: Path) -> None:
    for age, name in enumerate(("new", "large", "old")):
        (place / name).write_bytes(b"0123456789" * (age + 1))
        os.utime(place / name, (2**33 - age, 2**33 - age))

    def run() -> None:
        for name in ("new", "large", "old"):
            (place / name).unlink()

    limits = LIMITS._replace(files=2, all_bytes=25)
    assert [change.before_data for change in watch(place, run, limits).files] == [None, b"0123456789", None]


@pytest.mark.parametrize("folder", [".venv/lib/python3.12/site-packages", "node_modules/p"])
def test_newer_installed_packages_do_not_take_the_room_of_other_files(place: Path, folder: str) -> None:
    for name in ("a.js", "b.js"):
        (place / folder).mkdir(parents=True, exist_ok=True)
        (place / folder / name).write_bytes(b"0123456789")
        os.utime(place / folder / name, (2**33, 2**33))

    def run() -> None:
        (place / "src" / "b.py").unlink()

    changes = watch(place, run, LIMITS._replace(files=2))
    assert [change.before_data for change in changes.files] == [b"b = 1\n"]


# --- What is recorded


def test_changes_are_recorded_with_the_previous_bytes(place: Path) -> None:
    (place / "big").write_bytes(b"1" * 20)
    journal = MemoryJournal()

    def run() -> None:
        (place / "a.py").write_bytes(b"2")
        (place / "src" / "b.py").unlink()
        (place / "big").unlink()
        (place / "new").mkdir()
        (place / "new" / "c").write_bytes(b"3")

    watch(place, run, LIMITS._replace(file_bytes=10), journal=journal)
    assert (journal.change.effects, journal.change.folders) == (
        (
            FileEffect("a.py", is_(b"a = 1\n"), is_(b"2")),
            FileEffect("big", UNKNOWN, NO_FILE),
            FileEffect("new/c", NO_FILE, is_(b"3")),
            FileEffect("src/b.py", is_(b"b = 1\n"), NO_FILE),
        ),
        ("new",),
    )
    assert journal.backups == {sha(data): data for data in (b"a = 1\n", b"b = 1\n")}


@pytest.mark.parametrize("journal", [MemoryJournal(), BrokenJournal("intend")])
def test_changes_of_an_interrupted_command_are_recorded(place: Path, journal: MemoryJournal) -> None:
    def run() -> None:
        (place / "a.py").write_bytes(b"2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watched(Workspace(str(place), no_env).recorded(journal), run, 600.0, LIMITS)
    effects = [change.effects for change in journal.changes.values()]
    expected = (FileEffect("a.py", is_(b"a = 1\n"), is_(b"2")),)
    assert effects == ([] if isinstance(journal, BrokenJournal) else [expected])
