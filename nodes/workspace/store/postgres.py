"""The shared store: tables of all workspaces in PostgreSQL, used with the same SQL as a workspace's file.

Imported only if the store is in PostgreSQL.
"""

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg import Connection
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Literal
from psycopg.types.numeric import FloatLoader
from psycopg.types.string import StrDumper, StrDumperUnknown
from psycopg_pool import ConnectionPool, PoolTimeout

from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.workspace.store.database import (
    STORE_URL_VARIABLE,
    LostError,
    PostgresUrl,
    StoreError,
    other_format,
    postgres_url,
)
from mendgraph.nodes.workspace.store.database_schema import BEGIN, FENCED, POSTGRES_BASE, STORE_TABLES, PostgresTables
from mendgraph.nodes.workspace.store.postgres_locks import Locks as Locks  # noqa: PLC0414 - for other modules
from mendgraph.nodes.workspace.store.run_lock import Owner

MOST_CONNECTIONS: Final = 6
"""Connections of one process for transactions, each of which takes a few milliseconds."""

LONGEST_WAIT_S: Final = 20.0
"""Time limit for a connection, such as while the server restarts."""

_DIAGNOSIS_S: Final = 2
"""Time limit of a connection that is opened to learn whether and why there is none."""

_SETTINGS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "mendgraph",
    "client_encoding": "utf8",
}
"""Defaults for a URL: a server that is gone is noticed within half a minute."""

_REASONS: Final[dict[str, str]] = {
    "28": f"it refuses this user: put a valid user and password into {STORE_URL_VARIABLE}",
    "3D": "there is no such database: create it with `createdb`, or name another one",
    "42501": (
        "its user may not do this: GRANT CREATE ON DATABASE, or let another user start mendgraph once, who then has to"
        " GRANT USAGE ON SCHEMA mendgraph, and SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA mendgraph"
    ),
    "42": "{problem}: somebody has changed its tables. Restore a backup, or use an empty database",
    "53100": "its disk is full. Free space, then try again",
    "53300": "it has no connection left: raise its max_connections, or run fewer processes",
    "57P": "the server was stopped, or is starting: try again when it runs",
    "25006": f"it is read-only: name its primary server in {STORE_URL_VARIABLE}",
}
"""By SQLSTATE or its prefix. Source: postgresql.org/docs/current/errcodes-appendix.html."""

_CONNECTION_ENDED: Final = ("57P", "08", "25P03")
"""SQLSTATEs after which, as without one, the connection has ended."""

_NO_CONNECTION_LEFT: Final = re.compile(r"FATAL: .{0,200}(?:too many|remaining) (?:clients|connection)")
"""Errors before a connection is established have no SQLSTATE."""

FENCED_MESSAGE: Final = (
    "This process lost its lock on the workspace, and another one works there now: nothing more is written. Look at the"
    " run with `mendgraph runs`, and resume it when it has ended."
)


class PostgresPool:
    """The connections of this process to one database, and its locks in it."""

    def __init__(self, url: PostgresUrl) -> None:
        """Connect to nothing yet."""
        self.url = url
        self.known_parts: set[str] = set()
        settings = {**_SETTINGS, **conninfo_to_dict(url.url), "autocommit": True, "prepare_threshold": None}
        self._settings: dict[str, Any] = settings
        self._pool = ConnectionPool(
            kwargs=settings,
            min_size=0,
            max_size=MOST_CONNECTIONS + 1,  # one is for the locks
            reconnect_timeout=LONGEST_WAIT_S,  # afterwards the next use tries again at once
            configure=_configure,
            check=ConnectionPool.check_connection,
            num_workers=1,
            open=False,
        )
        self._is_reachable = False
        self.locks = Locks(self)
        logger = logging.getLogger("psycopg")
        if not logger.handlers:  # otherwise Python prints what our errors say
            logger.addHandler(logging.NullHandler())

    @contextmanager
    def transaction(self, begin: str = BEGIN) -> Iterator[Connection[Any]]:
        """Yield a connection in a transaction that the statements of `begin` have begun.

        Raises StoreError: the server refuses something. Raises LostError: the connection has ended.
        """
        self._open()
        with self.errors(), self._pool.connection(LONGEST_WAIT_S) as connection:
            connection.execute(begin.encode())
            yield connection
            if connection.info.transaction_status == TransactionStatus.INERROR:  # an error was caught inside
                raise StoreError(self._failure("a part of a transaction failed, and nothing of it was written"))

    def take_connection(self) -> Connection[Any]:
        """Take a connection out of the pool, without a transaction. Raises psycopg.Error: there is none."""
        self._open()
        return self._pool.getconn(LONGEST_WAIT_S)

    def _open(self) -> None:
        if self._is_reachable:
            return

        with self.connect():  # the pool waits for a server that is not there
            self._pool.open()

        self._is_reachable = True

    def put_connection(self, connection: Connection[Any]) -> None:
        """Return a connection that was taken out of the pool; a closed one is replaced."""
        self._pool.putconn(connection)

    @contextmanager
    def connect(self, **settings: Any) -> Iterator[Connection[Any]]:
        """Open a connection beside the pool. Raises StoreError at once if the server cannot be reached."""
        with self.errors(), psycopg.connect(**{**self._settings, **settings}) as connection:
            _configure(connection)
            yield connection

    def close(self) -> None:
        """Release the locks and close all connections."""
        self.locks.close()
        if not self._pool.closed:
            self._pool.close()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise a `StoreError` for an error of the server; it names the database but no password."""
        try:
            yield
        except PoolTimeout:
            self._is_reachable = False
            with self.connect(connect_timeout=_DIAGNOSIS_S):  # raises the reason
                pass

            reason = f"no connection was free for {LONGEST_WAIT_S:g} s. Run fewer tasks at once"
            raise StoreError(self._failure(reason)) from None
        except psycopg.Error as error:
            raise self.refused(error) from None

    def refused(self, error: psycopg.Error) -> StoreError:
        """Return the `StoreError` for an error of the server."""
        state = error.sqlstate or ""
        if not state and _NO_CONNECTION_LEFT.search(str(error)):
            state = "53300"
        if state == FENCED:
            return StoreError(FENCED_MESSAGE)

        problem = self.url.clean(error.diag.message_primary or str(error)).rstrip(".")
        message = f"{problem} (SQLSTATE {state})"
        if not state:
            message = f"it cannot be reached ({problem}). Start it, or correct {STORE_URL_VARIABLE}"

        for prefix, reason in _REASONS.items():
            if state.startswith(prefix):
                message = reason.replace("{problem}", problem)
                break

        if not state or state.startswith(_CONNECTION_ENDED):
            return LostError(self._failure(message))
        return StoreError(self._failure(message))

    def _failure(self, reason: str) -> str:
        return f"The shared store {self.url.name} cannot be used: {reason}."


def _configure(connection: Connection[Any]) -> None:
    connection.adapters.register_dumper(str, _StrDumper)
    connection.adapters.register_dumper(str, _UntypedStrDumper)
    connection.adapters.register_loader("numeric", FloatLoader)


def _holdable(text: str) -> str:
    """Return a text that PostgreSQL accepts: without NUL and lone surrogates."""
    return storable(text.replace("\0", "\u2400"))


class _UntypedStrDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_holdable(obj))


class _StrDumper(StrDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_holdable(obj))


_lock = threading.Lock()
_pools: dict[tuple[int, str], PostgresPool] = {}
"""By process id, as a forked process must not use its parent's connections, and URL."""


def pool_of(url: PostgresUrl) -> PostgresPool:
    """Return the connections of this process to a database."""
    key = (os.getpid(), url.url)
    with _lock:
        if key not in _pools:
            _pools[key] = PostgresPool(url)

        return _pools[key]


def close_postgres() -> None:
    """Release the locks of this process and close its connections; they are opened again when needed."""
    with _lock:
        pools = [_pools.pop(key) for key in list(_pools) if key[0] == os.getpid()]

    for pool in pools:
        pool.close()


def postgres_holder(workspace: str) -> Owner | None:
    """Return the holder of a workspace's lock on any machine. Raises StoreError: the server cannot be asked."""
    url = postgres_url()
    if url is None:
        return None

    return pool_of(url).locks.holder(workspace)


# --- The database


class PostgresDatabase:
    """The rows of one workspace, for any threads at once; each thread has its own transaction.

    A statement outside of `connection` is a transaction of its own. A workspace that this process has locked is written
    only as long as no other process has taken it. Every method raises StoreError.
    """

    def __init__(self, pool: PostgresPool, workspace: str) -> None:
        """The tables exist; see `database.open_postgres`."""
        self.workspace = workspace
        self._pool = pool
        self._thread = threading.local()
        self._closed = False

    @property
    def name(self) -> str:
        """The name of the database in messages."""
        return self._pool.url.name

    @property
    def locks(self) -> Locks:
        """The locks of this process in the database."""
        return self._pool.locks

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        """Return a cursor over the rows of a statement, in which "?" stands for each value."""
        with self.connection() as connection:
            return connection.execute(_translated(statement), tuple(values))

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Execute a statement for each of the rows."""
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.executemany(_translated(statement), [tuple(row) for row in rows])

    @contextmanager
    def connection(self, *, quick: bool = False) -> Iterator[Connection[Any]]:
        """Yield the connection of this thread's transaction, which is begun unless there is one.

        A committed transaction is on the server's disk; a `quick` one is so within a second.
        """
        current = getattr(self._thread, "connection", None)
        if current is not None:
            with self._pool.errors():
                yield current

            return

        if self._closed:
            raise StoreError(f"The shared store {self.name} cannot be used: it is a closed database.")

        self.locks.keep()
        enter = SQL("SELECT mendgraph.enter({}, {}, {})")
        arguments = map(Literal, (self.workspace, self.locks.epoch(self.workspace), quick))
        begin = f"{BEGIN}; {enter.format(*arguments).as_string()}"

        with self._pool.transaction(begin) as connection:
            self._thread.connection = connection
            try:
                yield connection
            finally:
                self._thread.connection = None

    def close(self) -> None:
        """Refuse further statements; the connections belong to the process."""
        self._closed = True


@lru_cache
def _translated(statement: str) -> bytes:
    return statement.replace("%", "%%").replace("?", "%s").encode()


# --- Tables

_TABLES_LOCK: Final = int.from_bytes(b"mendgrph")
"""The advisory lock of the process that creates tables."""

_EXISTING_TABLES: Final = """
SELECT relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace AS n ON n.oid = relnamespace
WHERE nspname = 'mendgraph'
"""


def open_tables(url: PostgresUrl, part: PostgresTables, workspace: str) -> PostgresDatabase:
    """Open the database with these tables, which are created if they are missing. Raises StoreError."""
    pool = pool_of(url)
    if part.name not in pool.known_parts:
        create_tables(pool, part)
        pool.known_parts.add(part.name)

    return PostgresDatabase(pool, workspace)


def create_tables(pool: PostgresPool, part: PostgresTables) -> None:
    """Create the tables of a part, or those that are missing if it grows."""
    with pool.connect() as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # the second look sees what others create
        number = format_of(connection, pool.url, part)
        if number is not None and number >= part.format:
            return

        connection.execute("SELECT pg_catalog.pg_advisory_xact_lock(%s)", (_TABLES_LOCK,))
        number = format_of(connection, pool.url, part)  # another process may have created them meanwhile
        if number is not None and number >= part.format:
            return

        _create_base(connection, pool.url)
        statements = part.statements
        if part.grow:
            statements = statements[number or 0 :]

        _execute_all(connection, statements)
        connection.execute(
            "INSERT INTO mendgraph.formats VALUES (%s, %s) ON CONFLICT (part) DO UPDATE SET format = excluded.format",
            (part.name, part.format),
        )


def format_of(connection: Connection[Any], url: PostgresUrl, part: PostgresTables) -> int | None:
    """Return the format of the part's tables, None if there are none. Raises StoreError: it is another version's."""
    if ("formats",) not in connection.execute(_EXISTING_TABLES).fetchall():
        return None

    row = connection.execute("SELECT format FROM mendgraph.formats WHERE part = %s", (part.name,)).fetchone()
    if row is None:
        return None

    number = int(row[0])
    if not part.grow and number != part.format:
        what = f"The part {part.name!r} of the shared store {url.name}"
        raise other_format(what, number, part.format, "name another database")

    return number


def _create_base(connection: Connection[Any], url: PostgresUrl) -> None:
    """Create the schema and the tables that every part needs."""
    tables = connection.execute(_EXISTING_TABLES).fetchall()
    if ("formats",) in tables:
        return

    if tables:
        raise StoreError(
            f"The schema 'mendgraph' in the shared store {url.name} is not one of mendgraph: name another database."
        )

    if connection.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = 'mendgraph'").fetchone() is None:
        connection.execute("CREATE SCHEMA mendgraph")

    _execute_all(connection, POSTGRES_BASE)


def _execute_all(connection: Connection[Any], statements: Iterable[str]) -> None:
    connection.execute("SET LOCAL search_path = mendgraph, pg_temp")
    for statement in statements:
        connection.execute(statement.encode())


def server_version(url: PostgresUrl) -> str:
    """Return the version of the server. Raises StoreError: it cannot be used, or its tables are of another version."""
    with PostgresPool(url).connect(connect_timeout=_DIAGNOSIS_S) as connection, connection.transaction():
        connection.execute("SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = '5s'")
        format_of(connection, url, STORE_TABLES)
        ((version,),) = connection.execute("SELECT pg_catalog.current_setting('server_version')").fetchall()
        return str(version)
