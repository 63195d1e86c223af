"""What is done with the entries of a spending book, as SQL that each of its databases understands."""

import sqlite3
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from graph.spending_schema import BEGINNING, TURN
from nodes.call_model.estimates import MOST_TOKENS, countable
from nodes.call_model.limits import Entry, Used
from nodes.execute_tools.environment.database import Database

KEPT_DAYS: Final = 62
"""How long an entry is kept after it was settled: the last two months."""

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
    sum(calls), sum(input_tokens), sum(output_tokens), sum(cached_tokens), coalesce(sum(cost_usd), 0), sum(seconds),
    sum(reasoning_tokens), sum(cache_write_tokens),
    sum(CASE WHEN cost_usd IS NULL AND input_tokens + output_tokens > 0 THEN 1 ELSE 0 END), max(number)
FROM entries WHERE thread = ? AND number > ? AND number <= ?
"""
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
    calls, inputs, outputs, cached, cost, seconds, reasoning, written = sums
    used = Used(
        calls=int(calls),
        input_tokens=int(inputs),
        output_tokens=int(outputs),
        cached_tokens=int(cached),
        reasoning_tokens=int(reasoning),
        cache_write_tokens=int(written),
        cost_usd=None if unpriced else float(cost),
        seconds=float(seconds),
    )
    return used, int(last)


def oldest_kept(now: datetime) -> int:
    """The first day whose entries are not forgotten."""
    return day_of(now) - KEPT_DAYS


def day_of(now: datetime) -> int:
    """The UTC day, counted from 1970."""
    return int(now.timestamp()) // 86_400
