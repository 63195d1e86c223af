"""A call in a thread of its own, which can be told to end."""

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")


UNPORTABLE: Final = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError)
"""Exceptions that mean something else to whoever waits for a call than to the call itself."""


class GivenUp(BaseException):
    """Raised inside a call whose time is over. Like KeyboardInterrupt it is no error that a handler may catch."""


class Worker(Generic[Result]):
    """Runs `function` at once, in a daemon thread called "tool"; `outcome` receives what it returns or raises."""

    def __init__(self, context: contextvars.Context, function: Callable[[], Result]) -> None:
        self.outcome: Future[Result] = Future()
        self._function = function
        self._lock = threading.Lock()
        self._finished = False
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="tool", daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Raise GivenUp in the thread, at its next step in Python. Nothing happens if it has ended."""
        with self._lock:
            if not self._finished and self._thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread.ident), ctypes.py_object(GivenUp)
                )

    def _run(self) -> None:
        with suppress(GivenUp):
            try:
                self._settle()
            finally:
                with self._lock:
                    self._finished = True
                for _ in range(3):  # a loop is a place where an interrupt that is on its way arrives
                    pass

    def _settle(self) -> None:
        try:
            result = self._function()
        except GivenUp:
            raise
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
