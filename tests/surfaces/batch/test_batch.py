"""A batch in its folder: which tasks start, what is written, what ends it. The work is scripted."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch.batch import Batch, BatchOptions, account_of, find_changed_tasks
from mendgraph.graph.fleet.batch.batch_folder import BatchEnd, BatchFolder, BatchResult, Tally, open_batch_folder
from mendgraph.graph.fleet.batch.tasks import BatchTask, TaskOutput, TaskResult, WorkOrder, failed_result
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.surfaces.batch.scripted_work import InTurn, done
from tests.surfaces.spending.spending_entries import entry

ERROR = ToolError(code=ToolErrorCode.RATE_LIMITED, message="The limit is reached.")
CAPPED = BatchOptions(AgentContext(max_steps=3), max_cost_usd=0.5, max_tokens=9)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchFolder]:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    opened = open_batch_folder(str(tmp_path / "out"))
    assert isinstance(opened, BatchFolder)
    with opened:
        yield opened


def task(name: str, prompt: str = "p") -> BatchTask:
    return BatchTask(id=name, prompt=prompt, workspace="/nowhere")


TWO = (task("a"), task("b"))


def batch(
    folder: BatchFolder,
    work: Callable[[WorkOrder], TaskOutput] = done,
    tasks: Any = TWO,
    terms: BatchOptions | None = None,
    workers: int = 1,
    **options: Any,
) -> Batch:
    return Batch(tasks, folder, InTurn(work, workers), terms or BatchOptions(), **options)


def fail_if_started(order: WorkOrder) -> TaskOutput:
    pytest.fail(f"{order.task.id} was begun")


def spend(folder: BatchFolder, tokens: int, cost: float) -> None:
    """Charge a call to the batch's account."""
    with closing(SpendingStore()) as book:
        call = entry(tokens=tokens, cost=cost)
        assert isinstance(book.reserve(call, RunLimits(account=account_of(folder.batch))), int)


def test_each_task_runs_once_and_each_result_is_reported(folder: BatchFolder) -> None:
    orders: list[WorkOrder] = []
    heard: list[str] = []

    def work(order: WorkOrder) -> TaskOutput:
        orders.append(order)
        return done(order)

    result = batch(folder, work).run(lambda result: heard.append(f"{result.id} {result.reason}"))
    assert result == BatchResult(folder.batch, folder.path, BatchEnd.COMPLETE, "Each task has its result.", 2, Tally(2))
    assert heard == ["a answered", "b answered"]
    first = orders[0]
    assert (first.folder, first.task_hash) == (f"{folder.path}/work/a", task("a").sha256)
    assert (first.context, first.without) == (AgentContext().model_dump_json(), (folder.path,))

    again = batch(folder, work, [*TWO, task("c")])
    assert (again.tally, again.total) == (Tally(2), 3)
    assert again.run().tally == Tally(3)
    assert [order.task.id for order in orders] == ["a", "b", "c"]


def test_limits_of_a_batch_apply_to_its_own_account(folder: BatchFolder) -> None:
    contexts: list[AgentContext] = []

    def work(order: WorkOrder) -> TaskOutput:
        contexts.append(AgentContext.model_validate_json(order.context))
        return done(order)

    batch(folder, work, terms=CAPPED).run()
    context = contexts[0]
    assert (context.account, context.max_steps) == (f"batch/{folder.batch}", 3)
    assert (context.max_cost_usd_per_account, context.max_tokens_per_account) == (0.5, 9)


@pytest.mark.parametrize(
    ("tokens", "cost", "words"),
    [
        (
            5,
            0.5,
            "0.5000 of 0.5 USD (--max-cost) and 5 of 9 tokens (--max-tokens) are used. Raise it. 2 tasks",
        ),
        (9, 0.25, "0.2500 of 0.5 USD (--max-cost) and 9 of 9 tokens"),
    ],
)
def test_no_task_starts_after_the_limit_of_the_batch_is_reached(
    folder: BatchFolder, tokens: int, cost: float, words: str
) -> None:
    spend(folder, tokens, cost)
    result = batch(folder, fail_if_started, terms=CAPPED).run()
    assert (result.end, result.left) == (BatchEnd.LIMIT, 2)
    assert result.message.startswith(f"The limit for the whole batch leaves no room for another call: {words}")


def test_no_task_starts_if_the_spending_cannot_be_read(
    folder: BatchFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "file"))
    result = batch(folder, fail_if_started, terms=CAPPED).run()
    assert (result.end, result.message.partition(".")[0]) == (BatchEnd.LIMIT, "The spending database cannot be read")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("account_limit", "another call: 0.2500 of 0.5 USD (--max-cost) and 8 of 9 tokens (--max-tokens) are used."),
        ("day_limit", "The limit is reached. 2 tasks are left"),
    ],
)
def test_limit_reached_by_one_task_ends_the_batch(folder: BatchFolder, reason: str, words: str) -> None:
    heard: list[str] = []

    def work(order: WorkOrder) -> TaskOutput:
        spend(folder, 8, 0.25)
        return TaskOutput(failed_result(order, ERROR, reason))

    result = batch(folder, work, terms=CAPPED).run(lambda result: heard.append(f"{result.id} {result.reason}"))
    assert words in result.message
    assert (result.end, result.left, folder.completed) == (BatchEnd.LIMIT, 2, {})
    assert heard == [f"a {reason}"]


def test_cancelled_batch_reports_who_cancelled_it(folder: BatchFolder) -> None:
    stopped = batch(folder)
    result = stopped.run(lambda _: stopped.cancel("by the test"))
    assert (result.end, result.total, result.tally) == (BatchEnd.CANCELLED, 2, Tally(1))
    assert result.message == "It was stopped by the test. 1 task is left: start the same batch again to continue."


@pytest.mark.parametrize(("name", "workers", "written"), [("begin", 2, []), ("write", 1, ["a"])])
def test_full_disk_ends_the_batch_and_nothing_more_is_written(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch, name: str, workers: int, written: list[str]
) -> None:
    real = getattr(BatchFolder, name)

    def full(self: BatchFolder, what: BatchTask | TaskOutput) -> Any:
        if (what.id if isinstance(what, BatchTask) else what.result.id) == "b":
            raise OSError(28, "No space left on device")
        return real(self, what)

    monkeypatch.setattr(BatchFolder, name, full)
    result = batch(folder, workers=workers).run()
    assert (result.end, [*folder.completed]) == (BatchEnd.FAILED, written)
    assert "the disk is full" in result.message


@pytest.mark.parametrize("number", [28, 122])
def test_full_disk_of_a_worker_ends_the_batch_without_a_result(folder: BatchFolder, number: int) -> None:
    full = os_failure(OSError(number, "full"), "copy", "a.py")
    result = batch(folder, lambda order: TaskOutput(failed_result(order, full))).run()
    words = f"{full.message} 2 tasks are left: fix this, then start the same batch again."
    assert (result.end, result.message, folder.completed) == (BatchEnd.FAILED, words, {})
    assert batch(folder).run().ok


def test_copy_without_a_patch_is_kept(folder: BatchFolder) -> None:
    def work(order: WorkOrder) -> TaskOutput:
        return TaskOutput(done(order).result.model_copy(update={"base": "c0ffee", "error": ERROR}))

    copy = Path(folder.path, "work", "a")
    copy.mkdir()
    batch(folder, work, remove_copies=True).run()
    assert copy.exists()


def test_changed_tasks_are_refused_by_name(folder: BatchFolder) -> None:
    tasks = [task(f"t{number}") for number in range(12)]
    for line in tasks:
        folder.begin(line)
    assert find_changed_tasks(folder, tasks) is None
    one = find_changed_tasks(folder, [task("t0", "q")])
    many = find_changed_tasks(folder, [task(line.id, "q") for line in tasks])
    assert one is not None
    assert one.message.startswith("1 task was changed after it was started in this folder (t0): restore the old text")
    assert many is not None
    assert many.message.startswith("12 tasks were changed after they were started in this folder (t0, t1,")
    assert "t4 and 7 more): restore the old text" in many.message


def test_result_is_written_before_a_failing_callback(folder: BatchFolder) -> None:
    def failing(result: TaskResult) -> None:
        raise BrokenPipeError(result.id)

    with pytest.raises(BrokenPipeError):
        batch(folder).run(failing)
    assert [*folder.completed] == ["a"]
