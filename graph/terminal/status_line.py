"""The status line at the bottom of a terminal: the current action, and the usage of each limit.

It is drawn only where the cursor stands at the beginning of a line, and cleared before anything else is written.
"""

import asyncio
import codecs
import os
import re
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style

from mendgraph.graph.terminal.output import clock
from mendgraph.graph.terminal.process_end import BEFORE_LEAVING
from mendgraph.graph.terminal.run_view import WAITING, RunView
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.language.display import one_line

REFRESH_S: Final = 0.25
"""Seconds between two refreshes of the line."""

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;]*[ -/]*[@-~]?|O.|.)?")
"""What keys send that are no characters. Source: ECMA-48, control sequences."""

_CLEAR: Final = "\r\x1b[K"
"""Source: ECMA-48, EL."""


def is_live(console: Console) -> bool:
    """Return whether the console's stream is a terminal on which a line can be redrawn.

    A pipe is not, whatever FORCE_COLOR says, and neither is TERM=dumb; TTY_INTERACTIVE=0 (Rich's variable) forbids it.
    """
    return console.is_interactive and console.is_terminal and console.file.isatty() and not console.is_dumb_terminal


class TypedWords:
    """Reads what a person types while a turn runs, key by key; each line goes to `send` at Enter.

    A line that begins with "/" is a command for the prompt, and stays in `text`. The terminal does not
    echo the keys, the status line shows `text`. Ctrl-C stays a signal.
    """

    def __init__(self, terminal: int, send: Callable[[str], None]) -> None:
        """`terminal` is the terminal's file descriptor."""
        self._terminal = terminal
        self._send = send
        self._before: list[Any] = []
        self._decode = codecs.getincrementaldecoder("utf-8")("ignore").decode
        self.text = ""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read keys inside, unless the process is a background job; enter it in a task of an event loop."""
        if not self._in_foreground():
            yield
            return

        self._before = termios.tcgetattr(self._terminal)
        loop = asyncio.get_running_loop()
        tty.setcbreak(self._terminal, termios.TCSANOW)
        loop.add_reader(self._terminal, self._read)
        BEFORE_LEAVING.append(self._restore)

        try:
            yield
        finally:
            BEFORE_LEAVING.remove(self._restore)
            loop.remove_reader(self._terminal)
            self._restore()

    def _in_foreground(self) -> bool:
        """Return whether the process may use the terminal: a background job that does is stopped (POSIX, SIGTTOU)."""
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:  # the terminal is gone, or is not the one that controls the process
            return False

    def _restore(self) -> None:
        if self._in_foreground():
            with suppress(termios.error):
                termios.tcsetattr(self._terminal, termios.TCSANOW, self._before)

    def _read(self) -> None:
        data = b""
        if self._in_foreground():
            with suppress(OSError):
                data = os.read(self._terminal, 1_000)

        if not data:
            asyncio.get_running_loop().remove_reader(self._terminal)
            return

        for key in _ESCAPES.sub("", self._decode(data)):
            if key in "\r\n" and self.text.lstrip().startswith("/"):  # a command, which needs the prompt
                self.text = f"{self.text.rstrip()}\n"
            elif key in "\r\n" and self.text.strip():
                self._send(self.text)
                self.text = ""
            elif key in "\x7f\b":
                self.text = self.text[:-1]
            elif key == "\x15":  # Ctrl-U
                self.text = ""
            elif key.isprintable():
                self.text += key


class StatusLine:
    """The status line of a terminal. All output to the terminal passes through `write`, whichever stream it goes to.

    `model_is_loading` says whether the local model is starting; `now` is a monotonic clock in seconds.
    """

    def __init__(
        self, console: Console, limits: RunLimits, model_is_loading: Callable[[], bool], now: Callable[[], float]
    ) -> None:
        self._console = console
        self.limits = limits
        self._model_is_loading = model_is_loading
        self._now = now
        self._style = Style.null()
        if console.color_system and not console.no_color:
            self._style = Style(dim=True)

        self.typed: TypedWords | None = None
        self._visible = False
        self._drawn = ""
        self._in_line = False

    def begin_turn(self, view: RunView, usage: Mapping[str, Any], *, resumed: bool = False) -> None:
        """Begin a turn that `view` follows. `usage` is the session's so far; a `resumed` turn continues its counts."""
        self._view = view
        self._session_usage = usage
        self._turn_usage: Mapping[str, Any] = {}
        if resumed:
            self._turn_usage = usage

        self._begun_s = self._now() - float(self._turn_usage.get("seconds_in_current_turn", 0.0))

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Show the line inside; enter it in a task of an event loop."""
        self._visible = True
        self._refresh()
        refreshing = asyncio.get_running_loop().create_task(self._keep_fresh())

        try:
            yield
        finally:
            refreshing.cancel()
            self._visible = False
            with suppress(OSError):  # the terminal is gone, and the line with it
                self._clear()

    def write(self, file: IO[str], text: str, rendered: str = "") -> None:
        """Write `text`, or `rendered` (the same with colours), to one of the terminal's streams."""
        self._clear()
        file.write(rendered or text)
        file.flush()
        if text:
            self._in_line = not text.endswith("\n")

        self._refresh()

    async def _keep_fresh(self) -> None:
        with suppress(OSError):  # the next write reports it
            while True:
                await asyncio.sleep(REFRESH_S)
                self._refresh()

    def _refresh(self) -> None:
        if not self._visible or self._in_line:
            return

        text = self.text(self._console.width - 1)
        if text != self._drawn:
            self._send(f"{_CLEAR}{self._style.render(text)}")
            self._drawn = text

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = ""
            self._send(_CLEAR)

    def _send(self, codes: str) -> None:
        self._console.file.write(codes)
        self._console.file.flush()

    def text(self, width: int) -> str:
        """Return the line in at most `width` cells: what is typed, else the parts, of which the last are left out."""
        if self.typed is not None and self.typed.text:
            typed = one_line(self.typed.text, 1_000)
            while cell_len(typed) > width - 2:
                typed = typed[1:]

            return f"> {typed}"

        parts = [one_line(part, 1_000) for part in self._parts() if part]
        while len(parts) > 1 and cell_len(" · ".join(parts)) > width:
            parts.pop()

        text = " · ".join(parts)
        if width < 1:
            return ""
        if cell_len(text) > width:
            return f"{set_cell_size(text, width - 1)}…"

        return text

    def _parts(self) -> Iterator[str]:
        limits = self.limits
        action = self._view.action
        if action == WAITING and self._model_is_loading():
            action = "loading the local model"

        yield action

        time = clock(max(0.0, self._now() - self._begun_s))
        if limits.max_seconds:
            time += f"/{clock(limits.max_seconds)}"

        yield time

        paid = self._view.account.paid
        api = limits.api
        input_tokens = sum(call.input_tokens for call in paid)
        output_tokens = sum(call.output_tokens for call in paid)

        yield f"calls {self._nearest('calls', len(paid), api.max_calls_per_turn, api.max_calls_per_session)}"
        yield self._cost()
        yield "in " + self._nearest(
            "input_tokens", input_tokens, limits.max_input_tokens_per_turn, api.max_input_tokens_per_session
        )
        yield "out " + self._nearest(
            "output_tokens", output_tokens, limits.max_output_tokens_per_turn, api.max_output_tokens_per_session
        )

        step = f"step {self._turn_usage.get('steps_in_current_turn', 0) + self._view.steps + 1}"
        if limits.max_steps:
            step += f"/{limits.max_steps}"

        yield step

    def _nearest(self, name: str, count: int, turn_limit: int | None, session_limit: int) -> str:
        """Return the count of the turn or the session, whichever is nearer to its limit, against that limit."""
        turn = self._turn_usage.get(f"{name}_in_current_turn", 0) + count
        session = self._session_usage.get(f"total_{name}", 0) + count
        if turn_limit is not None and turn_limit - turn <= session_limit - session:
            return f"{amount(turn)}/{amount(turn_limit)}"

        return f"{amount(session)}/{amount(session_limit)}"

    def _cost(self) -> str:
        limit = self.limits.max_cost_usd
        costs = [self._session_usage.get("cost_usd", 0.0), *(call.cost_usd for call in self._view.account.paid)]
        known = [cost for cost in costs if cost is not None]
        spent = sum(known)

        if len(known) < len(costs):
            text = "$?"
        elif spent >= 0.01 or not spent:
            text = f"${spent:.2f}"
        else:
            text = f"${spent:.4f}"

        if limit:
            return f"{text}/${limit:.2f}"
        if text in {"$?", "$0.00"}:
            return ""

        return text


def amount(number: int) -> str:
    """Return a count in few characters: `950`, `12.3k`, `100k`, `1.2M`."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:.1f}".removesuffix(".0") + unit

    return str(number)
