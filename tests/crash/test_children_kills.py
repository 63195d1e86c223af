"""A run with three children, killed and resumed, in CI at twenty places: limits kept, files as they should be."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.children_play import AFTER, BEFORE, MOST_CALLS
from tests.crash.fork_server import ForkServer
from tests.crash.turning_points import EXTENT
from tests.memory_folder import memory_folder
from tests.runs.playing import write_files

PLACES = {"some": 4}.get(EXTENT, 20)


@pytest.fixture(scope="module")
def server(shim_library: Path) -> Iterator[ForkServer]:
    with ForkServer(shim_library, "tests.crash.children_play") as serving:
        yield serving


@pytest.fixture
def memory() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


def place_at(folder: Path, data: Path) -> dict[str, str]:
    write_files(folder / "root", BEFORE)
    data.mkdir()
    return {"root": str(folder / "root"), "data": str(data / "data"), "marks": str(folder / "marks")}


def files(place: dict[str, str]) -> dict[str, str]:
    root = Path(place["root"])
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_a_run_with_children_that_is_killed_goes_on_within_its_limits(
    server: ForkServer, tmp_path: Path, memory: Path
) -> None:
    whole = server.run("begin", place_at(tmp_path / "whole", memory / "whole"))
    assert whole.value["usage"]["total_calls"] == 10, whole.value
    calls = len(whole.trace)
    killed = 0
    for number in range(1, PLACES + 1):
        place = place_at(tmp_path / str(number), memory / str(number))
        first = server.run("begin", place, calls * number // (PLACES + 1), "kill_before")
        killed += first.killed
        told = server.run("resume", place).value if first.killed else first.value
        assert (told["kind"], told["answer"]) == ("FINISHED", "All done."), (number, told)
        assert [json.loads(result)["ok"] for result in told["results"]] == [True] * 4, (number, told)
        assert files(place) == AFTER, number
        assert told["changed"] == ["a.txt", "end.txt", "sub/b.txt", "sub/new.txt"]
        made, usage = len(Path(place["marks"]).read_text().splitlines()), told["usage"]
        assert made <= usage["total_calls"] == usage["calls_in_current_turn"] <= MOST_CALLS, (number, made, usage)
        assert usage["total_input_tokens"] >= 100 * made
        assert server.run("undo", place).value
        assert files(place) == BEFORE, number
    assert killed == PLACES
