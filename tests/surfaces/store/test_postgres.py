"""The store in PostgreSQL: connections, locks over all machines, tables, and inspection without changes."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from urllib.parse import quote

import psycopg
import pytest

from mendgraph.nodes.workspace.store.database import StoreError, open_postgres, postgres_url, read_url, transaction
from mendgraph.nodes.workspace.store.database_schema import BEGIN, FORMAT, SQLITE_TABLES, STORE_TABLES, PostgresTables
from mendgraph.nodes.workspace.store.postgres import (
    FENCED_MESSAGE,
    PostgresDatabase,
    PostgresPool,
    close_postgres,
    pool_of,
    postgres_holder,
    server_version,
)
from mendgraph.nodes.workspace.store.postgres_locks import Locks
from mendgraph.nodes.workspace.store.run_lock import Owner
from tests.doubles.system_calls import replaced
from tests.doubles.wire import Wire
from tests.extent import slow
from tests.postgres import running_postgres

OWNER = Owner("r1", 12, "2026-11-20T13:00:00Z")
INSERT = "INSERT INTO backups VALUES (?, ?)"


def open_store(workspace: str = "w", part: PostgresTables = STORE_TABLES) -> PostgresDatabase:
    store = open_postgres(part, workspace)
    assert store is not None
    return store


def refusal(part: PostgresTables = STORE_TABLES) -> str:
    close_postgres()
    with pytest.raises(StoreError) as caught:
        open_postgres(part, "w")
    return str(caught.value)


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def database(shared_store: str) -> PostgresDatabase:
    assert shared_store
    return open_store()


@pytest.fixture
def locks_elsewhere(database: PostgresDatabase, shared_store: str) -> Iterator[Locks]:
    """Another process's, as far as the server can tell."""
    pool = PostgresPool(read_url(shared_store))
    yield pool.locks
    pool.close()
    assert database.workspace == "w"


def our_locks() -> Locks:
    url = postgres_url()
    assert url is not None
    return pool_of(url).locks


def cut_off(url: str, locks: Locks) -> None:
    """Cut the connection, like a network failure or an administrator."""
    assert locks._connection is not None
    pid = locks._connection.info.backend_pid
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,))


def test_lock_holder_continues_after_a_short_disconnect(
    database: PostgresDatabase, locks_elsewhere: Locks, shared_store: str
) -> None:
    our_locks().take("w", OWNER)
    cut_off(shared_store, our_locks())
    database.execute(INSERT, ("a", b"1"))
    assert postgres_holder("w") == OWNER
    assert not locks_elsewhere.take("w", OWNER)
    our_locks().release("w")
    assert locks_elsewhere.take("w", OWNER)


def test_holder_that_lost_its_lock_cannot_write(
    database: PostgresDatabase, locks_elsewhere: Locks, shared_store: str
) -> None:
    our_locks().take("w", OWNER)
    database.execute(INSERT, ("a", b"1"))
    cut_off(shared_store, our_locks())
    assert locks_elsewhere.take("w", Owner("r2"))
    for _ in range(2):
        with pytest.raises(StoreError) as caught:
            database.execute(INSERT, ("b", b"2"))
        assert str(caught.value) == FENCED_MESSAGE
    locks_elsewhere.release("w")
    with pytest.raises(StoreError, match="lost its lock"):
        database.execute(INSERT, ("b", b"2"))
    our_locks().release("w")
    assert database.execute("SELECT sha256 FROM backups").fetchall() == [("a",)]


def test_lock_is_not_granted_while_the_old_holder_is_writing(
    database: PostgresDatabase, locks_elsewhere: Locks, shared_store: str
) -> None:
    our_locks().take("w", OWNER)
    with database.connection():
        database.execute(INSERT, ("a", b"1"))
        cut_off(shared_store, our_locks())
        assert not locks_elsewhere.take("w", Owner("r2"))
        database.execute(INSERT, ("b", b"1"))
    assert locks_elsewhere.take("w", Owner("r2"))
    with pytest.raises(StoreError, match="lost its lock"):
        database.execute(INSERT, ("c", b"1"))
    our_locks().release("w")
    assert database.execute("SELECT sha256 FROM backups ORDER BY 1").fetchall() == [("a",), ("b",)]


def test_unreachable_server_is_reported_and_blocks_nobody(shared_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mendgraph.nodes.workspace.store.postgres.LONGEST_WAIT_S", 0.5)
    with closing(Wire(shared_store)) as wire:
        monkeypatch.setenv("MENDGRAPH_STORE_URL", wire.url)
        database = open_store()
        assert our_locks().take("w", OWNER)
    assert our_locks().epoch("w") == 1
    with pytest.raises(StoreError, match="cannot be reached"):
        our_locks().take("another", OWNER)
    our_locks().release("w")
    assert our_locks().epoch("w") is None
    with pytest.raises(StoreError, match="cannot be reached"):
        database.execute("SELECT 1")
    close_postgres()


def test_dead_connection_is_noticed_within_30_seconds_unless_the_url_sets_a_time(shared_store: str) -> None:
    usual = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3", "tcp_user_timeout": "30000"}
    for url, expected in (
        (shared_store, usual),
        (f"{shared_store}&keepalives_idle=77", usual | {"keepalives_idle": "77"}),
    ):
        with closing(PostgresPool(read_url(url))) as pool, pool.transaction() as connection:
            parameters = connection.info.get_parameters()
        assert {name: parameters.get(name) for name in usual} == expected


def test_idle_connection_keeps_its_lock(locks_elsewhere: Locks, shared_store: str) -> None:
    with psycopg.connect(shared_store, autocommit=True) as admin:
        timeout = f"ALTER DATABASE {admin.info.dbname} SET idle_in_transaction_session_timeout = '1min'"
        admin.execute(timeout.encode())
    assert locks_elsewhere.take("w", OWNER)
    assert locks_elsewhere._connection is not None
    assert locks_elsewhere._connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("0",)


def test_forked_process_does_not_release_its_parents_locks(database: PostgresDatabase) -> None:
    our_locks().take(database.workspace, OWNER)
    locks = our_locks()
    with replaced(getpid=lambda: -1):
        locks.release(database.workspace)
        close_postgres()
    assert postgres_holder(database.workspace) == OWNER
    database.execute(INSERT, ("a", b"1"))


@pytest.mark.usefixtures("shared_store")
def test_workspaces_do_not_see_each_others_rows() -> None:
    one, two = open_store("one"), open_store("two")
    for database, data in ((one, b"1"), (two, b"2")):
        database.execute(INSERT, ("a", data))
    assert [connection.execute("SELECT * FROM backups").fetchall() for connection in (one, two)] == [
        [("a", b"1")],
        [("a", b"2")],
    ]
    assert one.execute("UPDATE backups SET data = ?", (b"3",)).rowcount == 1
    assert one.execute("DELETE FROM backups").rowcount == 1
    assert two.execute("SELECT * FROM backups").fetchall() == [("a", b"2")]


@pytest.mark.usefixtures("shared_store")
def test_transaction_is_all_or_nothing_and_per_thread() -> None:
    database = open_store()
    with suppress(KeyError), transaction(database):
        database.execute(INSERT, ("a", b"1"))
        with transaction(database):
            database.execute(INSERT, ("b", b"1"))
        seen: list[object] = []
        other = threading.Thread(target=lambda: seen.extend(database.execute("SELECT * FROM backups")))
        other.start()
        other.join()
        assert (seen, len(database.execute("SELECT * FROM backups").fetchall())) == ([], 2)
        raise KeyError
    assert database.execute("SELECT * FROM backups").fetchall() == []


@slow
def test_concurrent_threads_create_one_set_of_tables(empty_store: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: open_store().execute("SELECT 1"), range(8)))
    with psycopg.connect(empty_store) as connection:
        parts = connection.execute("SELECT part, format FROM mendgraph.formats ORDER BY part").fetchall()
    assert parts == [("store", FORMAT)]


def test_failed_creation_leaves_no_partial_tables(empty_store: str) -> None:
    assert "syntax error" in refusal(
        STORE_TABLES._replace(statements=(*STORE_TABLES.statements, "CREATE no such thing"))
    )
    with psycopg.connect(empty_store) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'mendgraph'").fetchall() == []
    open_store().execute("SELECT * FROM backups")


def test_tables_of_another_version_are_refused(shared_store: str) -> None:
    open_store()
    for format_number, reason in (
        (FORMAT + 1, "a newer mendgraph (format {}, this one knows {}): update mendgraph, or name another database."),
        (FORMAT - 1, "an older mendgraph (format {}, this one knows {}): finish its runs with that version, or name"),
    ):
        run(shared_store, f"UPDATE mendgraph.formats SET format = {format_number}")  # noqa: S608 - a number
        assert f"was written by {reason.format(format_number, FORMAT)}" in refusal()


def test_foreign_schema_is_refused_and_unchanged(empty_store: str) -> None:
    run(empty_store, "CREATE SCHEMA mendgraph", "CREATE TABLE mendgraph.mine (a int)")
    assert refusal().endswith("is not one of mendgraph: name another database.")
    run(empty_store, "DROP TABLE mendgraph.mine")
    open_store().execute("SELECT * FROM backups")


@pytest.mark.usefixtures("shared_store")
def test_growing_part_gets_each_missing_statement_once() -> None:
    steps = ("CREATE TABLE grown (a int)", "INSERT INTO grown VALUES (1)", "INSERT INTO grown VALUES (2)")
    for count in (1, 3, 2, 3):
        close_postgres()
        open_store("w", PostgresTables("grown", count, steps[:count], grow=True))
    assert open_store().execute("SELECT a FROM grown ORDER BY a").fetchall() == [(1,), (2,)]


def test_reading_the_version_of_an_empty_database_creates_no_tables(empty_store: str) -> None:
    assert server_version(read_url(empty_store)).split(".")[0].isdigit()
    with psycopg.connect(empty_store) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'mendgraph'").fetchall() == []


TABLES = ("calls", "changes", "effects", "backups", "runs")


def test_views_have_the_columns_of_the_sqlite_tables(empty_store: str) -> None:
    open_store()
    with closing(sqlite3.connect(":memory:")) as sqlite, psycopg.connect(empty_store) as connection:
        sqlite.executescript(";".join(SQLITE_TABLES))
        for table in (*TABLES, "dictionary"):
            names = [row[1] for row in sqlite.execute(f"PRAGMA table_info({table})")]
            cursor = connection.execute(
                "SELECT column_name FROM information_schema.columns"
                " WHERE table_schema = 'mendgraph' AND table_name = %s ORDER BY ordinal_position",
                (table,),
            )
            assert [name for (name,) in cursor] == names, table


WORD = "-".join(("plum", "51", "orchard"))


@pytest.fixture
def connections(shared_store: str) -> Iterator[PostgresPool]:
    opened = PostgresPool(read_url(shared_store))
    yield opened
    opened.close()


def ask(connections: PostgresPool, question: str = "SELECT 1", beginning: str = BEGIN) -> object:
    with connections.transaction(beginning) as connection:
        return connection.execute(question.encode()).fetchone()


def store_error(connections: PostgresPool, question: str = "SELECT 1") -> str:
    with pytest.raises(StoreError) as caught:
        ask(connections, question)
    return str(caught.value)


def count_connections(url: str, do: str) -> int:
    with psycopg.connect(url, autocommit=True, application_name="tests") as admin:
        cursor = admin.execute(
            f"SELECT {do} FROM pg_stat_activity WHERE application_name = 'mendgraph' AND datname = current_database()"  # noqa: S608 - ours
        )
        return len(cursor.fetchall())


def test_users_function_cannot_replace_one_of_the_server(connections: PostgresPool, shared_store: str) -> None:
    """Before PostgreSQL 15 every user could create functions in `public`."""
    with psycopg.connect(shared_store, autocommit=True) as admin:
        admin.execute(
            "CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'"
        )
        assert admin.execute("SELECT hashtextextended('w', 0)").fetchone() == (7,)
    assert ask(connections, "SELECT hashtextextended('w', 0)") != (7,)


def test_caught_error_inside_a_transaction_is_not_a_success(connections: PostgresPool) -> None:
    with ExitStack() as stack:
        connection = stack.enter_context(connections.transaction())
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT no_such_column")
        with pytest.raises(StoreError, match="nothing of it was written"):
            stack.close()
    assert ask(connections) == (1,)


@slow
def test_connections_that_died_while_idle_are_replaced(connections: PostgresPool, shared_store: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: ask(connections, "SELECT pg_sleep(0.05)"), range(3)))
    assert count_connections(shared_store, "pg_terminate_backend(pid, 60000)") > 0
    assert [ask(connections) for _ in range(4)] == [(1,)] * 4


def test_connection_lost_in_a_transaction_is_reported(connections: PostgresPool, shared_store: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(connections.transaction())
        count_connections(shared_store, "pg_terminate_backend(pid, 60000)")
        with pytest.raises(StoreError) as caught:
            stack.close()
    assert "the server was stopped, or is starting" in str(caught.value)
    assert ask(connections) == (1,)


@slow
def test_wrong_password_is_reported_and_never_shown() -> None:
    with running_postgres() as server:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute(f"CREATE ROLE guest LOGIN PASSWORD '{WORD}'".encode())
            (hba,) = admin.execute("SHOW hba_file").fetchone() or ("",)
            admin.execute("COPY (SELECT 'local all tester trust') TO '" + hba.encode().decode() + "'")
            with open(hba, "a", encoding="ascii") as rules:
                rules.write("local all all scram-sha-256\n")
            admin.execute("SELECT pg_reload_conf()")
        host = server.partition("host=")[2]
        right, wrong = (f"postgresql://guest:{quote(word)}@/postgres?host={host}" for word in (WORD, f"not-{WORD}"))
        message = store_error(PostgresPool(read_url(wrong)))
        opened = PostgresPool(read_url(right))
        assert ask(opened) == (1,)
        opened.close()
    assert "cannot be reached" in message
    assert WORD not in message


def test_text_that_postgresql_cannot_store_is_replaced(connections: PostgresPool) -> None:
    with connections.transaction() as connection:
        row = connection.execute("SELECT %s::text, 1.5::numeric, 2::bigint", ("a\0b\ud800",)).fetchone()
    assert row == ("a\u2400b\ufffd", 1.5, 2)
