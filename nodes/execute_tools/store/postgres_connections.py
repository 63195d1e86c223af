"""Few connections to a PostgreSQL database for all threads of a process: each is lent for one transaction.

Imported only where the store is in PostgreSQL. Source: measured, psycopg's own pool takes 207 microseconds of CPU for a
transaction against 108 here, and says only after a timeout, without its reason, that a server is not there.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg.adapt import Buffer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import FloatLoader
from psycopg.types.string import StrDumper, StrDumperUnknown

from mendgraph.nodes.execute_tools.files.deadline import monotonic_s, pause
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.database_schema import FENCED
from mendgraph.nodes.execute_tools.store.postgres_url import STORE_URL_VARIABLE, PostgresUrl
from mendgraph.nodes.language.documents import storable

MOST_CONNECTIONS: Final = 6
"""For the transactions of one process, however many runs it has; a transaction takes a few milliseconds."""

LONGEST_WAIT_S: Final = 30.0
"""How long a transaction waits for one of them."""

_POLL_S: Final = 0.02

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
"""A client that is gone is noticed as soon, together with its locks. Nobody's function takes the place of the server's.

Source: postgresql.org/docs/current/ddl-schemas.html#DDL-SCHEMAS-PATTERNS.
"""

_REASONS: Final[dict[str, str]] = {
    "28": f"it does not let this user in: put the user and password that it knows into {STORE_URL_VARIABLE}",
    "3D": "there is no such database: make it with `createdb`, or name another one",
    "42501": (
        "its user may not do this: GRANT CREATE ON DATABASE, or let another user start mendgraph once, who then has to"
        " GRANT USAGE ON SCHEMA mendgraph, and SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA mendgraph"
    ),
    "42": "{said}: somebody has changed its tables. Put a backup in its place, or use an empty database",
    "53100": "its disk is full. Make room and try again",
    "53300": "it has no connection left: raise its max_connections, or run fewer processes",
    "57P": "the server was stopped, or is starting: try again when it is there",
    "25006": f"it may only be read: name its primary server in {STORE_URL_VARIABLE}",
}
"""By SQLSTATE, or how it begins. Source: postgresql.org/docs/current/errcodes-appendix.html."""

_FULL: Final = re.compile(r"FATAL: .{0,200}(?:too many|remaining) (?:clients|connection)")
"""What a server says before there is a connection has no SQLSTATE."""

FENCED_MESSAGE: Final = (
    "This process lost its lock on the workspace, and another one works there now: nothing more is written. Look at the"
    " run with `mendgraph runs`, and resume it when it has ended."
)


class _FullError(StoreError):
    """The server has as many connections as it may have."""


class Connections:
    """Lends connections to one database; safe for threads. A process that was forked has none of its parent's."""

    def __init__(self, url: PostgresUrl, connect_s: int = 10) -> None:
        """Nothing is connected yet. A server that does not answer within `connect_s` seconds is not there."""
        self.url, self._connect_s = url, connect_s
        self.known_parts: set[str] = set()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._idle: list[psycopg.Connection[Any]] = []
        self._open: set[psycopg.Connection[Any]] = set()
        self._closed = False

    @contextmanager
    def lent(self, beginning: str) -> Iterator[psycopg.Connection[Any]]:
        """A connection in the transaction that the statements of `beginning` have begun.

        It is committed at the end, and rolled back where an error comes out of the block. What the server refuses comes
        out as a StoreError.
        """
        if not self._free.acquire(timeout=LONGEST_WAIT_S):
            raise StoreError(self._said(f"no connection was free for {LONGEST_WAIT_S:g} s. Run fewer tasks at once"))
        try:
            connection = self._begun(beginning)
            try:
                with self.errors():
                    yield connection
                    self._commit(connection)
            except BaseException:
                _roll_back(connection)
                raise
            finally:
                if self._closed or connection.closed:
                    self._drop(connection)
                else:
                    self._idle.append(connection)
        finally:
            self._free.release()

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of the caller's own, without a transaction. Raises StoreError: there is none to be had."""
        with self.errors():
            given = {**_SETTINGS, "connect_timeout": self._connect_s, **conninfo_to_dict(self.url.url)}
            connection = psycopg.connect(make_conninfo("", **given), autocommit=True, prepare_threshold=None)
            try:
                connection.adapters.register_dumper(str, _StrDumper)
                connection.adapters.register_dumper(str, _UntypedStrDumper)
                connection.adapters.register_loader("numeric", FloatLoader)
                connection.execute(_SERVER_SETTINGS)
            except BaseException:
                connection.close()
                raise
            return connection

    def close(self) -> None:
        """Close what is not lent, and the others as soon as they are given back."""
        self._closed = True
        while self._idle:
            self._drop(self._idle.pop())

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
        said = self.url.clean(error.diag.message_primary or str(error)).rstrip(".")
        reason = next((reason for beginning, reason in _REASONS.items() if state.startswith(beginning)), "")
        if not state:
            reason = "it cannot be reached ({said}). Start it, or correct " + STORE_URL_VARIABLE
        kind = _FullError if state == "53300" else StoreError
        return kind(self._said(reason.replace("{said}", said) or f"{said} (SQLSTATE {state})"))

    def _said(self, reason: str) -> str:
        return f"The shared store {self.url.name} cannot be used: {reason}."

    def _begun(self, beginning: str) -> psycopg.Connection[Any]:
        """A connection in a transaction. Those that lay idle may be dead, as when the server was started anew."""
        while True:
            connection, was_idle = self._idle_or_new()
            try:
                connection.execute(beginning)
            except psycopg.Error as error:
                dead = connection.closed
                _roll_back(connection)
                self._drop(connection)
                if not (was_idle and dead):
                    raise self.refused(error) from None
            except BaseException:
                self._drop(connection)
                raise
            else:
                return connection

    def _idle_or_new(self) -> tuple[psycopg.Connection[Any], bool]:
        """A connection, and whether it lay idle. Where the server has none left, one of ours is waited for."""
        latest, alone = monotonic_s() + LONGEST_WAIT_S, False
        while True:
            with suppress(IndexError):
                return self._idle.pop(), True
            try:
                connection = self.connect()
            except _FullError:
                if alone or monotonic_s() >= latest:
                    raise
                alone = not self._open  # unless another thread is just about to have one
            else:
                self._open.add(connection)
                return connection, False
            pause(_POLL_S)

    def _drop(self, connection: psycopg.Connection[Any]) -> None:
        connection.close()
        self._open.discard(connection)

    def _commit(self, connection: psycopg.Connection[Any]) -> None:
        status = connection.execute("COMMIT").statusmessage
        if status != "COMMIT":  # an error inside, which somebody has caught, has undone all of it
            raise StoreError(self._said("a part of a transaction failed, and nothing of it was written"))


def _roll_back(connection: psycopg.Connection[Any]) -> None:
    if not _is_idle(connection):
        with suppress(psycopg.Error):
            connection.execute("ROLLBACK")
        if not _is_idle(connection):
            connection.close()


def _is_idle(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.transaction_status is TransactionStatus.IDLE


# --- One for each process and database

_lock = threading.Lock()
_known: dict[tuple[int, str], Connections] = {}


def connections_to(url: PostgresUrl) -> Connections:
    """Those of this process to this database, made where there are none."""
    with _lock:
        return _known.setdefault((os.getpid(), url.url), Connections(url))


def close_all() -> None:
    """Close what this process has open; who needs a connection once more gets a new one."""
    with _lock:
        mine = [_known.pop(key) for key in [*_known] if key[0] == os.getpid()]
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
