"""Locks of workspaces in PostgreSQL: one run at a time on all machines."""

import os
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import ClientCursor, Connection

from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.database_schema import BEGIN
from mendgraph.nodes.workspace.store.run_lock import Owner

if TYPE_CHECKING:
    from mendgraph.nodes.workspace.store.postgres import PostgresPool

_HOLDER: Final = """
SELECT run_id, pid, since, host FROM mendgraph.locks, hashtextextended(workspace, 0) AS key
WHERE workspace = %s AND EXISTS (
    SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = ((key >> 32) & 4294967295)::oid AND objid = (key & 4294967295)::oid
)
"""
"""The recorded holder, if the advisory lock is held; `pg_locks` shows its key in two halves."""

_TRY_LOCK: Final = "SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(%s, 0))"
_UNLOCK: Final = "SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended(%s, 0))"
_TRY_EXCLUDE_WRITERS: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 1))"
_NEXT_EPOCH: Final = """
INSERT INTO mendgraph.locks AS l VALUES (%s, 1, %s, %s, %s, %s)
ON CONFLICT (workspace) DO UPDATE SET
    epoch = l.epoch + 1, run_id = excluded.run_id, pid = excluded.pid, host = excluded.host, since = excluded.since
RETURNING l.epoch
"""
_LOCK_AGAIN: Final = """
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(workspace, 0)) FROM mendgraph.locks
WHERE workspace = %s AND epoch = %s
"""

_BEGIN_IDLE: Final = f"""
{BEGIN}; SET LOCAL idle_in_transaction_session_timeout = 0;
SET LOCAL tcp_keepalives_idle = 10; SET LOCAL tcp_keepalives_interval = 5; SET LOCAL tcp_keepalives_count = 3;
SELECT set_config('transaction_timeout', '0', true) WHERE current_setting('server_version_num')::integer >= 170000
"""
"""Begins a transaction that lasts as long as locks are held: a pooler such as PgBouncer then keeps the session.

The keepalives let the server notice a client that is gone, together with its locks."""


class Locks:
    """The locks of this process in one database, for any thread.

    All are advisory locks of one connection, so they end with the process. Each new holder has a higher epoch, which it
    states in each transaction, so a holder that lost its lock unnoticed writes nothing more. If the connection breaks
    and nobody takes the locks meanwhile, they are taken again.
    """

    def __init__(self, pool: "PostgresPool") -> None:
        self._pool = pool
        self._process = os.getpid()
        self._connection: Connection[Any] | None = None
        self._epochs: dict[str, int] = {}
        self._lock = threading.RLock()

    def take(self, workspace: str, owner: Owner) -> bool:
        """Take the lock if it is free. Raises StoreError: the server cannot be asked."""
        with self._lock:
            if workspace in self._epochs:
                return False

            try:
                if self._execute(_TRY_LOCK, workspace):
                    epoch = self._next_epoch(workspace, owner)
                    if epoch is not None:
                        self._epochs[workspace] = epoch
            finally:
                if workspace not in self._epochs:
                    self._unlock(workspace)

            return workspace in self._epochs

    def _next_epoch(self, workspace: str, owner: Owner) -> int | None:
        """Record the new holder; None while a transaction of the previous one is in progress."""
        with self._pool.transaction() as connection:
            if connection.execute(_TRY_EXCLUDE_WRITERS, (workspace,)).fetchone() != (True,):
                return None

            row = (workspace, owner.run_id, owner.pid, owner.host or socket.gethostname(), owner.since)
            ((epoch,),) = connection.execute(_NEXT_EPOCH, row).fetchall()
            return int(epoch)

    def release(self, workspace: str) -> None:
        """Release the lock if this process holds it; a forked process holds none."""
        with self._lock:
            if self._process == os.getpid() and self._epochs.pop(workspace, None) is not None:
                self._unlock(workspace)

    def holder(self, workspace: str) -> Owner | None:
        """Return the holder of the lock on any machine. Raises StoreError: the server cannot be asked."""
        with self._pool.transaction() as connection:
            row = connection.execute(_HOLDER, (workspace,)).fetchone()

        if row is None:
            return None

        run_id, pid, since, host = row
        return Owner(run_id, pid, since, "" if host == socket.gethostname() else host)

    def epoch(self, workspace: str) -> int | None:
        """Return the epoch of a lock that this process has taken and not released."""
        return self._epochs.get(workspace)

    def keep(self) -> None:
        """Replace a broken connection, in one thread, while others continue."""
        if self._epochs and self._lock.acquire(blocking=False):
            try:
                with suppress(StoreError):
                    self._connected()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Release all locks."""
        with self._lock:
            self._epochs.clear()
            self._disconnect()

    def _execute(self, statement: str, workspace: str) -> bool:
        """Execute a statement of a lock and return its result."""
        with self._pool.errors():
            try:
                return _ask(self._connected(), statement, (workspace,)) == (True,)
            except psycopg.Error:
                self._disconnect()  # its transaction has failed
                raise

    def _unlock(self, workspace: str) -> None:
        if not self._epochs:
            self._disconnect()
        elif self._is_connected():
            with suppress(StoreError):  # a broken connection holds no lock
                self._execute(_UNLOCK, workspace)

    def _connected(self) -> Connection[Any]:
        """Return the connection; a new one takes the locks that nobody else has taken meanwhile."""
        if self._connection is None or not self._is_connected():
            self._disconnect()
            with self._pool.errors():
                self._connection = self._pool.take_connection()
                try:
                    self._connection.execute(_BEGIN_IDLE.encode())
                    for item in self._epochs.items():
                        _ask(self._connection, _LOCK_AGAIN, item)
                except psycopg.Error:
                    self._disconnect()
                    raise

        return self._connection

    def _is_connected(self) -> bool:
        """Return whether the connection is intact; a broken one has something to read."""
        connection = self._connection
        if connection is None or connection.closed:
            return False

        poller = select.poll()
        poller.register(connection.fileno(), select.POLLIN)
        if poller.poll(0):
            try:
                connection.execute("SELECT 1")
            except psycopg.Error:
                connection.close()

        return not connection.closed

    def _disconnect(self) -> None:
        """Return the connection to the pool, without its locks and its transaction; close it if it is broken."""
        connection = self._connection
        if connection is None:
            return

        self._connection = None
        try:
            connection.execute("SELECT pg_catalog.pg_advisory_unlock_all()")
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()

        self._pool.put_connection(connection)


def _ask(connection: Connection[Any], statement: str, parameters: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Execute a statement with parameters bound by the client, and return its first row.

    With parameters bound by the server, the idle transaction would keep a portal and its snapshot, and VACUUM and
    CREATE INDEX CONCURRENTLY would wait for it as long as locks are held.
    """
    row: tuple[Any, ...] | None = ClientCursor(connection).execute(statement.encode(), parameters).fetchone()
    return row
