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
    chosen = argparse.Namespace(rounds=2, at_once=(1, 2), tasks=(3,), latency=0.5)
    wrong: list[str] = []
    series = [Series("a", "threads"), Series("b", "batch"), Series("c", "threads", shared=True)]
    measured = list(run._measured(chosen, series, "", None, wrong))
    assert [(each.name, len(each.points)) for each in measured] == [("a", 1), ("b", 1)]
    assert wrong == ["a, 2: run-1 ended SYSTEM_ERROR"] * 2
