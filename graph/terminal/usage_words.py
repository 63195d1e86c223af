"""What model calls have used, as lines for a person and as objects for a program: of the turn, and of the session.

Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from graph.events import Compacted, Event, Paid
from graph.report.words import output_words, usd as usd  # noqa: PLC0414 - others take it from here
from graph.terminal.ending import Line
from nodes.call_model.budget import APILimits, APIUsageStats, format_usage_stats
from nodes.records import JsonMap

_PARTS: Final = ("cached_tokens", "cache_write_tokens", "reasoning_tokens")
_COMPACTIONS: Final = {
    "cleared": "older results are no longer shown to the model",
    "summarised": "the model is shown a summary of the conversation's beginning",
    "slid": "the conversation's beginning is no longer shown to the model",
}


@dataclass
class Account:
    """The paid calls and compactions of the turn so far, and which models of the session have no known price."""

    paid: list[Paid] = field(default_factory=list)
    compactions: list[Compacted] = field(default_factory=list)
    unpriced: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Begin a turn."""
        self.paid, self.compactions = [], []

    def note(self, event: Event) -> None:
        """Note what an event tells of calls and compactions; others tell nothing."""
        if isinstance(event, Compacted):
            self.compactions.append(event)
        elif isinstance(event, Paid):
            self.paid.append(event)
            if event.cost_usd is None and event.model not in self.unpriced:
                self.unpriced.append(event.model)

    def as_map(self) -> JsonMap:
        """`steps`, one for each try of a model call, and `compactions`, both in order."""
        steps = [{**asdict(each), "seconds": round(each.seconds, 3), "cost_usd": _exact(each)} for each in self.paid]
        return {"steps": steps, "compactions": [asdict(each) for each in self.compactions]}


def usage_lines(usage: JsonMap, limits: APILimits, account: Account) -> Iterator[Line]:
    """What the turn used; then what the session did, where there is more to it. Nothing where no model was called.

    Cost of the turn, and its tokens of cache and reasoning, are told where all of its calls were seen: a turn that is
    taken up again had some before.
    """
    calls, tokens = usage.get("calls_in_current_turn", 0), usage.get("input_tokens_in_current_turn", 0)
    if not calls:
        return
    whole = calls == usage.get("total_calls", calls)
    seen = sum(each.input_tokens for each in account.paid) == tokens
    parts = usage if whole else {name: sum(getattr(each, name) for each in account.paid if seen) for name in _PARTS}
    costs = [each.cost_usd for each in account.paid] if seen else [0.0]
    cost = None if None in costs else sum(each or 0.0 for each in costs)
    words = [
        f"{calls}/{limits.max_calls_per_turn} calls",
        _input_words(tokens, parts),
        output_words(usage.get("output_tokens_in_current_turn", 0), parts.get("reasoning_tokens", 0)),
        f"{usage.get('seconds_in_current_turn', 0):.1f} s",
        *cost_words(usage.get("cost_usd") if whole else cost, account.unpriced),
    ]
    yield Line(f"usage: {', '.join(words)}", "dim")
    if not whole:
        yield session_line(usage, limits, account)


def session_line(usage: JsonMap, limits: APILimits, account: Account) -> Line:
    """What the session used, on one line."""
    words = [
        f"{usage.get('total_calls', 0)}/{limits.max_calls_per_session} calls",
        _input_words(usage.get("total_input_tokens", 0), usage),
        output_words(usage.get("total_output_tokens", 0), usage.get("reasoning_tokens", 0)),
        *cost_words(usage.get("cost_usd"), account.unpriced),
    ]
    return Line(f"session: {', '.join(words)}", "dim")


def usage_block(usage: JsonMap, limits: APILimits) -> Iterator[Line]:
    """The block of `format_usage_stats`, line by line. Source: spec 1 section 4.3."""
    stats = APIUsageStats(*(usage.get(name, 0) for name in APIUsageStats._fields))
    return (Line(line) for line in format_usage_stats(stats, limits).splitlines())


def cost_words(cost_usd: float | None, unpriced: list[str]) -> list[str]:
    """What it cost, as the end of a line: nothing where that is nothing, and no guess where a price is not known."""
    if cost_usd is None:
        return [f"cost unknown: no price for {', '.join(unpriced) or 'the model'} (see prices.toml)"]
    return [usd(cost_usd)] if cost_usd > 0 else []


def compaction_words(event: Compacted) -> str:
    """What a compaction did, and what it saved."""
    done = _COMPACTIONS.get(event.kind, "the model is shown less of the conversation")
    return f"{done}: {event.tokens_before:,} -> {event.tokens_after:,} tokens"


def _input_words(tokens: int, parts: Mapping[str, int]) -> str:
    cached, written = parts.get("cached_tokens", 0), parts.get("cache_write_tokens", 0)
    told = [f"{cached:,} cached"] * bool(cached) + [f"{written:,} written to the cache"] * bool(written)
    return f"{tokens:,} tokens in" + (f" ({', '.join(told)})" if told else "")


def _exact(paid: Paid) -> float | None:
    """The cost without the digits that adding up has made."""
    return None if paid.cost_usd is None else round(paid.cost_usd, 9)
