"""Somebody's wish that a run ends, which whoever waits in the run hears."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

NEARLY_THERE_S: Final = 0.05
"""How long a stop waits for a call whose reply is as good as there: it is paid for, and need not be asked for again."""


class StopRequest:
    """Somebody's wish that a run ends: asked for in a signal handler or another thread, heard wherever the run waits.

    One for each session; it holds for the turn at work, and is cleared when the next one begins. It takes no lock: a
    signal handler runs between two steps of the thread that it interrupts, and would wait for ever for a lock that this
    thread holds. Source: the Python library reference, "signal", "Signals and threads". `reason` says who asked, as in
    "by Ctrl-C", `in_step` whether the calls that have not begun are to be left out of the step at work.
    """

    def __init__(self) -> None:
        self.reason = ""
        self.in_step = False
        self._listeners: list[Callable[[], None]] = []

    def ask(self, reason: str, *, in_step: bool = True) -> None:
        """Ask for the end. Any thread and any signal handler may; of several reasons the first one counts.

        Without `in_step` a step that has begun runs all of its calls: whoever takes the run up finds it whole.
        """
        self.in_step = self.in_step or in_step  # first: whoever hears of the reason asks for this as well
        self.reason = self.reason or reason
        for listener in tuple(self._listeners):
            listener()

    def clear(self) -> None:
        """Forget what was asked: another turn begins."""
        self.reason = ""
        self.in_step = False

    @contextmanager
    def told(self, listener: Callable[[], None]) -> Iterator[None]:
        """Inside, `listener` is called when somebody asks, in the thread that asks; at once where somebody has.

        It may be called more than once, may take no lock, and must not raise.
        """
        self._listeners.append(listener)  # before the look, so that no request falls between the two

        try:
            if self.reason:
                listener()

            yield
        finally:
            self._listeners.remove(listener)

    def wait(self, seconds: float) -> None:
        """Wait in this thread, until somebody asks or the time is over."""
        bell: SimpleQueue[None] = SimpleQueue()  # its `put` may interrupt its own `get`, unlike an event's methods
        with self.told(partial(bell.put, None)), suppress(Empty):
            bell.get(timeout=seconds)
