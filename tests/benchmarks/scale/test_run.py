import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale import run
from benchmarks.scale.crew import NotDoneError, Series
from benchmarks.scale.figures import Point
from benchmarks.scale.plan import IN_ONE_PROCESS, ONE_MACHINE, SHARED
from benchmarks.scale.script import changed_files, files
from benchmarks.scale.server import endpoint
from benchmarks.scale.ways import BATCH, LOOP, WAYS, Place
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE

POINT = Point(1, 1.0, 1.0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_the_plan_is_made_of_series_that_are_measured() -> None:
    assert {IN_ONE_PROCESS, ONE_MACHINE, SHARED} <= {each.name for each in run.SERIES}


def test_runs_that_did_not_do_their_work_are_told_and_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def point(series: Series, runs: int, *_: Any) -> Point:
        if runs == 2 and series.name == "a":
            raise NotDoneError("run-1 ended SYSTEM_ERROR")
        return POINT

    monkeypatch.setattr(run, "_point", point)
    chosen = argparse.Namespace(rounds=2, at_once=(1, 2), latency=0.5)
    wrong: list[str] = []
    series = [Series("a", "threads"), Series("b", "threads", waits=False), Series("c", "threads", shared=True)]
    measured = list(run._measured(chosen, series, {True: "", False: ""}, None, wrong))
    assert [(each.name, each.latency_s, len(each.points)) for each in measured] == [("a", 0.5, 1), ("b", 0.0, 2)]
    assert wrong == ["a, 2 at once: run-1 ended SYSTEM_ERROR"] * 2


@pytest.mark.parametrize("way", [BATCH, LOOP])
def test_each_run_does_its_work(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_DIR_VARIABLE, str(tmp_path / "data"))
    with endpoint(0.0) as url:
        place = Place(url, str(tmp_path))
        for name in ("a", "b"):
            for path, text in files().items():
                file = Path(place.workspace(name), path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        ended = WAYS[way](place, ["a", "b"])
    assert {name: end.kind for name, end in ended.items()} == {"a": "FINISHED", "b": "FINISHED"}
    for end in ended.values():
        assert {path: Path(end.root, path).read_text() for path in files()} == changed_files()
