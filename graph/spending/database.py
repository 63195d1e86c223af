"""The database of a spending book: a file of the user's, or tables in PostgreSQL for all workspaces and machines.

One definition of the tables serves both. Triggers add up `entries` in `days` and `accounts`, which also keep what is
forgotten: a limit is checked as fast at its end as at its start.
"""

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime
from os.path import basename
from typing import TYPE_CHECKING, ClassVar, Final, cast
from weakref import finalize

from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.store.database import (
    LONGEST_WAIT_S,
    Database,
    StoreError,
    connect_to,
    open_postgres,
    store_errors,
    transaction,
    uses_postgres,
    write_ahead,
)
from mendgraph.nodes.execute_tools.store.database_schema import POSTGRES, SQLITE, PostgresTables
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE, SPENDING
from mendgraph.nodes.execute_tools.store.user_files import spending_file
from mendgraph.nodes.records import ToolError

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.store.postgres import PostgresDatabase

APPLICATION_ID: Final = int.from_bytes(b"mnsp")
"""Marks a file as a spending book. Source: sqlite.org/pragma.html#pragma_application_id."""

FORMAT: Final = 3
"""Which columns there are in a file and what they mean; raised with every change of either."""

FILE_NAME: Final = f"{SPENDING}/spending.sqlite"
"""Where it lies in the data folder."""

SHORT_WAIT_S: Final = 1.0
"""How long other processes are waited for where no limit is at stake; else it is `LONGEST_WAIT_S`."""

KEPT_DAYS: Final = 62
"""How long an entry is kept after it was settled: the last two months."""

BEGINNING: Final = "begin"
TURN: Final = "turn"
"""The purposes of entries that are no calls, but mark where a thread begins, and where each further turn does."""

_CALLS: Final = f"new.purpose NOT IN ('{BEGINNING}', '{TURN}')"

_TABLES: Final = (
    """
CREATE TABLE entries (
    number {serial}, -- no number comes twice, also after the last entry was pruned
    thread {text},
    model {text},
    purpose {text},
    day {whole}, -- of the reservation: days since 1970 in UTC
    reserved_at {text},
    settled_at {text_or_null},
    calls {whole},
    input_tokens {whole},
    output_tokens {whole},
    cached_tokens {whole},
    cost_usd {real_or_null},
    seconds {real},
    account {text},
    reasoning_tokens {whole} DEFAULT 0, -- of the output tokens
    cache_write_tokens {whole} DEFAULT 0 -- of the input tokens, as cached_tokens are
)
    """,
    "CREATE INDEX entries_of_thread ON entries (thread, number)",
    "CREATE INDEX entries_of_day ON entries (day, account)",
    """
CREATE TABLE days (
    day {whole},
    account {text},
    tokens {whole},
    cost_usd {real},
    PRIMARY KEY (day, account)
)
    """,
    """
CREATE TABLE accounts (
    account {text} PRIMARY KEY,
    calls {whole},
    tokens {whole},
    cost_usd {real},
    unpriced {whole}, -- of the calls, those that have used tokens at no known price
    unsettled {whole}, -- of the entries, those that count as their reservation
    first_day {whole},
    last_day {whole}
)
    """,
)


def _sums(row: str) -> tuple[str, str, str, str]:
    """Of an entry, its tokens, its cost, how many of its calls have no price, and whether it is not settled."""
    tokens = f"{row}.input_tokens + {row}.output_tokens"
    at_least_one = f"CASE WHEN {row}.calls > 1 THEN {row}.calls ELSE 1 END"
    unpriced = f"CASE WHEN {row}.cost_usd IS NULL AND {tokens} > 0 THEN {at_least_one} ELSE 0 END"
    unsettled = f"CASE WHEN {row}.settled_at IS NULL THEN 1 ELSE 0 END"
    return f"({tokens})", f"coalesce({row}.cost_usd, 0)", f"({unpriced})", f"({unsettled})"


def _triggers() -> Mapping[str, tuple[str, str]]:
    """By name, after what each runs, and its statements.

    The row of an account always comes before that of its day, so that no two of them wait for each other.
    """
    tokens, cost, unpriced, unsettled = _sums("new")
    more = [f"{new} - {old}" for new, old in zip(_sums("new"), _sums("old"), strict=True)]
    reserved = f"""
    INSERT INTO accounts VALUES (
        new.account, new.calls, {tokens}, {cost}, {unpriced}, {unsettled}, new.day, new.day
    )
    ON CONFLICT (account) DO UPDATE SET
        calls = accounts.calls + excluded.calls, tokens = accounts.tokens + excluded.tokens,
        cost_usd = accounts.cost_usd + excluded.cost_usd, unpriced = accounts.unpriced + excluded.unpriced,
        unsettled = accounts.unsettled + excluded.unsettled,
        last_day = CASE WHEN excluded.last_day > accounts.last_day THEN excluded.last_day ELSE accounts.last_day END;
    INSERT INTO days VALUES (new.day, new.account, {tokens}, {cost})
    ON CONFLICT (day, account) DO UPDATE SET
        tokens = days.tokens + excluded.tokens, cost_usd = days.cost_usd + excluded.cost_usd;
    """  # noqa: S608 - our own words
    settled = f"""
    UPDATE accounts SET
        calls = calls + new.calls - old.calls, tokens = tokens + {more[0]}, cost_usd = cost_usd + {more[1]},
        unpriced = unpriced + {more[2]}, unsettled = unsettled + {more[3]}
    WHERE account = new.account;
    UPDATE days SET tokens = tokens + {more[0]}, cost_usd = cost_usd + {more[1]}
    WHERE day = new.day AND account = new.account;
    """  # noqa: S608 - our own words
    return {"entry_reserved": ("INSERT", reserved), "entry_settled": ("UPDATE", settled)}


def _sqlite_tables() -> Iterator[str]:
    yield from (each.format(**SQLITE) for each in _TABLES)
    for name, (event, statements) in _triggers().items():
        yield f"CREATE TRIGGER {name} AFTER {event} ON entries WHEN {_CALLS} BEGIN {statements} END"


def _postgres_tables() -> Iterator[str]:
    yield from (each.format(**POSTGRES) for each in _TABLES)
    for name, (event, statements) in _triggers().items():
        body = f"LANGUAGE plpgsql SET search_path = mendgraph, pg_temp AS $$ BEGIN {statements} RETURN NULL; END $$"
        yield f"CREATE FUNCTION {name}() RETURNS trigger {body}"
        yield (f"CREATE TRIGGER {name} AFTER {event} ON entries FOR EACH ROW WHEN ({_CALLS}) EXECUTE FUNCTION {name}()")


SPENDING_TABLES: Final = PostgresTables("spending", 2, tuple(_postgres_tables()))


class Book:
    """A spending book that can be entered into. Everything but `close` raises StoreError."""

    _NEWEST: ClassVar[str]
    _PRUNE: ClassVar[str]

    def close(self) -> None:
        """Close it. It is opened again where it is needed again."""

    def using(self, *, patient: bool) -> AbstractContextManager[Database]:
        """The database; `patient` waits long for others."""
        raise NotImplementedError

    def entering(self, database: Database, *, accounts: Sequence[str] = ()) -> AbstractContextManager[None]:
        """What is entered inside, in one statement, alone among those who reserve under limits of these `accounts`."""
        raise NotImplementedError

    def newest(self, database: Database) -> int:
        """The largest number that was ever given."""
        return int(database.execute(self._NEWEST).fetchone()[0])

    def prune(self, database: Database, today: int) -> None:
        """Forget what was settled long ago; the sums of days and accounts keep it."""
        database.execute(self._PRUNE, (today - KEPT_DAYS,))


class SqliteBook(Book):
    """One connection to the file, for any thread, one at a time."""

    _PRUNE = "DELETE FROM entries WHERE day < ? AND settled_at IS NOT NULL"
    _NEWEST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'entries'"

    def __init__(self, base: str | None) -> None:
        """Touches nothing yet. The file lies in `base`, or in the data folder."""
        self._base = base
        self._lock = threading.Lock()
        self._path = FILE_NAME
        self._connection: sqlite3.Connection | None = None

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def using(self, *, patient: bool) -> Iterator[sqlite3.Connection]:
        """The database, alone among our threads."""
        wait_s = LONGEST_WAIT_S if patient else SHORT_WAIT_S
        with self._lock, store_errors(self._path):
            if self._connection is None:
                self._connection = self._open(wait_s)
            _wait_at_most(self._connection, wait_s)
            yield self._connection

    def entering(self, database: Database, *, accounts: Sequence[str] = ()) -> AbstractContextManager[None]:  # noqa: ARG002
        """One statement is entered inside, which SQLite makes whole or not at all, and alone.

        It is no transaction of more: a thread that holds the file while it waits for Python's turn among hundreds of
        others would keep it from all of them.
        """
        return nullcontext()

    def _open(self, wait_s: float) -> sqlite3.Connection:
        self._path = _book_path(self._base)
        with store_errors(self._path):
            connection = connect_to(self._path)
            try:
                _wait_at_most(connection, wait_s)
                _prepare(connection, self._path)
            except BaseException:
                connection.close()
                raise
        finalize(self, connection.close).atexit = False  # whoever builds a graph alone has nothing to close
        return connection


class PostgresBook(Book):
    """The tables in PostgreSQL, for any threads at once. The connections are this process's, and stay open."""

    _NEWEST = "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence('mendgraph.entries', 'number')), 0)"
    _PRUNE = """
    DELETE FROM entries WHERE number IN (
        SELECT number FROM entries WHERE day < ? AND settled_at IS NOT NULL FOR UPDATE SKIP LOCKED
    )
    """

    _LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(?, 2))"
    """Keeps those who reserve under an account's limits from one another; 0 and 1 tell a workspace's own locks apart.

    Who reserves under limits of all accounts together takes the lock of the account "". Another account's reservation
    that it does not see yet comes after it: it is in no limit's way there.
    """

    @contextmanager
    def using(self, *, patient: bool) -> "Iterator[PostgresDatabase]":  # noqa: ARG002 - as `SqliteBook.using`
        """The database."""
        database = open_postgres(SPENDING_TABLES)
        if database is None:
            raise StoreError("No shared store is named any more: start the program anew.")
        yield database

    @contextmanager
    def entering(self, database: Database, *, accounts: Sequence[str] = ()) -> Iterator[None]:
        """It outlives whatever becomes of this process; like a file's, it may be lost with the server's power."""
        with cast("PostgresDatabase", database).transaction(quick=True):
            for account in accounts:
                database.execute(self._LOCK, (account,))
            yield


def open_book(base: str | None) -> Book:
    """Where calls are entered now. A file lies in `base`, or in the data folder; nothing is touched yet."""
    return PostgresBook() if uses_postgres() else SqliteBook(base)


@contextmanager
def reading(base: str | None = None) -> Iterator[Database | None]:
    """The book for somebody who only looks; None where nothing has been entered yet.

    Raises StoreError: it cannot be read, or is no spending book of ours.
    """
    postgres = open_postgres(SPENDING_TABLES)
    if postgres is not None:
        yield postgres
        return
    path = _book_path(base)
    with store_errors(path), closing(connect_to(path)) as connection:
        if _is_empty(connection):
            yield None
        else:
            _prepare(connection, path)
            yield connection


def day_of(now: datetime) -> int:
    """The UTC day, counted from 1970."""
    return int(now.timestamp()) // 86_400


def _book_path(base: str | None) -> str:
    path = spending_file(basename(FILE_NAME), base)
    if isinstance(path, ToolError):
        raise StoreError(path.message)
    return path


def _wait_at_most(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1_000)}")


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables in a new file; StoreError where it is no spending book, or one of another format."""
    connection.execute("PRAGMA synchronous = NORMAL")
    if _is_empty(connection):
        write_ahead(connection)
        with transaction(connection):
            if _is_empty(connection):  # nobody was faster
                for statement in _sqlite_tables():
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT}")
    ((mark,), (found,)) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    elsewhere = f"set {DATA_DIR_VARIABLE} to another folder"
    if mark != APPLICATION_ID:
        message = f"The file {quoted(path)} is no spending book of mendgraph: move it away, or {elsewhere}."
        raise StoreError(message)
    if found != FORMAT:
        remedy = "update mendgraph" if found > FORMAT else "move it away"
        message = (
            f"The file {quoted(path)} is of another version of mendgraph (format {found}, this one knows {FORMAT}):"
            f" {remedy}, or {elsewhere}."
        )
        raise StoreError(message)


def _is_empty(connection: sqlite3.Connection) -> bool:
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return not tables
