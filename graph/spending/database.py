"""The database of a spending book: a file of the user's, or tables in PostgreSQL for all workspaces and machines.

One definition of the tables serves both. Triggers add up `entries` in `days` and `accounts`, which also keep what is
forgotten: a limit is checked as fast at its end as at its start.
"""

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from os.path import basename, join
from typing import TYPE_CHECKING, Final, cast
from weakref import finalize

from mendgraph.nodes.execute_tools.store.database import (
    LONGEST_WAIT_S,
    Database,
    FileKind,
    StoreError,
    open_postgres,
    opened_file,
    store_errors,
)
from mendgraph.nodes.execute_tools.store.database_schema import POSTGRES, SQLITE, PostgresTables
from mendgraph.nodes.execute_tools.store.run_folder import SPENDING, spending_folder
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
    APPLICATION_ID, FORMAT, tuple(_sqlite_tables()), "no spending book", "move it away", "NORMAL", own_programs=True
)

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(?, 2))"
"""Keeps those who reserve under an account's limits from one another; 0 and 1 tell a workspace's own locks apart.

Who reserves under limits of all accounts together takes the lock of the account "". Another account's reservation
that it does not see yet comes after it: it is in no limit's way there.
"""


class Book:
    """A spending book that can be entered into. Everything but `close` raises StoreError.

    A file has one connection, for any thread, one at a time; PostgreSQL those of this process, which stay open.
    """

    def __init__(self, base: str | None = None) -> None:
        """Touches nothing yet. A file lies in `base`, or in the data folder."""
        self._base = base
        self._lock = threading.Lock()
        self._path = FILE_NAME
        self._connection: sqlite3.Connection | None = None
        self._wait_s = 0.0

    def close(self) -> None:
        """Close it. It is opened again where it is needed again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def using(self, *, patient: bool = False) -> Iterator[Database]:
        """The database; `patient` waits long for other processes."""
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
    def entering(self, database: Database, accounts: Sequence[str] = ()) -> Iterator[None]:
        """What is entered inside, in one statement, alone among those who reserve under limits of these `accounts`.

        SQLite makes one statement whole or not at all, and alone. A transaction of more would keep the file from
        hundreds of threads while one of them waits for Python's turn. In PostgreSQL it outlives whatever becomes of
        this process; like a file's, it may be lost with the server's power.
        """
        if isinstance(database, sqlite3.Connection):
            yield
            return

        with cast("PostgresDatabase", database).connection(quick=True):
            for account in accounts:
                database.execute(_LOCK, (account,))

            yield

    def _opened(self, wait_s: float) -> sqlite3.Connection:
        folder = spending_folder(self._base)
        if isinstance(folder, ToolError):
            raise StoreError(folder.message)

        self._path = join(folder, basename(FILE_NAME))
        connection = opened_file(self._path, _FILE, wait_s)
        finalize(self, connection.close).atexit = False  # whoever builds a graph alone has nothing to close

        return connection


def day_of(now: datetime) -> int:
    """The UTC day, counted from 1970."""
    return int(now.timestamp()) // 86_400
