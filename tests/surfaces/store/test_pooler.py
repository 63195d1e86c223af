"""The store behind PgBouncer in transaction mode: one run holds a workspace, other sessions are unchanged."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from mendgraph.nodes.records import OutcomeKind
from mendgraph.nodes.workspace.store.database import read_url
from mendgraph.nodes.workspace.store.postgres import PostgresPool, close_postgres
from mendgraph.nodes.workspace.store.run_lock import Owner
from tests.extent import slow
from tests.postgres import NO_POOLER, pooler
from tests.surfaces.runs.run_plays import list_states, project, run_lines, tree

pytestmark = pytest.mark.skipif(
    shutil.which("pgbouncer") is None and not os.path.exists("/usr/sbin/pgbouncer"), reason=NO_POOLER
)

ONE, TWO = Owner("r1", 12, "now"), Owner("r2", 13, "now")


@pytest.fixture
def pooled_url(shared_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same database behind a pooler with five connections to it."""
    with pooler(shared_store, 5) as url:
        monkeypatch.setenv("MENDGRAPH_STORE_URL", url)
        yield url
        close_postgres()


def test_workspace_lock_has_one_holder_behind_a_transaction_pooler(pooled_url: str) -> None:
    """Processes share server sessions, so a session lock would belong to all of them or to none."""
    every = [PostgresPool(read_url(pooled_url)) for _ in range(3)]
    first, second, third = (pool.locks for pool in every)
    assert first.take("w", ONE)
    for _ in range(4):
        for pool in every:
            with pool.transaction() as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        assert [second.take("w", TWO), third.take("w", TWO)] == [False, False]
    assert second.take("another", TWO)
    assert [third.holder("w"), third.holder("another")] == [ONE, TWO]
    first.release("w")
    assert third.take("w", TWO)
    assert third._connection is not None
    third._connection.pgconn.finish()  # as where its process is killed
    while not first.take("w", ONE):
        pass
    for one in every:
        one.close()


@slow
def test_runs_end_behind_a_pooler_as_with_a_direct_connection(
    shared_store: str, tmp_path: Path, pooled_url: str
) -> None:
    folders = [project(tmp_path / name) for name in ("one", "two")]
    assert [run_lines(folder).outcome.kind for folder in folders] == [OutcomeKind.FINISHED] * 2
    assert tree(folders[0]) == tree(folders[1])
    assert [len(list_states(folder)) for folder in folders] == [1, 1]
    with psycopg.connect(pooled_url, autocommit=True) as somebody, psycopg.connect(shared_store) as direct:
        search_paths = [connection.execute("SHOW search_path").fetchone() for connection in (somebody, direct)]
        idle = "SELECT 1 FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
        assert (search_paths[0], direct.execute(idle).fetchall()) == (search_paths[1], [])
