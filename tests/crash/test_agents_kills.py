"""Several agents at work, killed and resumed, in CI at twenty places: limits kept, files as they should be."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.crash import children_play, supervisor_play
from tests.crash.fork_server import ForkServer
from tests.crash.turning_points import EXTENT
from tests.extent import in_sweeps
from tests.workspace_files import write_files

pytestmark = in_sweeps

KILLS = {"some": 4}.get(EXTENT, 20)
Place = dict[str, str]


def place_at(folder: Path, memory: Path, before: Mapping[str, str]) -> Place:
    write_files(folder / "root", before)
    data = memory / folder.name
    data.mkdir()
    places = {"root": folder / "root", "marks": folder / "marks", "data": data / "data", "graph": data / "graph.sqlite"}
    return {name: str(path) for name, path in places.items()}


def files(place: Place) -> dict[str, str]:
    root = Path(place["root"])
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def ends(server: ForkServer, folder: Path, memory: Path, play: Any, again: str) -> Iterator[tuple[Place, Any]]:
    """The place and the end of a run that nobody disturbs, then of those that are killed and gone on with."""
    first = place_at(folder / "whole", memory, play.BEFORE)
    whole = server.run("begin", first)
    yield first, whole.value
    for number in range(1, KILLS + 1):
        place = place_at(folder / str(number), memory, play.BEFORE)
        killed = server.run("begin", place, len(whole.trace) * number // (KILLS + 1), "kill_before")
        assert killed.killed, number
        yield place, server.run(again, place).value


def test_run_with_children_goes_on_within_its_limits(shim_library: Path, tmp_path: Path, memory: Path) -> None:
    with ForkServer(shim_library, "tests.crash.children_play") as server:
        for place, told in ends(server, tmp_path, memory, children_play, "resume"):
            assert (told["kind"], told["answer"]) == ("FINISHED", "All done."), (place, told)
            assert [json.loads(result)["ok"] for result in told["results"]] == [True] * 4, (place, told)
            assert files(place) == children_play.AFTER, place
            assert told["changed"] == ["a.txt", "end.txt", "sub/b.txt", "sub/new.txt"]
            made, usage = len(Path(place["marks"]).read_text().splitlines()), told["usage"]
            assert 10 <= made <= usage["total_calls"] <= children_play.MOST_CALLS, (place, made, usage)
            assert usage["total_calls"] == usage["calls_in_current_turn"]
            assert usage["total_input_tokens"] >= 100 * made
            assert server.run("undo", place).value
            assert files(place) == children_play.BEFORE, place


def test_two_agents_of_a_supervisor_go_on(shim_library: Path, tmp_path: Path, memory: Path) -> None:
    with ForkServer(shim_library, "tests.crash.supervisor_play") as server:
        for place, told in ends(server, tmp_path, memory, supervisor_play, "begin"):
            assert told["answer"] == "All done.", (place, told)
            assert files(place) == supervisor_play.AFTER, place
            made = Counter(Path(place["marks"]).read_text().split())
            assert made.keys() == {*supervisor_play.AGENTS}
            assert 6 <= made.total() <= 7, (place, made)  # the call that was cut off is made again
            assert max(made.values()) <= supervisor_play.MOST_CALLS
