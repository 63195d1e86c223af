"""The sweep tells a writer that loses from one that does not, and says which points fail."""

from itertools import count
from pathlib import Path

import pytest

from tests.crash.fork_server import ForkServer
from tests.crash.sample_plays import NEW, OLD
from tests.crash.shim import HOWS, KILLS
from tests.crash.sweep import Point, points, sweep

NUMBERS = count()


def fresh(tmp_path: Path) -> Path:
    """A folder with the old file in it."""
    folder = tmp_path / str(next(NUMBERS))
    folder.mkdir()
    (folder / "file").write_text(OLD)
    return folder


def test_naive_writer_is_caught_at_each_point_where_it_loses(
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


def test_atomic_replacement_loses_nothing_at_any_point(sample_servers: list[ForkServer], tmp_path: Path) -> None:
    calls = sample_servers[0].run("replace", str(fresh(tmp_path))).calls

    def one(server: ForkServer, point: Point) -> None:
        folder = fresh(tmp_path)
        played = server.run("replace_or_say", str(folder), at=point.at, how=point.how)
        assert played.value in {None, "written", point.how.removesuffix("_on")}
        assert played.killed == point.how.startswith("kill")
        assert (folder / "file").read_text() in ({NEW} if played.value == "written" else {OLD, NEW})

    assert sweep(points(calls, *HOWS), one, sample_servers) == 5 * len(HOWS)
