"""The line below a run's output that says how far the run is."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Final, NamedTuple
from unicodedata import category, combining, east_asian_width

from rich.cells import cell_len, get_character_cell_size, set_cell_size
from rich.console import Console
from rich.style import Style

from graph.events import (
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
from nodes.call_model.limits import RunLimits
from nodes.language.call_summary import target_of
from nodes.language.display import one_line
from nodes.records import ToolCall

CHARACTERS_PER_TOKEN: Final = 4
"""For the reply that is still coming; what it really had is known when it is over."""

_BETWEEN: Final = " · "
_WAITING, _LOADING = "waiting for the model", "loading the local model"
_WHOLE: Final = 24
"""Cells that what is going on keeps before other words are left out for it."""
_LEAST: Final = 9

_PHRASES: Final = {
    "final_answer": "looking at the answer",
    "run_checks": "running the checks",
}
"""Tools whose names say too little."""


class _Part(NamedTuple):
    """Some words of the line; those of the lowest rank go first where there is too little room."""

    rank: int
    words: str


@dataclass
class Status:
    """What is known of the turn at work. `loading` says whether the local model is being started just now.

    Tokens, calls and cost of the session so far (`before`, an outcome's usage) count against the session's limits.
    """

    limits: RunLimits
    loading: Callable[[], bool] = lambda: False
    _before: Mapping[str, Any] = field(default_factory=dict)
    _begun_s: float = 0.0
    _asked_s: float | None = None
    _paused_s: float = 0.0
    _until_s: float | None = None
    _now: str = _WAITING
    _pinned: str = ""
    _steps: int = 0
    _calls: int = 0
    _input: int = 0
    _output: int = 0
    _cost: float | None = 0.0
    _coming: int = 0

    def begin(self, now_s: float, before: Mapping[str, Any], *, same_turn: bool = False) -> None:
        """Begin a turn, or go on with one (`same_turn`) whose own use is part of `before`."""
        own = before if same_turn else {}
        self._before, self._begun_s = before, now_s - float(own.get("seconds_in_current_turn", 0.0))
        self._asked_s, self._paused_s, self._until_s = None, 0.0, None
        self._now, self._pinned, self._coming = _WAITING, "", 0
        self._steps, self._calls = own.get("steps_in_current_turn", 0), own.get("calls_in_current_turn", 0)
        self._input = own.get("input_tokens_in_current_turn", 0)
        self._output = own.get("output_tokens_in_current_turn", 0)
        self._cost = before.get("cost_usd", 0.0)
        self._turn_start = {
            "calls": before.get("total_calls", 0) - self._calls,
            "input": before.get("total_input_tokens", 0) - self._input,
            "output": before.get("total_output_tokens", 0) - self._output,
        }

    def pause(self, now_s: float) -> None:
        """A person is asked: the time until `go_on` is not the run's."""
        self._asked_s = now_s

    def go_on(self, now_s: float) -> None:
        """The person has answered."""
        self._paused_s += now_s - (now_s if self._asked_s is None else self._asked_s)
        self._asked_s = None

    def stopping(self) -> None:
        """Somebody wants the run to stop: nothing else is said from here on."""
        self._pinned = "stopping after the running step"

    def note(self, event: Event, now_s: float) -> None:
        """Note what an event tells."""
        match event:
            case Text(text):
                self._now, self._coming = "the model is writing", self._coming + len(text)
            case Paid():
                self._settle(event)
            case Waiting(seconds, _):
                self._now, self._until_s, self._coming = "trying again", now_s + seconds, 0
                return
            case FellBack(_, following, _):
                self._now, self._coming = f"asking {one_line(following, 40)}", 0
            case HealingBegan(attempt, _):
                self._now = f"asking again, attempt {attempt}"
            case CallsRead():
                self._now = "looking at the calls"
            case ToolStarted(call):
                self._now = _running(call)
            case StepDone():
                self._now, self._steps = _WAITING, self._steps + 1
            case Asked() | Ended():
                self._now = ""
            case Alerted():
                return
        self._until_s = None

    def words(self, cells: int, now_s: float) -> str:
        """The line, at most this many cells wide, as much of it as fits."""
        doing = self._doing(now_s)
        least = min(cell_len(doing), max(_LEAST, cells - 16), _WHOLE)
        parts = [part for part in self._parts(now_s) if part.words]
        while parts and _width(parts) + least > cells:
            parts.remove(min(parts))
        room = cells - _width(parts)
        shown = doing if cell_len(doing) <= room else f"{set_cell_size(doing, max(room - 1, 0)).rstrip()}…"
        return _BETWEEN.join([*(part.words for part in parts), *([shown] if shown else [])])

    def _parts(self, now_s: float) -> list[_Part]:
        api, limits, start = self.limits.api, self.limits, self._turn_start
        output = self._output + self._coming // CHARACTERS_PER_TOKEN
        spent = self._cost
        return [
            _Part(0, f"step {self._steps + 1}" + (f"/{limits.max_steps}" if limits.max_steps else "")),
            _Part(
                4,
                "calls "
                + _tightest(
                    (self._calls, api.max_calls_per_turn),
                    (start["calls"] + self._calls, api.max_calls_per_session),
                ),
            ),
            _Part(
                2,
                "in "
                + _tightest(
                    (self._input, limits.max_input_tokens_per_turn),
                    (start["input"] + self._input, api.max_input_tokens_per_session),
                ),
            ),
            _Part(
                1,
                "out "
                + _tightest(
                    (output, limits.max_output_tokens_per_turn),
                    (start["output"] + output, api.max_output_tokens_per_session),
                ),
            ),
            _Part(3, "" if not spent and not limits.max_cost_usd else _dollars(spent, limits.max_cost_usd)),
            _Part(5, self._time(now_s)),
        ]

    def _doing(self, now_s: float) -> str:
        if self._pinned:
            return self._pinned
        if self._until_s is not None:
            return f"{self._now} in {max(0, round(self._until_s - now_s))} s"
        return _LOADING if self._now == _WAITING and self.loading() else self._now

    def _time(self, now_s: float) -> str:
        paused = self._paused_s + (0.0 if self._asked_s is None else now_s - self._asked_s)
        seconds = int(max(0.0, now_s - self._begun_s - paused))
        limit = self.limits.max_seconds
        return f"{seconds} s" + (f"/{limit:g} s" if limit else "") if limit or seconds < 60 else _minutes(seconds)

    def _settle(self, paid: Paid) -> None:
        self._coming = 0
        self._calls += 1
        self._input += paid.input_tokens
        self._output += paid.output_tokens
        known = self._cost is not None and paid.cost_usd is not None
        self._cost = (self._cost or 0.0) + (paid.cost_usd or 0.0) if known else None


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
    return _PHRASES.get(call.tool) or one_line(f"running {call.tool} {target_of(call.arguments)}")


def _width(parts: list[_Part]) -> int:
    return sum(cell_len(part.words) + len(_BETWEEN) for part in parts)


LEAST_REST_S: Final = 0.1
"""How long the line stays away between two drawings that output causes."""

_TAB: Final = 8
_FEWEST_CELLS: Final = 8
"""Nothing useful fits into less."""

_DOWN, _UP, _KEEP_PLACE, _BACK = "\x1bD", "\x1bM", "\x1b7", "\x1b8"
_ERASE_ROW, _ERASE_REST, _ERASE_BELOW = "\x1b[2K", "\x1b[K", "\x1b[J"
"""Down (index) makes room where there is no row below, and like up it leaves the cursor in its column.
Source: the VT100's IND, RI, DECSC, DECRC, and ECMA-48's EL and ED, which every terminal in use knows."""

_DRAW: Final = f"{_DOWN}{_UP}{_KEEP_PLACE}{_DOWN}\r%s{_ERASE_BELOW}{_BACK}"
_CLEAR: Final = f"{_DOWN}{_ERASE_ROW}{_ERASE_BELOW}{_UP}"
_ANEW: Final = f"\r{_ERASE_REST}"
"""At the start of a line: what the keyboard has echoed there, such as ^C, is none of ours."""


def is_live(console: Console) -> bool:
    """Whether this console's stream is a terminal on which lines can be drawn anew.

    A pipe is none, whatever FORCE_COLOR says, and TERM=dumb is none; TTY_INTERACTIVE=0 turns it off (Rich's variable).
    """
    shown_to_a_person = console.is_interactive and console.is_terminal and console.file.isatty()
    return shown_to_a_person and not console.is_dumb_terminal and not console.legacy_windows


def live_line(out: Console, err: Console, clock: Callable[[], float]) -> "LiveLine | None":
    """The status line of this terminal; None where the answer goes elsewhere, or errors to a terminal without one."""
    if not is_live(out) or (err.file.isatty() and not is_live(err)):
        return None
    return LiveLine(out, clock)


class LiveLine:
    """The line. All that is written to the terminal has to pass `write`, whichever stream it goes to.

    `clock` gives seconds that never go back.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        """Nothing is drawn before `begin`."""
        self._console, self._clock = console, clock
        colours = console.color_system and not console.no_color
        self._style = Style(dim=True) if colours else Style.null()
        self._words: Callable[[int, float], str] | None = None
        self._drawn = ""
        self._drawn_s = 0.0
        self._in_line = False
        self._column, self._width = 0, 0  # where the cursor is in a terminal of this width
        self._certain = True

    def begin(self, words: Callable[[int, float], str]) -> None:
        """Show what `words` says from now on. It is asked with the cells that there are, and the time."""
        self._words = words
        self.refresh()

    def now(self) -> float:
        """The time of its clock, in seconds."""
        return self._clock()

    def end(self) -> None:
        """Take the line away."""
        self._clear()
        self._words = None

    def refresh(self) -> None:
        """Draw it, if it is not there or would say something else."""
        if self._words is None:
            return
        width = self._console.width
        self._measure(width)
        words = self._cut(self._words(width - 1, self._clock()), width - 1)
        if words == self._drawn or width <= _FEWEST_CELLS:
            return
        if self._certain and self._column < width:
            self._send(_DRAW % self._style.render(words))
            self._drawn, self._drawn_s = words, self._clock()

    def write(self, file: IO[str], text: str, rendered: str = "") -> None:
        """Write this to one of the terminal's streams; `rendered` is the text with its colours, if it has any."""
        if self._words is not None and text:
            if not self._fits(text):
                self._clear()
            if not self._in_line:
                self._send(_ANEW)
        file.write(rendered or text)
        file.flush()
        self._note(text)
        if self._words is not None and self._clock() - self._drawn_s >= LEAST_REST_S:
            self.refresh()

    def _clear(self) -> None:
        if self._drawn:
            self._send(_CLEAR)
            self._drawn = ""

    def _send(self, codes: str) -> None:
        self._console.file.write(codes)
        self._console.file.flush()

    def _fits(self, text: str) -> bool:
        """Whether the text goes on in this row, so that what stands below is left as it is."""
        if self._console.width != self._width:
            return False
        plain_words = self._certain and _is_certain(text) and "\n" not in text and "\t" not in text
        return plain_words and self._column + cell_len(text) < self._width

    def _note(self, text: str) -> None:
        self._measure(self._console.width)
        _, line_end, tail = text.rpartition("\n")
        if line_end:
            self._in_line, self._column, self._certain = False, 0, True
        if tail:
            self._in_line = True
            self._pass(tail)

    def _measure(self, width: int) -> None:
        """Take note of a terminal that has been made wider or narrower: some then wrap the line anew, some do not."""
        if width != self._width:
            self._width, self._certain = width, not self._in_line

    def _pass(self, text: str) -> None:
        """Move on behind this text. What a tab does at the right edge, terminals disagree about."""
        at_edge = "\t" in text and self._column + cell_len(text.expandtabs(_TAB)) + _TAB >= self._width
        self._certain = self._certain and _is_certain(text) and not at_edge
        self._column = self._after(text)

    def _after(self, text: str) -> int:
        """The column after this text; the terminal's width where it waits at the right edge."""
        column, width = self._column, self._width
        if text.isascii() and text.isprintable():
            column += len(text)
            return column if column <= width else (column - 1) % width + 1
        for character in text:
            if character == "\t":
                column = min((column // _TAB + 1) * _TAB, width - 1)
                continue
            cells = get_character_cell_size(character)
            column = column + cells if column + cells <= width else cells
        return column

    @staticmethod
    def _cut(words: str, cells: int) -> str:
        line = one_line(words, max(cells, 4))
        return line if cell_len(line) <= cells else set_cell_size(line, cells)


def _is_certain(text: str) -> bool:
    """Whether all terminals give these signs the same width."""
    return text.isascii() or all(map(_has_one_width, text))


def _has_one_width(character: str) -> bool:
    if character.isascii():
        return True
    known = east_asian_width(character) in {"Na", "W", "N"} and not combining(character)
    return known and category(character)[0] in "LNP"


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
