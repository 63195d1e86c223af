"""The engine behind the middleware, before it is started; `tests/runs/test_servers.py` has it running."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from mendgraph.graph.fleet.serving import engine
from mendgraph.graph.fleet.serving.admission import TENANTS_VARIABLE, CannotServeError, open_admitter
from mendgraph.graph.fleet.serving.engine import alone, check_rights, connection_variables, create_app, run_server
from mendgraph.graph.fleet.serving.locks import FileLocks
from mendgraph.nodes.execute_tools.store.postgres_connections import close_all
from mendgraph.nodes.execute_tools.store.postgres_url import read_url


@pytest.fixture(autouse=True)
def users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    path = tmp_path / "tenants.toml"
    path.write_text(f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = []\n', encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(path))
    open_admitter.cache_clear()
    yield
    open_admitter.cache_clear()


def test_several_servers_need_a_database() -> None:
    with pytest.raises(
        CannotServeError, match=r"^Servers share one PostgreSQL database: name it in MENDGRAPH_STORE_URL\.$"
    ):
        run_server("127.0.0.1", 1)


def test_the_engine_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://a@/b")
    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    with pytest.raises(CannotServeError, match=r"^The server is an extra: pip install 'mendgraph\[serve\]'\.$"):
        create_app()


def test_a_database_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", f"postgresql://a:my-password@/b?host={tmp_path}")
    monkeypatch.setattr(engine, "find_spec", lambda _: "there")
    with pytest.raises(CannotServeError, match="cannot be reached") as refused:
        create_app()
    assert "\n" not in str(refused.value)
    assert "my-password" not in str(refused.value)


def test_who_may_make_no_tables_is_told(shared_store: str) -> None:
    check_rights(read_url(shared_store))
    with psycopg.connect(shared_store, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS without_rights")
        connection.execute("CREATE ROLE without_rights LOGIN")
    database, _, place = shared_store.rpartition("/")[2].partition("?")
    url = f"postgresql://without_rights@/{database}?{place}"
    said = (
        f"The user without_rights may make no tables in the database {database}: make it theirs, for example with"
        f' ALTER DATABASE "{database}" OWNER TO "without_rights".'
    )
    with pytest.raises(CannotServeError) as refused:
        check_rights(read_url(url))
    assert str(refused.value) == said
    with psycopg.connect(shared_store, autocommit=True) as connection:
        connection.execute("DROP ROLE without_rights")
    close_all()


def test_every_driver_reads_the_same_variables() -> None:
    url = "postgresql://ann:p%40ss%25@db.internal:5433/agents?sslmode=verify-full&sslrootcert=%2Fca.pem"
    assert connection_variables(url) == {
        "PGDATABASE": "agents",
        "PGHOST": "db.internal",
        "PGPORT": "5433",
        "PGUSER": "ann",
        "PGPASSWORD": "p@ss%",
        "PGSSLMODE": "verify-full",
        "PGSSLROOTCERT": "/ca.pem",
    }
    assert connection_variables("postgresql://ann@/agents?host=%2Frun%2Fpostgresql")["PGHOST"] == "/run/postgresql"


def test_one_starts_after_the_other() -> None:
    first, second, told = FileLocks(), FileLocks(), []

    async def start(locks: FileLocks, name: str) -> None:
        async with alone(locks, "starting"):
            told.append(f"{name} begins")
            await asyncio.sleep(0)
            told.append(f"{name} ends")

    async def both() -> None:
        await asyncio.gather(start(first, "one"), start(second, "two"))

    asyncio.run(both())
    assert sorted([told[:2], told[2:]]) == [["one begins", "one ends"], ["two begins", "two ends"]]
