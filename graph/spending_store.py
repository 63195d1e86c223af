"""The spending book as a database: one for all workspaces and processes of a user.

It holds numbers, times, and the names of threads and models; no text of anybody. An entry is in the file when `reserve`
or `settle` returns, whatever then becomes of the process; a power cut may take the last ones.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from os.path import basename
from typing import Final, cast

from nodes.call_model.estimates import countable
from nodes.call_model.limits import RunLimits, unknown_price
from nodes.call_model.spending_book import Entry, Used
from nodes.execute_tools.environment.database import StoreError, store_errors, transaction
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.run_folder import DATA_DIR_VARIABLE, SPENDING
from nodes.execute_tools.environment.user_files import connect_to, spending_file
from nodes.records import StopCause, StopReason, ToolError

FILE_NAME: Final = f"{SPENDING}/spending.sqlite"
"""Where it lies in the data folder."""

APPLICATION_ID: Final = int.from_bytes(b"mnsp")
"""Marks a file as a spending book. Source: sqlite.org/pragma.html#pragma_application_id."""

FORMAT: Final = 1
"""Which columns there are and what they mean; raised with every change of either."""

KEPT_DAYS: Final = 62
"""How long an entry is kept after it was settled: the last two months."""

_PRUNED_EVERY: Final = 1_000

BEGINNING: Final = "begin"
"""The purpose of an entry that is no call, but marks where a thread begins."""

_SCHEMA: Final = (
    """
CREATE TABLE entries (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- no number comes twice, also after the last entry was pruned
    thread TEXT NOT NULL,
    model TEXT NOT NULL,
    purpose TEXT NOT NULL,
    day INTEGER NOT NULL, -- of the reservation: days since 1970 in UTC
    reserved_at TEXT NOT NULL,
    settled_at TEXT,
    calls INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    cost_usd REAL,
    seconds REAL NOT NULL
)
    """,
    "CREATE INDEX of_thread ON entries (thread, number)",
    "CREATE INDEX of_day ON entries (day)",
    "CREATE TABLE days (day INTEGER PRIMARY KEY, tokens INTEGER NOT NULL, cost_usd REAL NOT NULL)",
    """
CREATE TRIGGER entry_reserved AFTER INSERT ON entries BEGIN
    INSERT INTO days VALUES (new.day, new.input_tokens + new.output_tokens, coalesce(new.cost_usd, 0))
    ON CONFLICT (day) DO UPDATE SET tokens = tokens + excluded.tokens, cost_usd = cost_usd + excluded.cost_usd;
END
    """,
    """
CREATE TRIGGER entry_settled AFTER UPDATE ON entries BEGIN
    UPDATE days SET
        tokens = tokens + new.input_tokens + new.output_tokens - old.input_tokens - old.output_tokens,
        cost_usd = cost_usd + coalesce(new.cost_usd, 0) - coalesce(old.cost_usd, 0)
    WHERE day = new.day;
END
    """,
)
"""`days` holds the sums of `entries`, so that a limit of the day is checked as fast at its end as at its start."""

_INSERT: Final = """
INSERT INTO entries (
    thread, model, purpose, day, reserved_at, calls, input_tokens, output_tokens, cached_tokens, cost_usd, seconds
)
VALUES (?, ?, ?, ?, ?, 1, ?, ?, 0, ?, 0)
"""
_SETTLE: Final = """
UPDATE entries SET
    settled_at = ?, calls = ?, input_tokens = ?, output_tokens = ?, cached_tokens = ?, cost_usd = ?, seconds = ?
WHERE number = ?
"""
_LOST: Final = """
SELECT
    total(calls), total(input_tokens), total(output_tokens), total(cached_tokens), total(cost_usd), total(seconds),
    total(cost_usd IS NULL AND input_tokens + output_tokens > 0), max(number)
FROM entries WHERE thread = ? AND number > ?
"""
_BEGUN: Final = "SELECT max(number) FROM entries WHERE thread = ? AND purpose = ?"
_NEWEST: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'entries'"
_OF_DAY: Final = "SELECT total(tokens), total(cost_usd) FROM days WHERE day = ?"
_PRUNE: Final = "DELETE FROM entries WHERE day < ? AND settled_at IS NOT NULL"


class SpendingStore:
    """A `SpendingBook` in `spending.sqlite`, which is opened when it is first needed and is any thread's to use.

    It never raises for what the disk refuses: with a limit of the day the call is then refused, and without one it is
    made and not entered, which `trouble` tells.
    """

    def __init__(self, base: str | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Touches nothing yet. The file lies in `base`, or in the data folder; `now` is the time, with its zone."""
        self._base, self._now = base, now
        self._lock = threading.Lock()
        self._path = FILE_NAME
        self._connection: sqlite3.Connection | None = None
        self._trouble: StopCause | None = None
        self._told = False

    def close(self) -> None:
        """Close the file. It is opened again where it is needed again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def newest(self) -> int:
        """The largest number so far: none of the entries up to it is that of a thread that begins now."""
        try:
            with self._database() as database:
                row = database.execute(_NEWEST).fetchone()
        except StoreError as error:
            self._failed(error)
            return 0
        return int(row[0]) if row else 0

    def begin(self, thread: str) -> None:
        """Mark that a thread begins here: what is entered under its name before is another one's."""
        entry = Entry(thread=thread, model="", purpose=BEGINNING, input_tokens=0, output_tokens=0, cost_usd=0.0)
        try:
            with self._database() as database, transaction(database):
                number = _insert(database, entry, self._now().astimezone(UTC))
                _settle(database, number, Used(), self._now())
        except StoreError as error:
            self._failed(error)

    def begun(self, thread: str) -> int | None:
        """The number with which the thread began last, None where nobody has marked it."""
        try:
            with self._database() as database:
                return cast("int | None", database.execute(_BEGUN, (thread, BEGINNING)).fetchone()[0])
        except StoreError as error:
            self._failed(error)
            return None

    def lost(self, thread: str, after: int) -> tuple[Used, int]:
        """All entries of the thread with a larger number, added up, and the largest number."""
        try:
            with self._database() as database:
                *sums, unpriced, last = database.execute(_LOST, (thread, after)).fetchone()
        except StoreError as error:
            self._failed(error)
            return Used(), after
        if last is None:
            return Used(), after
        calls, inputs, outputs, cached, cost, seconds = sums
        used = Used(
            calls=int(calls),
            input_tokens=int(inputs),
            output_tokens=int(outputs),
            cached_tokens=int(cached),
            cost_usd=None if unpriced else cost,
            seconds=seconds,
        )
        return used, last

    def reserve(self, entry: Entry, limits: RunLimits) -> int | StopCause:
        """Enter a call before it is sent; its number, 0 where it cannot be entered, or why it may not be sent."""
        now = self._now().astimezone(UTC)
        limited = limits.max_tokens_per_day is not None or limits.max_cost_usd_per_day is not None
        try:
            with self._database() as database, transaction(database):
                if limited and (refusal := _refusal(database, entry, limits, now)) is not None:
                    return refusal
                number = _insert(database, entry, now)
                if number % _PRUNED_EVERY == 0:
                    _prune(database, now)
                return number
        except StoreError as error:
            cause = self._failed(error)
            if not limited:
                return 0
            return cause.model_copy(update={"message": f"{cause.message} No limit of the day can be held without it."})

    def settle(self, number: int, used: Used) -> StopCause | None:
        """Replace the reservation by what was used, or say why that could not be written."""
        if number == 0:
            return None
        try:
            with self._database() as database:
                _settle(database, number, used, self._now())
        except StoreError as error:
            return self._failed(error)
        return None

    def trouble(self) -> StopCause | None:
        """Why calls are not entered, told once; None where they are, or where it was told before."""
        if self._told or self._trouble is None:
            return None
        self._told = True
        return self._trouble

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                self._connection = self._open()
            with store_errors(self._path):
                yield self._connection

    def _open(self) -> sqlite3.Connection:
        path = spending_file(basename(FILE_NAME), self._base)
        if isinstance(path, ToolError):
            raise StoreError(path.message)
        self._path = path
        with store_errors(path):
            connection = connect_to(path)
            try:
                _prepare(connection, path)
                _prune(connection, self._now().astimezone(UTC))
            except BaseException:
                connection.close()
                raise
            return connection

    def _failed(self, error: StoreError) -> StopCause:
        message = f"The spending book, into which model calls are entered, cannot be used. {error}"
        self._trouble = StopCause(reason=StopReason.STORE_FAILED, message=message)
        return self._trouble


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the table in a new file; see to it that an old one is ours."""
    connection.execute("PRAGMA synchronous = NORMAL")
    if _is_empty(connection):
        connection.execute("PRAGMA journal_mode = WAL")
        with transaction(connection):
            if _is_empty(connection):  # nobody was faster
                _make_table(connection)
    found = tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if found != (APPLICATION_ID, FORMAT):
        what = (
            "is no spending book of mendgraph" if found[0] != APPLICATION_ID else "is of another version of mendgraph"
        )
        message = f"The file {quoted(path)} {what}: move it away, or set {DATA_DIR_VARIABLE} to another folder."
        raise StoreError(message)


def _is_empty(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return not tables


def _make_table(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _insert(database: sqlite3.Connection, entry: Entry, now: datetime) -> int:
    values = (
        entry.thread,
        entry.model,
        entry.purpose,
        _day(now),
        now.isoformat(timespec="milliseconds"),
        countable(entry.input_tokens),
        countable(entry.output_tokens),
        entry.cost_usd,
    )
    number = database.execute(_INSERT, values).lastrowid
    assert number is not None  # noqa: S101 - an INSERT that returns has made a row
    return number


def _settle(database: sqlite3.Connection, number: int, used: Used, now: datetime) -> None:
    values = (
        now.astimezone(UTC).isoformat(timespec="milliseconds"),
        used.calls,
        countable(used.input_tokens),
        countable(used.output_tokens),
        countable(used.cached_tokens),
        used.cost_usd,
        used.seconds,
        number,
    )
    database.execute(_SETTLE, values)


def _refusal(database: sqlite3.Connection, entry: Entry, limits: RunLimits, now: datetime) -> StopCause | None:
    """The limit of the day into which the call does not fit.

    Calls of other runs whose price was not known cannot count against the limit on cost.
    """
    if entry.cost_usd is None and limits.max_cost_usd_per_day is not None:
        return unknown_price(limits.model_copy(update={"max_cost_usd": None}), None, entry.model)
    tokens, cost = database.execute(_OF_DAY, (_day(now),)).fetchone()
    asked = entry.input_tokens + entry.output_tokens
    most_tokens, most_cost = limits.max_tokens_per_day, limits.max_cost_usd_per_day
    if most_tokens is not None and tokens + asked > most_tokens:
        sums = f"{int(tokens):,} of {most_tokens:,} tokens are used or reserved, and the next call may use {asked:,}"
        return _day_is_full("max_tokens_per_day", sums, now)
    if most_cost is not None and entry.cost_usd is not None and cost + entry.cost_usd > most_cost:
        sums = f"{cost:.6f} of {most_cost:g} USD are used or reserved, and the next call may cost {entry.cost_usd:.6f}"
        return _day_is_full("max_cost_usd_per_day", sums, now)
    return None


def _day_is_full(limit: str, sums: str, now: datetime) -> StopCause:
    end = (now + timedelta(days=1)).strftime("%Y-%m-%d 00:00 UTC")
    message = f"Limit '{limit}' reached: {sums}, in all workspaces together. The day ends at {end}."
    return StopCause(reason=StopReason.DAY_LIMIT, message=message)


def _prune(database: sqlite3.Connection, now: datetime) -> None:
    database.execute(_PRUNE, (_day(now) - KEPT_DAYS,))


def _day(now: datetime) -> int:
    return int(now.timestamp()) // 86_400
