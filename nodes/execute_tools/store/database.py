"""The database of a workspace: opened, made where there is none, and never misread.

It is a file of the workspace's own, or its part of a PostgreSQL database where `MENDGRAPH_STORE_URL` names one.
SQL that is for both has "?" for values, `RETURNING id` and `ON CONFLICT DO NOTHING`, and no functions of one alone.
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

from mendgraph.nodes.execute_tools.files.change_records import RecordError
from mendgraph.nodes.execute_tools.files.deadline import monotonic_s, pause
from mendgraph.nodes.execute_tools.store.database_schema import FORMAT, SQLITE_TABLES, STORE_TABLES, PostgresTables
from mendgraph.nodes.execute_tools.store.run_folder import DATA_DIR_VARIABLE, workspace_name
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, quoted

if TYPE_CHECKING:
    from mendgraph.nodes.execute_tools.store.postgres import PostgresDatabase

Work = TypeVar("Work", bound=Callable[..., Any])

FILE_NAME = "store.sqlite"

APPLICATION_ID: Final = int.from_bytes(b"mend")
"""Marks a file as ours. Source: sqlite.org/pragma.html#pragma_application_id."""

FINGERPRINT: Final = "3333e87396c0c69d"
"""What of the tables and of all stored types belongs to this format; a test compares it."""

PAGE_BYTES: Final = 8_192
"""Checkpoints of one or two kB fill such pages; of SQLite's own 4,096 they would leave half empty."""

LONGEST_WAIT_S: Final = 10.0
"""How long a statement waits for a lock that another connection holds."""

_BUSY_PAUSE_S: Final = 0.01

_REASONS: Final[dict[int, str]] = {
    sqlite3.SQLITE_FULL: "the disk is full. Make room and try again",
    sqlite3.SQLITE_IOERR: "the disk is full or reports an error. Make room, or have it checked, and try again",
    sqlite3.SQLITE_BUSY: f"another process has held it for more than {LONGEST_WAIT_S:g} s. End it, or try again",
    sqlite3.SQLITE_LOCKED: "it is at work for somebody else. Try again",
    sqlite3.SQLITE_READONLY: "it may only be read. Allow yourself to write it and its folder",
    sqlite3.SQLITE_PERM: "the file permissions do not allow it. Allow yourself to write it and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened. Allow yourself to write it and its folder",
}


class StoreError(RecordError):
    """The database cannot be read or written; the text is one sentence or two, with the remedy."""


class LostError(StoreError):
    """There is no connection, or it has ended: the last statements may have been executed, or not."""


def once_more(work: Work) -> Work:
    """A function that calls idempotent `work`, and calls it again after a LostError."""

    @wraps(work)
    def work_with_retry(*arguments: Any, **options: Any) -> Any:
        try:
            return work(*arguments, **options)
        except LostError:
            return work(*arguments, **options)

    return cast("Work", work_with_retry)


class UnreadableValueError(StoreError):
    """A stored value cannot be read: it is damaged, or (`is_damage` is false) of another version of mendgraph."""

    def __init__(self, message: str, *, is_damage: bool = True) -> None:
        super().__init__(message)
        self.is_damage = is_damage


class Database(Protocol):
    """What both databases can do. Outside of `transaction` each statement is one of its own."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        """A cursor over what the statement gives for these values, which stand where it says "?"."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Execute it for each of the rows."""

    def close(self) -> None:
        """Nothing is read or written any more."""


def open_database(folder: str) -> Database:
    """The database of the workspace whose folder of records this is, made where there is none; who opens it closes it.

    What is committed is on the disk. Any thread may use it, one at a time. Raises StoreError: it is no database of
    ours, or one of another format, or cannot be used.
    """
    postgres = postgres_database(folder)
    return open_file(folder) if postgres is None else postgres


def postgres_database(folder: str) -> "PostgresDatabase | None":
    """The workspace's part of the PostgreSQL database; None where it has a file of its own.

    Raises StoreError: as `open_postgres`.
    """
    if not uses_postgres():
        return None

    name = workspace_name(folder)
    if isinstance(name, ToolError):
        raise StoreError(name.message)

    return open_postgres(STORE_TABLES, name)


def open_postgres(tables: PostgresTables, workspace: str = "") -> "PostgresDatabase | None":
    """The PostgreSQL database with these tables, made where they are missing; None where none is named.

    `workspace` is whose rows the views mean; "" for tables that all workspaces share. Raises StoreError: it cannot be
    used, or is not of this version, or the extra `postgres` is missing.
    """
    url = postgres_url()
    if url is None:
        return None

    from mendgraph.nodes.execute_tools.store.postgres import opened

    return opened(url, tables, workspace)


class FileKind(NamedTuple):
    """What a file of ours is. `statements` make its tables; `own_programs` says that triggers are among them.

    `refused` is what another file is not, `old` what to do with one of an older `format`.
    """

    mark: int
    format: int
    statements: tuple[str, ...]
    refused: str
    old: str
    synchronous: str = "FULL"
    own_programs: bool = False


STORE_FILE: Final = FileKind(
    APPLICATION_ID, FORMAT, SQLITE_TABLES, "not a database", "finish its runs with that version"
)


def open_file(folder: str) -> sqlite3.Connection:
    """A connection to the database in this folder; see `opened_file`. What is committed is on the disk."""
    return opened_file(os.path.join(folder, FILE_NAME), STORE_FILE)


def opened_file(path: str, kind: FileKind, wait_s: float = LONGEST_WAIT_S) -> sqlite3.Connection:
    """A connection to the database in a file of this kind, which is made where there is none.

    There is no transaction but those that a caller begins with `BEGIN IMMEDIATE`. Any thread may use the connection,
    one at a time; who opens it closes it. Text that is no UTF-8 comes out with marks in the place of the damage, so
    that the other rows can be read. Raises StoreError: the file is no database of ours, or one of another format, or
    cannot be used within `wait_s`.
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
    """A connection to the file at this path, whatever it is. Raises sqlite3.Error: it cannot be opened."""
    connection = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection


def check_file(path: str) -> None:
    """Refuse what SQLite would wait for without an end, and what leads elsewhere; a file that is not there is fine.

    Raises StoreError: it is a link, a pipe, a device or a folder.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            message = (
                f"The database {quoted(path)} is a link, a pipe, a device or a folder, and a file is needed: put the"
                f" file itself there, or set {DATA_DIR_VARIABLE} to another folder."
            )
            raise StoreError(message)


@contextmanager
def store_errors(path: str) -> Iterator[None]:
    """Whatever the database at `path` or the disk refuses comes out as a `StoreError`.

    PostgreSQL's says so itself.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = _code(error)
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise StoreError(_damaged(path, str(error))) from error

        reason = _REASONS.get(code, f"{str(error).rstrip('.')}. Try again, or move it away and begin with a new one")
        raise StoreError(f"The database {quoted(path)} cannot be used: {reason}.") from error
    except UnicodeDecodeError as error:  # SQLite's own words about a damaged schema
        raise StoreError(_damaged(path, "its tables have no names")) from error
    except UnicodeEncodeError as error:
        message = f"The database {quoted(path)} cannot hold a name with half a character: {quoted(str(error.object))}."
        raise StoreError(message) from error
    except OSError as error:
        raise StoreError(os_failure(error, "use the database", path).message) from error


@contextmanager
def transaction(database: Database) -> Iterator[None]:
    """All of what is done inside, or none of it; it is on the disk afterwards."""
    if not isinstance(database, sqlite3.Connection):
        with cast("PostgresDatabase", database).connection():
            yield

        return

    database.execute("BEGIN IMMEDIATE")

    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:  # a full disk may have rolled it back already
            database.execute("ROLLBACK")

        raise


def write_ahead(connection: sqlite3.Connection) -> None:
    """Let the database of this connection have a write-ahead log.

    Where others do the same at that moment SQLite says at once that it is busy, and waits for none of them.
    """
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
    connection.execute(f"PRAGMA synchronous = {kind.synchronous}")
    connection.execute("PRAGMA fullfsync = ON")  # macOS: through the disk's own cache, as fsync does elsewhere

    if _is_empty(connection):
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        write_ahead(connection)

        with transaction(connection):
            if _is_empty(connection):  # nobody was faster
                marks = (f"PRAGMA application_id = {kind.mark}", f"PRAGMA user_version = {kind.format}")
                for statement in (*kind.statements, *marks):
                    connection.execute(statement)

    elsewhere = f"set {DATA_DIR_VARIABLE} to another folder"
    if _number(connection, "PRAGMA application_id") != kind.mark:
        message = f"The file {quoted(path)} is {kind.refused} of mendgraph: move it away, or {elsewhere}."
        raise StoreError(message)

    version = _number(connection, "PRAGMA user_version")
    if version != kind.format:
        raise other_format(f"The database {quoted(path)}", version, kind.format, elsewhere, kind.old)

    if not kind.own_programs:
        _refuse_programs(connection, path)


def _refuse_programs(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a file with triggers or views, which are none of ours: they would run with each statement."""
    connection.execute("PRAGMA trusted_schema = OFF")
    intruder = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone()

    if intruder:
        message = (
            f"The database {quoted(path)} has the trigger or view {quoted(str(intruder[0]))}, which mendgraph never"
            " makes: somebody else has changed it. Put a backup in its place, or move it away."
        )
        raise StoreError(message)


def _is_empty(connection: sqlite3.Connection) -> bool:
    return not _number(connection, "PRAGMA application_id") and not _number(
        connection, "SELECT count(*) FROM sqlite_master"
    )


def other_format(what: str, number: int, supported: int, elsewhere: str, old: str = STORE_FILE.old) -> StoreError:
    """The error for tables of format `number`; `elsewhere` is what can be done beside another version of mendgraph."""
    age = "an older"
    remedy = old
    if number > supported:
        age = "a newer"
        remedy = "update mendgraph"

    written = f"{what} was written by {age} mendgraph (format {number}, this one knows {supported})"
    return StoreError(f"{written}: {remedy}, or {elsewhere}.")


def _number(connection: sqlite3.Connection, question: str) -> int:
    (answer,) = connection.execute(question).fetchone()
    return int(answer)


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _damaged(path: str, reason: str) -> str:
    return (
        f"The database {quoted(path)} is damaged, or no database at all ({reason}): put a backup in its place, or"
        " move it away and begin with a new one."
    )


# --- Which PostgreSQL database holds the store

STORE_URL_VARIABLE: Final = "MENDGRAPH_STORE_URL"
"""Holds the URL of the PostgreSQL database in which all is kept; only the environment has it, as with its password."""

_HOW: Final = "postgresql://user:password@host:5432/database"
_UNREADABLE: Final = (
    f"{STORE_URL_VARIABLE} cannot be read: write {_HOW}, and the signs @ : / ? # % of a password as %40 %3A %2F %3F %23"
    " %25."
)


@dataclass(frozen=True)
class PostgresUrl:
    """A URL, which nobody shows, what it is called, and what of it must never be told."""

    url: str = field(repr=False)
    name: str
    secrets: tuple[str, ...] = field(repr=False)

    def clean(self, text: str) -> str:
        """The text on one line, without what must never be told."""
        for secret in self.secrets:
            text = text.replace(secret, "***")

        return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def uses_postgres() -> bool:
    """Whether runs are kept in a shared database rather than in one for each workspace."""
    return bool(os.environ.get(STORE_URL_VARIABLE, "").strip())


def postgres_url() -> PostgresUrl | None:
    """The shared database, None where each workspace has its own.

    Raises StoreError: the variable holds something else than the URL of a PostgreSQL database, or what speaks to one is
    not installed.
    """
    url_text = os.environ.get(STORE_URL_VARIABLE, "").strip()
    return read_url(url_text) if url_text else None


@lru_cache(8)
def read_url(url: str) -> PostgresUrl:
    """The parts of a URL, as libpq reads them. Raises StoreError: it is none of a PostgreSQL database."""
    if not url.lower().startswith(("postgresql://", "postgres://")):
        message = f"{STORE_URL_VARIABLE} is no URL of a PostgreSQL database: write {_HOW}, or remove the variable."
        raise StoreError(message)

    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        from mendgraph.nodes.language.installation import how_to_add  # only where something is missing

        message = f"{STORE_URL_VARIABLE} names a PostgreSQL database, which needs {how_to_add('postgres')}."
        raise StoreError(message) from None

    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except ProgrammingError:
        raise StoreError(_UNREADABLE) from None

    database = parts.get("dbname") or parts.get("user") or "?"
    if set(parts.get("dbname", "")) & set("@:/"):  # most likely of a password that was not written as it has to be
        raise StoreError(_UNREADABLE)

    hidden = [value for name, value in parts.items() if "pass" in name and value]
    place = parts.get("host") or parts.get("hostaddr") or "this machine"
    port = f":{parts['port']}" if "port" in parts else ""
    forms = [url, *hidden, *(quote(secret, safe="") for secret in hidden)]
    forms.sort(key=len, reverse=True)
    unnamed = PostgresUrl(url, "", tuple(forms))
    return replace(unnamed, name=unnamed.clean(f"{quoted(database)} on {place}{port}"))
