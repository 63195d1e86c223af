"""What a server holds while it works: each ends with the process, whatever ends that.

With a shared store they are the store's own locks, for all servers of the database; otherwise locks of files in the
data folder, for all processes of the machine.
"""

import threading
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

from mendgraph.nodes.execute_tools.store.database import StoreError, open_postgres
from mendgraph.nodes.execute_tools.store.database_schema import STORE_TABLES
from mendgraph.nodes.execute_tools.store.postgres_url import PostgresUrl, postgres_url
from mendgraph.nodes.execute_tools.store.run_folder import spending_folder
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.store.postgres_lock import Locks as StoreLocks


class Locks(Protocol):
    """Locks by name; each is held once, among all processes and within each.

    `for_threads` says whether there may be one for each thread.
    """

    for_threads: bool

    def take(self, name: str) -> bool:
        """Whether it is ours now. StoreError where nobody can tell."""

    def leave(self, name: str) -> None:
        """Leave it to others."""

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
        """Whether it is ours now. StoreError where nobody can tell."""
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

    def close(self) -> None:
        """Leave all of them."""
        for name in tuple(self._held):
            self.leave(name)


class PostgresLocks:
    """The locks of the shared store, on one connection; a lost one is made anew with what nobody else has taken."""

    for_threads = True

    def __init__(self, url: PostgresUrl) -> None:
        """Nothing is connected yet."""
        self.url = url

    @cached_property
    def _locks(self) -> "StoreLocks":
        from mendgraph.nodes.execute_tools.store.postgres_connections import connections_to
        from mendgraph.nodes.execute_tools.store.postgres_lock import Locks as StoreLocks

        open_postgres(STORE_TABLES)  # whose functions the locks are taken with
        return StoreLocks(connections_to(self.url))

    def take(self, name: str) -> bool:
        """Whether it is ours now. StoreError where nobody can tell."""
        return self._locks.take(_key(name), Owner(name))

    def leave(self, name: str) -> None:
        """Leave it to others."""
        self._locks.release(_key(name))

    def keep(self, name: str) -> None:
        """Where the connection was lost, take this one and all others that nobody else has taken since."""
        self._locks.epoch(_key(name))

    def close(self) -> None:
        """Leave all of them."""
        self._locks.close()

    @staticmethod
    def is_held(name: str) -> bool:
        """Whether any process has this lock. StoreError where nobody can tell."""
        from mendgraph.nodes.execute_tools.store.postgres_lock import postgres_holder

        return postgres_holder(_key(name)) is not None


def _key(name: str) -> str:
    """No workspace's name has a blank."""
    return f"serving {name}"
