"""A batch in its folder: what is begun, what is written, what ends it. The work is scripted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.fleet.batch import batch as whole
from mendgraph.graph.fleet.batch.batch import Batch, Terms, changed_since
from mendgraph.graph.fleet.batch.batch_folder import BatchEnd, BatchFolder, BatchResult, Tally, open_batch_folder
from mendgraph.graph.fleet.batch.local import ThreadExecutor
from mendgraph.graph.fleet.batch.tasks import BatchTask, TaskResult, Worked, WorkOrder, failed
from mendgraph.graph.spending.store import AccountSpent
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import ToolError, ToolErrorCode, os_failure
from tests.graph.fleet.batch.scripted_work import done

ERROR = ToolError(code=ToolErrorCode.RATE_LIMITED, message="The limit is reached.")


def heard_by(told: list[str]) -> Callable[[TaskResult], None]:
    return lambda result: told.append(f"{result.id} {result.reason}")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[BatchFolder]:
    opened = open_batch_folder(str(tmp_path / "out"), {})
    assert isinstance(opened, BatchFolder)
    with opened:
        yield opened


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[WorkOrder]:
    taken: list[WorkOrder] = []

    def work(order: WorkOrder, _: StopRequest, __: object) -> Worked:
        taken.append(order)
        limited = order.task.prompt == "limit"
        return Worked(failed(order, ERROR, "account_limit")) if limited else done(order)

    monkeypatch.setattr("mendgraph.graph.fleet.batch.local.work", work)
    return taken


def task(name: str, prompt: str = "p") -> BatchTask:
    return BatchTask(id=name, prompt=prompt, workspace="/nowhere")


def batch(tasks: Any, folder: BatchFolder, terms: Terms | None = None, **options: Any) -> Batch:
    return Batch(tasks, folder, ThreadExecutor(1), terms or Terms(), **options)


def test_batch_is_heard_and_every_task_is_ordered_once(folder: BatchFolder, orders: list[WorkOrder]) -> None:
    told: list[str] = []
    found = batch([task("a"), task("b")], folder).run(heard_by(told))
    assert found == BatchResult(folder.batch, folder.path, BatchEnd.COMPLETE, "Each task has its result.", 2, Tally(2))
    assert told == ["a answered", "b answered"]
    first = orders[0]
    assert (first.folder, first.task_hash) == (f"{folder.path}/work/a", task("a").sha256)
    assert (first.context, first.without) == (AgentContext().model_dump_json(), (folder.path,))
    again = batch([task("a"), task("b"), task("c")], folder)
    assert (again.tally, again.total) == (Tally(2), 3)
    assert again.run(heard_by(told)).tally == Tally(3)
    assert told[2:] == ["c answered"]


def test_caps_are_those_of_the_batchs_own_account(folder: BatchFolder, orders: list[WorkOrder]) -> None:
    batch([task("a")], folder, Terms(AgentContext(max_steps=3), max_cost_usd=0.5)).run()
    (order,) = orders
    context = AgentContext.model_validate_json(order.context)
    assert (context.account, context.max_steps) == (f"batch/{folder.batch}", 3)
    assert (context.max_cost_usd_per_account, context.max_tokens_per_account) == (0.5, None)


@pytest.mark.parametrize(
    ("spent", "words"),
    [
        (
            AccountSpent(account="x", cost_usd=0.5),
            "The limit for the whole batch leaves no room for another call: 0.5000 of 0.5 USD (--max-cost) and 0 of 9",
        ),
        (AccountSpent(account="x", tokens=9), "The limit for the whole batch leaves no room for another call: 0.0000"),
        (ERROR, "The limit is reached."),
    ],
)
def test_nothing_begins_once_the_cap_is_reached(
    folder: BatchFolder,
    orders: list[WorkOrder],
    monkeypatch: pytest.MonkeyPatch,
    spent: AccountSpent | ToolError,
    words: str,
) -> None:
    monkeypatch.setattr(whole, "account_spent", lambda _: spent)
    found = batch([task("a")], folder, Terms(max_cost_usd=0.5, max_tokens=9)).run()
    assert (found.end, found.left, orders) == (BatchEnd.LIMIT, 1, [])
    assert found.message.startswith(words)


@pytest.mark.parametrize(
    ("spent", "words"),
    [
        (
            AccountSpent(account="x", tokens=8, cost_usd=0.25),
            "another call: 0.2500 of 0.5 USD (--max-cost) and 8 of 9 tokens (--max-tokens) are used. Raise it. 2 tasks",
        ),
        (ERROR, "The limit is reached. 2 tasks"),
    ],
)
def test_limit_that_a_task_meets_is_that_of_all(
    folder: BatchFolder,
    orders: list[WorkOrder],
    monkeypatch: pytest.MonkeyPatch,
    spent: AccountSpent | ToolError,
    words: str,
) -> None:
    answers = iter([AccountSpent(account="x"), spent])
    monkeypatch.setattr(whole, "account_spent", lambda _: next(answers))
    told: list[str] = []
    terms = Terms(max_cost_usd=0.5, max_tokens=9)
    found = batch([task("a", "limit"), task("b")], folder, terms).run(heard_by(told))
    assert words in found.message
    assert (found.end, found.tally.done, len(orders)) == (BatchEnd.LIMIT, 0, 1)
    assert told == ["a account_limit"]
    assert folder.done == {}


def test_batch_that_is_cancelled_says_by_whom(folder: BatchFolder, orders: list[WorkOrder]) -> None:
    stopped = batch([task("a"), task("b")], folder)

    found = stopped.run(lambda _: stopped.cancel("by the test"))
    assert (found.end, found.total, found.tally, len(orders)) == (BatchEnd.CANCELLED, 2, Tally(1), 1)
    assert found.message == "It was stopped by the test. 1 task is left: start the same batch again to go on."


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("name", ["begin", "write"])
def test_disk_that_is_full_ends_the_batch(folder: BatchFolder, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(BatchFolder, name, full)
    found = batch([task("a"), task("b")], folder).run()
    assert (found.end, found.tally.done) == (BatchEnd.FAILED, 0)
    assert "No space left on device" in found.message or "full" in found.message


@pytest.mark.parametrize("number", [28, 122])
def test_disk_without_room_for_a_copy_or_a_patch_ends_the_batch_and_is_no_result(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    full = os_failure(OSError(number, "full"), "copy", "a.py")
    monkeypatch.setattr("mendgraph.graph.fleet.batch.local.work", lambda order, *_: Worked(failed(order, full)))
    found = batch([task("a"), task("b")], folder).run()
    told = f"{full.message} 2 tasks are left: put this right, and start the same batch again to go on."
    assert (found.end, found.message, folder.done) == (BatchEnd.FAILED, told, {})
    monkeypatch.setattr("mendgraph.graph.fleet.batch.local.work", lambda order, *_: done(order))
    assert batch([task("a"), task("b")], folder).run().ok


def test_copy_of_which_no_patch_could_be_made_is_not_removed(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(order: WorkOrder, *_: object) -> Worked:
        return Worked(done(order).result.model_copy(update={"base": "c0ffee", "error": ERROR}))

    monkeypatch.setattr("mendgraph.graph.fleet.batch.local.work", work)
    place = Path(folder.path, "work", "a")
    place.mkdir()
    batch([task("a")], folder, remove_copies=True).run()
    assert place.exists()


def test_of_many_tasks_that_have_changed_some_are_named(folder: BatchFolder) -> None:
    tasks = [task(f"t{number}") for number in range(12)]
    for each in tasks:
        folder.begin(each)
    assert changed_since(folder, tasks) is None
    one = changed_since(folder, [task("t0", "q")])
    assert one is not None
    assert one.message.startswith("1 task was changed after it was begun in this folder (t0): put the old text back")
    found = changed_since(folder, [task(each.id, "q") for each in tasks])
    assert found is not None
    assert found.message.startswith("12 tasks were changed after they were begun in this folder (t0, t1,")
    assert "t4 and 7 more): put the old text back" in found.message


@pytest.mark.usefixtures("orders")
def test_what_hears_may_fail(folder: BatchFolder) -> None:
    def failing(result: TaskResult) -> None:
        raise BrokenPipeError(result.id)

    with pytest.raises(BrokenPipeError):
        batch([task("a"), task("b")], folder).run(failing)
    assert [*folder.done] == ["a"]


@pytest.mark.usefixtures("orders")
def test_results_are_not_written_any_more_once_the_disk_was_full(
    folder: BatchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BatchFolder.begin

    def begin(self: BatchFolder, begun: BatchTask) -> None:
        if begun.id == "b":
            raise OSError(28, "No space left on device")
        real(self, begun)

    monkeypatch.setattr(BatchFolder, "begin", begin)
    two = Batch([task("a"), task("b")], folder, ThreadExecutor(2), Terms())
    assert two.run().end is BatchEnd.FAILED
    assert folder.done == {}
