"""Budgets and times as bars: how much of what, of how much. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from graph.context import AgentContext
from graph.spending_report import AccountSpent
from graph.terminal.usage_words import usd
from nodes.call_model.ledger import Spending


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


@dataclass(frozen=True)
class DayUse:
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
    return [
        _count("Model calls", now.calls_in_current_turn, context.max_calls_per_turn),
        _count("Input tokens", inputs, context.max_input_tokens_per_turn),
        _count("Output tokens", outputs, context.max_output_tokens_per_turn),
        _count("Rounds of tools", spending.steps, context.max_steps),
        Bar(
            "Time in model and tools",
            seconds_words(spending.seconds),
            "" if context.max_seconds is None else seconds_words(context.max_seconds),
            None if context.max_seconds is None else spending.seconds / context.max_seconds,
        ),
    ]


def day_bars(used: DayUse, context: AgentContext) -> list[Bar]:
    """What was used on the day of the run's last work."""
    return [
        _count("Tokens", used.tokens, context.max_tokens_per_day),
        _cost("Cost", used.cost_usd, context.max_cost_usd_per_day, used.unpriced),
    ]


def account_bars(used: AccountSpent, context: AgentContext) -> list[Bar]:
    """What the run's account has used in its whole life."""
    return [
        _count("Tokens", used.tokens, context.max_tokens_per_account),
        _cost("Cost", used.cost_usd, context.max_cost_usd_per_account, used.unpriced),
    ]


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
    zoned = moment - (moment.utcoffset() or timedelta())
    return f"{zoned:%Y-%m-%d %H:%M:%S} UTC"


def cost_words(cost_usd: float, unpriced: int) -> str:
    """Money, and no guess where a price is not known."""
    if unpriced:
        known = f"{usd(cost_usd)} and " if cost_usd else ""
        return f"{known}{unpriced:,} {'call' if unpriced == 1 else 'calls'} without a known price"
    return usd(cost_usd)


def _count(name: str, used: int, limit: int | None) -> Bar:
    return Bar(name, f"{used:,}", "" if limit is None else f"{limit:,}", None if limit is None else used / limit)


def _cost(name: str, used: float, limit: float | None, unpriced: int) -> Bar:
    words = cost_words(used, unpriced)
    return Bar(name, words, "" if limit is None else f"{limit:g} USD", None if limit is None else used / limit)
