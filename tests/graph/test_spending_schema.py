"""The tables of a book that is a file, and how one of the first format becomes one of this."""

import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date
from pathlib import Path

import pytest

from graph import spending_schema
from graph.spending_accounts import AccountSpent, account_spent
from graph.spending_file import FILE_NAME
from graph.spending_schema import APPLICATION_ID, BEGINNING, FORMAT, FROM_FORMAT_1, TURN, is_empty, prepare
from graph.spending_store import SpendingStore
from nodes.call_model.limits import RunLimits, Used
from nodes.records import StopCause
from tests.graph.format_1 import INSERT, OF_DAY, SETTLE, old_book
from tests.graph.spending_entries import Clock, entry, reserved, rows

KILLED = """
import os, signal, sys
from graph import spending_schema
from graph.spending_store import SpendingStore

def cut_off(statements=spending_schema.FROM_FORMAT_1):
    yield from statements[:int(sys.argv[2])]
    os.kill(os.getpid(), signal.SIGKILL)

spending_schema.FROM_FORMAT_1 = cut_off()
SpendingStore(sys.argv[1]).newest()
"""

HALFWAY = """
import sys
from graph import spending_schema
from graph.spending_store import SpendingStore

def halfway(statements=spending_schema.FROM_FORMAT_1):
    yield from statements[:5]
    print("halfway", flush=True)
    sys.stdin.read()

spending_schema.FROM_FORMAT_1 = halfway()
SpendingStore(sys.argv[1]).newest()
"""

CONVERTED = {
    "SELECT * FROM days ORDER BY day": [(20_400, "", 5_000, 1.5), (20_511, "", 50, 0.25), (20_512, "", 500, 0.5)],
    "SELECT * FROM accounts": [("", 3, 5_550, 2.25, 1, 1, 20_400, 20_512)],
    "SELECT number, thread, input_tokens, account FROM entries": [
        (1, "t1", 0, ""),
        (2, "t1", 40, ""),
        (3, "t1", 190, ""),
        (4, "t1", 290, ""),
    ],
    "PRAGMA user_version": [(FORMAT,)],
    "PRAGMA integrity_check": [("ok",)],
}
"""What is in the book afterwards."""


def shape(folder: Path) -> list[str]:
    """All tables and triggers, with their columns' order, whatever is written between the words."""
    found = rows(folder, "SELECT type, name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY type, name")
    columns = rows(folder, "SELECT name, type, dflt_value FROM pragma_table_info('entries')")
    return [f"{kind} {name}" for kind, name, _ in found] + [str(column) for column in columns]


def assert_converted(folder: Path) -> None:
    assert {query: rows(folder, query) for query in CONVERTED} == CONVERTED


def test_an_older_book_is_taken_over_with_all_that_is_in_it(tmp_path: Path) -> None:
    old_book(tmp_path)
    with closing(SpendingStore(str(tmp_path), Clock())) as store:
        assert store.lost("t1", 0) == (
            Used(calls=3, input_tokens=520, output_tokens=30, cached_tokens=0, cost_usd=None, seconds=0.0),
            4,
        )
        assert_converted(tmp_path)
        assert account_spent("", str(tmp_path)) == AccountSpent(
            account="",
            calls=3,
            tokens=5_550,
            cost_usd=2.25,
            unpriced=1,
            unsettled=1,
            first_day=date(2025, 11, 8),
            last_day=date(2026, 2, 28),
        )
        most = RunLimits(max_tokens_per_day=600)
        assert isinstance(store.reserve(entry(tokens=101), most), StopCause)
        assert reserved(store, entry(tokens=100), most) == 5
    new = tmp_path / "new"
    new.mkdir()
    with closing(SpendingStore(str(new), Clock())) as store:
        reserved(store, entry())
    assert shape(new) == shape(tmp_path)


def test_a_book_without_entries_becomes_one_without_accounts(tmp_path: Path) -> None:
    path = old_book(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("DELETE FROM entries")
        database.execute("DELETE FROM days")
    with closing(SpendingStore(str(tmp_path))) as store:
        assert store.newest() == 4
    assert rows(tmp_path, "SELECT * FROM accounts") == []


def test_who_only_looks_takes_it_over_as_well(tmp_path: Path) -> None:
    old_book(tmp_path)
    found = account_spent("", str(tmp_path))
    assert isinstance(found, AccountSpent)
    assert found.tokens == 5_550
    assert_converted(tmp_path)


def test_two_that_open_it_at_once_take_it_over_once(tmp_path: Path) -> None:
    old_book(tmp_path)
    stores = [SpendingStore(str(tmp_path), Clock()) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(SpendingStore.newest, stores)) == [4] * 4
    for store in stores:
        assert store.trouble() is None
        store.close()
    assert_converted(tmp_path)


@pytest.mark.parametrize("statements", [1, 4, len(FROM_FORMAT_1) - 1, len(FROM_FORMAT_1)])
def test_whoever_is_killed_in_between_leaves_the_older_book_whole(tmp_path: Path, statements: int) -> None:
    old_book(tmp_path)
    before = rows(tmp_path, "SELECT * FROM entries"), rows(tmp_path, "SELECT * FROM days")
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(statements)]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    assert rows(tmp_path, "PRAGMA user_version") == [(1,)]
    assert (rows(tmp_path, "SELECT * FROM entries"), rows(tmp_path, "SELECT * FROM days")) == before
    with closing(SpendingStore(str(tmp_path), Clock())) as store:
        assert store.newest() == 4
    assert_converted(tmp_path)


def test_who_waits_for_somebody_who_is_killed_takes_it_over_then(tmp_path: Path) -> None:
    old_book(tmp_path)
    command = [sys.executable, "-c", HALFWAY, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as half,
        closing(SpendingStore(str(tmp_path), Clock())) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        assert half.stdout is not None
        assert half.stdout.readline() == b"halfway\n"
        waiting = pool.submit(store.reserve, entry(), RunLimits(max_tokens_per_day=10_000))
        assert not waiting.done()
        half.kill()
        assert waiting.result(60) == 5
    assert rows(tmp_path, "PRAGMA user_version") == [(FORMAT,)]
    assert rows(tmp_path, "SELECT tokens FROM accounts") == [(5_650,)]


def test_an_older_program_that_has_it_open_goes_on_and_counts(tmp_path: Path) -> None:
    path = old_book(tmp_path)
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        older.execute(INSERT, ("t9", "reply", 20_512, 90, 0.5))
        with closing(SpendingStore(str(tmp_path), Clock())) as store:
            assert store.newest() == 5
            older.execute(SETTLE, (1, 40, 5))
            older.execute(INSERT, ("t9", "reply", 20_512, 90, 0.5))
            assert older.execute(OF_DAY, (20_512,)).fetchone() == (650.0, 1.5)
            assert isinstance(store.reserve(entry(tokens=51), RunLimits(max_tokens_per_day=700)), StopCause)
            reserved(store, entry(tokens=50), RunLimits(max_tokens_per_day=700))


def test_marks_are_told_from_calls_by_the_words_that_the_triggers_know() -> None:
    assert f"('{BEGINNING}', '{TURN}')" in FROM_FORMAT_1[-2]


def test_a_new_file_has_the_tables_once(tmp_path: Path) -> None:
    path = str(tmp_path / "book")
    with closing(sqlite3.connect(path, isolation_level=None)) as first, closing(sqlite3.connect(path)) as second:
        assert is_empty(first)
        prepare(first, path)
        prepare(second, path)
        assert not is_empty(second)
        marks = [first.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")]
    assert marks == [(APPLICATION_ID,), (spending_schema.FORMAT,)]


def test_a_book_of_the_second_format_gets_the_new_counts(tmp_path: Path) -> None:
    with closing(SpendingStore(str(tmp_path), Clock())) as store:
        reserved(store, entry(tokens=100))
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as book:
        for name in ("reasoning_tokens", "cache_write_tokens"):
            book.execute(f"ALTER TABLE entries DROP COLUMN {name}")
        book.execute("PRAGMA user_version = 2")
        book.commit()
    with closing(SpendingStore(str(tmp_path), Clock())) as store:
        assert reserved(store, entry(tokens=100)) == 2
    assert rows(tmp_path, "SELECT reasoning_tokens, cache_write_tokens FROM entries") == [(0, 0), (0, 0)]
