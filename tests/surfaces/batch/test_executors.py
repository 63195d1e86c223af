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
from tests.surfaces.batch.scripted_work import Work, done, order, waits

Use = Callable[[Work], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Gives the executors of this process their work."""
    return lambda work: monkeypatch.setattr(executors, "run_order", work)


def test_each_order_has_an_output_and_orders_are_taken_lazily(use: Use) -> None:
    heard: list[SessionOptions | None] = []
    taken: list[str] = []

    def work(given: WorkOrder, _: StopRequest, options: SessionOptions | None) -> TaskOutput:
        heard.append(options)
        return done(given)

    def orders() -> Iterator[WorkOrder]:
        for number in range(9):
            taken.append(str(number))
            yield order(str(number))

    use(work)
    ends = []
    for worked in ThreadExecutor(3, {"secrets": ("s",)}).run(orders()):
        ends.append(worked.result.id)
        assert len(taken) <= len(ends) + 2
    assert sorted(ends) == taken
    assert heard == [{"secrets": ("s",)}] * 9


def test_cancel_stops_active_orders_and_takes_no_more(use: Use) -> None:
    use(waits)
    executor = ThreadExecutor(2)

    def orders() -> Iterator[WorkOrder]:
        yield order("a")
        yield order("b")
        pytest.fail("a third one was taken")

    stopper = threading.Timer(0.05, executor.cancel, args=("by the test",))
    stopper.start()
    results = [worked.result for worked in executor.run(orders())]
    stopper.join()
    assert sorted((each.id, each.message) for each in results) == [
        (name, "The task was stopped by the test.") for name in ("a", "b")
    ]


def test_thread_that_does_not_stop_is_abandoned(use: Use) -> None:
    free = threading.Event()

    def work(given: WorkOrder, _: StopRequest, __: SessionOptions | None) -> TaskOutput:
        executor.cancel("by the test")
        assert free.wait(60)
        return done(given)

    use(work)
    executor = ThreadExecutor(1, stop_timeout_s=0.05)
    (worked,) = executor.run(iter([order("a")]))
    free.set()
    assert (worked.result.reason, worked.result.is_final) == ("cancelled", False)


def test_closing_the_outputs_stops_active_orders(use: Use) -> None:
    stopped = threading.Event()

    def work(given: WorkOrder, stop: StopRequest, options: SessionOptions | None) -> TaskOutput:
        if given.task.id == "a":
            return done(given)
        worked = waits(given, stop, options)
        stopped.set()
        return worked

    use(work)
    results = ThreadExecutor(2).run(iter([order("a"), order("b")]))
    assert next(results).result.id == "a"
    results.close()
    assert stopped.is_set()


def start_scripted_worker() -> None:
    """Start a worker whose orders say what it does, in place of runs."""
    executors.start_worker()
    vars(executors)["run_order"] = scripted_run


def scripted_run(given: WorkOrder, stop: StopRequest, _: SessionOptions | None = None) -> TaskOutput:
    name = given.task.id
    if name.startswith("exit"):
        os._exit(3)
    if name.startswith("wait") and given.tries == 1:
        return waits(given, stop)
    if name.startswith("deaf"):
        threading.Event().wait()
    return TaskOutput(TaskResult(id=name, kind=OutcomeKind.FINISHED, reason=str(os.getpid()), tries=given.tries))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "start_worker", start_scripted_worker)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.usefixtures("scripted")
def test_orders_are_spread_over_processes_that_end_with_the_batch() -> None:
    executor = ProcessExecutor(4, 2)
    seen: set[int] = set()
    results = []
    for worked in executor.run(order(str(number)) for number in range(12)):
        seen |= {*executor.pids}
        results.append(worked.result)
    assert sorted(int(each.id) for each in results) == [*range(12)]
    assert {int(each.reason) for each in results} == seen
    assert (len(seen), executor.pids) == (2, ())
    assert not any(map(is_running, seen))


@pytest.mark.usefixtures("scripted")
def test_task_that_kills_its_process_fails_alone() -> None:
    orders = [order("wait"), order("exit"), order("a"), order("b")]
    results = {each.result.id: each.result for each in ProcessExecutor(2, 1).run(iter(orders))}
    bad = results.pop("exit")
    assert (bad.reason, bad.tries) == ("worker_failed", 3)
    assert bad.message == (
        "The process that worked on the task died, 3 times in all (the last time it ended with the exit code 3)."
    )
    assert {each.kind for each in results.values()} == {OutcomeKind.FINISHED}
    assert {name for name, each in results.items() if each.tries == 1} == {"a", "b"}


@pytest.mark.usefixtures("scripted")
def test_cancel_stops_processes_and_kills_those_that_do_not_react() -> None:
    executor = ProcessExecutor(2, 1, stop_timeout_s=1.0)
    results = executor.run(iter([order("a"), order("wait"), order("deaf")]))
    assert next(results).result.id == "a"
    pids = executor.pids
    executor.cancel("by the test")
    assert {each.result.message for each in results} == {"The task was stopped by the test."}
    assert not any(map(is_running, pids))
