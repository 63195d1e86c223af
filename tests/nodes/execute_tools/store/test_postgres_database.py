"""The store in PostgreSQL, its tables, and a look at it that makes nothing."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import psycopg
import pytest

from mendgraph.nodes.execute_tools.store.database import StoreError, open_postgres, transaction
from mendgraph.nodes.execute_tools.store.database_schema import FORMAT, SQLITE_TABLES, STORE_TABLES, PostgresTables
from mendgraph.nodes.execute_tools.store.postgres_database import PostgresDatabase, close_postgres, look_at
from mendgraph.nodes.execute_tools.store.postgres_url import read_url

INSERT = "INSERT INTO backups VALUES (?, ?)"


def opened(workspace: str = "w", part: PostgresTables = STORE_TABLES) -> PostgresDatabase:
    found = open_postgres(part, workspace)
    assert found is not None
    return found


def refusal(part: PostgresTables = STORE_TABLES) -> str:
    close_postgres()
    with pytest.raises(StoreError) as caught:
        open_postgres(part, "w")
    return str(caught.value)


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.mark.usefixtures("shared_store")
def test_rows_of_one_workspace_are_nothing_to_another() -> None:
    one, two = opened("one"), opened("two")
    for database, data in ((one, b"1"), (two, b"2")):
        database.execute(INSERT, ("a", data))
    assert [each.execute("SELECT * FROM backups").fetchall() for each in (one, two)] == [[("a", b"1")], [("a", b"2")]]
    assert one.execute("UPDATE backups SET data = ?", (b"3",)).rowcount == 1
    assert one.execute("DELETE FROM backups").rowcount == 1
    assert two.execute("SELECT * FROM backups").fetchall() == [("a", b"2")]


@pytest.mark.usefixtures("shared_store")
def test_rows_are_read_as_those_of_a_file() -> None:
    database = opened()
    database.executemany(INSERT, [("a", b"1"), ("b", b"2"), ("c", b"3%?")])
    rows = database.execute("SELECT * FROM backups ORDER BY sha256")
    assert (rows.fetchone(), rows.fetchone(), list(rows), rows.fetchone()) == (
        ("a", b"1"),
        ("b", b"2"),
        [("c", b"3%?")],
        None,
    )
    assert database.execute("SELECT 7 % ?", (4,)).fetchall() == [(3,)]
    database.executemany(INSERT, [])


@pytest.mark.usefixtures("shared_store")
def test_a_transaction_is_all_or_nothing_and_each_threads_own() -> None:
    database = opened()
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


def test_threads_that_start_at_once_make_one_set_of_tables(empty_store: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: opened().execute("SELECT 1"), range(8)))
    with psycopg.connect(empty_store) as connection:
        parts = connection.execute("SELECT part, format FROM mendgraph.formats ORDER BY part").fetchall()
    assert parts == [("store", FORMAT)]


def test_a_making_that_fails_leaves_nothing_half_made(empty_store: str) -> None:
    assert "syntax error" in refusal(
        STORE_TABLES._replace(statements=(*STORE_TABLES.statements, "CREATE no such thing"))
    )
    with psycopg.connect(empty_store) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'mendgraph'").fetchall() == []
    opened().execute("SELECT * FROM backups")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (FORMAT + 1, "a newer mendgraph (format {}, this one knows {}): update mendgraph, or name another database."),
        (FORMAT - 1, "an older mendgraph (format {}, this one knows {}): finish its runs with that version, or name"),
    ],
)
def test_tables_of_another_version_are_refused(shared_store: str, found: int, said: str) -> None:
    opened()
    run(shared_store, f"UPDATE mendgraph.formats SET format = {found}")  # noqa: S608 - a number
    assert f"was written by {said.format(found, FORMAT)}" in refusal()


def test_a_schema_of_somebody_elses_is_left_alone(empty_store: str) -> None:
    run(empty_store, "CREATE SCHEMA mendgraph", "CREATE TABLE mendgraph.mine (a int)")
    assert refusal().endswith("is not one of mendgraph: name another database.")
    run(empty_store, "DROP TABLE mendgraph.mine")
    opened().execute("SELECT * FROM backups")


@pytest.mark.usefixtures("shared_store")
def test_a_part_that_grows_gets_what_is_missing_once() -> None:
    steps = ("CREATE TABLE grown (a int)", "INSERT INTO grown VALUES (1)", "INSERT INTO grown VALUES (2)")
    for count in (1, 3, 2, 3):
        close_postgres()
        opened("w", PostgresTables("grown", count, steps[:count], grow=True))
    assert opened().execute("SELECT a FROM grown ORDER BY a").fetchall() == [(1,), (2,)]


def test_where_nobody_has_made_tables_none_are_made(empty_store: str) -> None:
    url = read_url(empty_store)
    found = look_at(url, None)
    assert (found.runs, found.size > 0, found.server.split(".")[0].isdigit()) == (None, True, True)
    with psycopg.connect(empty_store) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'mendgraph'").fetchall() == []


TABLES = ("calls", "changes", "effects", "backups", "runs")


@pytest.fixture
def connection(empty_store: str) -> object:
    assert open_postgres(STORE_TABLES) is not None
    with psycopg.connect(empty_store, autocommit=True) as opened:
        yield opened


def test_each_view_has_the_columns_of_the_table_of_a_file(connection: psycopg.Connection[tuple[str, ...]]) -> None:
    assert STORE_TABLES.format == FORMAT
    with closing(sqlite3.connect(":memory:")) as own:
        own.executescript(";".join(SQLITE_TABLES))
        for table in (*TABLES, "dictionary"):
            names = [row[1] for row in own.execute(f"PRAGMA table_info({table})")]
            found = connection.execute(
                "SELECT column_name FROM information_schema.columns"
                " WHERE table_schema = 'mendgraph' AND table_name = %s ORDER BY ordinal_position",
                (table,),
            )
            assert [name for (name,) in found] == names, table
