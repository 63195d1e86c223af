"""PostgreSQL's locks of workspaces: one run at a time, on all machines."""

import os
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import psycopg

from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.database_schema import BEGIN
from mendgraph.nodes.execute_tools.store.run_lock import Owner

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.store.postgres import Connections, OwnConnection

_IS_HELD: Final = """
locktype = 'advisory' AND granted AND objsubid = 1
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = ((key >> 32) & 4294967295)::oid AND objid = (key & 4294967295)::oid
"""
"""Which row of `pg_locks` is that of the advisory lock with this `key`, which is in two halves there."""

_HOLDER: Final = f"""
SELECT run_id, pid, since, host FROM mendgraph.locks, hashtextextended(workspace, 0) AS key
WHERE workspace = %s AND EXISTS (SELECT 1 FROM pg_locks WHERE {_IS_HELD})
"""  # noqa: S608 - our own words
"""Who has written itself down, where the lock is held."""

_KEY: Final = "pg_catalog.hashtextextended(%s, 0)"
_ALONE: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 1))"
_EPOCH: Final = """
INSERT INTO mendgraph.locks AS l VALUES (%s, 1, %s, %s, %s, %s)
ON CONFLICT (workspace) DO UPDATE SET
    epoch = l.epoch + 1, run_id = excluded.run_id, pid = excluded.pid, host = excluded.host, since = excluded.since
RETURNING l.epoch
"""
_AGAIN: Final = """
SELECT pg_try_advisory_lock(hashtextextended(workspace, 0)) FROM mendgraph.locks
WHERE workspace = %s AND epoch = %s
"""

_STAYS: Final = """
SELECT set_config('idle_session_timeout', '0', false) WHERE current_setting('server_version_num')::integer >= 140000
"""
_STAYS_POOLED: Final = f"""
{BEGIN}; SET LOCAL idle_in_transaction_session_timeout = 0;
SELECT set_config('transaction_timeout', '0', true) WHERE current_setting('server_version_num')::integer >= 170000
"""
"""Nobody ends a connection because nothing is asked on it: what it holds is its use.

A pooler leaves us the same session of the server as long as a transaction is open. This one reads and writes nothing.
"""


class Locks:
    """The locks of this process in one database. Any thread may take and release them.

    They are on one connection, so that they end with the process, whatever ends that. Each new holder gets a higher
    epoch, and every transaction of a holder says its own: who was cut off and believes that it has the lock still
    writes nothing more. A connection that was cut off while nobody else has taken the lock is replaced, and the run
    goes on.
    """

    def __init__(self, connections: "Connections") -> None:
        self.process = os.getpid()
        self.connections = connections
        self.is_doubted = False  # set by whoever finds out that nothing comes through to the server
        self._connection: OwnConnection | None = None
        self._held: dict[str, int] = {}
        self._lock = threading.RLock()

    def take(self, workspace: str, owner: Owner) -> bool:
        """Take the lock if nobody has it, be it in this process or elsewhere.

        Raises StoreError: the server cannot be asked.
        """
        with self._lock:
            if workspace in self._held:
                return False

            epoch = None
            try:
                if self._ask("try_advisory_lock", workspace) and (epoch := self._new_epoch(workspace, owner)):
                    self._held[workspace] = epoch
            finally:
                if epoch is None:
                    self._give_back(workspace)

            return epoch is not None

    def _new_epoch(self, workspace: str, owner: Owner) -> int | None:
        """Who has the lock from now on; None where the holder before is in the middle of a transaction."""
        with self.connections.lent() as connection:
            (free,) = connection.execute(_ALONE, (workspace,)).fetchone() or (False,)
            if not free:
                return None

            row = (workspace, owner.run_id, owner.pid, owner.host or socket.gethostname(), owner.since)
            ((epoch,),) = connection.execute(_EPOCH, row).fetchall()
            return int(epoch)

    def release(self, workspace: str) -> None:
        """Leave it to others; one that is not held is left alone, and so are those of a process that forked us."""
        with self._lock:
            if self.process != os.getpid():
                return

            if self._held.pop(workspace, None) is not None:
                self._give_back(workspace)

    def _give_back(self, workspace: str) -> None:
        if self._is_connected():
            with suppress(StoreError):  # a connection that is gone holds nothing
                self._ask("advisory_unlock", workspace)

        if not self._is_connected() or (self.connections.pooled and not self._held):
            self._drop()

    def holder(self, workspace: str) -> Owner | None:
        """Who has locked the workspace, on whatever machine; None where nobody has.

        Raises StoreError: the server cannot be asked.
        """
        with self.connections.lent() as connection:
            row = connection.execute(_HOLDER, (workspace,)).fetchone()

        if row is None:
            return None

        run_id, pid, since, host = row
        return Owner(run_id, pid, since, "" if host == socket.gethostname() else host)

    def epoch(self, workspace: str) -> int | None:
        """The epoch of a lock that this process has taken and not released; None where it has not."""
        return self._held.get(workspace)

    def keep(self) -> None:
        """Replace a connection that was cut off, in one thread; no other one waits for that.

        The epoch tells whether anybody else was faster.
        """
        if self._held and self._lock.acquire(blocking=False):
            try:
                with suppress(StoreError, psycopg.Error):
                    self._connected(patient=False)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Release all of them: now, not when the server notices that the connection has ended."""
        with self._lock:
            for workspace in [*self._held]:
                self.release(workspace)

            self._drop()

    def _ask(self, what: str, workspace: str) -> bool:
        """Try to take the server's lock of a workspace, or give it back."""
        try:
            row = self._connected().execute(f"SELECT pg_catalog.pg_{what}({_KEY})", (workspace,)).fetchone()
        except psycopg.Error as error:
            self._drop()  # in a transaction that has failed nothing can be asked; what is held is taken again
            raise self.connections.refused(error) from None

        return row == (True,)

    def _connected(self, *, patient: bool = True) -> "OwnConnection":
        """The connection; a new one takes again what is held and what nobody else has taken meanwhile."""
        if self._connection is None or not self._is_connected():
            self._drop()
            self._connection = self.connections.connect(patient=patient)
            self._connection.execute(_STAYS_POOLED if self.connections.pooled else _STAYS)

            for item in self._held.items():
                self._connection.execute(_AGAIN, item)

        return self._connection

    def _is_connected(self) -> bool:
        """Whether the connection is there; one that was cut off has something to read, or its end."""
        connection = self._connection
        if connection is None or connection.closed or self.is_doubted:
            return False

        poller = select.poll()  # which knows handles of any number
        poller.register(connection.fileno(), select.POLLIN)

        if poller.poll(0):
            try:
                connection.execute("SELECT 1")
            except psycopg.Error:
                connection.close()

        return not connection.closed

    def _drop(self) -> None:
        connection = self._connection
        self._connection = None
        self.is_doubted = False

        if connection is not None:
            connection.close()
