"""Threads and processes do the orders: as many as there are workers, and none after somebody has said stop."""

import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing import Pipe

import pytest

from mendgraph.graph.fleet.batch import local
from mendgraph.graph.fleet.batch.local import ProcessExecutor, ThreadExecutor
from mendgraph.graph.fleet.batch.tasks import Worked, WorkOrder
from mendgraph.graph.machine.build import SessionOptions
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import OutcomeKind
from tests.surfaces.batch.scripted_work import Work, done, order, waits

Use = Callable[[Work], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Gives the executors of this process their work."""
    return lambda work: monkeypatch.setattr(local, "work", work)


def test_every_order_gives_a_result_and_no_more_are_taken_than_there_are_workers(use: Use) -> None:
    heard: list[SessionOptions | None] = []
    taken: list[str] = []

    def work(given: WorkOrder, _: StopRequest, options: SessionOptions | None) -> Worked:
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


def test_nothing_is_taken_after_a_stop_and_what_is_at_work_ends(use: Use) -> None:
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


def test_thread_that_does_not_stop_is_left_behind(use: Use) -> None:
    free = threading.Event()

    def work(given: WorkOrder, _: StopRequest, __: SessionOptions | None) -> Worked:
        executor.cancel("by the test")
        assert free.wait(60)
        return done(given)

    use(work)
    executor = ThreadExecutor(1, patience_s=0.05)
    (worked,) = executor.run(iter([order("a")]))
    free.set()
    assert (worked.result.reason, worked.result.is_final) == ("cancelled", False)


def test_batch_that_is_left_early_stops_what_is_at_work(use: Use) -> None:
    stopped = threading.Event()

    def work(given: WorkOrder, stop: StopRequest, options: SessionOptions | None) -> Worked:
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


def test_worker_process_does_orders_side_by_side_until_it_is_stopped(use: Use) -> None:
    def work(given: WorkOrder, stop: StopRequest, _: SessionOptions | None = None) -> Worked:
        return waits(given, stop) if given.task.id == "long" else done(given)

    use(work)
    ours, its = Pipe()
    serving = threading.Thread(target=local.serve, args=(its,))
    serving.start()
    with ours, its:
        ours.send(order("long"))
        ours.send(order("short"))
        assert ours.recv() == done(order("short"))
        ours.send("by the test")
        assert ours.recv().result.reason == "cancelled"
        ours.close()
        serving.join(60)
    assert not serving.is_alive()


PLAY = """
import os, sys, time
from multiprocessing.connection import Connection
from mendgraph.graph.fleet.batch.tasks import TaskResult, Worked, WorkOrder, cancelled
from mendgraph.nodes.records import OutcomeKind
connection, held = Connection({descriptor}), []
while True:
    try:
        said = connection.recv()
    except EOFError:
        os._exit(0)
    name = said.task.id if isinstance(said, WorkOrder) else ""
    if not name:
        for order in held:
            connection.send(Worked(cancelled(order, said)))
        held = []
    elif name.startswith("exit"):
        sys.stderr.write("out of luck")
        sys.stderr.flush()
        os._exit(3)
    elif name.startswith("wait") and said.tries == 1:
        held.append(said)
    elif not name.startswith("deaf"):
        result = TaskResult(id=name, kind=OutcomeKind.FINISHED, reason=str(os.getpid()), tries=said.tries)
        connection.send(Worked(result))
"""
"""A worker whose orders say what it does."""


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PROGRAM", "import sys; sys.path[:] = {path!r}\n" + PLAY)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.usefixtures("scripted")
def test_orders_are_spread_over_processes_which_end_with_them() -> None:
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
def test_task_that_ends_its_process_fails_alone_in_the_end() -> None:
    orders = [order("wait"), order("exit"), order("a"), order("b")]
    results = {each.result.id: each.result for each in ProcessExecutor(2, 1).run(iter(orders))}
    bad = results.pop("exit")
    assert (bad.reason, bad.tries) == ("worker_failed", 3)
    how = "ended with the code 3: out of luck"
    assert bad.message == f"The process that worked on the task died, 3 times in all; the last one {how}."
    assert {each.kind for each in results.values()} == {OutcomeKind.FINISHED}
    assert {name for name, each in results.items() if each.tries == 1} == {"a", "b"}


@pytest.mark.usefixtures("scripted")
def test_stop_reaches_processes_and_ends_those_that_do_not_hear_it() -> None:
    executor = ProcessExecutor(2, 1, patience_s=1.0)
    results = executor.run(iter([order("a"), order("wait"), order("deaf")]))
    assert next(results).result.id == "a"
    pids = executor.pids
    executor.cancel("by the test")
    assert {each.result.message for each in results} == {"The task was stopped by the test."}
    assert not any(map(is_running, pids))
