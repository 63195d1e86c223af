"""What the library counts, what it leaves alone, and what each of its ways does."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.crash import shim
from tests.crash.fork_server import ForkServer
from tests.crash.sample_plays import NEW, OLD
from tests.crash.shim import HOWS, MODES, How, Shim, built, lacking

SEVERAL_CALLS = (
    "openat64 a",
    "write a",
    "writev a",
    "pwrite64 a",
    "ftruncate64 a",
    "posix_fallocate64 a",
    "fchmod a",
    "fchown a",
    "futimens a",
    "open64 b",
    "sendfile64 b",
    "copy_file_range b",
    "fsync a",
    "fdatasync a",
    "truncate64 b",
    "fchmodat a",
    "mkdirat d",
    "mkdir e",
    "link hard",
    "symlinkat soft",
    "renameat c",
    "rename a",
    "unlinkat soft",
    "unlink hard",
    "rmdir d",
    "unlinkat e",
    "fsync folder",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def content(folder: Path) -> str:
    return (folder / "file").read_text()


def test_files_are_counted_and_nothing_else(sample_server: ForkServer, folder: Path) -> None:
    assert sample_server.run("several_calls", str(folder)).trace == SEVERAL_CALLS


@pytest.mark.parametrize("at", range(1, len(SEVERAL_CALLS) + 1))
def test_each_call_can_be_made_to_fail(sample_server: ForkServer, folder: Path, at: int) -> None:
    with pytest.raises(AssertionError, match=r"OSError.*No space left on device"):
        sample_server.run("several_calls", str(folder), at=at, how="ENOSPC")


def test_attributes_are_counted(sample_server: ForkServer, folder: Path) -> None:
    played = sample_server.run("set_attribute", str(folder))
    if not played.value:
        pytest.skip("this file system has no attributes")
    assert played.trace == ("open64 file", "fsetxattr file", "fremovexattr file")


def test_all_threads_are_counted(sample_server: ForkServer, folder: Path) -> None:
    calls = [f"{call} {name}" for name in "abc" for call in ("open64", "write")]
    assert sorted(sample_server.run("write_from_threads", str(folder)).trace) == sorted(calls)


def test_children_are_neither_counted_nor_killed(sample_server: ForkServer, folder: Path) -> None:
    played = sample_server.run("write_in_a_child", str(folder), at=1, how="kill_before")
    assert (played.killed, played.calls, played.value) == (False, 0, 0)
    assert content(folder) == f"{NEW}more\n"


def test_what_sqlite_writes_is_counted(sample_server: ForkServer, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "db")) as database:
        database.executescript("PRAGMA journal_mode=WAL; CREATE TABLE one (x); CREATE TABLE two (x)")
    trace = [call.split() for call in sample_server.run("commit", str(folder)).trace]
    assert {name for call, name in trace if "write" in call} == {"db", "db-wal", "db-shm"}
    assert {name for call, name in trace if "sync" in call} == {"db", "db-wal", "folder"}
    assert {name for call, name in trace if "unlink" in call} == {"db-wal", "db-shm"}


@pytest.mark.parametrize(
    ("how", "at", "killed", "left"),
    [
        ("kill_before", 1, True, OLD),
        ("kill_after", 1, True, ""),
        ("kill_within", 1, True, ""),
        ("kill_before", 2, True, ""),
        ("kill_within", 2, True, NEW[: len(NEW) // 2]),
        ("kill_after", 2, True, NEW),
        ("kill_before", 3, False, NEW),
    ],
)
def test_a_writer_is_stopped_where_it_was_said(
    sample_server: ForkServer, folder: Path, how: How, at: int, killed: bool, left: str
) -> None:
    (folder / "file").write_text(OLD)
    played = sample_server.run("write_naively", str(folder), at=at, how=how)
    assert (played.killed, played.calls, played.value) == (killed, min(at, 2), None if killed else "written")
    assert content(folder) == left


def test_half_of_a_write_is_said_to_be_half(sample_server: ForkServer, folder: Path) -> None:
    played = sample_server.run("write_all", str(folder), at=2, how="short")
    assert (played.value, content(folder)) == ([len(NEW) // 2, len(NEW) // 2], NEW)


@pytest.mark.parametrize(
    ("how", "at", "said"),
    [
        # at 3: a new file's time; 4: it is created; 7: the write; 8: the folder; 9: the rename; 10: the removal
        ("EIO", 4, ["EIO", "", "", "", "", ""]),
        ("ENOSPC", 7, ["", "", "ENOSPC", "", "", ""]),
        ("EIO", 9, ["", "", "", "", "EIO", "ENOENT"]),
        ("ENOSPC_on", 3, ["ENOSPC", "", "ENOSPC", "ENOSPC", "", ""]),
        ("EIO_on", 8, ["", "", "", "EIO", "", ""]),
        ("EIO_on", 9, ["", "", "", "", "", ""]),
    ],
)
def test_a_call_fails_once_or_from_then_on(
    sample_server: ForkServer, folder: Path, how: How, at: int, said: list[str]
) -> None:
    assert sample_server.run("fill", str(folder), at=at, how=how).value == said


def test_every_way_has_its_mode() -> None:
    assert tuple(MODES) == HOWS


def test_where_it_was_not_preloaded_there_is_no_shim() -> None:
    with pytest.raises(AttributeError, match="shim_arm"):
        Shim()


@pytest.mark.parametrize(
    ("lack", "reason"),
    [
        (("sys.platform", "darwin"), "it is preloaded the way Linux does it"),
        (("shutil.which", lambda _: None), "there is no C compiler (cc, gcc, clang) on the path: install gcc"),
    ],
)
def test_what_is_lacking_is_said(monkeypatch: pytest.MonkeyPatch, lack: tuple[str, Any], reason: str) -> None:
    monkeypatch.setattr(*lack)
    assert lacking() == reason


def test_a_compiler_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if lacking():
        pytest.skip(lacking())
    monkeypatch.setattr(shim, "SOURCE", tmp_path / "bad.c")
    (tmp_path / "bad.c").write_text("int broken(")
    with pytest.raises(RuntimeError, match=r"cannot build bad\.c:\n.*error"):
        built(tmp_path)
