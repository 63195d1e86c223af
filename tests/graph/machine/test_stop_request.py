"""A wish that a run ends reaches whoever waits, whichever way it is asked and heard."""

import signal
import threading
from collections.abc import Iterator

import pytest

from mendgraph.graph.machine.bound_nodes import StopRequest

LONG_S = 60.0
"""Longer than any test: who waits so long has not heard."""


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    """A request that SIGUSR1 asks for as well."""
    request = StopRequest()
    before = signal.signal(signal.SIGUSR1, lambda *_: request.ask("by a signal"))
    yield request
    signal.signal(signal.SIGUSR1, before)


def test_the_first_reason_counts_until_another_turn_begins(stop: StopRequest) -> None:
    assert stop.reason == ""
    stop.ask("by Ctrl-C")
    stop.ask("by SIGTERM")
    assert stop.reason == "by Ctrl-C"
    stop.wait(LONG_S)  # which is over at once
    stop.clear()
    assert stop.reason == ""


def test_a_wait_ends_when_another_thread_asks(stop: StopRequest) -> None:
    waiting = threading.Event()

    def listening() -> None:
        waiting.set()

    def wait() -> None:
        with stop.told(listening):
            stop.wait(LONG_S)

    thread = threading.Thread(target=wait)
    thread.start()
    stop.ask("by the program")
    thread.join(10)
    assert not thread.is_alive()
    assert waiting.is_set()
