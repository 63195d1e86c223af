"""What travels between a batch and its workers: picklable, and named alike wherever it is."""

from multiprocessing.reduction import ForkingPickler

import pytest

from mendgraph.graph.fleet.batch.orders import TaskResult, Worked, WorkOrder, cancelled, failed
from mendgraph.graph.fleet.batch.tasks import BatchTask
from mendgraph.nodes.records import OutcomeKind, ToolError, ToolErrorCode

TASK = BatchTask(id="a.1", prompt="p", workspace="/w")
ORDER = WorkOrder("0a1b", TASK, "{}", "/out/work/a.1", known_as="f00", tries=2)
ERROR = ToolError(code=ToolErrorCode.NOT_FOUND, message="it is not there")


def test_an_order_names_the_run_the_account_and_the_store() -> None:
    assert (ORDER.run_id, ORDER.account, ORDER.shared_name) == ("0a1b-a.1", "batch/0a1b", "batch/0a1b/a.1")
    assert (ORDER.task_hash, ORDER._replace(known_as="").task_hash) == ("f00", TASK.sha256)


def test_orders_and_what_comes_of_them_can_be_sent() -> None:
    worked = Worked(failed(ORDER, ERROR), b"patch")
    assert ForkingPickler.loads(ForkingPickler.dumps((ORDER, worked))) == (ORDER, worked)


def test_a_failure_is_a_result_with_its_error() -> None:
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
