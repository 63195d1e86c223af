"""The status line at the bottom of a terminal: the progress of a turn, and the usage of each limit.

It is drawn where the cursor is at the start of a line, and cleared before anything else is written. Pure except for its
console.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style

from mendgraph.graph.runs import events
from mendgraph.graph.terminal.answers import clock
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.language.display import one_line, target_of

REFRESH_S: Final = 0.25
"""Seconds between two refreshes of the line."""

_WAITING: Final = "waiting for the model"

_COUNTED: Final = {"calls": "calls", "input_tokens": "in", "output_tokens": "out"}
"""The counters of a turn and of its session, and the word of each on the line."""

_CLEAR: Final = "\r\x1b[K"
"""Source: ECMA-48, EL."""


def is_live(console: Console) -> bool:
    """Whether this console's stream is a terminal on which a line can be drawn anew.

    A pipe is none, whatever FORCE_COLOR says, and TERM=dumb is none; TTY_INTERACTIVE=0 turns it off (Rich's variable).
    """
    return console.is_interactive and console.is_terminal and console.file.isatty() and not console.is_dumb_terminal


class StatusLine:
    """The status line of a terminal. All output to the terminal has to pass `write`, whichever stream it goes to.

    `loading` returns whether the local model is starting; `now` is a monotonic clock in seconds.
    """

    def __init__(
        self, console: Console, limits: RunLimits, loading: Callable[[], bool], now: Callable[[], float]
    ) -> None:
        """Nothing is drawn before `visible`."""
        self._console = console
        self._limits = limits
        self._loading = loading
        self._now = now

        if console.color_system and not console.no_color:
            self._style = Style(dim=True)
        else:
            self._style = Style.null()

        self._is_shown = False
        self._drawn = ""
        self._in_line = False
        api = limits.api
        self._most: Mapping[str, tuple[int | None, int | None]] = {
            "calls": (api.max_calls_per_turn, api.max_calls_per_session),
            "input_tokens": (limits.max_input_tokens_per_turn, api.max_input_tokens_per_session),
            "output_tokens": (limits.max_output_tokens_per_turn, api.max_output_tokens_per_session),
        }
        self.begin({})

    def begin(self, usage: Mapping[str, Any], *, same_turn: bool = False) -> None:
        """Begin a turn, or with `same_turn` continue an interrupted one. `usage` is that of the session so far."""
        turn_usage: Mapping[str, Any] = {}
        if same_turn:
            turn_usage = usage

        self._begun_s = self._now() - float(turn_usage.get("seconds_in_current_turn", 0.0))
        self._doing = _WAITING
        self._step = turn_usage.get("steps_in_current_turn", 0) + 1
        self._cost: float | None = usage.get("cost_usd", 0.0)
        self._session = {name: usage.get(f"total_{name}", 0) for name in _COUNTED}
        self._turn = {name: turn_usage.get(f"{name}_in_current_turn", 0) for name in _COUNTED}

    def note(self, event: events.Event) -> None:
        """Note an event; the next refresh shows it."""
        match event:
            case events.Text():
                self._doing = "the model is writing"
            case (events.Paid() as paid) | events.OfChild(inner=events.Paid() as paid):
                self._settle(paid)
            case events.Waiting(seconds, _):
                self._doing = f"trying again in {round(seconds, 1):g} s"
            case events.FellBack(_, following, _):
                self._doing = f"asking {one_line(following, 40)}"
            case events.HealingBegan(attempt, _):
                self._doing = f"asking again, attempt {attempt}"
            case events.ToolStarted(call):
                self._doing = one_line(f"running {call.tool} {target_of(call.arguments)}", 60)
            case events.StepDone():
                self._doing = _WAITING
                self._step = self._step + 1
            case events.Asked() | events.Ended():
                self._doing = ""

    def _settle(self, paid: events.Paid) -> None:
        for counts in (self._session, self._turn):
            counts["calls"] += 1
            counts["input_tokens"] += paid.input_tokens
            counts["output_tokens"] += paid.output_tokens

        is_priced = self._cost is not None and paid.cost_usd is not None
        if is_priced:
            self._cost = (self._cost or 0.0) + (paid.cost_usd or 0.0)
        else:
            self._cost = None

    @contextmanager
    def visible(self) -> Iterator[None]:
        """Inside, in a task of an event loop, the line is visible."""
        self._is_shown = True
        self._refresh()
        looking = asyncio.get_running_loop().create_task(self._keep_fresh())

        try:
            yield
        finally:
            looking.cancel()
            self.end()

    def end(self) -> None:
        """Clear the line."""
        self._is_shown = False
        with suppress(OSError):  # the terminal is gone, and the line with it
            self._clear()

    def write(self, file: IO[str], text: str, rendered: str = "") -> None:
        """Write this to one of the terminal's streams; `rendered` is the text with its colours, if it has any."""
        self._clear()
        file.write(rendered or text)
        file.flush()
        if text:
            self._in_line = not text.endswith("\n")

        self._refresh()

    async def _keep_fresh(self) -> None:
        with suppress(OSError):  # what is written next finds out
            while True:
                await asyncio.sleep(REFRESH_S)
                self._refresh()

    def _refresh(self) -> None:
        if not self._is_shown or self._in_line:
            return

        words = one_line(self.words(), 1_000)
        cells = self._console.width - 1
        if not cells:
            words = ""
        elif cell_len(words) > cells:
            words = f"{set_cell_size(words, cells - 1)}…"

        if words != self._drawn:
            self._send(f"{_CLEAR}{self._style.render(words)}")
            self._drawn = words

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = ""
            self._send(_CLEAR)

    def _send(self, codes: str) -> None:
        self._console.file.write(codes)
        self._console.file.flush()

    def words(self) -> str:
        """The text of the line: the current action, then the usage."""
        limits = self._limits
        seconds = max(0.0, self._now() - self._begun_s)
        most_s = limits.max_seconds
        calls, *tokens = (f"{word} {self._tightest(name)}" for name, word in _COUNTED.items())

        action = self._doing
        if action == _WAITING and self._loading():
            action = "loading the local model"

        time = clock(seconds)
        if most_s:
            time += f"/{clock(most_s)}"

        cost = ""
        if self._cost or limits.max_cost_usd:
            cost = _dollars(self._cost, limits.max_cost_usd)

        step = f"step {self._step}"
        if limits.max_steps:
            step += f"/{limits.max_steps}"

        return " · ".join(part for part in (action, time, calls, cost, *tokens, step) if part)

    def _tightest(self, name: str) -> str:
        """The count of turn or session of which the least is left, against its limit."""
        counts = self._turn[name], self._session[name]
        limited = [(count, limit) for count, limit in zip(counts, self._most[name], strict=True) if limit is not None]
        count, limit = min(limited, key=lambda pair: pair[1] - pair[0])

        return f"{amount(count)}/{amount(limit)}"


def amount(number: int) -> str:
    """A count in few signs: `950`, `12.3k`, `100k`, `1.2M`."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size:
            return f"{number / size:.1f}".removesuffix(".0") + unit

    return str(number)


def _dollars(spent: float | None, limit: float | None) -> str:
    if spent is None:
        cost_text = "$?"
    elif spent >= 0.01 or not spent:
        cost_text = f"${spent:.2f}"
    else:
        cost_text = f"${spent:.4f}"

    if limit:
        return f"{cost_text}/${limit:.2f}"

    return cost_text
