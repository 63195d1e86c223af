"""A pull is a bar on a terminal, and its phases elsewhere."""

import io

from rich.console import Console

from graph.terminal.pull_bar import PullBar
from nodes.call_model.weights import PullPhase, PullProgress

REPORTS = [
    PullProgress(PullPhase.WAITING, 0, 0),
    PullProgress(PullPhase.FETCHING, 500_000_000, 1_000_000_000),
    PullProgress(PullPhase.FETCHING, 750_000_000, 1_000_000_000),
    PullProgress(PullPhase.VERIFYING, 1_000_000_000, 1_000_000_000),
]


def shown(*, terminal: bool, reports: list[PullProgress]) -> str:
    file = io.StringIO()
    with PullBar(Console(file=file, force_terminal=terminal, width=100, legacy_windows=False)) as bar:
        for report in reports:
            bar(report)
    return file.getvalue()


def test_without_a_terminal_each_phase_is_a_line() -> None:
    assert shown(terminal=False, reports=REPORTS) == "waiting for another pull\nfetching\nverifying\n"


def test_a_terminal_that_cannot_draw_gets_lines_too() -> None:
    file = io.StringIO()
    with PullBar(Console(file=file, force_terminal=True, _environ={"TERM": "dumb"})) as bar:
        bar(REPORTS[1])
    assert file.getvalue() == "fetching\n"


def test_a_terminal_shows_one_bar_with_the_bytes_of_the_phase() -> None:
    drawn = shown(terminal=True, reports=REPORTS)
    last = drawn.rpartition("verifying")[2]
    assert "1.0/1.0 GB" in last
    assert "fetching" not in last


def test_nothing_is_drawn_before_the_first_report() -> None:
    assert shown(terminal=True, reports=[]) == ""
