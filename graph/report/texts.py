"""What others said and what was used, made fit for a page: no secrets, bounded lengths, budgets as bars. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.spending.report import AccountSpent
from mendgraph.nodes.call_model.ledger import Spending
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.language.display import count_of, one_line, plain, usd

_LINE: Final = 200
"""Characters of what stands on one line."""


class Bounds(NamedTuple):
    """How much of a run is shown: characters of one text, steps with their calls, and nodes of the path."""

    text: int = 20_000
    steps: int = 400
    path: int = 600


LEVELS: Final = (Bounds(), Bounds(4_000, 400, 400), Bounds(1_000, 300, 300), Bounds(400, 120, 200))
"""From generous to narrow: a page that is too large is made again with the next one."""


class Shown(NamedTuple):
    """A text as it stands on the page, and how many characters of it were left out at its end."""

    text: str
    left_out: int = 0


class Field(NamedTuple):
    """A named value: of a call's arguments, of a result. A `block` has lines of its own."""

    name: str
    value: Shown
    block: bool


class DiffLine(NamedTuple):
    """A line of a diff: `added`, `removed`, `same`, or `file`, `head` and `note`, which are about it."""

    kind: str
    text: str


def visible(text: str) -> str:
    """The text with control characters written as escapes; line by line, which is quicker for those that have none."""
    return "\n".join(map(plain, text.split("\n")))


@dataclass(frozen=True)
class Texts:
    """Cleans what others said."""

    redactor: Redactor
    bounds: Bounds

    def line(self, text: str, limit: int = _LINE) -> str:
        """On one line."""
        return one_line(self.redactor.text(text), limit)

    def shown(self, text: str, limit: int | None = None) -> Shown:
        """As it is, with its lines; secrets go before anything is cut, so that half of one is never left."""
        clean = self.redactor.text(text.replace("\r\n", "\n"))
        most = self.bounds.text if limit is None else min(limit, self.bounds.text)
        return Shown(visible(clean[:most]), max(0, len(clean) - most))

    def fields(self, values: Mapping[str, Any]) -> list[Field]:
        """Each value by its name; what is no text as JSON."""
        clean = self.redactor.content(dict(values))
        named = clean if isinstance(clean, dict) else {"value": clean}
        return [self._field(name, value) for name, value in named.items() if value not in (None, "", [], {})]

    def diff(self, diff: str) -> tuple[list[DiffLine], int]:
        """The lines of a unified diff, and how many characters were left out."""
        shown = self.shown(diff.removesuffix("\n"))
        return list(_diff_lines(shown.text)), shown.left_out

    def _field(self, name: str, value: Any) -> Field:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
        if not isinstance(value, str) and len(text) < _LINE:
            text = json.dumps(value, ensure_ascii=False, default=str)
        return Field(self.line(name, 80), self.shown(text), block="\n" in text or len(text) > 100)


def _diff_lines(text: str) -> Iterator[DiffLine]:
    kinds = {"+": "added", "-": "removed", "@": "head", "\\": "note", "[": "note"}
    for number, line in enumerate(text.split("\n")):
        heading = number < 2 and line.startswith(("--- ", "+++ "))
        yield DiffLine("file" if heading else kinds.get(line[:1], "same"), line)


# --- Times and money


def seconds_words(seconds: float) -> str:
    """`0.4 ms`, `120 ms`, `3.4 s`, `2 min 5 s`, `1 h 3 min`."""
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms" if seconds >= 0.001 or not seconds else f"{seconds * 1_000:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"


def time_words(time: str | datetime) -> str:
    """A time in UTC, as `2026-11-21 01:33:00 UTC`."""
    moment = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{moment - (moment.utcoffset() or timedelta()):%Y-%m-%d %H:%M:%S} UTC"


def cost_words(cost_usd: float, unpriced: int) -> str:
    """Money, and no guess where a price is not known."""
    if unpriced:
        return f"{f'{usd(cost_usd)} and ' if cost_usd else ''}{count_of(unpriced, 'call')} without a known price"
    return usd(cost_usd)


# --- Budgets


@dataclass(frozen=True)
class Bar:
    """One budget: what it counts, what was used of which limit, both in words; `share` is None without a limit."""

    name: str
    used: str
    limit: str
    share: float | None

    @property
    def state(self) -> str:
        """How near the limit is: ok, near (80 %) or full."""
        if self.share is None or self.share < 0.8:
            return "ok"
        return "near" if self.share < 1 else "full"


class DayUse(NamedTuple):
    """What all runs of all folders used on one UTC day; `unpriced` calls had no known price."""

    day: str
    tokens: int
    cost_usd: float
    unpriced: int


def session_bars(spending: Spending, context: AgentContext) -> list[Bar]:
    """What the thread has used in all its turns."""
    usage = spending.usage
    return [
        _count("Model calls", usage.total_calls, context.max_calls_per_session),
        _count("Input tokens", usage.total_input_tokens, context.max_input_tokens_per_session),
        _count("Output tokens", usage.total_output_tokens, context.max_output_tokens_per_session),
        _cost("Cost", spending.cost_usd, context.max_cost_usd, spending.unpriced_calls),
    ]


def turn_bars(spending: Spending, context: AgentContext) -> list[Bar]:
    """What the last turn has used."""
    now, start = spending.usage, spending.at_turn_start
    inputs = now.total_input_tokens - start.total_input_tokens
    outputs = now.total_output_tokens - start.total_output_tokens
    most, used = context.max_seconds, spending.seconds
    limit, share = ("", None) if most is None else (seconds_words(most), used / most)
    return [
        _count("Model calls", now.calls_in_current_turn, context.max_calls_per_turn),
        _count("Input tokens", inputs, context.max_input_tokens_per_turn),
        _count("Output tokens", outputs, context.max_output_tokens_per_turn),
        _count("Rounds of tools", spending.steps, context.max_steps),
        Bar("Time in model and tools", seconds_words(used), limit, share),
    ]


def shared_bars(used: DayUse | AccountSpent, max_tokens: int | None, max_cost_usd: float | None) -> list[Bar]:
    """What was used together with other runs: on a day, or of an account."""
    return [_count("Tokens", used.tokens, max_tokens), _cost("Cost", used.cost_usd, max_cost_usd, used.unpriced)]


def _count(name: str, used: int, limit: int | None) -> Bar:
    return Bar(name, f"{used:,}", "" if limit is None else f"{limit:,}", None if limit is None else used / limit)


def _cost(name: str, used: float, limit: float | None, unpriced: int) -> Bar:
    words = cost_words(used, unpriced)
    return Bar(name, words, "" if limit is None else f"{limit:g} USD", None if limit is None else used / limit)
