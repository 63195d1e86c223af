"""The shared database as a `Database`: what our SQL says to a workspace's own file, said to PostgreSQL.

A process has few connections to it, and lends one for each transaction. Nothing here is imported by a run that keeps
its records in the workspace's own database.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple

from psycopg import Connection
from psycopg.sql import SQL, Literal

from mendgraph.nodes.execute_tools.store.database import StoreError, other_format
from mendgraph.nodes.execute_tools.store.database_schema import POSTGRES_BASE, SCHEMA_NAME, STORE_TABLES, PostgresTables
from mendgraph.nodes.execute_tools.store.postgres_connections import Connections, close_all, connections_to
from mendgraph.nodes.execute_tools.store.postgres_lock import Locks, close_locks, held_epoch, locks_in
from mendgraph.nodes.execute_tools.store.postgres_url import PostgresUrl

_MAKING: Final = int.from_bytes(b"mendgrph")
"""The advisory lock of whoever makes tables."""

_TABLES: Final = """
SELECT relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace AS n ON n.oid = relnamespace
WHERE nspname = 'mendgraph'
"""


class Rows:
    """What a statement has given, all of it."""

    def __init__(self, rows: Sequence[tuple[Any, ...]], rowcount: int) -> None:
        self._rows, self.rowcount = iter(rows), rowcount

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> Any:
        """The next row, None after the last one."""
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        return [*self._rows]


class PostgresDatabase:
    """The rows of one workspace in the shared database, for any threads at once; each has its own transactions.

    Each statement outside of `transaction` is one of its own. A workspace that this process has locked is written only
    as long as nobody else has taken it. Every method raises StoreError for whatever the server refuses.
    """

    def __init__(self, connections: Connections, workspace: str) -> None:
        """Who needs tables has seen to it that they are there; see `database.open_postgres`."""
        self.workspace, self._connections = workspace, connections
        self._mine = threading.local()
        self._closed = False

    @property
    def name(self) -> str:
        """What the database is called in messages."""
        return self._connections.url.name

    @property
    def locks(self) -> Locks:
        """This process's locks of workspaces in the database."""
        return locks_in(self._connections)

    def check_open(self) -> None:
        """Raise a StoreError once it is closed."""
        if self._closed:
            raise StoreError(f"The shared store {self.name} cannot be used: it is a closed database.")

    def errors(self) -> AbstractContextManager[None]:
        """What the server refuses inside comes out as a StoreError; for those who use `connection` themselves."""
        return self._connections.errors()

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = (), /) -> Rows:
        """What the statement gives. Its values stand where it says "?"."""
        with self.connection() as connection, self._connections.errors():
            cursor = connection.execute(_translated(statement), tuple(values))
            rows = cursor.fetchall() if cursor.description is not None else ()
            return Rows(rows, cursor.rowcount)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Execute the statement for each of the rows, at once."""
        given = [tuple(row) for row in rows]
        if given:
            with self.connection() as connection, self._connections.errors(), connection.cursor() as cursor:
                cursor.executemany(_translated(statement), given)

    @contextmanager
    def transaction(self, *, quick: bool = False) -> Iterator[None]:
        """All of what this thread does inside, or none of it.

        It is on the server's disk afterwards; a `quick` one follows within a second, so that it outlives the end of
        this process, though not always that of the server's machine.
        """
        with self.connection(quick=quick):
            yield

    @contextmanager
    def connection(self, *, quick: bool = False) -> Iterator[Connection[Any]]:
        """The connection of this thread's transaction, which is begun where there is none."""
        current = getattr(self._mine, "connection", None)
        if current is not None:
            yield current
            return
        self.check_open()
        beginning = _beginning(self.workspace, held_epoch(self._connections, self.workspace), quick)
        with self._connections.lent(beginning) as connection:
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


def close_postgres() -> None:
    """Release the locks of this process and close its connections; who needs them once more gets new ones."""
    close_locks()
    close_all()


def _prepare(connections: Connections, part: PostgresTables) -> None:
    with connections.lent("BEGIN ISOLATION LEVEL READ COMMITTED") as connection:
        found = format_of(connection, connections.url, part)
        if found is not None and found >= part.format:
            return
        # Whoever else makes tables is waited for, whatever those are, and what they made is seen.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
        found = format_of(connection, connections.url, part)
        if found is None:
            _make(connections.url, connection, part)
        elif found < part.format:
            _run(connection, part.statements[found:])
            connection.execute("UPDATE mendgraph.formats SET format = %s WHERE part = %s", (part.format, part.name))


def format_of(connection: Connection[Any], url: PostgresUrl, part: PostgresTables) -> int | None:
    """The format of the part's tables, None where there are none. Nothing is written.

    Raises StoreError: it is of another version, and does not grow.
    """
    if "formats" not in _tables(connection):
        return None
    row = connection.execute("SELECT format FROM mendgraph.formats WHERE part = %s", (part.name,)).fetchone()
    if row is None:
        return None
    found = int(row[0])
    if not part.grow and found != part.format:
        what = f"The part {part.name!r} of the shared store {url.name}"
        raise other_format(what, found, part.format, "name another database")
    return found


def _tables(connection: Connection[Any]) -> set[str]:
    """What is in our schema now. `to_regclass` may remember that something was not there."""
    return {name for (name,) in connection.execute(_TABLES).fetchall()}


def _make(url: PostgresUrl, connection: Connection[Any], part: PostgresTables) -> None:
    tables = _tables(connection)
    if tables and "formats" not in tables:
        raise StoreError(
            f"The schema 'mendgraph' in the shared store {url.name} is not one of mendgraph: name another database."
        )
    if not tables:
        if connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (SCHEMA_NAME,)).fetchone() is None:
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

_LOOK: Final = "BEGIN READ ONLY; SET LOCAL statement_timeout = '5s'"


class PostgresLook(NamedTuple):
    """What is there: the server's version, how many runs the workspace has, and how many bytes the database.

    `runs` is None where nobody has made the tables yet.
    """

    server: str
    runs: int | None
    size: int


def look_at(url: PostgresUrl, workspace: str | None) -> PostgresLook:
    """What the database has of this workspace, which may have no name yet. Raises StoreError: it cannot be used."""
    with closing(Connections(url, _LOOK_CONNECT_S)) as connections, connections.lent(_LOOK) as connection:
        asked = "SELECT current_setting('server_version'), pg_database_size(current_database())"
        ((server, size),) = connection.execute(asked).fetchall()
        if format_of(connection, url, STORE_TABLES) is None:
            return PostgresLook(server, None, size)
        counted = "SELECT count(*) FROM mendgraph.all_runs WHERE workspace = %s"
        ((runs,),) = connection.execute(counted, (workspace,)).fetchall()
        return PostgresLook(server, runs, size)
