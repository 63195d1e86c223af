"""What came of a batch, in numbers and in words."""

from multiprocessing.reduction import ForkingPickler

import pytest

from mendgraph.graph.fleet.batch.batch_folder import BatchEnd, BatchResult, Done, Tally, counted, way_to_go_on
from mendgraph.graph.fleet.batch.tasks import BatchTask, TaskResult, TaskUsage, Worked, WorkOrder, cancelled, failed
from mendgraph.nodes.records import OutcomeKind, ToolError, ToolErrorCode

PARTS = {"cached_tokens": 1, "reasoning_tokens": 2, "cache_write_tokens": 3}
USAGE = TaskUsage(calls=2, input_tokens=30, output_tokens=4, cost_usd=0.1, **PARTS)


def test_results_are_counted_and_added_up() -> None:
    tally = Tally()
    for kind in (OutcomeKind.FINISHED, OutcomeKind.FINISHED, OutcomeKind.BUDGET_STOP, OutcomeKind.SYSTEM_ERROR):
        tally.add(Done("", kind, USAGE))
    tally.add(Done("", OutcomeKind.FINISHED, TaskUsage(cost_usd=None), refused=True))
    assert tally == Tally(3, 1, 1, 8, 120, 16, 4, 8, 12, 0.4, 1, refused=1)
    assert tally.done == 5


@pytest.mark.parametrize(
    ("tally", "end", "words"),
    [
        (
            Tally(finished=1, stopped=1),
            BatchEnd.COMPLETE,
            "1 finished, 1 stopped by a limit. Each task",
        ),
        (Tally(finished=1), BatchEnd.LIMIT, "Full. 1 task is left: start the same batch again to go on, once the"),
        (Tally(), BatchEnd.CANCELLED, "It was stopped Full.. 2 tasks are left: start the same batch again to go on."),
        (Tally(failed=1), BatchEnd.FAILED, "1 failed. Full. 1 task is left: put this right, and start the same"),
    ],
)
def test_batch_says_in_words_how_it_ended(tally: Tally, end: BatchEnd, words: str) -> None:
    found = BatchResult("0a", "/out", end, way_to_go_on(end, "Full.", 2 - tally.done), 2, tally)
    assert words in str(found)
    assert str(found).startswith(f"{tally.done} of 2 tasks have results")
    assert (found.ok, found.left) == (False, 2 - tally.done)
    assert BatchResult("0a", "/out", BatchEnd.COMPLETE, "", 1, Tally(finished=1)).ok
    assert counted(Tally(finished=1), 1) == "1 of 1 task has a result: 1 finished"
    refused = counted(Tally(finished=3, refused=2), 3)
    assert refused == "3 of 3 tasks have results: 3 finished; something was refused in 2"


TASK = BatchTask(id="a.1", prompt="p", workspace="/w")
ORDER = WorkOrder("0a1b", TASK, "{}", "/out/work/a.1", task_hash="f00", tries=2)
ERROR = ToolError(code=ToolErrorCode.NOT_FOUND, message="it is not there")


def test_order_names_the_run_and_the_store() -> None:
    assert (ORDER.run_id, ORDER.shared_name) == ("0a1b-a.1", "batch/0a1b/a.1")


def test_orders_and_what_comes_of_them_can_be_sent() -> None:
    worked = Worked(failed(ORDER, ERROR), b"patch")
    assert ForkingPickler.loads(ForkingPickler.dumps((ORDER, worked))) == (ORDER, worked)


def test_failure_is_a_result_with_its_error() -> None:
    result = failed(ORDER, ERROR)
    assert (result.id, result.kind, result.reason) == ("a.1", OutcomeKind.SYSTEM_ERROR, "workspace_failed")
    assert (result.message, result.error, result.tries, result.task) == ("it is not there", ERROR, 2, "f00")
    assert TaskResult.model_validate_json(result.model_dump_json()) == result


def test_what_was_stopped_has_no_result_yet() -> None:
    stopped = cancelled(ORDER, "by Ctrl-C")
    assert (stopped.kind, stopped.message, stopped.is_final) == (
        OutcomeKind.BUDGET_STOP,
        "The task was stopped by Ctrl-C.",
        False,
    )


@pytest.mark.parametrize(
    ("reason", "final"),
    [("answered", True), ("max_calls_per_turn", True), ("account_limit", False), ("day_limit", False)],
)
def test_limits_of_all_tasks_leave_a_task_open(reason: str, final: bool) -> None:
    assert failed(ORDER, ERROR, reason).is_final is final
