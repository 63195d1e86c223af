"""The line at the bottom of a terminal that says how far a turn is, and what is used of each limit.

It is drawn where the cursor stands at the start of a line, and taken away before anything else is written.
Pure but for the console that it is given.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style

from mendgraph.graph.runs.events import (
    Alerted,
    Asked,
    CallsRead,
    Ended,
    Event,
    FellBack,
    HealingBegan,
    Paid,
    StepDone,
    Text,
    ToolStarted,
    Waiting,
)
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.language.call_summary import target_of
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import ToolCall

CHARACTERS_PER_TOKEN: Final = 4
"""For the reply that is still coming; what it really had is known when it is over."""

REFRESH_S: Final = 0.25
"""How often it is looked whether the line would say something else."""

LEAST_REST_S: Final = 0.1
"""How long the line stays away between two drawings that output causes."""

_BETWEEN: Final = " · "
_WAITING, _LOADING = "waiting for the model", "loading the local model"
_LONGEST: Final = 60
"""Characters of what is going on."""

_PHRASES: Final = {"final_answer": "looking at the answer", "run_checks": "running the checks"}
"""Tools whose names say too little."""

_CLEAR: Final = "\r\x1b[K"
"""Source: ECMA-48, EL."""


def is_live(console: Console) -> bool:
    """Whether this console's stream is a terminal on which a line can be drawn anew.

    A pipe is none, whatever FORCE_COLOR says, and TERM=dumb is none; TTY_INTERACTIVE=0 turns it off (Rich's variable).
    """
    return console.is_interactive and console.is_terminal and console.file.isatty() and not console.is_dumb_terminal


def live_line(out: Console, err: Console, clock: Callable[[], float]) -> "LiveLine | None":
    """The status line of this terminal; None where the answer goes elsewhere, or errors to a terminal without one."""
    if not is_live(out) or (err.file.isatty() and not is_live(err)):
        return None
    return LiveLine(out, clock)


class LiveLine:
    """A line that is drawn anew. All that is written to the terminal has to pass `write`, whichever stream it goes to.

    `now` gives seconds that never go back.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        """Nothing is drawn before `begin`."""
        self._console, self.now = console, clock
        self._style = Style(dim=True) if console.color_system and not console.no_color else Style.null()
        self._words: Callable[[], str] | None = None
        self._drawn, self._drawn_s, self._in_line = "", 0.0, False

    def begin(self, words: Callable[[], str]) -> None:
        """Show what `words` says from now on."""
        self._words = words
        self.refresh()

    def end(self) -> None:
        """Take the line away."""
        self._clear()
        self._words = None

    def refresh(self) -> None:
        """Draw it, if it is not there or would say something else."""
        if self._words is None or self._in_line:
            return
        words, cells = one_line(self._words(), 1_000), self._console.width - 1
        words = words if cell_len(words) <= cells else f"{set_cell_size(words, cells - 1)}…" if cells else ""
        if words != self._drawn:
            self._send(f"{_CLEAR}{self._style.render(words)}")
            self._drawn, self._drawn_s = words, self.now()

    def write(self, file: IO[str], text: str, rendered: str = "") -> None:
        """Write this to one of the terminal's streams; `rendered` is the text with its colours, if it has any."""
        self._clear()
        file.write(rendered or text)
        file.flush()
        self._in_line = not text.endswith("\n") if text else self._in_line
        if self._words is not None and self.now() - self._drawn_s >= LEAST_REST_S:
            self.refresh()

    def _clear(self) -> None:
        if self._drawn:
            self._send(_CLEAR)
            self._drawn = ""

    def _send(self, codes: str) -> None:
        self._console.file.write(codes)
        self._console.file.flush()


class Status:
    """What is known of the turn at work, shown on the `live` line; without one nothing is shown.

    Tokens, calls and cost of the session so far count against the session's limits. `loading` says whether the local
    model is being started just now.
    """

    def __init__(self, live: LiveLine | None, limits: RunLimits, loading: Callable[[], bool]) -> None:
        self._live, self._limits, self._loading = live, limits, loading
        self._clock = live.now if live is not None else lambda: 0.0
        self._restart({}, {})

    def begin(self, usage: Callable[[], Mapping[str, Any]], *, same_turn: bool = False) -> None:
        """Begin a turn, or go on with the one that was cut off. `usage` gives what the session has used before."""
        if self._live is not None:
            before = usage()
            self._restart(before, before if same_turn else {})

    def _restart(self, before: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """`own` is the part of `before` that belongs to this turn."""
        self._begun_s = self._clock() - float(own.get("seconds_in_current_turn", 0.0))
        self._left_s: float | None = None  # when a person was asked: the time until the answer is not the turn's
        self._until_s: float | None = None
        self._doing, self._pinned, self._coming = _WAITING, "", 0
        self._steps, self._calls = own.get("steps_in_current_turn", 0), own.get("calls_in_current_turn", 0)
        self._input = own.get("input_tokens_in_current_turn", 0)
        self._output = own.get("output_tokens_in_current_turn", 0)
        self._cost: float | None = before.get("cost_usd", 0.0)
        self._calls_before = before.get("total_calls", 0) - self._calls
        self._input_before = before.get("total_input_tokens", 0) - self._input
        self._output_before = before.get("total_output_tokens", 0) - self._output

    def stopping(self) -> None:
        """Somebody wants the run to stop: nothing else is said from here on."""
        self._pinned = "stopping after the running step"

    def note(self, event: Event) -> None:
        """Note an event. What is written next brings it to the line."""
        match event:
            case Text(text):
                self._doing, self._coming = "the model is writing", self._coming + len(text)
            case Paid():
                self._settle(event)
            case Waiting(seconds, _):
                self._doing, self._until_s, self._coming = "trying again", self._clock() + seconds, 0
                return
            case FellBack(_, following, _):
                self._doing, self._coming = f"asking {one_line(following, 40)}", 0
            case HealingBegan(attempt, _):
                self._doing = f"asking again, attempt {attempt}"
            case CallsRead():
                self._doing = "looking at the calls"
            case ToolStarted(call):
                self._doing = _running(call)
            case StepDone():
                self._doing, self._steps = _WAITING, self._steps + 1
            case Asked() | Ended():
                self._doing = ""
            case Alerted():
                return
        self._until_s = None

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
        if self._left_s is not None:
            self._begun_s += live.now() - self._left_s
        live.begin(self.words)
        looking = asyncio.get_running_loop().create_task(_look(live))
        try:
            yield
        finally:
            looking.cancel()
            self._left_s = live.now()
            self.end()

    def words(self) -> str:
        """The line: what is going on, then what is used, the most telling first."""
        api, limits = self._limits.api, self._limits
        output = self._output + self._coming // CHARACTERS_PER_TOKEN
        total = (self._calls_before + self._calls, self._input_before + self._input, self._output_before + output)
        parts = (
            self._happening(),
            self._time(),
            "calls " + _tightest((self._calls, api.max_calls_per_turn), (total[0], api.max_calls_per_session)),
            _dollars(self._cost, limits.max_cost_usd) if self._cost or limits.max_cost_usd else "",
            "in "
            + _tightest((self._input, limits.max_input_tokens_per_turn), (total[1], api.max_input_tokens_per_session)),
            "out "
            + _tightest((output, limits.max_output_tokens_per_turn), (total[2], api.max_output_tokens_per_session)),
            f"step {self._steps + 1}" + (f"/{limits.max_steps}" if limits.max_steps else ""),
        )
        return _BETWEEN.join(part for part in parts if part)

    def _happening(self) -> str:
        if self._pinned:
            return self._pinned
        if self._until_s is not None:
            return f"{self._doing} in {max(0, round(self._until_s - self._clock()))} s"
        return _LOADING if self._doing == _WAITING and self._loading() else self._doing

    def _time(self) -> str:
        seconds, limit = int(max(0.0, self._clock() - self._begun_s)), self._limits.max_seconds
        return f"{seconds} s" + (f"/{limit:g} s" if limit else "") if limit or seconds < 60 else _minutes(seconds)

    def _settle(self, paid: Paid) -> None:
        self._coming = 0
        self._calls += 1
        self._input += paid.input_tokens
        self._output += paid.output_tokens
        known = self._cost is not None and paid.cost_usd is not None
        self._cost = (self._cost or 0.0) + (paid.cost_usd or 0.0) if known else None


async def _look(live: LiveLine) -> None:
    with suppress(OSError):  # what is written next finds out
        while True:
            await asyncio.sleep(REFRESH_S)
            live.refresh()


def amount(number: int) -> str:
    """A count in few signs: `950`, `12.3k`, `100k`, `1.2M`."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size - size // 2_000 and number >= 1_000:
            scaled = f"{number / size:.1f}" if number < 99.95 * size else f"{number / size:.0f}"
            return scaled.removesuffix(".0") + unit
    return str(number)


def _tightest(*used: tuple[int, int | None]) -> str:
    """The count of which the least is left, against its limit."""
    limited = [(count, limit) for count, limit in used if limit is not None]
    count, limit = min(limited, key=lambda each: each[1] - each[0])
    return f"{amount(count)}/{amount(limit)}"


def _dollars(spent: float | None, limit: float | None) -> str:
    shown = "$?" if spent is None else _money(spent)
    return f"{shown}/{_money(limit)}" if limit else shown


def _money(usd: float) -> str:
    return f"${usd:.2f}" if usd >= 0.01 or not usd else f"${usd:.4f}"


def _minutes(seconds: int) -> str:
    hours, rest = divmod(seconds, 3_600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02} h" if hours else f"{rest // 60}:{rest % 60:02} min"


def _running(call: ToolCall) -> str:
    return _PHRASES.get(call.tool) or one_line(f"running {call.tool} {target_of(call.arguments)}", _LONGEST)
