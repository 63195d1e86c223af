"""The status line while turns are at work: it is told of each event, and drawn anew as time passes.

Pure but for the terminal's line that it is given, and the event loop in which the turn runs.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from graph.events import Event
from graph.terminal.live_line import LiveLine
from graph.terminal.status_words import Status
from nodes.call_model.limits import RunLimits

LOOK_S: Final = 0.25
"""How often it is looked whether the line would say something else; it does so once a second."""


class LiveStatus:
    """The status of one session's turns. Without a `live` line nothing is done, and `begin` asks for nothing."""

    def __init__(self, live: LiveLine | None, limits: RunLimits, loading: Callable[[], bool]) -> None:
        """`loading` says whether the local model is being started just now."""
        self._live = live
        self._status = Status(limits, loading)

    def begin(self, usage: Callable[[], Mapping[str, Any]], *, same_turn: bool = False) -> None:
        """Begin a turn, or go on with the one that was cut off. `usage` gives what the session has used before."""
        if self._live is not None:
            self._status.begin(self._live.now(), usage(), same_turn=same_turn)

    def note(self, event: Event) -> None:
        """Note what an event tells. What is written next brings it to the line."""
        if self._live is not None:
            self._status.note(event, self._live.now())

    def stopping(self) -> None:
        """Somebody wants the turn to stop."""
        self._status.stopping()

    def end(self) -> None:
        """Take the line away; harmless where it is gone."""
        if self._live is not None:
            with suppress(OSError):  # the terminal is gone, and the line with it
                self._live.end()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Inside, in a task of an event loop, the line is there. The time outside is not the turn's."""
        live = self._live
        if live is None:
            yield
            return
        self._status.go_on(live.now())
        live.begin(self._status.words)
        looking = asyncio.get_running_loop().create_task(_look(live))
        try:
            yield
        finally:
            looking.cancel()
            self._status.pause(live.now())
            self.end()


async def _look(live: LiveLine) -> None:
    with suppress(OSError):  # what is written next finds out
        while True:
            await asyncio.sleep(LOOK_S)
            live.refresh()
