"""The spending book as a database: one for all workspaces and processes of a user.

It holds numbers, times, and the names of threads and models; no text of anybody. An entry is in the file when `reserve`
returns, whatever then becomes of the process; what was used follows with the next entry. A power cut may take the last.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from os.path import basename
from typing import Final, cast
from weakref import finalize

from nodes.call_model.estimates import MOST_TOKENS, countable
from nodes.call_model.limits import RunLimits, unknown_price
from nodes.call_model.spending_book import Entry, Used
from nodes.execute_tools.environment.database import (
    LONGEST_WAIT_S,
    StoreError,
    connect_to,
    store_errors,
    transaction,
    write_ahead,
)
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.run_folder import DATA_DIR_VARIABLE, SPENDING
from nodes.execute_tools.environment.user_files import spending_file
from nodes.records import StopCause, StopReason, ToolError

FILE_NAME: Final = f"{SPENDING}/spending.sqlite"
"""Where it lies in the data folder."""

APPLICATION_ID: Final = int.from_bytes(b"mnsp")
"""Marks a file as a spending book. Source: sqlite.org/pragma.html#pragma_application_id."""

FORMAT: Final = 1
"""Which columns there are and what they mean; raised with every change of either."""

KEPT_DAYS: Final = 62
"""How long an entry is kept after it was settled: the last two months."""

SHORT_WAIT_S: Final = 1.0
"""How long other processes are waited for where no limit of the day is at stake; else it is `LONGEST_WAIT_S`."""

LEFT_ALONE: Final = timedelta(seconds=30)
"""How long a book that others hold is not touched again for calls without a limit of the day."""

_PRUNED_EVERY: Final = 1_000

BEGINNING: Final = "begin"
TURN: Final = "turn"
"""The purposes of entries that are no calls, but mark where a thread begins, and where each further turn does."""

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
FROM entries WHERE thread = ? AND number > ? AND number <= ?
"""
_BEGUN: Final = "SELECT max(number) FROM entries WHERE thread = ? AND purpose IN (?, ?)"
_NEWEST: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'entries'"
_OF_DAY: Final = "SELECT total(tokens), total(cost_usd) FROM days WHERE day = ?"
_PRUNE: Final = "DELETE FROM entries WHERE day < ? AND settled_at IS NOT NULL"


class SpendingStore:
    """A `SpendingBook` in `spending.sqlite`, which is opened when it is first needed and is any thread's to use.

    It never raises for what the disk refuses: with a limit of the day the call is then refused, and without one it is
    made and not entered, which `trouble` tells. A book that another process holds is then left alone for a while, so
    that not every call waits for it.
    """

    def __init__(self, base: str | None = None, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Touches nothing yet. The file lies in `base`, or in the data folder; `now` is the time, with its zone."""
        self._base, self._now = base, now
        self._lock = threading.Lock()
        self._path = FILE_NAME
        self._connection: sqlite3.Connection | None = None
        self._trouble: StopCause | None = None
        self._told = False
        self._held: tuple[datetime, str] | None = None  # since when others hold the file, in words
        self._settled: list[tuple[int, Used, datetime]] = []
        self._reserved: dict[int, Entry] = {}

    def close(self) -> None:
        """Close the file. It is opened again where it is needed again."""
        self._held = None  # the last chance to write down what was settled
        self.flush()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def flush(self) -> None:
        """Write down what was settled since the last entry was made."""
        if self._settled:
            try:
                with self._database() as database, transaction(database):
                    pass
            except StoreError as error:
                self._failed(error)

    def newest(self) -> int:
        """The largest number so far: none of the entries up to it is that of a thread that begins now."""
        try:
            with self._database() as database:
                row = database.execute(_NEWEST).fetchone()
        except StoreError as error:
            self._failed(error)
            return 0
        return int(row[0]) if row else 0

    def begin(self, thread: str, *, first: bool) -> None:
        """Mark that a turn of the thread begins; with its `first` one, what is before it is another thread's."""
        purpose = BEGINNING if first else TURN
        entry = Entry(thread=thread, model="", purpose=purpose, input_tokens=0, output_tokens=0, cost_usd=0.0)
        try:
            with self._database() as database, transaction(database):
                number = _insert(database, entry, self._now().astimezone(UTC))
                _settle(database, number, Used(), self._now())
        except StoreError as error:
            self._failed(error)

    def begun(self, thread: str, *, turn: bool = False) -> int | None:
        """The number with which the thread, or its last `turn`, began; None where nobody has marked it."""
        purposes = (BEGINNING, TURN if turn else BEGINNING)
        try:
            with self._database() as database:
                return cast("int | None", database.execute(_BEGUN, (thread, *purposes)).fetchone()[0])
        except StoreError as error:
            self._failed(error)
            return None

    def lost(self, thread: str, after: int, until: int | None = None) -> tuple[Used, int]:
        """All entries of the thread after a number, added up, and the largest number; none later than `until`."""
        try:
            with self._database() as database:
                *sums, unpriced, last = database.execute(_LOST, (thread, after, until or MOST_TOKENS)).fetchone()
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
            with self._database(patient=limited) as database, transaction(database):
                if limited and (refusal := _refusal(database, entry, limits, now)) is not None:
                    return refusal
                number = _insert(database, entry, now)
                if number % _PRUNED_EVERY == 0:
                    _prune(database, now)
                self._reserved[number] = entry
                return number
        except StoreError as error:
            cause = self._failed(error)
            if not limited:
                return 0
            return cause.model_copy(update={"message": f"{cause.message} No limit of the day can be held without it."})

    def settle(self, number: int, used: Used) -> None:
        """Replace the reservation by what was used: with the next entry, at `flush` or at `close`.

        So nobody waits for it, and a process that is killed in between leaves the reservation, which is more; where it
        is less, as the endpoint's count was more than could be expected, it is written at once.
        """
        if number:
            self._settled.append((number, used, self._now()))
            if (entry := self._reserved.pop(number, None)) is not None and entry.is_passed_by(used):
                self.flush()

    def trouble(self) -> StopCause | None:
        """Why calls are not entered, told once; None where they are, or where it was told before."""
        if self._told or self._trouble is None:
            return None
        self._told = True
        return self._trouble

    @contextmanager
    def _database(self, *, patient: bool = False) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if not patient and self._held is not None and _is_soon(self._now() - self._held[0]):
                raise StoreError(self._held[1])
            wait_s = LONGEST_WAIT_S if patient else SHORT_WAIT_S
            try:
                with store_errors(self._path):
                    if self._connection is None:
                        self._connection = self._open(wait_s)
                    _wait_at_most(self._connection, wait_s)
                    self._write_settled(self._connection)
                    yield self._connection
            except StoreError as error:
                if not _is_held(error):
                    raise
                self._held = self._now(), _held_in_words(self._path, wait_s)
                raise StoreError(self._held[1]) from error
            self._held = None

    def _write_settled(self, database: sqlite3.Connection) -> None:
        while self._settled:
            _settle(database, *self._settled[0])
            del self._settled[0]

    def _open(self, wait_s: float) -> sqlite3.Connection:
        path = spending_file(basename(FILE_NAME), self._base)
        if isinstance(path, ToolError):
            raise StoreError(path.message)
        self._path = path
        with store_errors(path):
            connection = connect_to(path)
            try:
                _wait_at_most(connection, wait_s)
                _prepare(connection, path)
                _prune(connection, self._now().astimezone(UTC))
            except BaseException:
                connection.close()
                raise
        finalize(self, connection.close).atexit = False  # whoever builds a graph alone has nothing to close
        return connection

    def _failed(self, error: StoreError) -> StopCause:
        message = f"The spending book, into which model calls are entered, cannot be used. {error}"
        self._trouble = StopCause(reason=StopReason.STORE_FAILED, message=message)
        return self._trouble


def _wait_at_most(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1_000)}")


def _is_held(error: StoreError) -> bool:
    """Whether other processes hold the file, so that the next one to ask would only wait as well."""
    code = getattr(error.__cause__, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code == sqlite3.SQLITE_BUSY


def _held_in_words(path: str, waited_s: float) -> str:
    held = f"another process has held it for more than {waited_s:g} s"
    return f"The database {quoted(path)} cannot be used: {held}. End it, or try again after {LEFT_ALONE.seconds} s."


def _is_soon(since: timedelta) -> bool:
    return timedelta(0) <= since < LEFT_ALONE  # a clock that was set back keeps nobody away


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the table in a new file; see to it that an old one is ours."""
    connection.execute("PRAGMA synchronous = NORMAL")
    if _is_empty(connection):
        write_ahead(connection)
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
