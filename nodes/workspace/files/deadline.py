"""Calls with a deadline, and the scope in which a call may change files.

A thread cannot be ended from outside: an exception that is sent to it does not interrupt C code. So a call that has
timed out loses its scope, and its thread ends when the call returns.
"""

import asyncio
import contextvars
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, nullcontext, suppress
from math import inf
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, Generic, TypeVar


class ScopeOverError(TimeoutError):
    """A call wanted to change something after its time was over."""


class CancellationScope:
    """The right of one call to change something, since `started_s`. It ends with its `parent`, the scope of the step.

    After `revoke` no effect can begin; one that has begun is completed. After `close` no further call begins.
    """

    def __init__(self, parent: "CancellationScope | None" = None) -> None:
        self.started_s = monotonic_s()
        self._parent = parent
        self._lock = threading.RLock()
        self._over = False
        self._closed = False
        self._busy = 0
        self._bell: SimpleQueue[None] = SimpleQueue()

    @contextmanager
    def effect(self) -> Iterator[None]:
        """Guard one effect, which has to be short.

        Raises:
            ScopeOverError: the scope is revoked.
        """
        with nullcontext() if self._parent is None else self._parent.effect(), self._lock:
            if self._over:
                raise ScopeOverError("the time of this call is over")

            self._busy += 1

            try:
                yield
            finally:
                self._busy -= 1

    def check(self) -> None:
        """Raise ScopeOverError if the scope is revoked."""
        with self.effect():
            pass

    def revoke(self) -> None:
        """End the right; returns when no other thread is within an effect."""
        self.close()
        with self._lock:
            self._over = True

    def close(self) -> None:
        """Let no further call begin. It takes no lock, so that a signal handler may call it."""
        self._closed = True
        self._bell.put(None)

    def pause(self, seconds: float) -> bool:
        """Wait for this long, or until this scope is closed; returns whether further calls may begin."""
        if not self.closed:
            with suppress(Empty):
                self._bell.get(timeout=seconds)

        return not self.closed

    @property
    def over(self) -> bool:
        """Whether the scope is revoked."""
        return self._over or (self._parent is not None and self._parent.over)

    @property
    def closed(self) -> bool:
        """Whether the scope is closed."""
        return self._closed or (self._parent is not None and self._parent.closed)

    @property
    def busy(self) -> bool:
        """Whether a thread is within an effect."""
        return self._busy > 0


Result = TypeVar("Result")


UNPORTABLE: Final = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError, CancelledError)
"""Exceptions that have another meaning in the waiting thread or event loop."""


class GivenUp(BaseException):
    """Interrupts a call whose time is over; like KeyboardInterrupt it is not an Exception."""


class Worker(Generic[Result]):
    """Runs `function` in a daemon thread called "tool"; `outcome` receives what it returns or raises."""

    def __init__(self, context: contextvars.Context, function: Callable[[], Result]) -> None:
        self.outcome: Future[Result] = Future()
        self._function = function
        threading.Thread(target=context.run, args=(self._settle,), name="tool", daemon=True).start()

    def _settle(self) -> None:
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - `outcome` receives it
            with suppress(InvalidStateError):
                self.outcome.set_exception(portable(error))
        else:
            with suppress(InvalidStateError):
                self.outcome.set_result(result)


def portable(error: BaseException) -> BaseException:
    """Return the error, or a RuntimeError for one that has another meaning in another thread or an event loop."""
    if isinstance(error, UNPORTABLE):
        return RuntimeError(f"{type(error).__name__} was raised")
    return error


LONGEST_S = 100_000_000
"""The longest deadline, about three years. Source: the most that BSD's and macOS's timers take (`itimerfix`)."""

_NEXT_RING_S = 1.015625
"""Seconds for an interrupted call to clean up before it is interrupted again. The value also identifies our timer: it
is exact as a float and in the kernel's microseconds (1 + 1/64 s), and nobody else would choose it."""
_EFFECT_S = 0.005
"""Seconds until a call that is within an effect at its deadline is checked again."""


def monotonic_ms() -> int:
    """Return the time of the monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def monotonic_s() -> float:
    """Return the time of the monotonic clock in seconds."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


def call_within(seconds: float, function: Callable[[], Result], scope: CancellationScope | None = None) -> Result:
    """Call `function` in a thread, and return or raise its result, or TimeoutError when the time is over.

    On a timeout its `scope` is revoked, so that it changes nothing any more; the daemon thread ends when it returns.
    """
    worker = Worker(contextvars.copy_context(), function)
    try:
        return worker.outcome.result(seconds)
    finally:
        _give_up(worker.outcome, scope)


async def await_call(
    function: Callable[[], Result], seconds: float | None = None, scope: CancellationScope | None = None
) -> Result:
    """Like `call_within`, without blocking the event loop; without `seconds` there is no deadline."""
    worker = Worker(contextvars.copy_context(), function)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(worker.outcome), seconds)
    finally:
        _give_up(worker.outcome, scope)


@contextmanager
def calls_in_loop() -> Iterator[Callable[[Coroutine[Any, Any, Result]], Result]]:
    """Return a function by which other threads run coroutines in the running event loop, and wait for their results.

    A coroutine has the context variables of its caller. At the end of the block all coroutines are cancelled.
    """
    loop = asyncio.get_running_loop()
    futures = list[Future[Any]]()
    over = threading.Event()

    def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise

        futures.append(future)
        if over.is_set():
            future.cancel()

        return future.result()

    try:
        yield run
    finally:
        over.set()
        for future in futures:
            future.cancel()


def call_here(seconds: float, function: Callable[[], Result], scope: CancellationScope) -> Result:
    """Like `call_within`, but in this thread if it is the main thread and the kernel's timer is free.

    The timer interrupts what Python can interrupt: sleeping, waiting, computing. A signal handler or timer that the
    function leaves behind stays. No deadline is longer than `LONGEST_S`; infinity sets no timer.
    """
    if seconds == inf:
        return _body(function)

    seconds = min(seconds, LONGEST_S)
    if not timer_is_free():
        return call_within(seconds, function, scope)

    def ring(_: int, frame: FrameType | None) -> None:
        if not _is_running(frame):
            return

        if scope.busy:  # the effect is completed first
            signal.setitimer(signal.ITIMER_REAL, _EFFECT_S, _NEXT_RING_S)
            return

        scope.revoke()
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
    """Call the function; only while this frame is on the stack, the timer may interrupt."""
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


def timer_is_free() -> bool:
    """Return whether `call_here` stays in this thread."""
    return (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )


def _give_up(outcome: "Future[Result]", scope: CancellationScope | None) -> None:
    if outcome.done() and not outcome.cancelled():
        return

    if scope is not None:
        scope.revoke()
