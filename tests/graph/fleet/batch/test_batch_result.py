"""What came of a batch, in numbers and in words."""

import pytest

from mendgraph.graph.fleet.batch.batch_result import BatchEnd, BatchResult, Tally, counted, way_to_go_on
from mendgraph.graph.fleet.batch.orders import TaskUsage
from mendgraph.nodes.records import OutcomeKind

PARTS = {"cached_tokens": 1, "reasoning_tokens": 2, "cache_write_tokens": 3}
USAGE = TaskUsage(calls=2, input_tokens=30, output_tokens=4, cost_usd=0.1, **PARTS)


def test_results_are_counted_and_added_up() -> None:
    tally = Tally()
    for kind in (OutcomeKind.FINISHED, OutcomeKind.FINISHED, OutcomeKind.BUDGET_STOP, OutcomeKind.SYSTEM_ERROR):
        tally.add(kind, USAGE)
    tally.add(OutcomeKind.FINISHED, TaskUsage(cost_usd=None))
    assert tally == Tally(3, 1, 1, 8, 120, 16, 4, 8, 12, 0.4, 1)
    assert tally.done == 5


@pytest.mark.parametrize(
    ("tally", "total", "words"),
    [
        (
            Tally(finished=2, stopped=1, failed=1),
            4,
            "4 of 4 tasks have results: 2 finished, 1 stopped by a limit, 1 failed",
        ),
        (Tally(finished=1), None, "1 task has a result: 1 finished"),
        (Tally(), 1, "0 of 1 task has a result"),
        (Tally(), 2_000, "0 of 2,000 tasks have results"),
    ],
)
def test_numbers_in_words(tally: Tally, total: int | None, words: str) -> None:
    assert counted(tally, total) == words


@pytest.mark.parametrize(
    ("end", "reason", "left", "words"),
    [
        (BatchEnd.COMPLETE, "", 0, "Each task has its result."),
        (
            BatchEnd.LIMIT,
            "Full.",
            1,
            "Full. 1 task is left: start the same batch again to go on, once the limit allows it.",
        ),
        (
            BatchEnd.CANCELLED,
            "by Ctrl-C",
            9,
            "It was stopped by Ctrl-C. 9 tasks are left: start the same batch again to go on.",
        ),
        (
            BatchEnd.CANCELLED,
            "by Ctrl-C",
            None,
            "It was stopped by Ctrl-C. Tasks are left: start the same batch again to go on.",
        ),
        (
            BatchEnd.FAILED,
            "The disk is full.",
            3,
            "The disk is full. 3 tasks are left: put this right, and start the same batch again to go on.",
        ),
    ],
)
def test_why_it_ended_and_how_to_go_on(end: BatchEnd, reason: str, left: int | None, words: str) -> None:
    assert way_to_go_on(end, reason, left) == words


def test_a_batch_is_fine_when_all_have_finished() -> None:
    whole = BatchResult("0a", "/out", BatchEnd.COMPLETE, "Each task has its result.", 2, Tally(finished=2))
    assert (whole.ok, whole.left) == (True, 0)
    assert str(whole) == "2 of 2 tasks have results: 2 finished. Each task has its result."
    assert not BatchResult("0a", "/out", BatchEnd.COMPLETE, "", 2, Tally(finished=1, failed=1)).ok
    open_one = BatchResult("0a", "/out", BatchEnd.CANCELLED, "", None, Tally(finished=1))
    assert (open_one.ok, open_one.left) == (False, None)
