"""A spending book that is not ours, that becomes damaged, or that another process locks."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mendgraph.graph.spending import database as spending_database
from mendgraph.graph.spending.database import APPLICATION_ID, FILE_NAME
from mendgraph.graph.spending.store import SpendingStore
from mendgraph.nodes.call_model.ledger import RunLimits, Used
from mendgraph.nodes.records import StopCause, StopReason
from tests.surfaces.spending.spending_entries import NO_LIMIT, Clock, entry, reserve, rows, settle, usage


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SpendingStore]:
    with closing(SpendingStore(str(tmp_path), clock)) as opened:
        yield opened


# --- A file that cannot be used


def write_unusable_book(folder: Path, kind: str) -> str:
    path = folder / FILE_NAME
    path.parent.mkdir(exist_ok=True)
    if kind == "text":
        path.write_bytes(b"no database at all, but a longer text than that" * 100)
        return f"The database {str(path)!r} is damaged, or not a database (file is not a database): restore a backup"
    if kind == "folder":
        path.mkdir()
        return f"The database {str(path)!r} is a link, a pipe, a device or a folder, and a file is needed"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE theirs (a)")
        if kind == "newer":
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute("PRAGMA user_version = 4")
    newer = f"database {str(path)!r} was written by a newer mendgraph (format 4, this one knows 3): update mendgraph"
    what = newer if kind == "newer" else f"file {str(path)!r} is no spending book of mendgraph: move it away"
    return f"The {what}, or set MENDGRAPH_DATA_DIR to another folder."


@pytest.mark.parametrize("kind", ["text", "folder", "theirs", "newer"])
def test_unusable_book_refuses_only_calls_with_a_limit(store: SpendingStore, tmp_path: Path, kind: str) -> None:
    reason = write_unusable_book(tmp_path, kind)
    assert store.trouble() is None
    assert (store.newest(), store.begin_number("t1")) == (0, None)
    store.begin("t1", first=True)
    assert store.lost("t1", 3) == (Used(), 3)
    assert store.reserve(entry(), NO_LIMIT) == 0
    settle(store, 0, usage())
    trouble = store.trouble()
    assert trouble is not None
    assert reason in trouble.message
    assert (store.reserve(entry(), NO_LIMIT), store.trouble()) == (0, None)  # it is reported once

    cause = store.reserve(entry(), RunLimits(max_tokens_per_day=1_000_000))
    assert isinstance(cause, StopCause)
    assert cause.reason is StopReason.STORE_FAILED
    assert cause.message.startswith(f"The spending database cannot be used. {reason}")
    assert cause.message.endswith(" Limits of a day or an account need it.")
    if kind == "text":
        (tmp_path / FILE_NAME).unlink()
        assert reserve(store, entry()) == 1


def test_file_that_becomes_unusable_keeps_the_reservation(store: SpendingStore, tmp_path: Path) -> None:
    number = reserve(store, entry())
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as database:
        database.execute("ALTER TABLE entries RENAME COLUMN seconds TO took")
    settle(store, number, usage())
    cause = store.trouble()
    assert cause is not None
    assert cause.reason is StopReason.STORE_FAILED
    assert rows(tmp_path, "SELECT input_tokens, settled_at FROM entries") == [(80, None)]


# --- A file that another process locks


@contextmanager
def locked_book(folder: Path) -> Iterator[None]:
    """Another process writes all the time."""
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


def test_locked_book_refuses_calls_with_limits_and_others_continue(
    store: SpendingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending_database, "SHORT_WAIT_S", 0.002)
    monkeypatch.setattr(spending_database, "LONGEST_WAIT_S", 0.004)
    number = reserve(store, entry())
    store.settle(number, usage())
    with locked_book(tmp_path):
        assert store.reserve(entry(), NO_LIMIT) == 0
        trouble = store.trouble()
        refusal = store.reserve(entry(), RunLimits(max_tokens_per_day=1_000))
    assert trouble is not None
    assert "another process" in trouble.message
    assert isinstance(refusal, StopCause)
    assert refusal.message.endswith("Limits of a day or an account need it.")
    store.close()
    assert rows(tmp_path, "SELECT input_tokens FROM entries") == [(50,)]
