"""A run that is killed at every point and resumed: each file is old or new, no work lost, no effect repeated."""

import json
import os
import random
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pytest

from tests.crash.fork_server import ForkServer, PlayResult
from tests.crash.play import AFTER, BEFORE, COMMANDED
from tests.crash.shim import How
from tests.crash.sweep import EXTENT, Point, calls_to_visit, servers_of, sweep
from tests.extent import sampled, slow
from tests.memory_folder import memory_folder

SECOND_KILLS: Final = {"all": 500}.get(EXTENT, 30)
SHARED_KILLS: Final = 20
NAMING: Final = re.compile(r"(?:rename|link|unlink)\w* (?P<name>\S+)$")
"""The calls by which a name comes to mean another file, or none."""
EFFECTS: Final = Counter({"a.txt": 1, "b.txt": 1, "c.txt": 1, "d.txt": 1, "file.txt": 1})
"""How often each name changes its meaning in a run that nobody disturbs."""


@pytest.fixture(scope="module")
def servers(shim_library: Path) -> Iterator[list[ForkServer]]:
    with servers_of(shim_library, "tests.crash.play") as started:
        yield started


@pytest.fixture(scope="module")
def trace(servers: list[ForkServer], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    with memory_folder() as memory:
        place = Place(tmp_path_factory.mktemp("whole"), memory)
        played = servers[0].run("begin", place.argument)
        place.check_end(played.value, [played])
    return played.trace


class Place:
    """A workspace, and in memory the data folder of its runs: both survive the process."""

    def __init__(self, folder: Path, memory: Path, url: str = "") -> None:
        self.root, self.data = folder / "root", memory / folder.name / "data"
        self.data.parent.mkdir()
        for name, text in BEFORE.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o640)
        self.argument = {"root": str(self.root), "data": str(self.data), "url": url}

    def remove(self) -> None:
        shutil.rmtree(self.root.parent)
        shutil.rmtree(self.data.parent)

    def files(self) -> dict[str, str]:
        return {
            path.relative_to(self.root).as_posix(): path.read_text()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def taken_back(self) -> set[str]:
        """The files of changes that were begun and then reverted."""
        undone = "SELECT path FROM {0}effects JOIN {0}changes ON {0}changes.id = change WHERE state = 'undone'"
        if url := self.argument["url"]:
            (name,) = self.data.rglob("shared_name")
            ours = f" AND mendgraph.all_changes.workspace = '{name.read_text().strip()}'"
            with psycopg.connect(url) as shared:
                rows = shared.execute(f"{undone.format('mendgraph.all_')}{ours}".encode()).fetchall()
            return {Path(os.fsdecode(path)).name for (path,) in rows}
        (store,) = self.data.rglob("store.sqlite")
        with closing(sqlite3.connect(store)) as database:
            return {Path(os.fsdecode(path)).name for (path,) in database.execute(undone.format(""))}

    def check_old_or_new(self) -> None:
        """At the instant of the kill, before anything could repair it; temporary files may exist."""
        files = {name: text for name, text in self.files().items() if not name.endswith(".mendgraph-tmp")}
        commanded = files.pop(COMMANDED, "ran\n")
        assert commanded == "ran\n"
        for name in {*BEFORE, *AFTER, *files}:
            assert files.get(name) in {BEFORE.get(name), AFTER.get(name)}, name

    def check_end(self, summary: Mapping[str, Any], played: Sequence[PlayResult]) -> None:
        assert (summary["kind"], summary["answer"]) == ("FINISHED", "All done.")
        files = self.files()
        results = [json.loads(text) for kind, text in summary["history"] if kind == "tool"]
        assert [result["ok"] for result in results[:5]] == [True] * 5, results
        command = results[5]
        assert len(results) == 6
        if command["ok"]:
            assert files.pop(COMMANDED) == "ran\n"
        else:
            assert command["error"]["code"] == "outcome_unknown"
            assert files.pop(COMMANDED, "ran\n") == "ran\n"
        assert files == AFTER
        assert {oct((self.root / name).stat().st_mode & 0o777) for name in BEFORE if name in AFTER} == {"0o640"}
        effects_of_all = effects(played)
        for name in self.taken_back():  # the patch was half applied, reverted by the next start, and applied again
            effects_of_all[name] -= 2 * (effects_of_all[name] == 3)
        assert effects_of_all <= EFFECTS, effects_of_all


def effects(played: Sequence[PlayResult]) -> Counter[str]:
    """How often each file of the workspace has changed."""
    counts: Counter[str] = Counter()
    for run in played:
        counts.update(match["name"] for line in run.trace if (match := NAMING.match(line)))
    return Counter({name: count for name, count in counts.items() if name in EFFECTS})


@sampled
def test_killed_run_resumes_with_the_same_result_from_any_point(
    servers: list[ForkServer], trace: tuple[str, ...], tmp_path: Path, memory: Path
) -> None:
    """Kills before each call that changes the disk; a whole sweep also kills after each call outside the database.

    Nothing changes on the disk between two calls, so "after" one is "before" the next.
    """

    def play(server: ForkServer, point: Point) -> None:
        place = Place(tmp_path / str(point), memory)
        first = server.run("begin", place.argument, point.at, point.how)
        place.check_old_or_new()
        second = server.run("resume", place.argument)
        # At `kill_before` the last call of the trace was not made any more.
        first_run = first
        if first.killed and point.how == "kill_before":
            first_run = replace(first, trace=first.trace[:-1])
        place.check_end(second.value, [first_run, second])
        place.remove()

    before = [Point("kill_before", at) for at in calls_to_visit(trace)]
    after = [
        Point("kill_after", at) for at, call in enumerate(trace, 1) if EXTENT == "all" and "store.sqlite" not in call
    ]
    every = [*before, *after, Point("kill_after", len(trace))]
    sweep(every, play, servers)


@slow
def test_killed_run_in_a_shared_store_resumes_with_the_same_result(
    servers: list[ForkServer], shared_store: str, tmp_path: Path, memory: Path
) -> None:
    """The server holds the dead run's lock of the workspace; `test_shared_store.py` cuts its connections."""

    def play(server: ForkServer, point: Point) -> None:
        place = Place(tmp_path / str(point), memory, shared_store)
        first = server.run("begin", place.argument, point.at, point.how)
        place.check_old_or_new()
        second = server.run("resume", place.argument)
        place.check_end(second.value, [first, second])
        place.remove()

    undisturbed = Place(tmp_path / "whole", memory, shared_store)
    played = servers[0].run("begin", undisturbed.argument)
    undisturbed.check_end(played.value, [played])
    choice = random.Random(5).sample(range(1, played.calls + 1), SHARED_KILLS)
    every = [Point("kill_after", at) for at in sorted(choice)]
    sweep(every, play, servers)


class Pair(NamedTuple):
    """Where the run was killed, and where its resumption."""

    first: int
    second: int

    def __str__(self) -> str:
        return f"kill_after:{self.first}+{self.second}"


@slow
def test_resumed_run_can_be_killed_again(
    servers: list[ForkServer], trace: tuple[str, ...], tmp_path: Path, memory: Path
) -> None:
    choice, calls = random.Random(4), len(trace)
    pairs = {Pair(choice.randint(1, calls), choice.randint(1, calls)) for _ in range(2 * SECOND_KILLS)}

    def play(server: ForkServer, pair: Pair) -> None:
        place = Place(tmp_path / str(pair), memory)
        first = server.run("begin", place.argument, pair.first, "kill_after")
        second = server.run("resume", place.argument, pair.second, "kill_after")
        place.check_old_or_new()
        third = server.run("resume", place.argument)
        place.check_end(third.value, [first, second, third])
        place.remove()

    chosen = sorted(pairs)[:: len(pairs) // SECOND_KILLS][:SECOND_KILLS]
    sweep(chosen, play, servers)


@sampled
def test_failed_work_is_restored_once_wherever_the_run_is_killed(
    servers: list[ForkServer], tmp_path: Path, memory: Path
) -> None:
    """The files are as before, and the attempt can be applied; applying it is killed at every point, too."""

    def place_of(name: str) -> Place:
        place = Place(tmp_path / name, memory)
        place.argument["fails"] = "yes"
        return place

    def check(place: Place, summary: Mapping[str, Any]) -> None:
        assert summary["message"].endswith("The files are as they were; the attempt is kept: mendgraph apply play"), (
            summary
        )
        assert summary["restored"] == ["a.txt", "b.txt", "c.txt", "d.txt", "new/file.txt"]
        assert place.files() == BEFORE
        assert not (place.root / "new").exists()

    def play(server: ForkServer, point: Point) -> None:
        place = place_of(str(point))
        server.run("begin", place.argument, point.at, point.how)
        place.check_old_or_new()
        check(place, server.run("resume", place.argument).value)
        server.run("again", place.argument, point.at, point.how)
        place.check_old_or_new()
        server.run("again", place.argument)
        assert place.files() == AFTER
        place.remove()

    undisturbed = place_of("whole")
    played = servers[0].run("begin", undisturbed.argument)
    check(undisturbed, played.value)
    first, *others = (at for at, call in enumerate(played.trace, 1) if call == "renameat c.txt")
    assert others  # it was changed, and changed back
    every = [Point("kill_before", first + at) for at in calls_to_visit(played.trace[first:])]
    sweep(every, play, servers)


@slow
@pytest.mark.parametrize("how", ["EIO", "ENOSPC"])
def test_disk_error_at_any_call_is_a_clear_error_and_damages_no_file(
    servers: list[ForkServer], trace: tuple[str, ...], tmp_path: Path, memory: Path, how: How
) -> None:
    """A whole sweep raises each of the two errors at every call, a short one at every fourth."""

    def play(server: ForkServer, point: Point) -> None:
        place = Place(tmp_path / str(point), memory)
        first = server.run("begin", place.argument, point.at, how)
        assert not first.killed
        assert first.value["kind"] in {"FINISHED", "SYSTEM_ERROR"}, first.value
        assert first.value["message"]
        assert "Traceback" not in first.stderr
        place.check_old_or_new()
        second = server.run("resume", place.argument)
        place.check_old_or_new()
        assert not [name for name in place.files() if name.endswith(".mendgraph-tmp")]
        assert second.value["kind"] == "FINISHED", second.value
        place.remove()

    calls = calls_to_visit(trace, failing=True)
    chosen = slice(None) if EXTENT == "all" else slice(["EIO", "ENOSPC"].index(how), None, 2)
    every = [Point(how, at) for at in calls[chosen]]
    sweep(every, play, servers)
