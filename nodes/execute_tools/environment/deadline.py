"""The clock, and calls that are waited for no longer than a deadline."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back; only differences mean something."""
    return time.monotonic_ns() // 1_000_000


def call_within(seconds: float, function: Callable[[], Result]) -> Result:
    """What `function` returns or raises, or TimeoutError at once when the time is over.

    It runs in a thread of its own, which is left behind on a timeout and does not keep the process alive. So only
    calls without effects belong here.
    """
    return _started(function).result(seconds)


async def await_call(function: Callable[[], Result], seconds: float | None = None) -> Result:
    """The same without blocking the event loop; without `seconds` it waits for as long as it takes."""
    return await asyncio.wait_for(asyncio.wrap_future(_started(function)), seconds)


def _started(function: Callable[[], Result]) -> Future[Result]:
    future: Future[Result] = Future()
    context = contextvars.copy_context()
    threading.Thread(target=_settle, args=(future, context, function), name="tool", daemon=True).start()
    return future


def _settle(future: Future[Result], context: contextvars.Context, function: Callable[[], Result]) -> None:
    future.set_running_or_notify_cancel()
    try:
        result = context.run(function)
    except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
        future.set_exception(_portable(error))
    else:
        future.set_result(result)


def _portable(error: BaseException) -> BaseException:
    """The error, unless raising it in another thread or an event loop would mean something else there."""
    if isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit | asyncio.CancelledError):
        return RuntimeError(f"{type(error).__name__} was raised")
    return error
