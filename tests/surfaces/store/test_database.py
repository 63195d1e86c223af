"""The database of a workspace: created, refused, and inspected."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from mendgraph.nodes.workspace.store.database import (
    APPLICATION_ID,
    FILE_NAME,
    STORE_FILE,
    LostError,
    StoreError,
    once_more,
    open_file,
    opened_file,
    store_errors,
    transaction,
    write_ahead,
)
from mendgraph.nodes.workspace.store.database_schema import FORMAT, SQLITE_TABLES

pytestmark = pytest.mark.usefixtures("no_open_handles")


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def refusal(folder: Path) -> str:
    with pytest.raises(StoreError) as caught:
        open_file(str(folder))
    return str(caught.value)


def test_new_database_is_durable_and_marked_as_ours(tmp_path: Path) -> None:
    with closing(open_file(str(tmp_path))) as connection:
        assert [
            pragma(connection, name) for name in ("journal_mode", "synchronous", "auto_vacuum", "busy_timeout")
        ] == ["wal", 2, 2, 10_000]
        assert [pragma(connection, name) for name in ("fullfsync", "trusted_schema", "page_size")] == [1, 0, 8_192]
        assert (pragma(connection, "application_id"), pragma(connection, "user_version")) == (APPLICATION_ID, FORMAT)
        assert {"calls", "changes", "effects", "backups", "runs"} <= tables(connection)
    assert os.listdir(tmp_path) == [FILE_NAME]


def test_transaction_is_all_or_nothing(tmp_path: Path) -> None:
    with closing(open_file(str(tmp_path))) as connection:
        with suppress(KeyError), transaction(connection):
            connection.execute("INSERT INTO backups VALUES ('a', 'b')")
            raise KeyError
        assert not connection.in_transaction
        assert connection.execute("SELECT * FROM backups").fetchall() == []


def test_database_of_another_program_is_refused_and_unchanged(tmp_path: Path) -> None:
    for statement in ("CREATE TABLE mine (a)", "PRAGMA application_id = 7"):
        path = tmp_path / statement.split()[0] / FILE_NAME
        path.parent.mkdir()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
        before = path.read_bytes()
        assert refusal(path.parent) == (
            f"The file {str(path)!r} is not a database of mendgraph: move it away, or set MENDGRAPH_DATA_DIR to another"
            " folder."
        )
        assert path.read_bytes() == before


def test_file_that_is_not_a_database_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    before = path.read_bytes()
    assert refusal(tmp_path) == (
        f"The database {str(path)!r} is damaged, or not a database (file is not a database): restore a backup,"
        " or move it away to start with a new one."
    )
    assert path.read_bytes() == before


def test_file_with_a_trigger_or_view_is_refused(tmp_path: Path) -> None:
    for kind, name, definition in (
        ("TRIGGER", "other", "AFTER INSERT ON runs BEGIN DELETE FROM runs; END"),
        ("VIEW", "mine", "AS SELECT * FROM runs"),
    ):
        (tmp_path / kind).mkdir()
        with closing(open_file(str(tmp_path / kind))) as connection:
            connection.execute(f"CREATE {kind} {name} {definition}")
        assert f"has the trigger or view '{name}', which mendgraph never makes" in refusal(tmp_path / kind)


REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full. Free space, then try again.",
    sqlite3.SQLITE_IOERR_WRITE: "the disk is full or reports an error. Free space or check the disk",
    sqlite3.SQLITE_BUSY: "another process has held it for more than 10 s. End it, or try again.",
    sqlite3.SQLITE_LOCKED: "it is busy. Try again.",
    sqlite3.SQLITE_READONLY: "it is read-only. Give yourself write permission for it and its folder.",
    sqlite3.SQLITE_PERM: "the file permissions do not allow it. Give yourself write permission for it and its folder.",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened. Give yourself write permission for it and its folder.",
    sqlite3.SQLITE_CORRUPT: "is damaged, or not a database (disk image is malformed)",
    sqlite3.SQLITE_NOTADB: "is damaged, or not a database (disk image is malformed)",
    sqlite3.SQLITE_ERROR: "disk image is malformed. Try again, or move it away to start with a new one.",
}


def test_sqlite_error_has_its_reason_and_remedy() -> None:
    for code, reason in REASONS.items():
        error = sqlite3.OperationalError("disk image is malformed")
        error.sqlite_errorcode = code
        with pytest.raises(StoreError) as caught, store_errors("/data/store.sqlite"):
            raise error
        assert "The database '/data/store.sqlite'" in str(caught.value)
        assert reason in str(caught.value)


def test_work_that_loses_its_connection_is_retried_once() -> None:
    calls = []

    @once_more
    def work(*, losses: int) -> str:
        calls.append(losses)
        if len(calls) <= losses:
            raise LostError("the connection has ended")
        return "done"

    assert (work(losses=1), calls) == ("done", [1, 1])
    calls.clear()
    with pytest.raises(LostError):
        work(losses=2)
    assert calls == [2, 2]


def test_failed_creation_leaves_no_partial_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        opened_file(
            str(tmp_path / FILE_NAME), STORE_FILE._replace(statements=(*SQLITE_TABLES, "CREATE TABLE no such ("))
        )
    with closing(open_file(str(tmp_path))) as connection:
        assert "runs" in tables(connection)


class Refusing(sqlite3.Connection):
    """Another connection is switching to WAL as well: SQLite does not wait then."""

    refusals = 2

    def execute(self, sql: str, *more: object) -> sqlite3.Cursor:
        if "journal_mode =" in sql and self.refusals:
            self.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return super().execute(sql, *more)  # type: ignore[arg-type]


def test_switch_to_wal_waits_for_concurrent_switches(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE_NAME, factory=Refusing)) as connection:
        write_ahead(connection)
        assert pragma(connection, "journal_mode") == "wal"
