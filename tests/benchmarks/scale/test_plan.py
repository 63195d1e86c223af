from dataclasses import replace
from math import ceil

import pytest

from benchmarks.scale.plan import (
    ASSUMED,
    EMBEDDED,
    IN_ONE_PROCESS,
    ONE_MACHINE,
    SHARED,
    PerRun,
    assumptions_table,
    figures_table,
    need,
    needs_table,
    per_run,
)
from tests.benchmarks.scale.test_tables import measured

FIGURES = PerRun(
    cpu_s=0.1,
    memory=2e6,
    base=1e8,
    store=2e5,
    shared_store=1e5,
    server_cpu_s=0.05,
    commits=50,
    log_bytes=1e5,
    connections=20,
    input_tokens=10_000,
    output_tokens=200,
)


def test_the_figures_of_a_run_are_those_of_the_lines() -> None:
    found = per_run([measured(IN_ONE_PROCESS), measured(ONE_MACHINE), measured(SHARED, commits=50)])
    assert vars(found) == pytest.approx(
        {
            "cpu_s": 0.1,
            "memory": 2e6,
            "base": 100,
            "store": 2e5,
            "shared_store": 2e5,
            "server_cpu_s": 0.02,
            "commits": 50,
            "log_bytes": 10_000,
            "connections": 4,
            "input_tokens": 1_000,
            "output_tokens": 5 * 224 / 2.1,
        }
    )


def test_a_series_that_was_not_measured_is_named() -> None:
    with pytest.raises(KeyError, match=SHARED):
        per_run([measured(IN_ONE_PROCESS), measured(ONE_MACHINE)])


def test_what_a_day_needs() -> None:
    found = need(86_400, FIGURES, replace(ASSUMED, peak=2, call_s=1, busy=0.5, at_once=5, kept_days=10))
    assert vars(found) == pytest.approx(
        {
            "runs": 86_400,
            "rate": 1,
            "peak_rate": 2,
            "at_once": 10.2,
            "cores": 0.4,
            "processes": 3,
            "memory": 3e8 + 10.2 * 2e6,
            "store_a_day": 86_400 * 1e5,
            "store_kept": 864_000 * 1e5,
            "commits_s": 100,
            "log_s": 2e5,
            "server_cores": 0.2,
            "servers": 1,
            "connections": 15,
            "input_tokens_s": 20_000,
            "output_tokens_s": 400,
            "request_bytes_s": 80_000,
            "gpus": 1,
            "embedded_cores": ceil(4 * EMBEDDED.core_seconds),
        }
    )


def test_ten_times_the_runs_are_ten_times_the_work() -> None:
    one, ten = need(10**6, FIGURES), need(10**7, FIGURES)
    for name in ("cores", "at_once", "store_a_day", "commits_s", "input_tokens_s"):
        assert getattr(ten, name) == pytest.approx(10 * getattr(one, name))
    assert ten.servers > one.servers


def test_a_formula_stands_beside_each_figure() -> None:
    head, line, *rows = needs_table(FIGURES, (1_000, 10**7)).splitlines()
    assert (head, line) == ("| runs a day | formula | 1,000 | 10,000,000 |", "| --- | --- | ---: | ---: |")
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert {len(row) for row in cells} == {4}
    assert ["commits a second", "peak rate x commits", "2", "17,361"] in cells


def test_every_figure_of_a_run_has_its_source() -> None:
    rows = [row.strip("| ").split(" | ") for row in figures_table(FIGURES).splitlines()[2:]]
    assert [row[0] for row in rows if not row[3]] == []
    assert len(rows) == len(vars(FIGURES)) + 1
    assert len(assumptions_table().splitlines()) == len(vars(ASSUMED)) + 2
