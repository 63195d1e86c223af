"""`mendgraph usage`: what model calls of all workspaces have used, day by day and model by model."""

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import typer

from graph.terminal import options as opt
from graph.terminal.plain_text import one_line
from graph.terminal.run_commands import options_without_a_task, refused, tell, tell_object
from nodes.records import ToolError

if TYPE_CHECKING:
    from graph.spending_days import ModelDay
    from graph.terminal.ending import Line

_HEAD = ("DAY", "MODEL", "CALLS", "IN", "CACHED", "OUT", "COST")
_COUNTS = ("calls", "input_tokens", "cached_tokens", "output_tokens")


def usage(context: typer.Context, days: opt.Days = 7) -> int:
    """Show what model calls have used, by day (UTC) and model.

    All folders count together, as they do for the limits of a day.
    """
    from graph.spending_days import spent_by_day

    chosen = options_without_a_task(context)
    found = spent_by_day(days)
    if isinstance(found, ToolError):
        return refused(chosen, found)
    if chosen.as_json:
        return tell_object(day_objects(found))
    return tell(day_lines(found, days, datetime.now(UTC).date()))


def day_lines(spent: Sequence["ModelDay"], days: int, today: date) -> "list[Line]":
    """A table: a line for each model of each day, and one for the day where it had several models."""
    from graph.terminal.ending import Line

    if not spent:
        since = "today" if days == 1 else f"in the last {days} days"
        return [Line(f"No model was called {since} (UTC).")]
    rows: list[tuple[str, ...]] = [_HEAD]
    for day, models in groupby(spent, attrgetter("day")):
        listed = list(models)
        shown = [(one_line(each.model) or "(the default)", [each]) for each in listed]
        if len(listed) > 1:
            shown.append(("(all)", listed))
        names = ["today" if day == today else str(day)] + [""] * (len(shown) - 1)
        rows += [
            (name, model, *(f"{_sum(of, count):,}" for count in _COUNTS), _cost(of))
            for name, (model, of) in zip(names, shown, strict=True)
        ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [Line(_row(row, widths), "" if number else "bold") for number, row in enumerate(rows)]
    if unsettled := sum(each.unsettled for each in spent):
        said = (
            f"{unsettled:,} calls of these have no end yet, or were killed: they count as what was reserved for them."
        )
        lines.append(Line(said, "dim"))
    return lines


def day_objects(spent: Sequence["ModelDay"]) -> list[dict[str, Any]]:
    """The same for programs: the days, newest first, each with its models."""
    return [
        {"day": str(day), "models": [_object(each) for each in models]}
        for day, models in groupby(spent, attrgetter("day"))
    ]


def _object(spent: "ModelDay") -> dict[str, Any]:
    """All but the day, without the digits that adding up has made."""
    exact = {"cost_usd": round(spent.cost_usd, 9), "seconds": round(spent.seconds, 3)}
    return {**spent.model_dump(mode="json", exclude={"day"}), **exact}


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    day, model, *numbers, cost = row
    first, second, *others = widths[:-1]
    middle = [f"{number:>{width}}" for number, width in zip(numbers, others, strict=True)]
    return "  ".join([f"{day:<{first}}", f"{model:<{second}}", *middle, cost]).rstrip()


def _sum(spent: Iterable["ModelDay"], count: str) -> int:
    return sum(getattr(each, count) for each in spent)


def _cost(spent: Sequence["ModelDay"]) -> str:
    from graph.terminal.usage_words import usd

    known, unpriced = sum(each.cost_usd for each in spent), _sum(spent, "unpriced_calls")
    if not unpriced:
        return usd(known) if known else ""
    return f"{usd(known)} and {unpriced} without a price" if known else "no price known"
