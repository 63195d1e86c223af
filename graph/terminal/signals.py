"""Ctrl-C and SIGTERM while a session is open: the first one lets a turn end with its running step, the next at once."""

import asyncio
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Final, Self

from graph.terminal.exit_codes import ExitCode
from graph.terminal.process_end import leave_at_once

NAMES: Final = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
"""The signals that stop a run, and what a person calls them."""

GRACE_S: Final = 5.0
"""Seconds that a turn has to end after the second signal; then the process ends."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it ends at once what Ctrl-C would end at once: at a prompt, or when it comes again."""


class Signals:
    """Hears the signals for as long as it is entered. Where a signal is ignored, it stays ignored.

    `stop` is told by whom a turn is to be stopped, in the signal handler; `tell` is called in the event loop, when it
    is time to say that the turn is ending. Outside of `draining` a signal raises KeyboardInterrupt or `Terminated`.
    """

    def __init__(self, stop: Callable[[str], None], tell: Callable[[], None]) -> None:
        self._stop, self._tell = stop, tell
        self._before: dict[signal.Signals, Any] = {}
        self.last = NAMES[signal.SIGINT]
        self.terminated = False
        self.stopping = False

    def __enter__(self) -> Self:
        """Let SIGTERM end things as Ctrl-C does."""
        self._before = _installed({signal.SIGTERM: self._end_at_once})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the signals as they were."""
        _installed(self._before)

    def begin(self) -> None:
        """Begin a turn: nobody wants it to stop."""
        self.last, self.stopping = NAMES[signal.SIGINT], False

    @contextmanager
    def draining(self) -> Iterator[None]:
        """Inside, in a task of the main thread's event loop, the first signal of a turn asks the turn to stop.

        The second one cancels the task, and the third raises wherever the thread is. A task that does not end after
        the second one, because something blocks the event loop, is ended with the process.
        """
        loop, task, cancelled = asyncio.get_running_loop(), asyncio.current_task(), False

        def hear(number: int, frame: FrameType | None) -> None:
            nonlocal cancelled
            self._note(number)
            if not self.stopping:
                self.stopping = True
                self._stop(f"by {self.last}")
                loop.call_soon_threadsafe(self._tell)
            elif task is not None and not cancelled:
                cancelled = task.cancel()
                alarm.update(_installed({signal.SIGALRM: self._leave}))
                signal.setitimer(signal.ITIMER_REAL, GRACE_S)
                loop.call_soon_threadsafe(lambda: None)  # wakes the loop, which may wait for something else
            else:
                self._end_at_once(number, frame)

        alarm: dict[signal.Signals, Any] = {}
        before = _installed(dict.fromkeys(NAMES, hear))
        try:
            yield
        finally:
            if alarm:
                signal.setitimer(signal.ITIMER_REAL, 0)
            _installed({**before, **alarm})

    def _leave(self, _: int, __: FrameType | None) -> None:
        with suppress(OSError, RuntimeError):  # it may have interrupted a line that is being written
            sys.stderr.write(f"mendgraph: stopped by {self.last}; go on with: mendgraph resume\n")
        leave_at_once(ExitCode.TERMINATED if self.terminated else ExitCode.INTERRUPTED)

    def _end_at_once(self, number: int, _: FrameType | None) -> None:
        self._note(number)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def _note(self, number: int) -> None:
        self.last = NAMES[signal.Signals(number)]
        self.terminated = self.terminated or number == signal.SIGTERM


def _installed(handlers: dict[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Install these, except for what is ignored; what was there before. Only the main thread may hear signals."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [number for number in handlers if signal.getsignal(number) not in {signal.SIG_IGN, None}]
    return {number: signal.signal(number, handlers[number]) for number in heard}
