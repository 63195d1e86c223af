"""The shared database: what our SQL says to a workspace's own file, said to PostgreSQL, and locks on all machines.

A process has few connections to it for all of its threads, and lends one for each transaction. Imported only where the
store is in PostgreSQL. Source: measured, psycopg's own pool takes 207 microseconds of CPU for a transaction against 108
here, and says only after a timeout, without its reason, that a server is not there.
"""

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from typing import Any, Final, TypeVar

import psycopg
from psycopg import Connection
from psycopg.abc import PQGen
from psycopg.adapt import Buffer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Literal
from psycopg.types.numeric import FloatLoader
from psycopg.types.string import StrDumper, StrDumperUnknown

from mendgraph.nodes.execute_tools.files.deadline import monotonic_s, pause
from mendgraph.nodes.execute_tools.store.database import (
    STORE_URL_VARIABLE,
    LostError,
    PostgresUrl,
    StoreError,
    other_format,
    postgres_url,
)
from mendgraph.nodes.execute_tools.store.database_schema import (
    BEGIN,
    FENCED,
    POSTGRES_BASE,
    STORE_TABLES,
    PostgresTables,
)
from mendgraph.nodes.execute_tools.store.postgres_locks import Locks as Locks  # noqa: PLC0414 - others have it from here
from mendgraph.nodes.execute_tools.store.run_lock import Owner
from mendgraph.nodes.language.documents import storable

Result = TypeVar("Result")

MOST_CONNECTIONS: Final = 6
"""For the transactions of one process, however many runs it has; a transaction takes a few milliseconds."""

LONGEST_WAIT_S: Final = 30.0
"""How long a transaction waits for one of them, and for an answer of the server."""

LONGEST_RESTART_S, _RETRY_S = 20.0, 0.2
"""How long a server is waited for that was there and is gone, as when it is started anew, and how often it is asked."""

_SETTINGS: Final[dict[str, Any]] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "mendgraph",
    "client_encoding": "utf8",
}
"""What a URL does not say itself: a server that is gone is noticed within half a minute."""

_SERVER_SETTINGS: Final = """
SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
SET search_path = pg_catalog, pg_temp
"""
"""A client that is gone is noticed as soon, together with its locks. Behind a pooler this would be set for others."""

_REASONS: Final[dict[str, str]] = {
    "28": f"it does not let this user in: put the user and password that it knows into {STORE_URL_VARIABLE}",
    "3D": "there is no such database: make it with `createdb`, or name another one",
    "42501": (
        "its user may not do this: GRANT CREATE ON DATABASE, or let another user start mendgraph once, who then has to"
        " GRANT USAGE ON SCHEMA mendgraph, and SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA mendgraph"
    ),
    "42": "{problem}: somebody has changed its tables. Put a backup in its place, or use an empty database",
    "53100": "its disk is full. Make room and try again",
    "53300": "it has no connection left: raise its max_connections, or run fewer processes",
    "57P": "the server was stopped, or is starting: try again when it is there",
    "25006": f"it may only be read: name its primary server in {STORE_URL_VARIABLE}",
}
"""By SQLSTATE, or how it begins. Source: postgresql.org/docs/current/errcodes-appendix.html."""

_LOST: Final = ("57P", "08", "25P03")
"""With these, and with none, the connection has ended."""

_FULL: Final = re.compile(r"FATAL: .{0,200}(?:too many|remaining) (?:clients|connection)")
"""What a server says before there is a connection has no SQLSTATE."""

FENCED_MESSAGE: Final = (
    "This process lost its lock on the workspace, and another one works there now: nothing more is written. Look at the"
    " run with `mendgraph runs`, and resume it when it has ended."
)


class OwnConnection(Connection[Any]):
    """A connection that is closed where an answer takes longer than `longest_s`, whatever became of the server."""

    longest_s = LONGEST_WAIT_S
    hung = False

    def wait(self, gen: PQGen[Result], interval: float = 0.1, timeout: float | None = None) -> Result:
        """What psycopg does with every question. Raises psycopg.OperationalError: there was no answer."""
        try:
            return super().wait(gen, interval, timeout or self.longest_s)
        except psycopg.errors._WaitTimeout:  # noqa: SLF001 - the only name that it has
            self.hung = True
            self.close()
            raise psycopg.OperationalError(f"no answer for {self.longest_s:g} s") from None


class Connections:
    """Lends connections to one database; safe for threads. A process that was forked has none of its parent's."""

    def __init__(self, url: PostgresUrl, connect_s: int = 10) -> None:
        """Nothing is connected yet. A server that does not answer within `connect_s` seconds is not there."""
        self.url = url
        self._connect_s = connect_s
        self.known_parts: set[str] = set()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._idle: list[OwnConnection] = []
        self._closed = self._was_there = False
        self.pooled: bool | None = None
        """Whether somebody between us and the server, such as PgBouncer, may give each transaction another session."""
        self.locks = Locks(self)
        if not (logger := logging.getLogger("psycopg")).handlers:  # else Python prints what is in our errors as well
            logger.addHandler(logging.NullHandler())

    @contextmanager
    def lent(self, beginning: str = BEGIN) -> Iterator[OwnConnection]:
        """A connection in the transaction that the statements of `beginning` have begun.

        It is committed at the end, and rolled back where an error comes out of the block. What the server refuses comes
        out as a StoreError, and as a LostError where the connection has ended.
        """
        if not self._free.acquire(timeout=LONGEST_WAIT_S):
            raise StoreError(self._failure(f"no connection was free for {LONGEST_WAIT_S:g} s. Run fewer tasks at once"))

        try:
            connection = self._in_transaction(beginning)
            try:
                with self.errors():
                    yield connection
                    self._commit(connection)
            except BaseException as error:
                if isinstance(error, LostError):
                    self._doubt(connection)
                    raise

                try:
                    connection.rollback()
                except psycopg.Error:
                    connection.close()

                raise
            finally:
                if self._closed:
                    connection.close()

                if not connection.closed:
                    self._idle.append(connection)
        finally:
            self._free.release()

    def connect(self, *, patient: bool = True) -> OwnConnection:
        """A connection of the caller's own, without a transaction; `patient` waits for a server that was there.

        Raises StoreError: there is none to be had.
        """
        latest = monotonic_s() + (LONGEST_RESTART_S if patient and self._was_there else 0.0)

        while True:
            try:
                with self.errors():
                    connection = self._connected()
            except StoreError:
                if monotonic_s() >= latest:
                    self._was_there = self._was_there and not patient
                    raise

                pause(_RETRY_S)
            else:
                self._was_there = True
                return connection

    def _connected(self) -> OwnConnection:
        settings = {**_SETTINGS, "connect_timeout": self._connect_s, **conninfo_to_dict(self.url.url)}
        connection = OwnConnection.connect(make_conninfo("", **settings), autocommit=True, prepare_threshold=None)

        try:
            connection.adapters.register_dumper(str, _StrDumper)
            connection.adapters.register_dumper(str, _UntypedStrDumper)
            connection.adapters.register_loader("numeric", FloatLoader)

            if self.pooled is None:  # a pooler has many of the server's sessions, and gives clients other numbers
                row = connection.execute("SELECT pg_catalog.pg_backend_pid()").fetchone()
                self.pooled = row != (connection.info.backend_pid,)

            if not self.pooled:
                connection.execute(_SERVER_SETTINGS)
        except BaseException:
            connection.close()
            raise

        return connection

    def close(self) -> None:
        """Release the locks, and close what is not lent now, and the others as soon as they are given back."""
        self.locks.close()
        self._closed = True
        self._close_idle()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Whatever the server refuses comes out as a `StoreError` that names the database, and no password."""
        try:
            yield
        except psycopg.Error as error:
            raise self.refused(error) from None

    def refused(self, error: psycopg.Error) -> StoreError:
        """The server's error as one of ours."""
        state = error.sqlstate or ("53300" if _FULL.search(str(error)) else "")
        if state == FENCED:
            return StoreError(FENCED_MESSAGE)

        problem = self.url.clean(error.diag.message_primary or str(error)).rstrip(".")
        reason = next((reason for beginning, reason in _REASONS.items() if state.startswith(beginning)), "")

        if not state:
            reason = "it cannot be reached ({problem}). Start it, or correct " + STORE_URL_VARIABLE
            if self.pooled:
                reason += ". Its pooler needs a connection to it for each process at work, and some more"

        kind = LostError if not state or state.startswith(_LOST) else StoreError
        return kind(self._failure(reason.replace("{problem}", problem) or f"{problem} (SQLSTATE {state})"))

    def _failure(self, reason: str) -> str:
        return f"The shared store {self.url.name} cannot be used: {reason}."

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _doubt(self, connection: OwnConnection) -> None:
        """Use no others that are likely to be dead as this one is: each could be waited for as long."""
        connection.close()
        self._close_idle()
        if connection.hung:
            self.locks.is_doubted = True

    def _in_transaction(self, beginning: str) -> OwnConnection:
        """A connection in a transaction. Those that lay idle may be dead, as when the server was started anew."""
        while True:
            connection = None
            with suppress(IndexError):
                connection = self._idle.pop()

            was_idle = connection is not None
            connection = connection or self.connect()

            try:
                connection.execute(beginning)
            except psycopg.Error as error:
                connection.close()
                refused = self.refused(error)
                if not (was_idle and isinstance(refused, LostError)):
                    raise refused from None

                self._doubt(connection)
            except BaseException:
                connection.close()
                raise
            else:
                connection.longest_s = LONGEST_WAIT_S
                return connection

    def _commit(self, connection: Connection[Any]) -> None:
        status = connection.execute("COMMIT").statusmessage
        if status != "COMMIT":  # an error inside, which somebody has caught, has undone all of it
            raise StoreError(self._failure("a part of a transaction failed, and nothing of it was written"))


# --- One for each process and database

_lock = threading.Lock()
_connections_by_key: dict[tuple[int, str], Connections] = {}


def connections_to(url: PostgresUrl) -> Connections:
    """The connections of this process to this database, created where there are none."""
    with _lock:
        return _connections_by_key.setdefault((os.getpid(), url.url), Connections(url))


def close_postgres() -> None:
    """Release the locks of this process and close its connections; the next use opens new ones.

    A forked process leaves the connections of its parent open.
    """
    with _lock:
        mine = [_connections_by_key.pop(key) for key in [*_connections_by_key] if key[0] == os.getpid()]

    for connections in mine:
        connections.close()


def _holdable(text: str) -> str:
    """The text as PostgreSQL can hold it: NUL as its picture, and no half characters."""
    return storable(text.replace("\0", "\u2400"))


class _UntypedStrDumper(StrDumperUnknown):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_holdable(obj))


class _StrDumper(StrDumper):
    def dump(self, obj: str) -> Buffer | None:
        return super().dump(_holdable(obj))


def postgres_holder(workspace: str) -> Owner | None:
    """As `Locks.holder`, by the database that is used now."""
    url = postgres_url()
    if url is None:
        return None

    return connections_to(url).locks.holder(workspace)


# --- The database

_MAKING: Final = int.from_bytes(b"mendgrph")
"""The advisory lock of whoever makes tables."""

_TABLES: Final = """
SELECT relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace AS n ON n.oid = relnamespace
WHERE nspname = 'mendgraph'
"""
"""What is in our schema now. `to_regclass` may remember that something was not there."""


class PostgresDatabase:
    """The rows of one workspace in the shared database, for any threads at once; each has its own transactions.

    Each statement outside of `connection` is one of its own. A workspace that this process has locked is written only
    as long as nobody else has taken it. Every method raises StoreError for whatever the server refuses.
    """

    def __init__(self, connections: Connections, workspace: str) -> None:
        """Who needs tables has seen to it that they are there; see `database.open_postgres`."""
        self.workspace = workspace
        self._connections = connections
        self._mine = threading.local()
        self._closed = False

    @property
    def name(self) -> str:
        """What the database is called in messages."""
        return self._connections.url.name

    @property
    def locks(self) -> Locks:
        """This process's locks of workspaces in the database."""
        return self._connections.locks

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = (), /) -> Any:
        """The cursor of the executed statement, with all of its rows. Its values replace each "?"."""
        with self.connection() as connection, self._connections.errors():
            return connection.execute(_translated(statement), tuple(values))

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Execute the statement for each of the rows, at once."""
        all_rows = [tuple(row) for row in rows]
        if all_rows:
            with self.connection() as connection, self._connections.errors(), connection.cursor() as cursor:
                cursor.executemany(_translated(statement), all_rows)

    @contextmanager
    def connection(self, *, quick: bool = False) -> Iterator[Connection[Any]]:
        """The connection of this thread's transaction, which is begun where there is none: all inside, or none of it.

        It is on the server's disk afterwards; a `quick` one follows within a second, so that it outlives the end of
        this process, though not always that of the server's machine.
        """
        current = getattr(self._mine, "connection", None)
        if current is not None:
            yield current
            return

        if self._closed:
            raise StoreError(f"The shared store {self.name} cannot be used: it is a closed database.")

        beginning = _beginning(self.workspace, self.locks.epoch(self.workspace), quick)
        with self._connections.lent(beginning) as connection:
            self.locks.keep()
            self._mine.connection = connection

            try:
                yield connection
            finally:
                self._mine.connection = None

    def close(self) -> None:
        """Nothing is written any more. The connections are for whoever in this process comes next."""
        self._closed = True


def opened(url: PostgresUrl, part: PostgresTables, workspace: str) -> PostgresDatabase:
    """See `database.open_postgres`."""
    connections = connections_to(url)
    if part.name not in connections.known_parts:
        _prepare(connections, part)
        connections.known_parts.add(part.name)

    return PostgresDatabase(connections, workspace)


def _prepare(connections: Connections, part: PostgresTables) -> None:
    with connections.lent() as connection:
        format_found = format_of(connection, connections.url, part)
        if format_found is not None and format_found >= part.format:
            return

        # Whoever else makes tables is waited for, whatever those are, and what they made is seen.
        connection.longest_s = 3_600.0  # in which a server may change large tables
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
        format_found = format_of(connection, connections.url, part)

        if format_found is None:
            _make(connections.url, connection, part)
        elif format_found < part.format:
            _run(connection, part.statements[format_found:])
            connection.execute("UPDATE mendgraph.formats SET format = %s WHERE part = %s", (part.format, part.name))


def format_of(connection: Connection[Any], url: PostgresUrl, part: PostgresTables) -> int | None:
    """The format of the part's tables, None where there are none. Nothing is written.

    Raises StoreError: it is of another version, and does not grow.
    """
    if ("formats",) not in connection.execute(_TABLES).fetchall():
        return None

    row = connection.execute("SELECT format FROM mendgraph.formats WHERE part = %s", (part.name,)).fetchone()
    if row is None:
        return None

    number = int(row[0])
    if not part.grow and number != part.format:
        what = f"The part {part.name!r} of the shared store {url.name}"
        raise other_format(what, number, part.format, "name another database")

    return number


def _make(url: PostgresUrl, connection: Connection[Any], part: PostgresTables) -> None:
    tables = connection.execute(_TABLES).fetchall()
    if tables and ("formats",) not in tables:
        raise StoreError(
            f"The schema 'mendgraph' in the shared store {url.name} is not one of mendgraph: name another database."
        )

    if not tables:
        if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'mendgraph'").fetchone() is None:
            connection.execute("CREATE SCHEMA mendgraph")

        _run(connection, POSTGRES_BASE)

    _run(connection, part.statements)
    connection.execute("INSERT INTO mendgraph.formats VALUES (%s, %s)", (part.name, part.format))


def _run(connection: Connection[Any], statements: Iterable[str]) -> None:
    connection.execute("SET LOCAL search_path = mendgraph, pg_temp")
    for statement in statements:
        connection.execute(statement)


@lru_cache
def _translated(statement: str) -> str:
    return statement.replace("%", "%%").replace("?", "%s")


def _beginning(workspace: str, epoch: int | None, quick: bool) -> str:
    call = SQL("SELECT mendgraph.enter({}, {}, {})").format(Literal(workspace), Literal(epoch), Literal(quick))
    return f"BEGIN ISOLATION LEVEL READ COMMITTED; {call.as_string()}"


# --- A look that makes nothing, and waits for no server that does not answer

_LOOK_CONNECT_S: Final = 2
"""A shell waits for its completion. Source: libpq takes one second for two."""

_LOOK: Final = f"{BEGIN}; SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = '5s'"


def server_version(url: PostgresUrl) -> str:
    """The version of the server. Raises StoreError: it cannot be used, or its tables are of another version."""
    with closing(Connections(url, _LOOK_CONNECT_S)) as connections, connections.lent(_LOOK) as connection:
        format_of(connection, url, STORE_TABLES)
        ((version,),) = connection.execute("SELECT current_setting('server_version')").fetchall()
        return str(version)
