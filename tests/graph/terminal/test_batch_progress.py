"""How a batch goes, as people see it: in a bar of any width, or a line for each result."""

from contextlib import closing
from io import StringIO

import pytest
from rich.console import Console

from mendgraph.graph.fleet.batch.batch_result import Tally
from mendgraph.graph.fleet.batch.orders import TaskResult, TaskUsage
from mendgraph.graph.terminal.answers import clock
from mendgraph.graph.terminal.batch_progress import BatchProgress, State, result_line, status
from mendgraph.nodes.records import OutcomeKind

USAGE = TaskUsage(calls=2)
GOOD = TaskResult(
    id="a", kind=OutcomeKind.FINISHED, reason="answered", message="Done.", changed=("x",), usage=USAGE, seconds=1.25
)
BAD = TaskResult(id="b", kind=OutcomeKind.SYSTEM_ERROR, reason="provider_failed", message="No\x1b[31m one.\nThere")
OPEN = TaskResult(id="c", kind=OutcomeKind.BUDGET_STOP, reason="cancelled", message="The task was stopped.")
LINES = (
    "FINISHED a answered (2 calls, 1.2 s; changed 1 file)\n"
    "SYSTEM_ERROR b provider_failed (0 calls, 0.0 s): No\\x1b[31m one. There\n"
    "LEFT c cancelled (0 calls, 0.0 s): The task was stopped.\n"
)


def state(**changed: object) -> State:
    tally = Tally(finished=120, stopped=2, failed=1, cost_usd=1.5)
    usual = {"tally": tally, "total": 1_000, "done_before": 23, "began_s": 0.0, "at_work": 4}
    return State(lambda: 120.0, **{**usual, **changed})  # type: ignore[arg-type]


def test_what_matters_most_comes_first() -> None:
    assert status(state()) == "123/1,000 · 17:32 left · 1 failed · 2 stopped · 1.5000 USD · 50.0/min · 4 at work"
    assert status(state(total=None)).startswith("123 · 1 failed")
    assert status(State(lambda: 0.0)) == "0"
    assert status(state(stopping="by Ctrl-C")).startswith("123/1,000 · stopping by Ctrl-C; again: at once · 1 failed")


@pytest.mark.parametrize(("seconds", "words"), [(4.6, "0:05"), (754, "12:34"), (3_723, "1:02:03")])
def test_durations(seconds: float, words: str) -> None:
    assert clock(seconds) == words


def shown(out: Console, err: Console) -> None:
    with closing(BatchProgress(out, err, lambda: 1.0)) as progress:
        progress.began(Tally(finished=1), 3)
        for result in (GOOD, BAD, OPEN):
            progress.task_began(result.id)
            progress.task_ended(result)
        assert progress.state.at_work == 0
        assert progress.stopping("by Ctrl-C") is err.is_terminal


def test_without_a_terminal_each_result_is_a_plain_line() -> None:
    out, err = StringIO(), StringIO()
    shown(Console(file=out), Console(file=err))
    assert (out.getvalue(), err.getvalue()) == (LINES, "")


@pytest.mark.parametrize("width", [40, 100])
def test_at_a_terminal_there_is_a_bar_and_what_went_wrong(width: int) -> None:
    out, err = StringIO(), StringIO()
    terminal = Console(file=err, force_terminal=True, width=width, no_color=True)
    shown(Console(file=out, force_terminal=True), terminal)
    assert out.getvalue() == ""
    said = err.getvalue()
    assert "1/3" in said
    assert "SYSTEM_ERROR b" in said
    assert "FINISHED a" not in said
    assert "[31m" not in said.replace("\\x1b[31m", "")
    assert "━" in said


def test_a_file_gets_the_lines_while_the_terminal_has_the_bar() -> None:
    out, err = StringIO(), StringIO()
    shown(Console(file=out), Console(file=err, force_terminal=True, width=80))
    assert out.getvalue() == LINES


def test_a_result_has_one_line() -> None:
    long = GOOD.model_copy(update={"kind": OutcomeKind.BUDGET_STOP, "message": "x" * 500})
    assert len(result_line(long)) == 200
