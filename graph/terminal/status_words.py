"""How far a run is, for the line at the bottom of a terminal: what is going on, and what is used of each limit. Pure.

Times are seconds of one clock, handed in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rich.cells import cell_len, set_cell_size

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
from graph.terminal.call_words import target_of
from graph.terminal.plain_text import one_line
from nodes.call_model.limits import RunLimits
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
