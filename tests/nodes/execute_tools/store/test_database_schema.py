"""The tables are the same in a file and in PostgreSQL, where each row has its workspace."""

import sqlite3
from contextlib import closing

import psycopg
import pytest

from mendgraph.nodes.execute_tools.store.database import open_postgres
from mendgraph.nodes.execute_tools.store.database_schema import FORMAT, SQLITE_TABLES, STORE_TABLES

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


def test_every_text_is_compared_sign_by_sign(connection: psycopg.Connection[tuple[str, ...]]) -> None:
    """Whatever the database's language: times and versions are texts here, and have to be in order."""
    other = connection.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'mendgraph'"
        " AND data_type = 'text' AND collation_name IS DISTINCT FROM 'C' AND table_name <> 'locks'"
        " AND table_name IN (SELECT relname FROM pg_class WHERE relkind = 'r')"
    )
    assert other.fetchall() == []
