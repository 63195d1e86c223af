"""The engine behind the middleware, before it is started; `tests/runs/test_servers.py` has it running."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.graph.fleet.serving import engine
from mendgraph.graph.fleet.serving.admission import TENANTS_VARIABLE, CannotServeError, open_admitter
from mendgraph.graph.fleet.serving.engine import alone, connection_variables, create_app, run_server
from tests.graph.fleet.serving.memory_locks import MemoryLocks


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


def test_engine_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://a@/b")
    monkeypatch.setattr(engine, "find_spec", lambda _: None)
    with pytest.raises(CannotServeError, match=r"^The server needs the extra `serve`: "):
        create_app()


def test_database_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MENDGRAPH_STORE_URL", f"postgresql://a:my-password@/b?host={tmp_path}")
    monkeypatch.setattr(engine, "find_spec", lambda _: "there")
    with pytest.raises(CannotServeError, match="cannot be reached") as refused:
        create_app()
    assert "\n" not in str(refused.value)
    assert "my-password" not in str(refused.value)


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
    locks, told = MemoryLocks(), []

    async def start(name: str) -> None:
        async with alone(locks, "starting"):
            told.append(f"{name} begins")
            await asyncio.sleep(0)
            told.append(f"{name} ends")

    async def both() -> None:
        await asyncio.gather(start("one"), start("two"))

    asyncio.run(both())
    assert sorted([told[:2], told[2:]]) == [["one begins", "one ends"], ["two begins", "two ends"]]
