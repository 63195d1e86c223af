"""The tables: all of them are made, and refuse what they must not hold."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from nodes.execute_tools.environment.database_schema import SCHEMA


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        opened.executescript(SCHEMA)
        opened.execute("PRAGMA foreign_keys = ON")
        yield opened


def test_all_tables_are_made(database: sqlite3.Connection) -> None:
    names = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names >= {"calls", "changes", "effects", "backups", "runs"}


CALL = "INSERT INTO calls (thread, execution, step, place, tool, effect, arguments_sha256, begun)"


def test_a_place_of_a_step_has_one_call(database: sqlite3.Connection) -> None:
    database.execute(f"{CALL} VALUES ('t', 'e', 1, 0, 'write_file', 'write', 'f', 'now')")
    with pytest.raises(sqlite3.IntegrityError):
        database.execute(f"{CALL} VALUES ('t', 'e', 1, 0, 'edit_file', 'write', 'f', 'now')")


def test_a_change_belongs_to_a_call(database: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        database.execute("INSERT INTO changes (token, call, state, made) VALUES ('t', 7, 'done', '[]')")
