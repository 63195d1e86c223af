"""The limits that a spending book holds, of a day and of an account: whether a call still fits into them."""

from datetime import datetime, timedelta
from typing import Final

from graph.spending_rows import ALWAYS, Condition, day_of
from nodes.call_model.estimates import countable
from nodes.call_model.limits import Entry, RunLimits, unknown_price
from nodes.execute_tools.environment.database import Database
from nodes.execute_tools.environment.failures import quoted
from nodes.records import StopCause, StopReason

_OF_DAY: Final = "SELECT coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0) FROM days WHERE day = ?"
_OF_ACCOUNTS_DAY: Final = f"{_OF_DAY} AND account = ?"
_OF_ACCOUNT: Final = "SELECT coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0) FROM accounts WHERE account = ?"

_USD_UNSEEN: Final = 5e-10
"""Sums of USD are compared to a billionth of one: what adding up in binary makes of ten times 0.1 passes no limit."""

_SUM: Final = "coalesce((SELECT sum({column}) FROM {table} WHERE {which}), 0) + ? <= ?"


def is_limited(limits: RunLimits) -> bool:
    """Whether the book has to say yes to a call of this run."""
    return _of_a_day(limits) or _of_an_account(limits)


def fits(entry: Entry, limits: RunLimits, now: datetime) -> Condition:
    """What the entry's own statement has to ask, so that nobody reserves between the question and the entry.

    It holds where `refusal`, which finds the words, would find none. `now` is in UTC.
    """
    day, own = day_of(now), limits.account if limits.account_days else ""
    whose: tuple[tuple[str, str, tuple[int | str, ...], int | None, float | None], ...] = (
        ("accounts", "account = ?", (limits.account,), limits.max_tokens_per_account, limits.max_cost_usd_per_account),
        (
            "days",
            "day = ? AND account = ?" if own else "day = ?",
            (day, own) if own else (day,),
            limits.max_tokens_per_day,
            limits.max_cost_usd_per_day,
        ),
    )
    asked, told, values = entry.input_tokens + entry.output_tokens, list[str](), list[int | float | str]()
    for table, which, who, most_tokens, most_cost in whose:
        if most_tokens is not None:
            told.append(_SUM.format(column="tokens", table=table, which=which))
            values += [*who, countable(asked), most_tokens]
        if most_cost is not None:
            told.append(_SUM.format(column="cost_usd", table=table, which=which))
            values += [*who, entry.cost_usd or 0.0, most_cost + _USD_UNSEEN]
    return Condition(" AND ".join(told), tuple(values)) if told else ALWAYS


def locked_accounts(limits: RunLimits) -> tuple[str, ...]:
    """Whose reservations have to wait for this one, in the order of their locks: "" is for limits of all accounts."""
    everybody = _of_a_day(limits) and not (limits.account and limits.account_days)
    return tuple(sorted({"", limits.account} if everybody else {limits.account})) if is_limited(limits) else ()


def refusal(database: Database, entry: Entry, limits: RunLimits, now: datetime) -> StopCause | None:
    """The limit of the day or of the account into which the call does not fit; `now` is in UTC.

    Calls whose price was not known cannot count against a limit on cost.
    """
    if _of_an_account(limits):
        tokens, cost = database.execute(_OF_ACCOUNT, (limits.account,)).fetchone()
        most = limits.max_tokens_per_account, limits.max_cost_usd_per_account
        if full := _full("account", entry, int(tokens), float(cost), *most):
            return _account_is_full(full, limits)
    if _of_a_day(limits):
        of_account, day = limits.account if limits.account_days else "", day_of(now)
        found = (
            database.execute(_OF_ACCOUNTS_DAY, (day, of_account)) if of_account else database.execute(_OF_DAY, (day,))
        )
        tokens, cost = found.fetchone()
        if full := _full(
            "day", entry, int(tokens), float(cost), limits.max_tokens_per_day, limits.max_cost_usd_per_day
        ):
            return _day_is_full(full, limits, now)
    return None


def without_price(entry: Entry, limits: RunLimits) -> StopCause | None:
    """The limit on cost of a day or an account that a call without a price cannot be held against."""
    return unknown_price(limits.model_copy(update={"max_cost_usd": None}), None, entry.model)


def _of_a_day(limits: RunLimits) -> bool:
    return limits.max_tokens_per_day is not None or limits.max_cost_usd_per_day is not None


def _of_an_account(limits: RunLimits) -> bool:
    return limits.max_tokens_per_account is not None or limits.max_cost_usd_per_account is not None


def _full(span: str, entry: Entry, tokens: int, cost: float, most_tokens: int | None, most_cost: float | None) -> str:
    """Which limit of the day or the account the call would pass, and by what; "" where it fits."""
    asked = entry.input_tokens + entry.output_tokens
    if most_tokens is not None and tokens + asked > most_tokens:
        sums = f"{tokens:,} of {most_tokens:,} tokens are used or reserved, and the next call may use {asked:,}"
        return f"Limit 'max_tokens_per_{span}' reached: {sums}"
    if most_cost is not None and entry.cost_usd is not None and cost + entry.cost_usd > most_cost + _USD_UNSEEN:
        sums = f"{cost:.6f} of {most_cost:g} USD are used or reserved, and the next call may cost {entry.cost_usd:.6f}"
        return f"Limit 'max_cost_usd_per_{span}' reached: {sums}"
    return ""


def _account_is_full(full: str, limits: RunLimits) -> StopCause:
    whose = f"of the account {quoted(limits.account)}" if limits.account else "that name no account"
    message = f"{full}, in all runs {whose} together. Raise the limit, or name another account."
    return StopCause(reason=StopReason.ACCOUNT_LIMIT, message=message)


def _day_is_full(full: str, limits: RunLimits, now: datetime) -> StopCause:
    own = limits.account and limits.account_days
    where = f"in all runs of the account {quoted(limits.account)}" if own else "in all workspaces"
    end = (now + timedelta(days=1)).strftime("%Y-%m-%d 00:00 UTC")
    return StopCause(reason=StopReason.DAY_LIMIT, message=f"{full}, {where} together. The day ends at {end}.")
