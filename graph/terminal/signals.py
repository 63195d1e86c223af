"""What Ctrl-C and SIGTERM do to the turns of a session."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

from mendgraph.graph.terminal.process_end import SIGNALS, ExitCode, by_whom, install, leave_at_once

GRACE_S: Final = 5.0
"""Seconds that a turn has to end after the second signal; then the process ends."""


class Terminated(KeyboardInterrupt):
    """SIGTERM where Ctrl-C would raise KeyboardInterrupt: at a prompt, or the second time."""


class Signals:
    """Handles signals inside of `handled`. Ignored signals stay ignored.

    The signal handler calls `stop` with the words for who stops the turn; the event loop calls `tell` to announce that
    the turn is ending. Outside of `draining` a signal raises KeyboardInterrupt or `Terminated`.
    """

    def __init__(self, stop: Callable[[str], None], tell: Callable[[], None]) -> None:
        self._stop = stop
        self._tell = tell
        self.last = SIGNALS[signal.SIGINT]
        self.terminated = False
        self.stopping = False

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a process that a signal has ended."""
        if self.terminated:
            return ExitCode.TERMINATED

        return ExitCode.INTERRUPTED

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Inside, SIGTERM acts as Ctrl-C does. Afterwards the previous handlers are restored."""
        before = install({signal.SIGTERM: self._raise})
        try:
            yield
        finally:
            install(before)

    def begin_turn(self) -> None:
        """Forget the signals of the turn before."""
        self.last = SIGNALS[signal.SIGINT]
        self.stopping = False

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Inside, in a task of the main thread's event loop, the first signal of a turn stops it after its step.

        The second one cancels the task. If it does not end, because something blocks the event loop, the process ends.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        alarm: dict[int, Any] = {}

        def handle(number: int, _: FrameType | None) -> None:
            self._note(number)

            if not self.stopping:
                self.stopping = True
                self._stop(by_whom(self.last))
                loop.call_soon_threadsafe(self._tell)
            elif task is not None and not alarm:
                alarm.update(install({signal.SIGALRM: self._leave}))
                signal.setitimer(signal.ITIMER_REAL, GRACE_S)
                task.cancel()
                loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which may wait for something else

        before = install(dict.fromkeys(SIGNALS, handle))
        try:
            yield
        finally:
            if alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)

            install({**before, **alarm})

    def _leave(self, _: int, __: FrameType | None) -> None:
        with suppress(OSError, RuntimeError):  # it may have interrupted a line that is being written
            sys.stderr.write(f"mendgraph: stopped {by_whom(self.last)}; continue with: mendgraph resume\n")

        leave_at_once(self.exit_code)

    def _raise(self, number: int, _: FrameType | None) -> None:
        self._note(number)
        if number == signal.SIGTERM:
            raise Terminated

        raise KeyboardInterrupt

    def _note(self, number: int) -> None:
        self.last = SIGNALS[number]
        self.terminated = self.terminated or number == signal.SIGTERM
