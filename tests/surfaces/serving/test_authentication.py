"""Users of a server, what they may see, and what a server needs before it starts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph_sdk import Auth

from mendgraph.graph.fleet.serving import engine
from mendgraph.graph.fleet.serving.admission import TENANTS_VARIABLE, CannotServeError, open_admitter
from mendgraph.graph.fleet.serving.engine import connection_variables, create_app, exclusive, run_server
from mendgraph.graph.fleet.serving.middleware import (
    allow_assistants,
    auth,
    authenticate,
    refuse,
    restrict_to_owner,
    token_of,
)
from mendgraph.graph.fleet.serving.tenants import token_hash
from tests.surfaces.serving.memory_locks import MemoryLocks

TOKEN = "a-token-that-ann-alone-knows-0123456789"  # noqa: S105
STORE = "MENDGRAPH_STORE_URL"


@pytest.fixture(autouse=True)
def users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Ann alone is known."""
    path = tmp_path / "tenants.toml"
    path.write_text(f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = ["{token_hash(TOKEN)}"]\n', encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(path))
    monkeypatch.setenv(STORE, "postgresql://nobody@nowhere/none")
    open_admitter.cache_clear()
    yield
    open_admitter.cache_clear()


def auth_context(action: str, resource: str = "threads") -> Any:
    return SimpleNamespace(action=action, resource=resource, user=SimpleNamespace(identity="ann"))


def thread_filter(action: str, value: Any) -> Any:
    """What the server's handler of threads answers."""
    return asyncio.run(restrict_to_owner(ctx=auth_context(action), value=value))


def status_of(call: Any) -> int:
    with pytest.raises(Auth.exceptions.HTTPException) as refused:
        asyncio.run(call)
    return int(refused.value.status_code)


def test_token_identifies_its_user() -> None:
    accepted: list[Any] = [
        {"authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"bearer  {TOKEN}"},
        {b"authorization": f"Bearer {TOKEN}".encode()},
    ]
    ann: Any = {"identity": "ann", "display_name": "ann", "is_authenticated": True}
    assert [token_of(headers) for headers in accepted] == [TOKEN] * 3
    assert [asyncio.run(authenticate(headers)) for headers in accepted] == [ann] * 3
    unknown = [{}, {"authorization": TOKEN}, {"authorization": "Bearer"}, {"cookie": TOKEN}]
    assert [status_of(authenticate(headers)) for headers in unknown] == [401] * 4


def test_thread_belongs_to_the_user_who_made_it() -> None:
    for action in ("create", "create_run", "update"):
        for metadata in (None, {"owner": "bob", "a": 1}):
            value: Any = {"metadata": metadata}
            assert thread_filter(action, value) == {"owner": "ann"}
            assert value == {"metadata": {**(metadata or {}), "owner": "ann"}}
            assert metadata is None or value["metadata"] is metadata
    value = {"metadata": {"owner": "bob"}}
    assert thread_filter("search", value) == {"owner": "ann"}
    assert value == {"metadata": {"owner": "bob"}}  # reading changes nothing


def test_run_with_a_webhook_is_refused() -> None:
    """A server would send requests to any address of its own network."""
    calling: Any = {"kwargs": {"webhook": "http://10.0.0.1/"}}
    assert status_of(restrict_to_owner(ctx=auth_context("create_run"), value=calling)) == 422
    assert thread_filter("create_run", {"kwargs": {"webhook": None}}) == {"owner": "ann"}


def test_resource_without_a_handler_is_refused() -> None:
    kinds = ("store", "crons", "assistants", "runs")
    assert [asyncio.run(refuse(auth_context("put", kind), {})) for kind in kinds] == [False, False, False, True]
    assert asyncio.run(allow_assistants(auth_context("search", "assistants"), {})) is True
    assert {key: [handler.__name__ for handler in handlers] for key, handlers in auth._handlers.items()} == {
        ("threads", "*"): ["restrict_to_owner"],
        ("assistants", "read"): ["allow_assistants"],
        ("assistants", "search"): ["allow_assistants"],
    }
    assert [handler.__name__ for handler in auth._global_handlers] == ["refuse"]


# --- The engine behind it, before it is started; `tests/surfaces/serving/test_servers.py` has it running


def test_server_without_its_store_or_its_extra_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(STORE)
    with pytest.raises(
        CannotServeError, match=r"^Servers share one PostgreSQL database: name it in MENDGRAPH_STORE_URL\.$"
    ):
        run_server("127.0.0.1", 1)
    monkeypatch.setenv(STORE, f"postgresql://a:my-password@/b?host={tmp_path}")
    missing = iter([None])
    monkeypatch.setattr(engine, "find_spec", lambda _: next(missing, "there"))
    with pytest.raises(CannotServeError, match=r"^The server needs the extra `serve`: "):
        create_app()
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


def test_servers_start_one_after_another() -> None:
    locks, heard = MemoryLocks(), list[str]()

    async def start(name: str) -> None:
        async with exclusive(locks, "starting"):
            heard.append(f"{name} begins")
            await asyncio.sleep(0)
            heard.append(f"{name} ends")

    async def start_both() -> None:
        await asyncio.gather(start("one"), start("two"))

    asyncio.run(start_both())
    assert sorted([heard[:2], heard[2:]]) == [["one begins", "one ends"], ["two begins", "two ends"]]
