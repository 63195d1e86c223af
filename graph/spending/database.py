"""The database of the spending book: a file of the user, or tables in PostgreSQL for all machines.

One definition of the tables serves both. Triggers sum `entries` in `days` and `accounts`, which keep the sums of
deleted entries, so that a limit is checked without reading all entries.
"""

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from os.path import basename, join
from typing import TYPE_CHECKING, Final, cast
from weakref import finalize

from mendgraph.nodes.records import ToolError
from mendgraph.nodes.workspace.store.database import (
    LONGEST_WAIT_S,
    Database,
    FileKind,
    StoreError,
    open_postgres,
    opened_file,
    store_errors,
)
from mendgraph.nodes.workspace.store.database_schema import POSTGRES, SQLITE, PostgresTables
from mendgraph.nodes.workspace.store.run_folder import SPENDING, spending_folder

if TYPE_CHECKING:
    from mendgraph.nodes.workspace.store.postgres import PostgresDatabase

APPLICATION_ID: Final = int.from_bytes(b"mnsp")
"""Marks a file as a spending book. Source: sqlite.org/pragma.html#pragma_application_id."""

FORMAT: Final = 3
"""The format of a file, increased with each change of its columns or their meaning."""

FILE_NAME: Final = f"{SPENDING}/spending.sqlite"
"""The file in the data folder."""

SHORT_WAIT_S: Final = 1.0
"""How long a call without limits waits for other processes; one with limits waits `LONGEST_WAIT_S`."""

KEPT_DAYS: Final = 62
"""Days for which a settled entry is kept."""

BEGINNING: Final = "begin"
TURN: Final = "turn"
"""The purposes of entries that are no calls but mark the beginning of a thread and of each further turn."""

_CALLS: Final = f"new.purpose NOT IN ('{BEGINNING}', '{TURN}')"

_TABLES: Final = (
    """
CREATE TABLE entries (
    number {serial}, -- unique also after deletions
    thread {text},
    model {text},
    purpose {text},
    day {whole}, -- of the reservation, in days since 1970 (UTC)
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
    unpriced {whole}, -- calls that have used tokens without a known price
    unsettled {whole}, -- entries that count as their reservation
    first_day {whole},
    last_day {whole}
)
    """,
)


def _sums(row: str) -> tuple[str, str, str, str]:
    """Return SQL for an entry's tokens, its cost, its calls without a price, and whether it is unsettled."""
    tokens = f"{row}.input_tokens + {row}.output_tokens"
    at_least_one = f"CASE WHEN {row}.calls > 1 THEN {row}.calls ELSE 1 END"
    unpriced = f"CASE WHEN {row}.cost_usd IS NULL AND {tokens} > 0 THEN {at_least_one} ELSE 0 END"
    unsettled = f"CASE WHEN {row}.settled_at IS NULL THEN 1 ELSE 0 END"

    return f"({tokens})", f"coalesce({row}.cost_usd, 0)", f"({unpriced})", f"({unsettled})"


def _triggers() -> Mapping[str, tuple[str, str]]:
    """Return the event and the statements of each trigger by its name.

    The account is updated before the day, so that two transactions cannot deadlock.
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
    yield from (statement.format(**SQLITE) for statement in _TABLES)
    for name, (event, statements) in _triggers().items():
        yield f"CREATE TRIGGER {name} AFTER {event} ON entries WHEN {_CALLS} BEGIN {statements} END"


def _postgres_tables() -> Iterator[str]:
    yield from (statement.format(**POSTGRES) for statement in _TABLES)

    for name, (event, statements) in _triggers().items():
        body = f"LANGUAGE plpgsql SET search_path = mendgraph, pg_temp AS $$ BEGIN {statements} RETURN NULL; END $$"
        yield f"CREATE FUNCTION {name}() RETURNS trigger {body}"
        yield (f"CREATE TRIGGER {name} AFTER {event} ON entries FOR EACH ROW WHEN ({_CALLS}) EXECUTE FUNCTION {name}()")


SPENDING_TABLES: Final = PostgresTables("spending", 2, tuple(_postgres_tables()))


_FILE: Final = FileKind(
    APPLICATION_ID, FORMAT, tuple(_sqlite_tables()), "no spending book", "move it away", "NORMAL", has_triggers=True
)

_LOCK: Final = "SELECT pg_advisory_xact_lock(2)"
"""Serializes the reservations under limits in PostgreSQL."""


class SpendingDatabase:
    """The spending book's database. Every method but `close` raises StoreError.

    A file has one connection, for any thread, one at a time; PostgreSQL has those of the process.
    """

    def __init__(self, base: str | None = None) -> None:
        """`base` is the folder of the file, by default the data folder. Open nothing yet."""
        self._base = base
        self._lock = threading.Lock()
        self._path = FILE_NAME
        self._connection: sqlite3.Connection | None = None
        self._wait_s = 0.0

    def close(self) -> None:
        """Close the file, which is opened again when needed."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def using(self, *, patient: bool = False) -> Iterator[Database]:
        """Yield the database; `patient` waits longer for other processes."""
        postgres = open_postgres(SPENDING_TABLES)
        if postgres is not None:
            yield postgres
            return

        wait_s = SHORT_WAIT_S
        if patient:
            wait_s = LONGEST_WAIT_S

        with self._lock, store_errors(self._path):
            if self._connection is None:
                self._connection = self._opened(wait_s)
                self._wait_s = 0.0

            if wait_s != self._wait_s:
                self._connection.execute(f"PRAGMA busy_timeout = {int(wait_s * 1_000)}")
                self._wait_s = wait_s

            yield self._connection

    @contextmanager
    def writing(self, database: Database, *, limited: bool = False) -> Iterator[None]:
        """Write one statement in the block; `limited`: alone among those that reserve under limits.

        In SQLite a statement is a transaction and always alone: a longer one would block hundreds of threads. In
        PostgreSQL it survives the process, but like the file's it may be lost in a power cut.
        """
        if isinstance(database, sqlite3.Connection):
            yield
            return

        with cast("PostgresDatabase", database).connection(quick=True):
            if limited:
                database.execute(_LOCK)

            yield

    def _opened(self, wait_s: float) -> sqlite3.Connection:
        folder = spending_folder(self._base)
        if isinstance(folder, ToolError):
            raise StoreError(folder.message)

        self._path = join(folder, basename(FILE_NAME))
        connection = opened_file(self._path, _FILE, wait_s)
        finalize(self, connection.close).atexit = False  # a graph that is built alone is never closed

        return connection


def day_of(now: datetime) -> int:
    """Return the day (UTC) in days since 1970."""
    return int(now.timestamp()) // 86_400
