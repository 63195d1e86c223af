"""Two agents under a supervisor, killed and resumed, in CI at twenty places: limits kept, files as they should be."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.fork_server import ForkServer
from tests.crash.supervisor_play import AFTER, AGENTS, BEFORE, MOST_CALLS
from tests.crash.turning_points import EXTENT
from tests.memory_folder import memory_folder
from tests.runs.playing import write_files

PLACES = {"some": 3}.get(EXTENT, 20)


@pytest.fixture(scope="module")
def server(shim_library: Path) -> Iterator[ForkServer]:
    with ForkServer(shim_library, "tests.crash.supervisor_play") as serving:
        yield serving


@pytest.fixture
def memory() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


def place_at(folder: Path, data: Path) -> dict[str, str]:
    write_files(folder / "root", BEFORE)
    data.mkdir()
    more = {"data": str(data / "data"), "graph": str(data / "graph.sqlite"), "marks": str(folder / "marks")}
    return {"root": str(folder / "root"), **more}


def files(place: dict[str, str]) -> dict[str, str]:
    root = Path(place["root"])
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_two_agents_of_a_supervisor_go_on_after_a_kill(server: ForkServer, tmp_path: Path, memory: Path) -> None:
    whole = server.run("begin", place_at(tmp_path / "whole", memory / "whole"))
    assert whole.value["answer"] == "All done.", whole.value
    assert files({"root": str(tmp_path / "whole" / "root")}) == AFTER
    killed = 0
    for number in range(1, PLACES + 1):
        place = place_at(tmp_path / str(number), memory / str(number))
        first = server.run("begin", place, len(whole.trace) * number // (PLACES + 1), "kill_before")
        killed += first.killed
        told = server.run("begin", place).value if first.killed else first.value
        assert told == whole.value, (number, told)
        assert files(place) == AFTER, number
        made = Counter(Path(place["marks"]).read_text().split())
        assert made.keys() == {*AGENTS}
        assert 6 <= made.total() <= 7, (number, made)  # the call that was cut off is made again
        assert max(made.values()) <= MOST_CALLS
    assert killed == PLACES
