"""The clock, calls that are waited for no longer than a deadline, and the scope in which a call may change the world.

A thread cannot be ended from outside (an exception that is sent to it reaches no call of C, and slows down all others
meanwhile: measured on 3.11.7). So a thread that is given up loses its scope, and ends when its call does.
"""

import asyncio
import contextvars
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, Generic, TypeVar


class ScopeOverError(TimeoutError):
    """Raised in a call that was given up when it wants to change something nevertheless."""


class CancellationScope:
    """Held by one call. An effect that has begun is finished; one that begins after `revoke` is refused.

    The scope of a call ends with its `parent`, that of the step. A scope that is closed still holds for what runs, but
    no further call begins.
    """

    def __init__(self, parent: "CancellationScope | None" = None) -> None:
        self._parent = parent
        self._lock = threading.RLock()
        self._over = False
        self._closed = False
        self._busy = 0
        self._bell: SimpleQueue[None] = SimpleQueue()

    @contextmanager
    def effect(self) -> Iterator[None]:
        """Guard one effect, which has to be short.

        Raises ScopeOverError: the call's time is over, and nothing may change any more.
        """
        with nullcontext() if self._parent is None else self._parent.effect(), self._lock:
            if self._over:
                raise ScopeOverError("the time of this call is over")

            self._busy += 1

            try:
                yield
            finally:
                self._busy -= 1

    def revoke(self) -> None:
        """End the right; returns when an effect that is being done by another thread is done."""
        self.close()
        with self._lock:
            self._over = True

    def close(self) -> None:
        """Let what runs be finished, and nothing else begin. It takes no lock, so that a signal handler may call it."""
        self._closed = True
        self._bell.put(None)

    def pause(self, seconds: float) -> bool:
        """Do nothing for this long, or until this scope is closed; says whether something may begin after that."""
        if not self.closed:
            with suppress(Empty):
                self._bell.get(timeout=seconds)

        return not self.closed

    @property
    def over(self) -> bool:
        """Whether nothing may change any more."""
        return self._over or (self._parent is not None and self._parent.over)

    @property
    def closed(self) -> bool:
        """Whether no further call may begin."""
        return self._closed or (self._parent is not None and self._parent.closed)

    @property
    def busy(self) -> bool:
        """Whether an effect is being done right now."""
        return self._busy > 0


Result = TypeVar("Result")


UNPORTABLE: Final = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError, CancelledError)
"""Exceptions that mean something else to whoever waits for a call than to the call itself."""


class GivenUp(BaseException):
    """Raised inside a call whose time is over. Like KeyboardInterrupt it is no error that a handler may catch."""


class _WorkThread(threading.Thread):
    """Does one thing after the other: to begin a thread costs three times as much as to wake one."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.waiting: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def run(self) -> None:
        while True:
            work = self.waiting.get()
            self.name = "tool"
            work()
            del work
            self.name = "idle"

            if len(_IDLE) >= _MOST_IDLE:
                return

            _IDLE.append(self)


_IDLE: Final = list[_WorkThread]()
_MOST_IDLE: Final = 64


def _begin(work: Callable[[], object]) -> None:
    try:
        while not (thread := _IDLE.pop()).is_alive():
            pass  # a forked child has none of its parent's threads
    except IndexError:
        thread = _WorkThread()
        thread.start()

    thread.waiting.put(work)


class Worker(Generic[Result]):
    """Runs `function` at once, in a daemon thread called "tool"; `outcome` receives what it returns or raises."""

    def __init__(self, context: contextvars.Context, function: Callable[[], Result]) -> None:
        self.outcome: Future[Result] = Future()
        self._function = function
        _begin(partial(context.run, self._settle))

    def _settle(self) -> None:
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the outcome gets it
            with suppress(InvalidStateError):
                self.outcome.set_exception(portable(error))
        else:
            with suppress(InvalidStateError):
                self.outcome.set_result(result)


def portable(error: BaseException) -> BaseException:
    """The error, unless raising it in another thread or an event loop would mean something else there."""
    if isinstance(error, UNPORTABLE):
        return RuntimeError(f"{type(error).__name__} was raised")
    return error


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


def call_within(seconds: float, function: Callable[[], Result], scope: CancellationScope | None = None) -> Result:
    """What `function` returns or raises, or TimeoutError at once when the time is over.

    It runs in a thread of its own. On a timeout its `scope` is revoked, so that it changes nothing any more; the thread
    is left behind until the call ends, as a daemon.
    """
    worker = Worker(contextvars.copy_context(), function)
    try:
        return worker.outcome.result(seconds)
    finally:
        _give_up(worker.outcome, scope)


async def await_call(
    function: Callable[[], Result], seconds: float | None = None, scope: CancellationScope | None = None
) -> Result:
    """The same without blocking the event loop; without `seconds` it waits for as long as it takes."""
    worker = Worker(contextvars.copy_context(), function)
    try:
        return await asyncio.wait_for(asyncio.wrap_future(worker.outcome), seconds)
    finally:
        _give_up(worker.outcome, scope)


@contextmanager
def calls_in_loop() -> Iterator[Callable[[Coroutine[Any, Any, Result]], Result]]:
    """For a thread that works for the running event loop: what runs a coroutine there, and gives what it returns.

    It has the context variables of that thread. A coroutine that still runs when the block is left is cancelled, and
    none begins after that.
    """
    loop = asyncio.get_running_loop()
    futures = list[Future[Any]]()
    over = threading.Event()

    def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop is closed: who waited for this thread was cancelled
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
    """The same in this thread where it is the main thread, so that not even a sleeping call leaves a thread behind.

    The kernel's timer interrupts whatever Python can interrupt: sleeping, waiting, computing. Where somebody else uses
    that timer, or in another thread, it is `call_within`. What the function leaves there of its own, a handler or a
    timer, stays. No deadline is longer than `LONGEST_S`; without one (infinity) nothing is set up.
    """
    if seconds == inf:
        return _body(function)

    seconds = min(seconds, LONGEST_S)
    if not timer_is_free():
        return call_within(seconds, function, scope)

    def ring(_: int, frame: FrameType | None) -> None:
        if not _is_running(frame):
            return

        if scope.busy:  # what has begun is finished
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
    """While this frame is on the stack, the call may be interrupted; before and after, nothing may."""
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
    """Whether `call_here` stays in this thread."""
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
