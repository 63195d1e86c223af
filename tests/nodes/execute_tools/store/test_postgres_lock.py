"""Locks that hold on all machines: one holder at a time, freed by its end, and nothing written by who lost one."""

import os
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from mendgraph.nodes.execute_tools.files.deadline import monotonic_s, pause
from mendgraph.nodes.execute_tools.store.database import StoreError, open_postgres
from mendgraph.nodes.execute_tools.store.database_schema import STORE_TABLES
from mendgraph.nodes.execute_tools.store.postgres_connections import FENCED_MESSAGE, Connections, connections_to
from mendgraph.nodes.execute_tools.store.postgres_database import PostgresDatabase
from mendgraph.nodes.execute_tools.store.postgres_lock import Locks, close_locks, locks_in, postgres_holder
from mendgraph.nodes.execute_tools.store.postgres_url import postgres_url, read_url
from mendgraph.nodes.execute_tools.store.run_lock import Owner

PATIENCE_S = 60.0
OWNER = Owner("r1", 12, "2026-11-20T13:00:00Z")
INSERT = "INSERT INTO backups VALUES (?, ?)"


@pytest.fixture
def database(shared_store: str) -> PostgresDatabase:
    found = open_postgres(STORE_TABLES, "w")
    assert (found is not None, shared_store != "") == (True, True)
    return found  # type: ignore[return-value]


@pytest.fixture
def elsewhere(database: PostgresDatabase, shared_store: str) -> Iterator[Locks]:
    """Another process's, as far as the server can tell."""
    found = Locks(Connections(read_url(shared_store)))
    yield found
    found.close()
    assert database.workspace == "w"


def ours() -> Locks:
    url = postgres_url()
    assert url is not None
    return locks_in(connections_to(url))


def until(found: Callable[[], object]) -> None:
    latest = monotonic_s() + PATIENCE_S
    while not found():
        assert monotonic_s() < latest
        pause(0.01)


def cut_off(url: str, locks: Locks) -> None:
    """As a network that fails, or an administrator, does it."""
    assert locks._connection is not None
    pid = locks._connection.info.backend_pid
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))


def test_one_has_it_at_a_time_and_is_named(elsewhere: Locks) -> None:
    assert postgres_holder("w") is None
    assert ours().take("w", OWNER)
    assert [ours().take("w", OWNER), elsewhere.take("w", OWNER)] == [False, False]
    assert elsewhere.take("another", Owner("r2"))
    assert postgres_holder("w") == OWNER
    ours().release("w")
    assert postgres_holder("w") is None
    assert elsewhere.take("w", Owner("r2", 7, "now", "far away"))
    assert postgres_holder("w") == Owner("r2", 7, "now", "far away")
    assert not ours().take("w", OWNER)


def test_who_is_cut_off_for_a_moment_goes_on(database: PostgresDatabase, elsewhere: Locks, shared_store: str) -> None:
    ours().take("w", OWNER)
    cut_off(shared_store, ours())
    database.execute(INSERT, ("a", b"1"))
    assert postgres_holder("w") == OWNER
    assert not elsewhere.take("w", OWNER)
    ours().release("w")
    assert elsewhere.take("w", OWNER)


def test_who_lost_its_lock_writes_nothing_more(database: PostgresDatabase, elsewhere: Locks, shared_store: str) -> None:
    ours().take("w", OWNER)
    database.execute(INSERT, ("a", b"1"))
    cut_off(shared_store, ours())
    assert elsewhere.take("w", Owner("r2"))
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            database.execute(INSERT, ("b", b"2"))
        assert str(caught.value) == FENCED_MESSAGE
    elsewhere.release("w")
    with pytest.raises(StoreError, match="lost its lock"):
        database.execute(INSERT, ("b", b"2"))
    ours().release("w")
    assert database.execute("SELECT sha256 FROM backups").fetchall() == [("a",)]


def test_a_new_holder_waits_for_what_the_old_one_is_writing(
    database: PostgresDatabase, elsewhere: Locks, shared_store: str
) -> None:
    waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    taken: list[bool] = []
    ours().take("w", OWNER)
    with psycopg.connect(shared_store, autocommit=True) as admin:
        with database.transaction():
            database.execute(INSERT, ("a", b"1"))
            cut_off(shared_store, ours())
            other = threading.Thread(target=lambda: taken.append(elsewhere.take("w", Owner("r2"))))
            other.start()
            until(lambda: admin.execute(waiting).fetchall())
            database.execute(INSERT, ("b", b"1"))
            assert taken == []
        other.join()
    assert taken == [True]
    with pytest.raises(StoreError, match="lost its lock"):
        database.execute(INSERT, ("c", b"1"))
    ours().release("w")
    assert database.execute("SELECT sha256 FROM backups ORDER BY 1").fetchall() == [("a",), ("b",)]


def test_a_server_that_is_gone_is_told_and_holds_nobody_up(
    database: PostgresDatabase, shared_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours().take("w", OWNER)
    locks = ours()
    cut_off(shared_store, locks)
    monkeypatch.setattr(locks.connections, "url", read_url("postgresql://u@127.0.0.1:1/none"))
    assert locks.epoch("w") == 1
    with pytest.raises(StoreError, match="cannot be reached"):
        locks.take("another", OWNER)
    locks.release("w")
    assert locks.epoch(database.workspace) is None


def test_nobody_loses_a_lock_because_nothing_is_asked(elsewhere: Locks, shared_store: str) -> None:
    with psycopg.connect(shared_store, autocommit=True) as admin:
        if admin.info.server_version < 140_000:
            pytest.skip("the server ends no connection for that: it is older than PostgreSQL 14")
        admin.execute(f"ALTER DATABASE {admin.info.dbname} SET idle_session_timeout = '1min'".encode())
    assert elsewhere.take("w", OWNER)
    assert elsewhere._connection is not None
    assert elsewhere._connection.execute("SHOW idle_session_timeout").fetchone() == ("0",)


def test_a_process_that_was_forked_leaves_its_parents_locks_alone(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours().take(database.workspace, OWNER)
    locks = ours()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        locks.release(database.workspace)
        close_locks()
    assert postgres_holder(database.workspace) == OWNER
    database.execute(INSERT, ("a", b"1"))
