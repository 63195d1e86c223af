"""Locks that hold on all machines: on one connection of each process, so that they end with it, whatever ends that.

Each new holder gets a higher epoch, and every transaction of a holder says its own: who was cut off and believes that
it has the lock still writes nothing more. A connection that was cut off while nobody else has taken the lock is
replaced, and the run goes on.
"""

import os
import select
import socket
import threading
from contextlib import suppress
from typing import Any, Final

import psycopg

from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.postgres_connections import Connections, connections_to
from mendgraph.nodes.execute_tools.store.postgres_url import postgres_url
from mendgraph.nodes.execute_tools.store.run_lock import Owner

_BUSY_STATE: Final = "55P03"
"""The holder before is still in the middle of a transaction."""

_HOLDER: Final = """
SELECT run_id, pid, since, host FROM mendgraph.locks, hashtextextended(workspace, 0) AS key
WHERE workspace = %s AND EXISTS (
    SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid = ((key >> 32) & 4294967295)::oid AND objid = (key & 4294967295)::oid
)
"""
"""Who has written itself down, where the lock is held; the key of an advisory lock is in two halves there."""


_AGAIN: Final = """
SELECT pg_try_advisory_lock(hashtextextended(workspace, 0)) FROM mendgraph.locks
WHERE workspace = %s AND epoch = %s
"""


_STAYS: Final = """
SELECT set_config('idle_session_timeout', '0', false) WHERE current_setting('server_version_num')::integer >= 140000
"""
"""Nobody ends a connection because nothing is asked on it: what it holds is its use."""


class Locks:
    """The locks of this process in one database. Any thread may take and release them."""

    def __init__(self, connections: Connections) -> None:
        self.process = os.getpid()
        self.connections = connections
        self._connection: psycopg.Connection[Any] | None = None
        self._held: dict[str, int] = {}
        self._lock = threading.RLock()

    def take(self, workspace: str, owner: Owner) -> bool:
        """Take the lock if nobody has it, be it in this process or elsewhere.

        Raises StoreError: the server cannot be asked.
        """
        with self._lock:
            if workspace in self._held:
                return False
            row = self._ask(
                "SELECT mendgraph.take(%s, %s, %s, %s, %s)",
                (workspace, owner.run_id, owner.pid, owner.host or socket.gethostname(), owner.since),
            )
            if row is None or row[0] is None:
                return False
            self._held[workspace] = int(row[0])
            return True

    def release(self, workspace: str) -> None:
        """Leave it to others; one that is not held is left alone, and so are those of a process that forked us."""
        with self._lock:
            if self.process != os.getpid():
                return
            if self._held.pop(workspace, None) is not None and self._is_connected():
                with suppress(StoreError):  # a connection that is gone holds nothing
                    self._ask("SELECT pg_advisory_unlock(hashtextextended(%s, 0))", (workspace,))

    def epoch(self, workspace: str) -> int | None:
        """The epoch of a lock that this process has taken and not released; None where it has not.

        A connection that was cut off is replaced, by one thread; no other one waits for that, as the epoch tells
        whether anybody else was faster.
        """
        epoch = self._held.get(workspace)
        if epoch is not None and self._lock.acquire(blocking=False):
            try:
                with suppress(StoreError, psycopg.Error):
                    self._connected()
            finally:
                self._lock.release()
        return epoch

    def close(self) -> None:
        """Release all of them: now, not when the server notices that the connection has ended."""
        with self._lock:
            if self._held and self._is_connected():
                with suppress(StoreError):
                    self._ask("SELECT pg_advisory_unlock_all()", ())
            self._held.clear()
            self._drop()

    def _ask(self, statement: str, values: tuple[Any, ...]) -> Any:
        """The row that the statement gives; None where the holder before is in the middle of a transaction."""
        try:
            return self._connected().execute(statement, values).fetchone()
        except psycopg.Error as error:
            if error.sqlstate == _BUSY_STATE:
                return None
            raise self.connections.refused(error) from None

    def _connected(self) -> psycopg.Connection[Any]:
        """The connection; a new one takes again what is held and what nobody else has taken meanwhile."""
        if self._connection is None or not self._is_connected():
            self._drop()
            self._connection = self.connections.connect()
            self._connection.execute(_STAYS)
            for held in self._held.items():
                self._connection.execute(_AGAIN, held)
        return self._connection

    def _is_connected(self) -> bool:
        """Whether the connection is there; one that was cut off has something to read, or its end."""
        connection = self._connection
        if connection is None or connection.closed:
            return False
        asked = select.poll()  # which knows handles of any number
        asked.register(connection.fileno(), select.POLLIN)
        if asked.poll(0):
            with suppress(psycopg.Error):
                connection.execute("SELECT 1")
        return not connection.closed

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


# --- One for each process and database

_lock = threading.Lock()
_known: dict[Connections, Locks] = {}


def locks_in(connections: Connections) -> Locks:
    """Those of this process."""
    with _lock:
        return _known.setdefault(connections, Locks(connections))


def held_epoch(connections: Connections, workspace: str) -> int | None:
    """The epoch of the workspace's lock where this process holds it."""
    found = _known.get(connections)
    return found.epoch(workspace) if found is not None and workspace else None


def postgres_holder(workspace: str) -> Owner | None:
    """Who has locked the workspace, on whatever machine; None where nobody has.

    Raises StoreError: the server cannot be asked.
    """
    url = postgres_url()
    if url is None:
        return None
    connections = connections_to(url)
    with connections.lent("BEGIN") as connection:
        row = connection.execute(_HOLDER, (workspace,)).fetchone()
    if row is None:
        return None
    run_id, pid, since, host = row
    return Owner(run_id, pid, since, "" if host == socket.gethostname() else host)


def close_locks() -> None:
    """Release all that this process holds, and close its connections for them.

    A process that was forked leaves those of its parent alone, who goes on with their connections.
    """
    with _lock:
        mine = [_known.pop(locks.connections) for locks in [*_known.values()] if locks.process == os.getpid()]
    for locks in mine:
        locks.close()
