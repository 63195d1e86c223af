"""What is done with the entries of a spending book, and the limits of a day and an account that it holds.

The SQL is for both of its databases.
"""

import sqlite3
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, cast

from mendgraph.graph.spending.database import BEGINNING, TURN, day_of
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, Used, unknown_price
from mendgraph.nodes.call_model.prompts.estimates import MOST_TOKENS, countable
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.store.database import Database
from mendgraph.nodes.records import StopCause, StopReason

_INSERT: Final = """
INSERT INTO entries (
    thread, model, purpose, day, reserved_at, settled_at, calls, input_tokens, output_tokens, cached_tokens, cost_usd,
    seconds, account
)
SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, CAST(? AS double precision), 0, ? WHERE {condition}
"""
_SETTLE: Final = """
UPDATE entries SET
    settled_at = ?, calls = ?, input_tokens = ?, output_tokens = ?, cached_tokens = ?, cost_usd = ?, seconds = ?,
    reasoning_tokens = ?, cache_write_tokens = ?
WHERE number = ?
"""
_LOST: Final = """
SELECT
    sum(calls), sum(input_tokens), sum(output_tokens), sum(cached_tokens), sum(reasoning_tokens),
    sum(cache_write_tokens), coalesce(sum(cost_usd), 0), sum(seconds),
    sum(CASE WHEN cost_usd IS NULL AND input_tokens + output_tokens > 0 THEN 1 ELSE 0 END), max(number)
FROM entries WHERE thread = ? AND number > ? AND number <= ?
"""
"""Its first columns are those of `Used`, in order."""
_BEGUN: Final = "SELECT max(number) FROM entries WHERE thread = ? AND purpose IN (?, ?)"


class Condition(NamedTuple):
    """What has to hold when an entry is made: SQL, and its parameters."""

    sql: str = "1 = 1"
    values: tuple[Any, ...] = ()


ALWAYS: Final = Condition()


def insert(
    database: Database, entry: Entry, account: str, now: datetime, condition: Condition = ALWAYS, *, calls: int = 1
) -> int | None:
    """Enter a reservation in one statement; its number, None where the condition does not hold. `now` is in UTC.

    Without `calls` it is a mark, which is settled at once.
    """
    at = now.isoformat(timespec="milliseconds")
    values = (
        entry.thread,
        entry.model,
        entry.purpose,
        day_of(now),
        at,
        None if calls else at,
        calls,
        countable(entry.input_tokens),
        countable(entry.output_tokens),
        entry.cost_usd,
        account,
        *condition.values,
    )
    statement = _INSERT.format(condition=condition.sql)
    if isinstance(database, sqlite3.Connection):  # with RETURNING the file would be locked until the row is read
        made = database.execute(statement, values)
        return made.lastrowid if made.rowcount else None
    row = database.execute(f"{statement} RETURNING number", values).fetchone()
    return None if row is None else int(row[0])


def settle(database: Database, number: int, used: Used, at: str) -> None:
    """Replace the entry's reservation by what was used."""
    values = (
        at,
        used.calls,
        countable(used.input_tokens),
        countable(used.output_tokens),
        countable(used.cached_tokens),
        used.cost_usd,
        used.seconds,
        countable(used.reasoning_tokens),
        countable(used.cache_write_tokens),
        number,
    )
    database.execute(_SETTLE, values)


def mark(database: Database, thread: str, *, first: bool, now: datetime) -> None:
    """Enter that a turn of the thread begins, or with its `first` one the thread."""
    purpose = BEGINNING if first else TURN
    entry = Entry(thread=thread, model="", purpose=purpose, input_tokens=0, output_tokens=0, cost_usd=0.0)
    insert(database, entry, "", now, calls=0)


def begun(database: Database, thread: str, *, turn: bool) -> int | None:
    """The number of the thread's newest mark, of a turn or else of its beginning."""
    found = database.execute(_BEGUN, (thread, BEGINNING, TURN if turn else BEGINNING)).fetchone()
    return cast("int | None", found[0])


def lost(database: Database, thread: str, after: int, until: int | None) -> tuple[Used, int]:
    """The thread's entries after a number, added up, and the largest number; none later than `until`."""
    *sums, unpriced, last = database.execute(_LOST, (thread, after, until or MOST_TOKENS)).fetchone()
    if last is None:
        return Used(), after
    used = Used(**dict(zip(Used.model_fields, sums, strict=True)))
    return used.model_copy(update={"cost_usd": None}) if unpriced else used, int(last)


# --- Limits

_SUMS: Final = "SELECT coalesce(sum(tokens), 0), coalesce(sum(cost_usd), 0) FROM {table} WHERE {which}"
_SUM: Final = "coalesce((SELECT sum({column}) FROM {table} WHERE {which}), 0) + ? <= ?"

_USD_UNSEEN: Final = 5e-10
"""Sums of USD are compared to a billionth of one: what adding up in binary makes of ten times 0.1 passes no limit."""


class _Cap(NamedTuple):
    """The limits of an account or a day, and where their sums are."""

    span: str
    table: str
    which: str
    who: tuple[int | str, ...]
    most_tokens: int | None
    most_cost: float | None


def _caps(limits: RunLimits, now: datetime) -> list[_Cap]:
    """The limits that there are; an account that is full is told before a day, which ends."""
    day, own = day_of(now), limits.account if limits.account_days else ""
    which = "day = ? AND account = ?" if own else "day = ?"
    of_account = limits.max_tokens_per_account, limits.max_cost_usd_per_account
    of_day = limits.max_tokens_per_day, limits.max_cost_usd_per_day
    caps = (
        _Cap("account", "accounts", "account = ?", (limits.account,), *of_account),
        _Cap("day", "days", which, (day, own) if own else (day,), *of_day),
    )
    return [each for each in caps if (each.most_tokens, each.most_cost) != (None, None)]


def is_limited(limits: RunLimits) -> bool:
    """Whether the book has to say yes to a call of this run."""
    of_an_account = limits.max_tokens_per_account is not None or limits.max_cost_usd_per_account is not None
    return of_an_account or _of_a_day(limits)


def fits(entry: Entry, limits: RunLimits, now: datetime) -> Condition:
    """What the entry's own statement has to ask, so that nobody reserves between the question and the entry.

    It holds where `refusal`, which finds the words, would find none. `now` is in UTC.
    """
    asked, conditions, values = entry.input_tokens + entry.output_tokens, list[str](), list[int | float | str]()
    for _, table, which, who, most_tokens, most_cost in _caps(limits, now):
        if most_tokens is not None:
            conditions.append(_SUM.format(column="tokens", table=table, which=which))
            values += [*who, countable(asked), most_tokens]
        if most_cost is not None:
            conditions.append(_SUM.format(column="cost_usd", table=table, which=which))
            values += [*who, entry.cost_usd or 0.0, most_cost + _USD_UNSEEN]
    return Condition(" AND ".join(conditions), tuple(values)) if conditions else ALWAYS


def locked_accounts(limits: RunLimits) -> tuple[str, ...]:
    """Whose reservations have to wait for this one, in the order of their locks: "" is for limits of all accounts."""
    everybody = _of_a_day(limits) and not (limits.account and limits.account_days)
    return tuple(sorted({"", limits.account} if everybody else {limits.account})) if is_limited(limits) else ()


def refusal(database: Database, entry: Entry, limits: RunLimits, now: datetime) -> StopCause | None:
    """The limit of the day or of the account into which the call does not fit; `now` is in UTC.

    Calls whose price was not known cannot count against a limit on cost.
    """
    for cap in _caps(limits, now):
        tokens, cost = database.execute(_SUMS.format(table=cap.table, which=cap.which), cap.who).fetchone()
        if full := _full(cap, entry, int(tokens), float(cost)):
            return _stop(full, cap, limits, now)
    return None


def without_price(entry: Entry, limits: RunLimits) -> StopCause | None:
    """The limit on cost of a day or an account that a call without a price cannot be held against."""
    return unknown_price(limits.model_copy(update={"max_cost_usd": None}), None, entry.model)


def _of_a_day(limits: RunLimits) -> bool:
    return limits.max_tokens_per_day is not None or limits.max_cost_usd_per_day is not None


def _full(cap: _Cap, entry: Entry, tokens: int, cost: float) -> str:
    """Which limit of the day or the account the call would pass, and by what; "" where it fits."""
    asked = entry.input_tokens + entry.output_tokens
    if cap.most_tokens is not None and tokens + asked > cap.most_tokens:
        sums = f"{tokens:,} of {cap.most_tokens:,} tokens are used or reserved, and the next call may use {asked:,}"
        return f"Limit 'max_tokens_per_{cap.span}' reached: {sums}"
    most, more = cap.most_cost, entry.cost_usd
    if most is not None and more is not None and cost + more > most + _USD_UNSEEN:
        sums = f"{cost:.6f} of {most:g} USD are used or reserved, and the next call may cost {more:.6f}"
        return f"Limit 'max_cost_usd_per_{cap.span}' reached: {sums}"
    return ""


def _stop(full: str, cap: _Cap, limits: RunLimits, now: datetime) -> StopCause:
    whose = f"all runs of the account {quoted(limits.account)}" if limits.account else "all runs that name no account"
    if cap.span == "account":
        message = f"{full}, in {whose} together. Raise the limit, or name another account."
        return StopCause(reason=StopReason.ACCOUNT_LIMIT, message=message)
    where = whose if limits.account and limits.account_days else "all workspaces"
    end = (now + timedelta(days=1)).strftime("%Y-%m-%d 00:00 UTC")
    return StopCause(reason=StopReason.DAY_LIMIT, message=f"{full}, in {where} together. The day ends at {end}.")
