"""A look at the shared store: nothing is made by it."""

import psycopg
import pytest

from nodes.execute_tools.environment.database import StoreError, open_shared
from nodes.execute_tools.environment.shared_look import look_at, names_of_runs
from nodes.execute_tools.environment.shared_schema import STORE
from nodes.execute_tools.environment.shared_url import read_url
from tests.broken_stores import NOWHERE

RUN = """
INSERT INTO runs (run_id, task, created, updated, turns, request, state, context, durability)
VALUES (?, ?, '', ?, 1, '', 'ended', '{}', 'sync')
"""


def test_where_nobody_has_made_tables_none_are_made(empty_store: str) -> None:
    url = read_url(empty_store)
    found = look_at(url, None)
    assert (found.runs, found.size > 0, found.server.split(".")[0].isdigit()) == (None, True, True)
    assert names_of_runs(url, "w", 10) == []
    with psycopg.connect(empty_store) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'mendgraph'").fetchall() == []


def test_the_runs_of_one_workspace_are_counted_and_named_newest_first(shared_store: str) -> None:
    url = read_url(shared_store)
    for workspace, runs in (("w", ("b", "c", "a")), ("other", ("z",))):
        database = open_shared(STORE, workspace)
        assert database is not None
        for number, run in enumerate(runs):
            database.execute(RUN, (run, f"task {run}\0", str(number)))
    assert [look_at(url, workspace).runs for workspace in ("w", "other", "none", None)] == [3, 1, 0, 0]
    assert names_of_runs(url, "w", 2) == [("a", "task a\0"), ("c", "task c\0")]


def test_tables_of_another_version_are_told(shared_store: str) -> None:
    open_shared(STORE)
    with psycopg.connect(shared_store, autocommit=True) as connection:
        connection.execute("UPDATE mendgraph.formats SET format = 99")
    with pytest.raises(StoreError, match="newer mendgraph"):
        look_at(read_url(shared_store), "w")


def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        look_at(read_url(NOWHERE), "w")
