"""The sweep tells a writer that loses from one that does not, and says which points fail."""

import shutil
import sqlite3
import threading
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from tests.crash.fork_server import ForkServer, PlayError, ServerError
from tests.crash.sample_plays import NEW, OLD
from tests.crash.shim import HOWS, KILLS
from tests.crash.sweep import FAILURES, REPEATED, Point, points, sweep

ERRORS = ("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_READONLY")
"""The last where the database could be opened for reading only."""
NUMBERS = count()


def fresh(tmp_path: Path) -> Path:
    """A folder with the old file in it."""
    folder = tmp_path / str(next(NUMBERS))
    folder.mkdir()
    (folder / "file").write_text(OLD)
    return folder


def test_a_naive_writer_is_caught_at_each_point_where_it_loses(
    sample_servers: list[ForkServer], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def one(server: ForkServer, point: Point) -> None:
        folder = fresh(tmp_path)
        server.run("write_naively", str(folder), at=point.at, how=point.how)
        assert (folder / "file").read_text() in {OLD, NEW}, "torn"

    with pytest.raises(AssertionError) as told:
        sweep(points(2, *KILLS), one, sample_servers, repeated="")
    first, *_, last = str(told.value).splitlines()
    assert first == "4 of 6 points fail: kill_within:1 kill_after:1 kill_before:2 kill_within:2"
    assert str(told.value).count("AssertionError: torn") == 3
    node = request.node.nodeid
    assert last == f"--- repeat one: MENDGRAPH_CRASH_POINT=kill_within:1 .venv/bin/pytest '{node}'"


def test_an_atomic_replacement_loses_nothing_at_any_point(sample_servers: list[ForkServer], tmp_path: Path) -> None:
    calls = sample_servers[0].run("replace", str(fresh(tmp_path))).calls

    def one(server: ForkServer, point: Point) -> None:
        folder = fresh(tmp_path)
        played = server.run("replace_or_say", str(folder), at=point.at, how=point.how)
        assert played.value in {None, "written", point.how.removesuffix("_on")}
        assert played.killed == point.how.startswith("kill")
        assert (folder / "file").read_text() in ({NEW} if played.value == "written" else {OLD, NEW})

    assert sweep(points(calls, *HOWS), one, sample_servers) == 5 * len(HOWS)


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_commit_of_sqlite_is_all_or_nothing_at_every_point(
    sample_servers: list[ForkServer], tmp_path: Path, journal: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as database:
        database.executescript(f"PRAGMA journal_mode={journal}; CREATE TABLE one (x); CREATE TABLE two (x)")

    def database_of() -> Path:
        folder = fresh(tmp_path)
        shutil.copy(tmp_path / "db", folder)
        return folder

    def one(server: ForkServer, point: Point) -> None:
        folder = database_of()
        played = server.run("commit", str(folder), at=point.at, how=point.how)
        with closing(sqlite3.connect(folder / "db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            rows = database.execute("SELECT (SELECT count(*) FROM one), (SELECT count(*) FROM two)").fetchone()
        assert rows in ({(1, 1)} if played.value == "committed" else {(0, 0), (1, 1)})
        assert played.value is None or played.value.startswith(("committed", *ERRORS))
        seen[point.how].add("killed" if played.killed else played.value)

    seen: dict[str, set[str]] = {how: set() for how in HOWS}
    calls = sample_servers[0].run("commit", str(database_of())).calls
    assert sweep(points(calls, *HOWS), one, sample_servers) == calls * len(HOWS) > 100
    if REPEATED:
        return
    assert [seen[how] for how in (*KILLS, "short")] == [{"killed"}] * len(KILLS) + [{"committed"}]
    assert seen["EIO"] & seen["EIO_on"] >= {"SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC"}
    assert seen["ENOSPC"] & seen["ENOSPC_on"] >= {"SQLITE_FULL", "SQLITE_IOERR_FSYNC"}


def test_one_point_is_repeated(sample_servers: list[ForkServer]) -> None:
    played: list[Point] = []
    swept = points(100, *KILLS)
    sweep(swept, lambda _, point: played.append(point), sample_servers, repeated="kill_after:37")
    assert played == [Point("kill_after", 37)]


def test_a_sweep_without_the_repeated_point_is_skipped(sample_servers: list[ForkServer]) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"MENDGRAPH_CRASH_POINT=EIO:1 is none of the 300 points"):
        sweep(points(100, *KILLS), lambda *_: None, sample_servers, repeated="EIO:1")


def test_each_point_is_played_once_by_whoever_is_free(sample_servers: list[ForkServer]) -> None:
    played: list[tuple[ForkServer, int]] = []
    together = threading.Barrier(2)

    def one(server: ForkServer, point: int) -> None:
        together.wait(60)
        played.append((server, point))

    assert sweep(range(10), one, sample_servers, repeated="") == 10
    assert sorted(point for _, point in played) == list(range(10))
    assert {server for server, _ in played} == set(sample_servers)


def test_a_sweep_that_fails_everywhere_stops(sample_server: ForkServer) -> None:
    def one(_: ForkServer, point: int) -> None:
        raise PlayError(f"bad {point}")

    with pytest.raises(
        AssertionError, match=rf"^{FAILURES} of {FAILURES} points fail \(960 were not played\): 0 1 2 3 "
    ):
        sweep(range(1000), one, [sample_server], repeated="")


def test_a_server_that_is_gone_plays_no_further(sample_server: ForkServer) -> None:
    def one(_: ForkServer, point: int) -> None:
        raise ServerError(f"gone at {point}")

    with pytest.raises(AssertionError, match=r"^1 of 0 points fail \(10 were not played\): 0\n"):
        sweep(range(10), one, [sample_server], repeated="")


def test_a_sweep_of_nothing_shows_nothing(sample_servers: list[ForkServer]) -> None:
    with pytest.raises(AssertionError, match="a sweep of no points"):
        sweep([], lambda *_: None, sample_servers)
    with pytest.raises(AssertionError, match="a sweep without servers"):
        sweep(range(10), lambda *_: None, [])
