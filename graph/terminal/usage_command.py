"""`mendgraph usage`: what model calls of all workspaces have used, day by day and model by model, or by account."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import typer

from mendgraph.graph.terminal import options as opt
from mendgraph.graph.terminal.run_commands import options_without_a_task, refused, tell, tell_object
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import ToolError

if TYPE_CHECKING:
    from mendgraph.graph.spending.report import AccountSpent, ModelDay
    from mendgraph.graph.terminal.output_lines import Line

_COUNTS = {
    "calls": "CALLS",
    "input_tokens": "IN",
    "cached_tokens": "CACHED",
    "cache_write_tokens": "WRITTEN",
    "output_tokens": "OUT",
    "reasoning_tokens": "REASONING",
}
_ONLY_IF_ANY = frozenset({"cache_write_tokens", "reasoning_tokens"})
_ACCOUNTS_HEAD = ("ACCOUNT", "LAST USED", "CALLS", "TOKENS", "COST")


def usage(
    context: typer.Context, days: opt.Days = 7, account: opt.AccountShown = None, accounts: opt.Accounts = False
) -> int:
    """Show what model calls have used, by day (UTC) and model, or by account.

    All folders count together, as they do for the limits of days and accounts.
    """
    if accounts and _is_given(context, "days"):
        context.fail("--accounts shows all that was ever used: omit --days")
    account = _account_asked_for(context, account)
    chosen, today = options_without_a_task(context), datetime.now(UTC).date()
    if accounts:
        return _tell_accounts(chosen, account, today)
    from mendgraph.graph.spending.report import spent_by_day

    found = spent_by_day(days, account=account)
    if isinstance(found, ToolError):
        return refused(chosen, found)
    if chosen.as_json:
        return tell_object(day_objects(found))
    return tell(day_lines(found, days, today, account))


def _account_asked_for(context: typer.Context, account: str | None) -> str | None:
    """The account, None for all of them. Its option is one of runs as well, and is read as that wherever it stands."""
    chosen: opt.Options = context.obj
    context.obj = replace(chosen, given=tuple(each for each in chosen.given if each != "--account"))
    asked_for: str | None = chosen.settings.get("account", account)
    return asked_for


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _tell_accounts(chosen: opt.Options, account: str | None, today: date) -> int:
    """All accounts, or this one alone."""
    from mendgraph.graph.spending.report import accounts_spent

    found = accounts_spent()
    if isinstance(found, ToolError):
        return refused(chosen, found)
    shown = [each for each in found if account is None or each.account == account]
    return tell_object(account_objects(shown)) if chosen.as_json else tell(account_lines(shown, today, account))


def account_lines(spent: Sequence["AccountSpent"], today: date, account: str | None = None) -> "list[Line]":
    """A table with a line for each account; `account` is the only one that was asked for."""
    from mendgraph.graph.terminal.output_lines import Line

    if not spent:
        return [Line(f"No model was called yet{_of_account(account)}.")]
    rows: list[tuple[str, ...]] = [_ACCOUNTS_HEAD]
    rows += [
        (
            one_line(each.account) or "(none)",
            "today" if each.last_day == today else str(each.last_day),
            f"{each.calls:,}",
            f"{each.tokens:,}",
            _money(each.cost_usd, each.unpriced),
        )
        for each in spent
    ]
    return [*_table(rows), *_not_settled(sum(each.unsettled for each in spent))]


def account_objects(spent: Sequence["AccountSpent"]) -> list[dict[str, Any]]:
    """The same for programs: the account that was used last comes first."""
    return [{**each.model_dump(mode="json"), "cost_usd": round(each.cost_usd, 9)} for each in spent]


def day_lines(spent: Sequence["ModelDay"], days: int, today: date, account: str | None = None) -> "list[Line]":
    """A table: a line for each model of each day, and one for the day where it had several models.

    Tokens written into a cache and tokens of reasoning have a column where there are any.
    """
    from mendgraph.graph.terminal.output_lines import Line

    if not spent:
        since = "today" if days == 1 else f"in the last {days} days"
        return [Line(f"No model was called {since} (UTC){_of_account(account)}.")]
    counts = [each for each in _COUNTS if each not in _ONLY_IF_ANY or _sum(spent, each)]
    rows: list[tuple[str, ...]] = [("DAY", "MODEL", *(_COUNTS[each] for each in counts), "COST")]
    for day, models in groupby(spent, attrgetter("day")):
        listed = list(models)
        shown = [(one_line(each.model) or "(the default)", [each]) for each in listed]
        if len(listed) > 1:
            shown.append(("(all)", listed))
        names = ["today" if day == today else str(day)] + [""] * (len(shown) - 1)
        rows += [
            (name, model, *(f"{_sum(of, count):,}" for count in counts), _cost(of))
            for name, (model, of) in zip(names, shown, strict=True)
        ]
    return [*_table(rows), *_not_settled(_sum(spent, "unsettled"))]


def day_objects(spent: Sequence["ModelDay"]) -> list[dict[str, Any]]:
    """The same for programs: the days, newest first, each with its models."""
    return [
        {"day": str(day), "models": [_object(each) for each in models]}
        for day, models in groupby(spent, attrgetter("day"))
    ]


def _object(spent: "ModelDay") -> dict[str, Any]:
    """Without the digits that adding up has made."""
    exact = {"cost_usd": round(spent.cost_usd, 9), "seconds": round(spent.seconds, 3)}
    return {**spent.model_dump(mode="json"), **exact}


def _of_account(account: str | None) -> str:
    if account is None:
        return ""
    return f" for the account {account!r}" if account else " by runs that name no account"


def _table(rows: Sequence[tuple[str, ...]]) -> "list[Line]":
    from mendgraph.graph.terminal.output_lines import Line

    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [Line(_row(row, widths), "" if number else "bold") for number, row in enumerate(rows)]


def _not_settled(unsettled: int) -> "list[Line]":
    from mendgraph.graph.terminal.output_lines import Line

    if not unsettled:
        return []
    said = f"{unsettled:,} calls of these have no end yet, or were killed: they count as what was reserved for them."
    return [Line(said, "dim")]


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    day, model, *numbers, cost = row
    first, second, *others = widths[:-1]
    middle = [f"{number:>{width}}" for number, width in zip(numbers, others, strict=True)]
    return "  ".join([f"{day:<{first}}", f"{model:<{second}}", *middle, cost]).rstrip()


def _sum(spent: Iterable["ModelDay"], count: str) -> int:
    return sum(getattr(each, count) for each in spent)


def _cost(spent: Sequence["ModelDay"]) -> str:
    return _money(sum(each.cost_usd for each in spent), _sum(spent, "unpriced_calls"))


def _money(known: float, unpriced: int) -> str:
    from mendgraph.nodes.language.display import usd

    if not unpriced:
        return usd(known) if known else ""
    return f"{usd(known)} and {unpriced} without a price" if known else "no price known"
