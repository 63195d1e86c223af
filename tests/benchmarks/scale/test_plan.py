import json
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale.figures import Point
from benchmarks.scale.pages import PAGES, growth_of, plan_of, rewrite, rewritten
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
    per_run,
)
from benchmarks.scale.run import MEASURED
from benchmarks.scale.tables import Measured, document
from tests.architecture.product import ROOT


def measured(name: str = "threads", *, commits: int = 0, latency_s: float = 0.5, base: int = 100) -> Measured:
    """Three points on lines: 2 MB, 0.1 s and 0.2 MB for each run."""
    return Measured(name, latency_s, tuple(_point(runs, runs * commits, base) for runs in (1, 10, 20)))


def _point(runs: int, commits: int, base: int) -> Point:
    return Point(
        runs,
        wall_s=5.0,
        cpu_s=runs / 10,
        base=base,
        memory=runs * 2e6,
        threads=runs * 3,
        handles=runs * 4,
        store_bytes=runs * 2e5,
        calls=runs * 5,
        input_tokens=runs * 1_000,
        output_tokens=runs * 9,
        connections=4,
        database_cpu_s=runs / 50,
        commits=commits,
        log_bytes=runs * 10_000,
    )


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


def test_every_figure_of_a_run_has_its_source() -> None:
    rows = [row.strip("| ").split(" | ") for row in figures_table(FIGURES).splitlines()[2:]]
    assert [row[0] for row in rows if not row[3]] == []
    assert len(rows) == len(vars(FIGURES)) + 1
    assert len(assumptions_table().splitlines()) == len(vars(ASSUMED)) + 2


TOLD: dict[str, Any] = {
    "series": document([measured(IN_ONE_PROCESS), measured(ONE_MACHINE), measured(SHARED, commits=50)])
}
PAGE = "a\n<!-- scale: plan -->\nold\n<!-- end of scale: plan -->\nb\n"


def test_the_tables_of_a_page_are_made_anew() -> None:
    told = rewritten(PAGE, TOLD)
    assert told == f"a\n<!-- scale: plan -->\n\n{plan_of(TOLD)}\n<!-- end of scale: plan -->\nb\n"
    assert rewritten(told, TOLD) == told


def test_pages_are_rewritten_where_they_differ(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/scale.md").write_text(PAGE)
    assert rewrite(TOLD, tmp_path) == "rewritten: docs/scale.md"
    assert rewrite(TOLD, tmp_path) == "nothing to rewrite"


def test_the_tables_of_the_documents_are_those_of_the_measured_figures() -> None:
    told = json.loads(MEASURED.read_text("utf-8"))
    pages = {name: (ROOT / name).read_text("utf-8") for name in PAGES}
    assert {name: rewritten(page, told) == page for name, page in pages.items()} == dict.fromkeys(PAGES, True)
    both = "".join(pages.values())
    assert (growth_of(told) in both, plan_of(told) in both) == (True, True)
