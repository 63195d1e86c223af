"""What a server holds while it works: each ends with the process, whatever ends that.

With a shared store they are advisory locks of one connection, for all servers of the database; otherwise locks of files
in the data folder, for all processes of the machine.
"""

import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.postgres_url import PostgresUrl, postgres_url
from mendgraph.nodes.execute_tools.store.run_folder import spending_folder
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    import psycopg

_TAKE: Final = "SELECT pg_try_advisory_lock(%s)"
_LEAVE: Final = "SELECT pg_advisory_unlock(%s)"
_ALIVE: Final = "SELECT %s::bigint IS NOT NULL"


class Locks(Protocol):
    """Locks by name; each is held once, among all processes and within each.

    `for_threads` says whether there may be one for each thread.
    """

    for_threads: bool

    def take(self, name: str) -> bool:
        """Whether it is ours now. StoreError where nobody can tell."""

    def leave(self, name: str) -> None:
        """Leave it to others."""

    def keep(self) -> None:
        """Make sure that they are still ours. StoreError where nobody can tell."""

    def close(self) -> None:
        """Leave all of them."""


def open_locks() -> Locks:
    """The locks that go with this process's store.

    Raises:
        StoreError: the variable that names it says something else.
    """
    url = postgres_url()
    return FileLocks() if url is None else PostgresLocks(url)


class FileLocks:
    """Locks of files. There are as many files as names, so names have to be few."""

    for_threads = False

    def __init__(self) -> None:
        self._held: dict[str, RunLock] = {}
        self._turn = threading.Lock()

    def take(self, name: str) -> bool:
        """Whether it is ours now."""
        with self._turn:
            if name in self._held:
                return False
            folder = spending_folder()
            if isinstance(folder, ToolError):
                raise StoreError(folder.message)
            lock = RunLock(folder, f"serving-{sha256(name.encode()).hexdigest()[:32]}")
            refused = lock.acquire(Owner(name))
            if refused is None:
                self._held[name] = lock
            elif refused.code is not ToolErrorCode.UNAVAILABLE:
                raise StoreError(refused.message)
            return refused is None

    def leave(self, name: str) -> None:
        """Leave it to others."""
        with self._turn:
            lock = self._held.pop(name, None)
            if lock is not None:
                lock.release()

    def keep(self) -> None:
        """The kernel keeps them."""

    def close(self) -> None:
        """Leave all of them."""
        for name in tuple(self._held):
            self.leave(name)


class PostgresLocks:
    """Locks of one connection to the shared database; safe for threads."""

    for_threads = True

    def __init__(self, url: PostgresUrl) -> None:
        """Nothing is connected yet."""
        self._url = url
        self._held: set[str] = set()
        self._turn = threading.Lock()
        self._connection: psycopg.Connection[tuple[bool]] | None = None

    def take(self, name: str) -> bool:
        """Whether it is ours now: a session may take its own lock again, so those that we hold are known here."""
        with self._turn:
            taken = name not in self._held and self._asked(_TAKE, name)
            if taken:
                self._held.add(name)
            return taken

    def leave(self, name: str) -> None:
        """Leave it to others."""
        with self._turn:
            if name in self._held:
                self._held.discard(name)
                self._asked(_LEAVE, name)

    def keep(self) -> None:
        """Where the connection was lost, take what nobody else has taken since."""
        with self._turn:
            self._asked(_ALIVE, "")

    def close(self) -> None:
        """Leave all of them."""
        with self._turn:
            held, self._held = self._held, set()
            if self._connection is not None:
                if held and not self._connection.broken:
                    self._connection.execute("SELECT pg_advisory_unlock_all()")  # now, not when the server notices
                self._connection.close()
                self._connection = None

    def _asked(self, statement: str, name: str) -> bool:
        """What the database says. Where our connection was lost a new one takes what is still free of ours."""
        import psycopg

        from mendgraph.nodes.execute_tools.store.postgres_connections import connections_to

        connections = connections_to(self._url)
        with connections.errors():
            try:
                if self._connection is not None:
                    return _answer(self._connection, statement, name)
            except psycopg.OperationalError:
                self._connection = None
            self._connection = connections.connect()
            self._held = {each for each in self._held if _answer(self._connection, _TAKE, each)}
            return _answer(self._connection, statement, name)


def lock_key(name: str) -> int:
    """The number by which the database knows a lock."""
    return int.from_bytes(sha256(f"mendgraph serving {name}".encode()).digest()[:8], "big", signed=True)


def _answer(connection: "psycopg.Connection[tuple[bool]]", statement: str, name: str) -> bool:
    found = connection.execute(statement, (lock_key(name),)).fetchone()
    return bool(found and found[0])
