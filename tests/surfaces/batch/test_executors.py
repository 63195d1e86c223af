"""Threads and processes run the orders: one for each worker, and none after a cancellation."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from mendgraph.graph.fleet.batch import executors
from mendgraph.graph.fleet.batch.executors import ProcessExecutor, ThreadExecutor
from mendgraph.graph.fleet.batch.tasks import TaskOutput, TaskResult, WorkOrder
from mendgraph.graph.machine.options import SessionOptions
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import OutcomeKind
from tests.extent import slow
from tests.surfaces.batch.scripted_work import Work, done, order, wait_for_stop

Use = Callable[[Work], None]


@pytest.fixture
def set_work(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Gives the executors of this process their work."""
    return lambda work: monkeypatch.setattr(executors, "run_order", work)


def test_each_order_has_an_output_and_orders_are_taken_lazily(set_work: Use) -> None:
    heard: list[SessionOptions | None] = []
    numbers: list[str] = []

    def work(work_order: WorkOrder, _: StopRequest, options: SessionOptions | None) -> TaskOutput:
        heard.append(options)
        return done(work_order)

    def orders() -> Iterator[WorkOrder]:
        for number in range(9):
            numbers.append(str(number))
            yield order(str(number))

    set_work(work)
    ends = []
    for worked in ThreadExecutor(3, {"secrets": ("s",)}).run(orders()):
        ends.append(worked.result.id)
        assert len(numbers) <= len(ends) + 2
    assert sorted(ends) == numbers
    assert heard == [{"secrets": ("s",)}] * 9


def test_cancel_stops_active_orders_and_takes_no_more(set_work: Use) -> None:
    set_work(wait_for_stop)
    executor = ThreadExecutor(2)

    def orders() -> Iterator[WorkOrder]:
        yield order("a")
        yield order("b")
        pytest.fail("a third one was taken")

    stopper = threading.Timer(0.05, executor.cancel, args=("by the test",))
    stopper.start()
    results = [worked.result for worked in executor.run(orders())]
    stopper.join()
    assert sorted((result.id, result.message) for result in results) == [
        (name, "The task was stopped by the test.") for name in ("a", "b")
    ]


def test_thread_that_does_not_stop_is_abandoned(set_work: Use) -> None:
    free = threading.Event()

    def work(work_order: WorkOrder, _: StopRequest, __: SessionOptions | None) -> TaskOutput:
        executor.cancel("by the test")
        assert free.wait(60)
        return done(work_order)

    set_work(work)
    executor = ThreadExecutor(1, stop_timeout_s=0.05)
    (worked,) = executor.run(iter([order("a")]))
    free.set()
    assert (worked.result.reason, worked.result.is_final) == ("cancelled", False)


def test_closing_the_outputs_stops_active_orders(set_work: Use) -> None:
    stopped = threading.Event()

    def work(work_order: WorkOrder, stop: StopRequest, options: SessionOptions | None) -> TaskOutput:
        if work_order.task.id == "a":
            return done(work_order)
        worked = wait_for_stop(work_order, stop, options)
        stopped.set()
        return worked

    set_work(work)
    results = ThreadExecutor(2).run(iter([order("a"), order("b")]))
    assert next(results).result.id == "a"
    results.close()
    assert stopped.is_set()


def start_scripted_worker() -> None:
    """Start a worker whose orders say what it does, in place of runs."""
    executors.start_worker()
    vars(executors)["run_order"] = scripted_run


def scripted_run(work_order: WorkOrder, stop: StopRequest, _: SessionOptions | None = None) -> TaskOutput:
    name = work_order.task.id
    if name.startswith("exit"):
        os._exit(3)
    if name.startswith("wait") and work_order.tries == 1:
        return wait_for_stop(work_order, stop)
    if name.startswith("deaf"):
        threading.Event().wait()
    return TaskOutput(TaskResult(id=name, kind=OutcomeKind.FINISHED, reason=str(os.getpid()), tries=work_order.tries))


@pytest.fixture
def scripted_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "start_worker", start_scripted_worker)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@slow
@pytest.mark.usefixtures("scripted_workers")
def test_orders_are_spread_over_processes_that_end_with_the_batch() -> None:
    executor = ProcessExecutor(4, 2)
    seen: set[int] = set()
    results = []
    for worked in executor.run(order(str(number)) for number in range(12)):
        seen |= {*executor.pids}
        results.append(worked.result)
    assert sorted(int(result.id) for result in results) == [*range(12)]
    assert {int(result.reason) for result in results} == seen
    assert (len(seen), executor.pids) == (2, ())
    assert not any(map(is_running, seen))


@pytest.mark.usefixtures("scripted_workers")
def test_task_that_kills_its_process_fails_alone() -> None:
    orders = [order("wait"), order("exit"), order("a"), order("b")]
    results = {output.result.id: output.result for output in ProcessExecutor(2, 1).run(iter(orders))}
    bad = results.pop("exit")
    assert (bad.reason, bad.tries) == ("worker_failed", 3)
    assert bad.message == (
        "The process that worked on the task died, 3 times in all (the last time it ended with the exit code 3)."
    )
    assert {result.kind for result in results.values()} == {OutcomeKind.FINISHED}
    assert {name for name, result in results.items() if result.tries == 1} == {"a", "b"}


@slow
@pytest.mark.usefixtures("scripted_workers")
def test_cancel_stops_processes_and_kills_those_that_do_not_react() -> None:
    executor = ProcessExecutor(2, 1, stop_timeout_s=1.0)
    results = executor.run(iter([order("a"), order("wait"), order("deaf")]))
    assert next(results).result.id == "a"
    pids = executor.pids
    executor.cancel("by the test")
    assert {output.result.message for output in results} == {"The task was stopped by the test."}
    assert not any(map(is_running, pids))
