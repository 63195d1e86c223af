"""The clock, and calls that are waited for no longer than a deadline."""

import asyncio
import contextvars
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import Any, TypeVar

from nodes.execute_tools.environment.lease import Lease
from nodes.execute_tools.environment.worker import UNPORTABLE, GivenUp, Worker, portable

Result = TypeVar("Result")

LONGEST_S = 100_000_000
"""The longest deadline, about three years. Source: the most that BSD's and macOS's timers take (`itimerfix`)."""

_NEXT_RING_S = 1.015625
"""How long a call that was interrupted may clean up before it is interrupted again. It tells our timer from another:
nobody else would choose it, and it is the same as a float and in the kernel's microseconds (1 + 1/64 s)."""
_EFFECT_S = 0.005
"""How soon an effect that was being done at the deadline is looked at again."""


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back; only differences mean something."""
    return time.monotonic_ns() // 1_000_000


def monotonic_s() -> float:
    """The same clock in seconds."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Do nothing for this long."""
    time.sleep(seconds)


def call_within(seconds: float, function: Callable[[], Result], lease: Lease | None = None) -> Result:
    """What `function` returns or raises, or TimeoutError at once when the time is over.

    It runs in a thread of its own. On a timeout its `lease` is revoked, so that it changes nothing any more; the thread
    is left behind until the call ends, as a daemon.
    """
    worker = Worker(contextvars.copy_context(), function)
    try:
        return worker.outcome.result(seconds)
    finally:
        _give_up(worker.outcome, lease)


async def await_call(
    function: Callable[[], Result], seconds: float | None = None, lease: Lease | None = None
) -> Result:
    """The same without blocking the event loop; without `seconds` it waits for as long as it takes."""
    worker = Worker(contextvars.copy_context(), function)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(worker.outcome), seconds)
    finally:
        _give_up(worker.outcome, lease)


@contextmanager
def calls_in_loop() -> Iterator[Callable[[Coroutine[Any, Any, Result]], Result]]:
    """For a thread that works for the running event loop: what runs a coroutine there, and gives what it returns.

    It has the context variables of that thread. A coroutine that still runs when the block is left is cancelled, and
    none begins after that.
    """
    loop, begun, over = asyncio.get_running_loop(), list[Future[Any]](), threading.Event()

    def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop is closed: who waited for this thread was cancelled
            coroutine.close()
            raise
        begun.append(future)
        if over.is_set():
            future.cancel()
        return future.result()

    try:
        yield run
    finally:
        over.set()
        for each in begun:
            each.cancel()


def call_here(seconds: float, function: Callable[[], Result], lease: Lease) -> Result:
    """The same in this thread where it is the main thread, so that not even a sleeping call leaves a thread behind.

    The kernel's timer interrupts whatever Python can interrupt: sleeping, waiting, computing. Where somebody else uses
    that timer, or in another thread, it is `call_within`. What the function leaves there of its own, a handler or a
    timer, stays. No deadline is longer than `LONGEST_S`; without one (infinity) nothing is set up.
    """
    if seconds == inf:
        return _portable(function)
    seconds = min(seconds, LONGEST_S)
    if not _timer_is_free():
        return call_within(seconds, function, lease)

    def ring(_: int, frame: FrameType | None) -> None:
        if not _is_running(frame):
            return
        if lease.busy:  # what has begun is finished
            signal.setitimer(signal.ITIMER_REAL, _EFFECT_S, _NEXT_RING_S)
            return
        lease.revoke()
        raise GivenUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _NEXT_RING_S)
    try:
        return _body(function)
    except GivenUp:
        raise TimeoutError(f"given up after {seconds:g} s") from None
    finally:
        if signal.getitimer(signal.ITIMER_REAL)[1] == _NEXT_RING_S:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if signal.getsignal(signal.SIGALRM) is ring:
            signal.signal(signal.SIGALRM, before)


def _body(function: Callable[[], Result]) -> Result:
    """While this frame is on the stack, the call may be interrupted; before and after, nothing may."""
    return _portable(function)


def _portable(function: Callable[[], Result]) -> Result:
    try:
        return function()
    except UNPORTABLE as error:
        raise portable(error) from error


def _is_running(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is _body.__code__:
            return True
        frame = frame.f_back
    return False


def _timer_is_free() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )


def _give_up(outcome: "Future[Result]", lease: Lease | None) -> None:
    """End what nobody waits for any more."""
    if outcome.done() and not outcome.cancelled():
        return
    if lease is not None:
        lease.revoke()
