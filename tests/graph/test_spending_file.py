"""The spending book's file; what happens where it cannot be used has its tests in `attacks/test_unusable_books.py`."""

import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

from graph.spending_file import FILE_NAME, reading_file
from graph.spending_store import SpendingStore
from tests.graph.spending_entries import Clock, as_reserved, entry, reserved, rows, used


def test_old_entries_are_forgotten_when_it_is_opened_and_their_numbers_are_not_used_again(tmp_path: Path) -> None:
    clock = Clock()
    with closing(SpendingStore(str(tmp_path), clock)) as store:
        open_one, number = reserved(store, entry()), reserved(store, entry("t2"))
        store.settle(number, used())
    clock.now += timedelta(days=62)
    with closing(SpendingStore(str(tmp_path), clock)) as store:
        assert store.lost("t2", 0) == (used(), number)
    clock.now += timedelta(days=1)
    with closing(SpendingStore(str(tmp_path), clock)) as store:
        assert store.lost("t2", 0)[1] == 0
        assert store.lost("t1", 0) == (as_reserved(entry()), open_one)
        assert store.newest() == number
        assert reserved(store, entry()) == number + 1


def test_who_only_looks_makes_no_tables(tmp_path: Path) -> None:
    with reading_file(str(tmp_path)) as database:
        assert database is None
    assert (tmp_path / FILE_NAME).stat().st_size == 0
    assert rows(tmp_path, "SELECT count(*) FROM sqlite_master") == [(0,)]


def test_another_book_of_this_process_does_not_end_the_locks_of_the_first_one(tmp_path: Path) -> None:
    """Else another process takes itself for the last one, and removes what has not been written into the file."""
    look = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM entries').fetchall()"
    with closing(SpendingStore(str(tmp_path), Clock())) as first:
        reserved(first, entry())
        with closing(SpendingStore(str(tmp_path), Clock())) as second:
            reserved(second, entry("t2"))
        subprocess.run([sys.executable, "-c", look, str(tmp_path / FILE_NAME)], check=True)
        assert (tmp_path / f"{FILE_NAME}-wal").exists()
        assert reserved(first, entry()) == 3
