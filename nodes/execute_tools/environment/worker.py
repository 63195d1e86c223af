"""A call in a thread of its own.

A thread cannot be ended from outside. An exception that is sent to it does not reach a call of C, and as long as it is
on its way Python 3.11 and 3.12 slow down all other threads, and let those that are traced spin for ever. Source:
measured on 3.11.7. So a thread that is given up loses its lease, and ends when its call does.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")


UNPORTABLE: Final = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError, CancelledError)
"""Exceptions that mean something else to whoever waits for a call than to the call itself."""


class GivenUp(BaseException):
    """Raised inside a call whose time is over. Like KeyboardInterrupt it is no error that a handler may catch."""


class Worker(Generic[Result]):
    """Runs `function` at once, in a daemon thread called "tool"; `outcome` receives what it returns or raises."""

    def __init__(self, context: contextvars.Context, function: Callable[[], Result]) -> None:
        self.outcome: Future[Result] = Future()
        self._function = function
        threading.Thread(target=context.run, args=(self._settle,), name="tool", daemon=True).start()

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
