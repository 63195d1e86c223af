"""Threads do the orders: as many as there are workers, and none after somebody has said stop."""

import threading
from collections.abc import Iterator

import pytest

from mendgraph.graph.fleet.batch.local import ThreadExecutor
from mendgraph.graph.fleet.batch.orders import Worked, WorkOrder
from mendgraph.graph.machine.build_arguments import SessionOptions
from mendgraph.graph.machine.stop_request import StopRequest
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


def test_a_stop_that_was_missed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def work(given: WorkOrder, stop: StopRequest, _: SessionOptions | None) -> Worked:
        executor.cancel("by the test")  # before it listens
        with stop.told(asked.set):
            asked.clear()
            assert asked.wait(60)
        return done(given)

    use(monkeypatch, work)
    executor = ThreadExecutor(1)
    assert [worked.result.id for worked in executor.run(iter([order("a"), order("b")]))] == ["a"]


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
