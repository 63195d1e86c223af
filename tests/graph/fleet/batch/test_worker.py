"""The program of a worker process, over a connection in this one."""

import threading
from multiprocessing import Pipe

import pytest

from mendgraph.graph.fleet.batch import worker
from mendgraph.graph.fleet.batch.orders import Worked, WorkOrder
from mendgraph.graph.machine.stop_request import StopRequest
from tests.graph.fleet.batch.scripted_work import done, order, waits


def test_orders_are_done_and_a_stop_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(given: WorkOrder, stop: StopRequest) -> Worked:
        return waits(given, stop) if given.task.id == "long" else done(given)

    monkeypatch.setattr("mendgraph.graph.fleet.batch.work.work", work)
    ours, its = Pipe()
    serving = threading.Thread(target=worker.serve, args=(its,))
    serving.start()
    with ours, its:
        ours.send(order("long"))
        ours.send(order("short"))
        assert worker.answer_of(ours.recv()) == done(order("short"))
        ours.send((worker.STOP, "by the test"))
        assert worker.answer_of(ours.recv()).result.reason == "cancelled"
        ours.close()
        serving.join(60)
    assert not serving.is_alive()


def test_only_what_came_of_an_order_is_an_answer() -> None:
    with pytest.raises(TypeError, match="a worker sent str"):
        worker.answer_of("nothing")
