"""A request to stop a run, which ends every wait in the run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

REPLY_GRACE_S: Final = 0.05
"""How long a stop waits for a reply that is almost complete, since it is paid for."""


class StopRequest:
    """A request to stop the running turn, from a signal handler or another thread; one object for each session.

    It takes no lock: a signal handler would wait forever for a lock that the interrupted thread holds. Source: the
    Python library reference, "signal", "Signals and threads". `reason` says who asked, as in "by Ctrl-C"; `in_step`
    whether the calls of the running step that have not begun are skipped.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.in_step = False
        self._listeners: list[Callable[[], None]] = []

    def ask(self, reason: str, *, in_step: bool = True) -> None:
        """Request the stop, from any thread or signal handler; the first reason counts.

        Without `in_step`, a step that has begun runs all of its calls.
        """
        self.in_step = self.in_step or in_step  # set before the reason, which listeners read
        self.reason = self.reason or reason
        for listener in tuple(self._listeners):
            listener()

    def clear(self) -> None:
        """Remove the request, for the next turn."""
        self.reason = ""
        self.in_step = False

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` on a request, in the requesting thread, or at once if the stop is already requested.

        It may be called more than once, may take no lock, and must not raise.
        """
        self._listeners.append(listener)  # before the check, so that no request is missed

        try:
            if self.reason:
                listener()

            yield
        finally:
            self._listeners.remove(listener)

    def wait(self, seconds: float) -> None:
        """Wait in this thread until the stop is requested or the time is over."""
        bell: SimpleQueue[None] = SimpleQueue()  # its `put` may interrupt its own `get`, unlike an event's methods
        with self.listening(partial(bell.put, None)), suppress(Empty):
            bell.get(timeout=seconds)
