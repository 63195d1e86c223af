"""The spending book as a file: opened when it is first needed, waited for, and left alone while others hold it."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime, timedelta
from os.path import basename
from typing import Final
from weakref import finalize

from graph.spending_rows import oldest_kept
from graph.spending_schema import is_empty, prepare
from nodes.execute_tools.environment.database import (
    LONGEST_WAIT_S,
    Database,
    StoreError,
    connect_to,
    store_errors,
)
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.run_folder import SPENDING
from nodes.execute_tools.environment.user_files import spending_file
from nodes.records import ToolError

FILE_NAME: Final = f"{SPENDING}/spending.sqlite"
"""Where it lies in the data folder."""

SHORT_WAIT_S: Final = 1.0
"""How long other processes are waited for where no limit is at stake; else it is `LONGEST_WAIT_S`."""

LEFT_ALONE: Final = timedelta(seconds=30)
"""How long a book that others hold is not touched again for calls without a limit."""

_NEWEST: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'entries'"
_PRUNE: Final = "DELETE FROM entries WHERE day < ? AND settled_at IS NOT NULL"


class BookFile:
    """One connection to the file, for any thread, one at a time."""

    def __init__(self, base: str | None, now: Callable[[], datetime]) -> None:
        """Touches nothing yet. The file lies in `base`, or in the data folder; `now` is the time, with its zone."""
        self._base, self._now = base, now
        self._lock = threading.Lock()
        self._path = FILE_NAME
        self._connection: sqlite3.Connection | None = None
        self._held: tuple[datetime, str] | None = None  # since when others hold the file, in words

    def close(self) -> None:
        """Close the file. It is opened again where it is needed again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def try_again(self) -> None:
        """Touch the file the next time even if others have held it just now."""
        self._held = None

    @contextmanager
    def using(self, *, patient: bool) -> Iterator[sqlite3.Connection]:
        """The database, alone among our threads; `patient` waits long for others, and also where they just held it.

        Raises:
            StoreError: it cannot be used.
        """
        with self._lock:
            if not patient and self._held is not None and _is_soon(self._now() - self._held[0]):
                raise StoreError(self._held[1])
            wait_s = LONGEST_WAIT_S if patient else SHORT_WAIT_S
            try:
                with store_errors(self._path):
                    if self._connection is None:
                        self._connection = self._open(wait_s)
                    _wait_at_most(self._connection, wait_s)
                    yield self._connection
            except StoreError as error:
                if not _is_held(error):
                    raise
                self._held = self._now(), _held_in_words(self._path, wait_s)
                raise StoreError(self._held[1]) from error
            self._held = None

    def entering(self, database: Database, *, accounts: Sequence[str] = ()) -> AbstractContextManager[None]:  # noqa: ARG002
        """One statement is entered inside, which SQLite makes whole or not at all, and alone.

        It is no transaction of more: a thread that holds the file while it waits for Python's turn among hundreds of
        others would keep it from all of them.
        """
        return nullcontext()

    def newest(self, database: Database) -> int:
        """The largest number that was ever given."""
        row = database.execute(_NEWEST).fetchone()
        return int(row[0]) if row else 0

    def prune(self, database: Database) -> None:
        """Forget what was settled long ago; the sums of days and accounts keep it."""
        database.execute(_PRUNE, (oldest_kept(self._now()),))

    def _open(self, wait_s: float) -> sqlite3.Connection:
        self._path = _path(self._base)
        connection = _prepared(self._path, wait_s)
        try:
            self.prune(connection)
        except BaseException:
            connection.close()
            raise
        finalize(self, connection.close).atexit = False  # whoever builds a graph alone has nothing to close
        return connection


@contextmanager
def reading_file(base: str | None = None) -> Iterator[sqlite3.Connection | None]:
    """The file for somebody who only looks; None where nothing has been entered yet.

    Raises:
        StoreError: it cannot be read, or is no spending book of ours.
    """
    path = _path(base)
    with store_errors(path):
        with closing(connect_to(path)) as connection:
            nothing = is_empty(connection)
        if nothing:
            yield None
            return
        with closing(_prepared(path, LONGEST_WAIT_S)) as connection:
            yield connection


def _prepared(path: str, wait_s: float) -> sqlite3.Connection:
    with store_errors(path):
        connection = connect_to(path)
        try:
            _wait_at_most(connection, wait_s)
            prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _path(base: str | None) -> str:
    path = spending_file(basename(FILE_NAME), base)
    if isinstance(path, ToolError):
        raise StoreError(path.message)
    return path


def _wait_at_most(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1_000)}")


def _is_held(error: StoreError) -> bool:
    """Whether other processes hold the file, so that the next one to ask would only wait as well."""
    code = getattr(error.__cause__, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return code == sqlite3.SQLITE_BUSY


def _held_in_words(path: str, waited_s: float) -> str:
    held = f"another process has held it for more than {waited_s:g} s"
    return f"The database {quoted(path)} cannot be used: {held}. End it, or try again after {LEFT_ALONE.seconds} s."


def _is_soon(since: timedelta) -> bool:
    return timedelta(0) <= since < LEFT_ALONE  # a clock that was set back keeps nobody away
