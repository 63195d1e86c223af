"""The database of a workspace: its own SQLite file, or its part of the PostgreSQL database of `MENDGRAPH_STORE_URL`.

SQL for both uses "?" for values, `RETURNING id`, `ON CONFLICT DO NOTHING`, and no function that only one of them has.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import quote

from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, quoted
from mendgraph.nodes.workspace.files.change_records import RecordError
from mendgraph.nodes.workspace.files.deadline import monotonic_s, pause
from mendgraph.nodes.workspace.store.database_schema import FORMAT, SQLITE_TABLES, STORE_TABLES, PostgresTables
from mendgraph.nodes.workspace.store.run_folder import DATA_DIR_VARIABLE, workspace_name

if TYPE_CHECKING:
    from mendgraph.nodes.workspace.store.postgres import PostgresDatabase

Work = TypeVar("Work", bound=Callable[..., Any])

FILE_NAME = "store.sqlite"

APPLICATION_ID: Final = int.from_bytes(b"mend")
"""Marks a file as ours. Source: sqlite.org/pragma.html#pragma_application_id."""

FINGERPRINT: Final = "d6a37db8ad6d5aeb"
"""Hash of the tables and stored types of this format; a test compares it."""

PAGE_BYTES: Final = 8_192
"""Checkpoints of one or two kB fill such pages and half of SQLite's default of 4,096."""

LONGEST_WAIT_S: Final = 10.0
"""How long a statement waits for a lock of another connection."""

_BUSY_PAUSE_S: Final = 0.01

_REASONS: Final[dict[int, str]] = {
    sqlite3.SQLITE_FULL: "the disk is full. Free space, then try again",
    sqlite3.SQLITE_IOERR: "the disk is full or reports an error. Free space or check the disk, then try again",
    sqlite3.SQLITE_BUSY: f"another process has held it for more than {LONGEST_WAIT_S:g} s. End it, or try again",
    sqlite3.SQLITE_LOCKED: "it is busy. Try again",
    sqlite3.SQLITE_READONLY: "it is read-only. Give yourself write permission for it and its folder",
    sqlite3.SQLITE_PERM: "the file permissions do not allow it. Give yourself write permission for it and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened. Give yourself write permission for it and its folder",
}


class StoreError(RecordError):
    """The database cannot be read or written; the message includes the remedy."""


class LostError(StoreError):
    """The connection has ended: the last statements may have been executed."""


class UnreadableValueError(StoreError):
    """A stored value cannot be read: it is damaged, or (`is_damage` is false) of another version of mendgraph."""

    def __init__(self, message: str, *, is_damage: bool = True) -> None:
        super().__init__(message)
        self.is_damage = is_damage


def once_more(work: Work) -> Work:
    """Decorate an idempotent function to be called again after a `LostError`."""

    @wraps(work)
    def work_with_retry(*arguments: Any, **options: Any) -> Any:
        try:
            return work(*arguments, **options)
        except LostError:
            return work(*arguments, **options)

    return cast("Work", work_with_retry)


class Database(Protocol):
    """What both databases have in common. Outside of `transaction` each statement is one."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        """Return a cursor over the rows of a statement, in which "?" stands for each value."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Execute a statement for each of the rows."""

    def close(self) -> None:
        """Refuse further statements."""


def open_database(folder: str) -> Database:
    """Open the database of the workspace with this data folder, creating it if it is missing; the caller closes it.

    Any thread may use it, one at a time. Raises StoreError: it is not ours, of another format, or cannot be used.
    """
    return postgres_database(folder) or open_file(folder)


def postgres_database(folder: str) -> "PostgresDatabase | None":
    """Return the workspace's part of the PostgreSQL database, None if it has its own file. Raises StoreError."""
    if not uses_postgres():
        return None

    name = workspace_name(folder)
    if isinstance(name, ToolError):
        raise StoreError(name.message)

    return open_postgres(STORE_TABLES, name)


def open_postgres(tables: PostgresTables, workspace: str = "") -> "PostgresDatabase | None":
    """Open the PostgreSQL database with these tables, creating them if they are missing; None if none is configured.

    `workspace` selects the rows of the views; "" is for tables of all workspaces. Raises StoreError: it cannot be used,
    is of another version, or the extra `postgres` is missing.
    """
    url = postgres_url()
    if url is None:
        return None

    from mendgraph.nodes.workspace.store.postgres import open_tables

    return open_tables(url, tables, workspace)


# --- SQLite


class FileKind(NamedTuple):
    """A kind of database file: its application id, format and tables; `has_triggers` says that these have triggers.

    `refused` says what another file is not, `old` what to do with a file of an older format.
    """

    application_id: int
    format: int
    statements: tuple[str, ...]
    refused: str
    old: str
    synchronous: str = "FULL"
    has_triggers: bool = False


STORE_FILE: Final = FileKind(
    APPLICATION_ID, FORMAT, SQLITE_TABLES, "not a database", "finish its runs with that version"
)


def open_file(folder: str) -> sqlite3.Connection:
    """Open the database file in this folder, as `opened_file`. A committed transaction is on the disk."""
    return opened_file(os.path.join(folder, FILE_NAME), STORE_FILE)


def opened_file(path: str, kind: FileKind, wait_s: float = LONGEST_WAIT_S) -> sqlite3.Connection:
    """Open a database file of this kind, creating it if it is missing; the caller closes the connection.

    There is no transaction but those that a caller begins. Any thread may use the connection, one at a time. Raises
    StoreError: the file is not ours, of another format, or cannot be used within `wait_s`.
    """
    check_file(path)

    with store_errors(path):
        connection = connect_to(path, wait_s)
        try:
            _prepare(connection, path, kind)
        except BaseException:
            connection.close()
            raise

        return connection


def connect_to(path: str, wait_s: float) -> sqlite3.Connection:
    """Connect to a file; text that is not UTF-8 is read with replacements, so that other rows remain readable."""
    connection = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection


def check_file(path: str) -> None:
    """Raise a StoreError for a link, a pipe, a device or a folder; a missing file is accepted."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            message = (
                f"The database {quoted(path)} is a link, a pipe, a device or a folder, and a file is needed: put the"
                f" file itself there, or set {DATA_DIR_VARIABLE} to another folder."
            )
            raise StoreError(message)


@contextmanager
def store_errors(path: str) -> Iterator[None]:
    """Raise a `StoreError` for an error of the SQLite database at `path` or of the disk."""
    try:
        yield
    except sqlite3.Error as error:
        code = _code(error)
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise StoreError(_damaged(path, str(error))) from error

        reason = _REASONS.get(code, f"{str(error).rstrip('.')}. Try again, or move it away to start with a new one")
        raise StoreError(f"The database {quoted(path)} cannot be used: {reason}.") from error
    except UnicodeDecodeError as error:  # SQLite's message about a damaged schema
        raise StoreError(_damaged(path, "its tables have no names")) from error
    except UnicodeEncodeError as error:
        message = f"The database {quoted(path)} cannot hold a name with half a character: {quoted(str(error.object))}."
        raise StoreError(message) from error
    except OSError as error:
        raise StoreError(os_failure(error, "use the database", path).message) from error


@contextmanager
def transaction(database: Database) -> Iterator[None]:
    """Execute the statements of the block in one transaction, which is on the disk afterwards."""
    if not isinstance(database, sqlite3.Connection):
        with cast("PostgresDatabase", database).connection():
            yield

        return

    database.execute("BEGIN IMMEDIATE")

    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # a full disk may have ended it
            database.execute("ROLLBACK")

        raise


def write_ahead(connection: sqlite3.Connection) -> None:
    """Enable the write-ahead log; SQLite does not wait for connections that do the same."""
    latest = monotonic_s() + LONGEST_WAIT_S

    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or monotonic_s() > latest:
                raise

            pause(_BUSY_PAUSE_S)
        else:
            return


def _prepare(connection: sqlite3.Connection, path: str, kind: FileKind) -> None:
    """Create the tables in an empty file, and check the kind and format of the file."""
    connection.execute(f"PRAGMA synchronous = {kind.synchronous}")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: also flush the disk's cache

    if _is_empty(connection):
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        write_ahead(connection)

        with transaction(connection):
            if _is_empty(connection):  # no other process was faster
                marks = (f"PRAGMA application_id = {kind.application_id}", f"PRAGMA user_version = {kind.format}")
                for statement in (*kind.statements, *marks):
                    connection.execute(statement)

    elsewhere = f"set {DATA_DIR_VARIABLE} to another folder"
    if _number(connection, "PRAGMA application_id") != kind.application_id:
        message = f"The file {quoted(path)} is {kind.refused} of mendgraph: move it away, or {elsewhere}."
        raise StoreError(message)

    version = _number(connection, "PRAGMA user_version")
    if version != kind.format:
        raise other_format(f"The database {quoted(path)}", version, kind.format, elsewhere, kind.old)

    if not kind.has_triggers:
        _refuse_triggers(connection, path)


def _refuse_triggers(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file with triggers or views, which somebody else has added: they would run with each statement."""
    connection.execute("PRAGMA trusted_schema = OFF")
    intruder = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone()

    if intruder:
        message = (
            f"The database {quoted(path)} has the trigger or view {quoted(str(intruder[0]))}, which mendgraph never"
            " makes: somebody else has changed it. Put a backup in its place, or move it away."
        )
        raise StoreError(message)


def _is_empty(connection: sqlite3.Connection) -> bool:
    tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    return not tables and not _number(connection, "PRAGMA application_id")


def other_format(what: str, number: int, supported: int, elsewhere: str, old: str = STORE_FILE.old) -> StoreError:
    """Return the error for tables of format `number`; `elsewhere` is the remedy besides another version."""
    age = "an older"
    remedy = old
    if number > supported:
        age = "a newer"
        remedy = "update mendgraph"

    written = f"{what} was written by {age} mendgraph (format {number}, this one knows {supported})"
    return StoreError(f"{written}: {remedy}, or {elsewhere}.")


def _number(connection: sqlite3.Connection, query: str) -> int:
    (number,) = connection.execute(query).fetchone()
    return int(number)


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _damaged(path: str, reason: str) -> str:
    return (
        f"The database {quoted(path)} is damaged, or not a database ({reason}): restore a backup, or"
        " move it away to start with a new one."
    )


# --- The URL of the PostgreSQL database

STORE_URL_VARIABLE: Final = "MENDGRAPH_STORE_URL"
"""The variable with the URL of the shared database; as it may hold a password, no configuration file has it."""

_EXAMPLE: Final = "postgresql://user:password@host:5432/database"
_UNREADABLE: Final = (
    f"{STORE_URL_VARIABLE} cannot be read: write {_EXAMPLE}, and the signs @ : / ? # % of a password as %40 %3A %2F %3F"
    " %23 %25."
)


@dataclass(frozen=True)
class PostgresUrl:
    """The URL of a database, which is never shown, its name in messages, and the secrets in it."""

    url: str = field(repr=False)
    name: str
    secrets: tuple[str, ...] = field(repr=False)

    def clean(self, text: str) -> str:
        """Return the text on one line, without the secrets."""
        for secret in self.secrets:
            text = text.replace(secret, "***")

        return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def uses_postgres() -> bool:
    """Return whether runs are stored in a shared database."""
    return bool(os.environ.get(STORE_URL_VARIABLE, "").strip())


def postgres_url() -> PostgresUrl | None:
    """Return the URL of the shared database, None if there is none. Raises StoreError: as `read_url`."""
    url = os.environ.get(STORE_URL_VARIABLE, "").strip()
    return read_url(url) if url else None


@lru_cache(8)
def read_url(url: str) -> PostgresUrl:
    """Parse a URL as libpq does. Raises StoreError: it is no URL of a PostgreSQL database, or psycopg is missing."""
    if not url.lower().startswith(("postgresql://", "postgres://")):
        message = f"{STORE_URL_VARIABLE} is not a PostgreSQL URL: write {_EXAMPLE}, or remove the variable."
        raise StoreError(message)

    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        from mendgraph.nodes.language.installation import how_to_add

        message = f"{STORE_URL_VARIABLE} names a PostgreSQL database, which needs {how_to_add('postgres')}."
        raise StoreError(message) from None

    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except ProgrammingError:
        raise StoreError(_UNREADABLE) from None

    database = parts.get("dbname") or parts.get("user") or "?"
    if set(parts.get("dbname", "")) & set("@:/"):  # most likely of an unquoted password
        raise StoreError(_UNREADABLE)

    host = parts.get("host") or parts.get("hostaddr") or "this machine"
    port = f":{parts['port']}" if "port" in parts else ""
    passwords = [value for name, value in parts.items() if "pass" in name and value]
    secrets = sorted([url, *passwords, *(quote(password, safe="") for password in passwords)], key=len, reverse=True)
    unnamed = PostgresUrl(url, "", tuple(secrets))
    return replace(unnamed, name=unnamed.clean(f"{quoted(database)} on {host}{port}"))
