"""Locks that end with their process: of files for one machine, of the database for several."""

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from mendgraph.graph.fleet.serving.locks import FileLocks, Locks, PostgresLocks, open_locks
from mendgraph.nodes.execute_tools.files.deadline import pause
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.postgres_connections import close_all
from mendgraph.nodes.execute_tools.store.postgres_url import read_url

HELD = (
    "FROM pg_locks WHERE locktype = 'advisory'"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@pytest.fixture
def two(any_store: str) -> Iterator[tuple[Locks, Locks]]:
    """The locks of two servers."""
    pair = open_locks(), open_locks()
    assert [type(each) for each in pair] == [{"sqlite": FileLocks, "postgresql": PostgresLocks}[any_store]] * 2
    yield pair
    for each in pair:
        each.close()
    if any_store == "postgresql":
        close_all()


def test_a_lock_is_held_once(two: tuple[Locks, Locks]) -> None:
    first, second = two
    assert [first.take("a"), first.take("a"), second.take("a"), second.take("b")] == [True, False, False, True]
    second.leave("a")  # which it does not have
    first.leave("a")
    assert [second.take("a"), first.take("b")] == [True, False]
    second.close()
    while not first.take("a"):  # until the database has noticed
        pause(0.01)
    assert first.take("b")


def test_of_many_threads_one_has_it(two: tuple[Locks, Locks]) -> None:
    taken: list[bool] = []
    threads = [threading.Thread(target=lambda: taken.append(two[0].take("a"))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(taken) == [False] * 7 + [True]


def test_a_lost_connection_is_made_anew_with_its_locks(shared_store: str) -> None:
    first, second = (PostgresLocks(read_url(shared_store)) for _ in range(2))
    assert (first.take("a"), first.take("b")) == (True, True)
    with psycopg.connect(shared_store, autocommit=True) as operator:
        operator.execute(f"SELECT pg_terminate_backend(pid) {HELD}")
        while operator.execute(f"SELECT 1 {HELD}").fetchone():
            pause(0.01)
    assert second.take("b")
    first.keep("a")
    assert [second.take("a"), first.take("b")] == [False, False]
    first.leave("b")  # which it lost
    assert not first.take("b")
    second.leave("b")
    assert first.take("b")
    first.close()
    second.close()
    close_all()


def test_a_database_that_is_away_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", f"postgresql://a@/b?host={tmp_path}")
    with pytest.raises(StoreError, match="cannot be reached"):
        open_locks().take("a")


def test_a_folder_that_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spending").write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path))
    with pytest.raises(StoreError, match="spending"):
        open_locks().take("a")


def test_a_file_that_cannot_be_locked_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path))
    locks = FileLocks()
    locks.take("a")
    locks.close()
    [path] = (tmp_path / "spending").glob("serving-*.lock")
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="Cannot lock"):
        locks.take("a")
