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


def test_an_interrupt_is_no_error() -> None:
    assert not issubclass(GivenUp, Exception)
