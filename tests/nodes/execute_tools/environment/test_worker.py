import contextvars
import threading

import pytest

from nodes.execute_tools.environment.worker import GivenUp, Worker


def start(function: object) -> Worker[object]:
    return Worker(contextvars.copy_context(), function)  # type: ignore[arg-type] # any callable will do


def tools() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tool"]


def wait_until_none_is_left() -> None:
    for thread in tools():
        thread.join(5)
    assert tools() == []


def test_the_outcome_is_what_the_function_returns() -> None:
    assert start(lambda: 7).outcome.result(5) == 7
    wait_until_none_is_left()


def test_the_outcome_is_what_the_function_raises() -> None:
    def fail() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        start(fail).outcome.result(5)
    wait_until_none_is_left()


def test_a_computing_function_ends_when_it_is_interrupted() -> None:
    running = threading.Event()

    def compute() -> None:
        while True:
            running.set()

    worker = start(compute)
    running.wait(5)
    worker.interrupt()
    wait_until_none_is_left()
    assert not worker.outcome.done()


def test_no_handler_of_errors_keeps_it_alive() -> None:
    running = threading.Event()

    def stubborn() -> None:
        while True:
            try:
                running.set()
            except Exception:  # noqa: BLE001, S112 - what a careless tool does
                continue

    worker = start(stubborn)
    running.wait(5)
    worker.interrupt()
    wait_until_none_is_left()


def test_whoever_has_ended_is_not_interrupted() -> None:
    for _ in range(200):
        worker = start(lambda: 7)
        worker.outcome.result(5)
        worker.interrupt()  # an interrupt that arrived outside would be an unhandled exception, which pytest reports
    wait_until_none_is_left()


def test_an_interrupt_is_no_error() -> None:
    assert not issubclass(GivenUp, Exception)
