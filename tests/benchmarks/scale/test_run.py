import argparse
from typing import Any

import pytest

from benchmarks.scale import run
from benchmarks.scale.crew import NotDoneError, Series
from benchmarks.scale.figures import Point

POINT = Point(1, 1.0, 1.0, 0, 0, 0, 0, 0, 0, 0, 0)


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
