"""Threads and processes do the orders: as many as there are workers, and none after somebody has said stop."""

import os
import threading
from collections.abc import Iterator
from multiprocessing import Pipe

import pytest

from mendgraph.graph.fleet.batch import local
from mendgraph.graph.fleet.batch.local import ProcessExecutor, ThreadExecutor
from mendgraph.graph.fleet.batch.tasks import Worked, WorkOrder
from mendgraph.graph.machine.build import SessionOptions
from mendgraph.nodes.call_model.stop_request import StopRequest
from mendgraph.nodes.records import OutcomeKind
from tests.graph.fleet.batch.scripted_work import Work, done, order, waits


def use(patch: pytest.MonkeyPatch, work: Work) -> None:
    patch.setattr("mendgraph.graph.fleet.batch.local.work", work)
    patch.setattr("mendgraph.graph.fleet.batch.local.ASKED_EVERY_S", 0.01)


def test_every_order_gives_a_result_and_no_more_are_taken_than_there_are_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[SessionOptions | None] = []

    def work(given: WorkOrder, _: StopRequest, options: SessionOptions | None) -> Worked:
        heard.append(options)
        return done(given)

    taken: list[str] = []

    def orders() -> Iterator[WorkOrder]:
        for number in range(9):
            taken.append(str(number))
            yield order(str(number))

    use(monkeypatch, work)
    ends = []
    for worked in ThreadExecutor(3, {"secrets": ("s",)}).run(orders()):
        ends.append(worked.result.id)
        assert len(taken) <= len(ends) + 2
    assert sorted(ends) == taken
    assert heard == [{"secrets": ("s",)}] * 9


def test_nothing_is_taken_after_a_stop_and_what_is_at_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, waits)
    executor = ThreadExecutor(2)

    def orders() -> Iterator[WorkOrder]:
        yield order("a")
        yield order("b")
        pytest.fail("a third one was taken")

    stopper = threading.Timer(0.05, executor.cancel, args=("by the test",))
    stopper.start()
    results = [worked.result for worked in executor.run(orders())]
    stopper.join()
    assert sorted(each.id for each in results) == ["a", "b"]
    assert {each.message for each in results} == {"The task was stopped by the test."}


def test_who_does_not_stop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    ended = threading.Event()

    def work(given: WorkOrder, _: StopRequest, __: SessionOptions | None) -> Worked:
        executor.cancel("by the test")
        assert free.wait(60)
        ended.set()
        return done(given)

    use(monkeypatch, work)
    executor = ThreadExecutor(1, patience_s=0.05)
    (worked,) = executor.run(iter([order("a")]))
    free.set()
    assert ended.wait(60)
    assert (worked.result.reason, worked.result.is_final) == ("cancelled", False)


def test_who_leaves_early_stops_what_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def work(given: WorkOrder, stop: StopRequest, options: SessionOptions | None) -> Worked:
        if given.task.id == "a":
            return done(given)
        worked = waits(given, stop, options)
        stopped.set()
        return worked

    use(monkeypatch, work)
    results = ThreadExecutor(2).run(iter([order("a"), order("b")]))
    assert next(results).result.id == "a"
    results.close()
    assert stopped.is_set()


def test_orders_are_done_and_a_stop_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(given: WorkOrder, stop: StopRequest) -> Worked:
        return waits(given, stop) if given.task.id == "long" else done(given)

    monkeypatch.setattr(local, "work", work)
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
    elif name.startswith("kill") or (name == "once" and said.tries == 1):
        os.kill(os.getpid(), 9)
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
    program = "import sys; sys.path[:] = {path!r}\n" + PLAY
    monkeypatch.setattr("mendgraph.graph.fleet.batch.local.PROGRAM", program)


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
    for pid in seen:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(
    ("name", "how"), [("kill", "was killed by the signal 9"), ("exit", "ended with the code 3: out of luck")]
)
def test_task_that_kills_its_process_fails_alone_in_the_end(name: str, how: str) -> None:
    orders = [order("wait"), order(name), order("a"), order("b")]
    results = {each.result.id: each.result for each in ProcessExecutor(2, 1).run(iter(orders))}
    bad = results.pop(name)
    assert (bad.reason, bad.tries) == ("worker_failed", 3)
    assert bad.message == f"The process that worked on the task died, 3 times in all; the last one {how}."
    assert {each.kind for each in results.values()} == {OutcomeKind.FINISHED}
    assert {name for name, each in results.items() if each.tries == 1} == {"a", "b"}


@pytest.mark.usefixtures("scripted")
def test_tasks_of_a_process_that_died_share_as_many_others() -> None:
    orders = [*(order(f"wait{number}") for number in range(4)), order("once")]
    executor = ProcessExecutor(5, 1)
    results = [(worked.result, len(executor.pids)) for worked in executor.run(iter(orders))]
    assert {result.tries for result, _ in results} == {2}
    assert {count for _, count in results} == {1}


@pytest.mark.usefixtures("scripted")
def test_stop_is_passed_on_and_what_is_to_be_tried_again_is_not() -> None:
    executor = ProcessExecutor(3, 1, patience_s=1.0)
    stopper = threading.Timer(0.3, executor.cancel, args=("by the test",))
    stopper.start()
    results = {
        each.result.id: each.result for each in executor.run(iter([order("wait1"), order("wait2"), order("deaf")]))
    }
    stopper.join()
    assert {each.message for each in results.values()} == {"The task was stopped by the test."}


@pytest.mark.usefixtures("scripted")
def test_who_leaves_early_ends_the_processes() -> None:
    executor = ProcessExecutor(2, 2)
    results = executor.run(iter([order("a"), order("wait")]))
    next(results)
    pids = executor.pids
    results.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
