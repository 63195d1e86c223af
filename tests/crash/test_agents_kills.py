"""A run with children that is killed and resumed, in CI at twenty places: limits are kept, files are correct."""

import json
from pathlib import Path
from typing import Any

from tests.crash.children_play import AFTER, BEFORE, MOST_CALLS
from tests.crash.fork_server import ForkServer
from tests.extent import slow
from tests.workspace_files import read_files, write_files

KILLS = 20
Place = dict[str, str]


def place_at(folder: Path, memory: Path) -> Place:
    write_files(folder / "root", BEFORE)
    places = {"root": folder / "root", "marks": folder / "marks", "data": memory / folder.name}
    return {name: str(path) for name, path in places.items()}


@slow
def test_killed_run_with_children_resumes_within_its_limits(shim_library: Path, tmp_path: Path, memory: Path) -> None:
    with ForkServer(shim_library, "tests.crash.children_play") as server:
        place = place_at(tmp_path / "whole", memory)
        undisturbed = server.run("begin", place)
        check(server, place, undisturbed.value)
        for number in range(1, KILLS + 1):
            place = place_at(tmp_path / str(number), memory)
            killed = server.run("begin", place, len(undisturbed.trace) * number // (KILLS + 1), "kill_before")
            assert killed.killed, number
            check(server, place, server.run("resume", place).value)


def check(server: ForkServer, place: Place, ended: dict[str, Any]) -> None:
    """Check how the run ended, what it cost, and that it can be undone."""
    usage, root = ended["usage"], Path(place["root"])
    assert (ended["kind"], ended["answer"]) == ("FINISHED", "All done."), (place, ended)
    assert [json.loads(result)["ok"] for result in ended["results"]] == [True] * 4, (place, ended)
    assert read_files(root) == AFTER, place
    assert ended["changed"] == ["a.txt", "end.txt", "sub/b.txt", "sub/new.txt"]
    calls = len(Path(place["marks"]).read_text().splitlines())
    assert 10 <= calls <= usage["total_calls"] <= MOST_CALLS, (place, calls, usage)
    assert usage["total_calls"] == usage["calls_in_current_turn"]
    assert usage["total_input_tokens"] >= 100 * calls
    assert server.run("undo", place).value
    assert read_files(root) == BEFORE, place
