"""Processes do the orders; one that dies is replaced, and what was at work in it is tried again, by itself."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.graph.fleet.batch.orders import WorkOrder
from mendgraph.graph.fleet.batch.processes import ProcessExecutor
from tests.graph.fleet.batch.scripted_work import order

PLAY = """
import os, sys, time
from multiprocessing.connection import Connection
from mendgraph.graph.fleet.batch.orders import TaskResult, Worked, WorkOrder, cancelled
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
            connection.send(Worked(cancelled(order, said[1])))
        held = []
    elif name.startswith("kill"):
        os.kill(os.getpid(), 9)
    elif name.startswith("exit"):
        sys.stderr.write("out of luck")
        sys.stderr.flush()
        os._exit(3)
    elif name.startswith("wait") and said.tries == 1:
        held.append(said)
    elif name.startswith("strange"):
        connection.send("what?")
    elif not name.startswith("deaf"):
        result = TaskResult(id=name, kind=OutcomeKind.FINISHED, reason=str(os.getpid()), tries=said.tries)
        connection.send(Worked(result))
"""
"""A worker whose orders say what it does."""


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.path[:] = {path!r}\n" + PLAY
    monkeypatch.setattr("mendgraph.graph.fleet.batch.processes.PROGRAM", program)


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


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("kill", "was killed by SIGKILL"),
        ("exit", "ended with the code 3: out of luck"),
        ("strange", "ended with the code 0"),
    ],
)
def test_a_task_that_kills_its_process_fails_alone_in_the_end(name: str, how: str) -> None:
    orders = [order("wait"), order(name), order("a"), order("b")]
    results = {each.result.id: each.result for each in ProcessExecutor(2, 1).run(iter(orders))}
    bad = results.pop(name)
    assert (bad.reason, bad.tries) == ("worker_failed", 3)
    assert bad.message == f"The process that worked on the task died, 3 times in all; the last one {how}."
    assert {each: results[each].tries for each in results} == {"wait": 2, "a": 1, "b": 1}


def test_a_process_that_somebody_kills_is_replaced() -> None:
    executor = ProcessExecutor(1, 1)

    def orders() -> Iterator[WorkOrder]:
        yield order("a")
        os.kill(executor.pids[0], signal.SIGKILL)
        yield order("b")

    results = [worked.result for worked in executor.run(orders())]
    assert [(each.id, each.tries) for each in results] == [("a", 1), ("b", 2)]


def test_a_stop_is_passed_on_and_what_is_to_be_tried_again_is_not() -> None:
    executor = ProcessExecutor(3, 1, patience_s=1.0)
    stopper = threading.Timer(0.3, executor.cancel, args=("by the test",))
    stopper.start()
    results = {
        each.result.id: each.result for each in executor.run(iter([order("wait1"), order("wait2"), order("deaf")]))
    }
    stopper.join()
    assert {each.message for each in results.values()} == {"The task was stopped by the test."}


def test_who_leaves_early_ends_the_processes() -> None:
    executor = ProcessExecutor(2, 2)
    results = executor.run(iter([order("a"), order("wait")]))
    next(results)
    pids = executor.pids
    results.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_descriptors_do_not_pile_up() -> None:
    before = len([*Path("/proc/self/fd").iterdir()]) if Path("/proc/self/fd").is_dir() else 0
    assert [*ProcessExecutor(2, 2).run(iter([order("a"), order("b")]))]
    after = len([*Path("/proc/self/fd").iterdir()]) if Path("/proc/self/fd").is_dir() else 0
    assert after == before
