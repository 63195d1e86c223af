"""A wish that a run ends reaches whoever waits, whichever way it is asked and heard."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from mendgraph.graph.machine import stop_request
from mendgraph.graph.machine.stop_request import StopRequest

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


def test_a_signal_may_come_between_any_two_steps_of_a_wait(stop: StopRequest) -> None:
    steps = steps_before_it_waits(stop, 0.001, signal_at=0)
    assert (steps > 20, stop.reason) == (True, "")
    for step in range(1, steps + 1):
        stop.clear()
        steps_before_it_waits(stop, LONG_S, signal_at=step)
        assert stop.reason == "by a signal"


def steps_before_it_waits(stop: StopRequest, seconds: float, signal_at: int) -> int:
    """Wait, with a signal at the step of this number, if there is one; how many there are until it really waits."""
    done, waits_at = 0, 0

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal done
        if frame.f_code.co_filename != stop_request.__file__ or frame.f_code.co_name == "ask":
            return None
        frame.f_trace_opcodes = True
        done += 1
        if done == signal_at:
            os.kill(os.getpid(), signal.SIGUSR1)
        return trace

    def note_the_wait(_frame: FrameType, event: str, argument: Any) -> None:
        nonlocal waits_at
        if event == "c_call" and argument.__name__ == "get":
            waits_at = done

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(note_the_wait)
    try:
        stop.wait(seconds)
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return waits_at


def test_an_event_loop_hears_it_from_a_signal_and_from_a_thread(stop: StopRequest) -> None:
    async def hear() -> None:
        threading.Thread(target=stop.ask, args=("by the program",)).start()
        await stop.asked()
        stop.clear()
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGUSR1)
        await stop.asked()
        await stop.asked()

    asyncio.run(hear())
    assert stop.reason == "by a signal"
