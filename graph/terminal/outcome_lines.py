"""The outcome and the usage of a run, in lines for people. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from mendgraph.graph.terminal.output import Line
from mendgraph.graph.terminal.run_view import Account
from mendgraph.nodes.call_model.budget import APILimits, APIUsageStats, format_usage_stats
from mendgraph.nodes.language.display import output_words, usd
from mendgraph.nodes.records import JsonMap, Outcome, OutcomeKind

OUTCOME_STYLES: Final = {
    OutcomeKind.FINISHED: "bold green",
    OutcomeKind.BUDGET_STOP: "bold yellow",
    OutcomeKind.SYSTEM_ERROR: "bold red",
}
_DIFF_STYLES: Final = {"---": "bold", "+++": "bold", "@": "cyan", "-": "red", "+": "green", "\\": "dim", "[": "dim"}


def diff_lines(diffs: Iterable[str]) -> Iterator[Line]:
    """Yield the lines of unified diffs, coloured."""
    for diff in diffs:
        for number, line in enumerate(diff.removesuffix("\n").split("\n")):
            mark = line[:1]
            if number < 2:  # the names of the files
                mark = line[:3]

            yield Line(line, _DIFF_STYLES.get(mark, ""))


def outcome_lines(outcome: Outcome) -> Iterator[Line]:
    """Yield the outcome in one line; for a run that did not finish also its diagnostics and how to continue."""
    style = OUTCOME_STYLES[outcome.kind]
    head = f"{outcome.kind.value} ({outcome.reason.value}): "

    if outcome.kind is OutcomeKind.FINISHED:
        if outcome.value is not None:
            yield Line(f"value: {json.dumps(outcome.value, ensure_ascii=False)}")

        yield Line(head + outcome.message, style)
        return

    yield Line(head + " ".join(outcome.message.split()), style)
    yield from (Line(f"  - {' '.join(line.split())}", "dim") for line in outcome.diagnostics)
    yield Line(f"How to go on: {outcome.how_to_go_on}")


def usage_lines(usage: JsonMap, limits: APILimits, account: Account) -> Iterator[Line]:
    """Yield the usage of the turn, then that of a session with more turns; nothing where no model was called."""
    calls = usage.get("calls_in_current_turn", 0)
    if not calls:
        return

    is_first_turn = calls == usage.get("total_calls", calls)
    details: Mapping[str, int] = {}
    cost: list[str] = []
    if is_first_turn:
        details = usage
        cost = cost_words(usage.get("cost_usd"), account.unpriced)

    words = [
        f"{calls}/{limits.max_calls_per_turn} calls",
        _input_words(usage.get("input_tokens_in_current_turn", 0), details),
        output_words(usage.get("output_tokens_in_current_turn", 0), details.get("reasoning_tokens", 0)),
        f"{usage.get('seconds_in_current_turn', 0):.1f} s",
        *cost,
    ]
    yield Line(f"usage: {', '.join(words)}", "dim")

    if not is_first_turn:
        words = [
            f"{usage.get('total_calls', 0)}/{limits.max_calls_per_session} calls",
            _input_words(usage.get("total_input_tokens", 0), usage),
            output_words(usage.get("total_output_tokens", 0), usage.get("reasoning_tokens", 0)),
            *cost_words(usage.get("cost_usd"), account.unpriced),
        ]
        yield Line(f"session: {', '.join(words)}", "dim")


def usage_block(usage: JsonMap, limits: APILimits) -> Iterator[Line]:
    """Yield the lines of `format_usage_stats`. Source: spec 1 section 4.3."""
    stats = APIUsageStats(*(usage.get(name, 0) for name in APIUsageStats._fields))
    return (Line(line) for line in format_usage_stats(stats, limits).splitlines())


def cost_words(cost_usd: float | None, unpriced: list[str]) -> list[str]:
    """Return the cost as the end of a line: nothing for 0, and no estimate where a price is unknown."""
    if cost_usd is None:
        return [f"cost unknown: no price for {', '.join(unpriced) or 'the model'} (see prices.toml)"]
    if cost_usd > 0:
        return [usd(cost_usd)]

    return []


def _input_words(tokens: int, details: Mapping[str, int]) -> str:
    cached = details.get("cached_tokens", 0)
    written = details.get("cache_write_tokens", 0)
    parts = []
    if cached:
        parts.append(f"{cached:,} cached")
    if written:
        parts.append(f"{written:,} written to the cache")

    words = f"{tokens:,} tokens in"
    if parts:
        words += f" ({', '.join(parts)})"

    return words
