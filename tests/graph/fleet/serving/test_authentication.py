"""Who asks, and what they may see."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph_sdk import Auth

from mendgraph.graph.fleet.serving.admission import TENANTS_VARIABLE, open_admitter
from mendgraph.graph.fleet.serving.middleware import auth, authenticate, known_assistants, own_threads, refuse, token_of
from mendgraph.graph.fleet.serving.tenants import token_hash

TOKEN = "a-token-that-ann-alone-knows-0123456789"  # noqa: S105


@pytest.fixture(autouse=True)
def users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Ann alone is known."""
    path = tmp_path / "tenants.toml"
    path.write_text(f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = ["{token_hash(TOKEN)}"]\n', encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(path))
    monkeypatch.setenv("MENDGRAPH_STORE_URL", "postgresql://nobody@nowhere/none")
    open_admitter.cache_clear()
    yield
    open_admitter.cache_clear()


def by(action: str, resource: str = "threads") -> Any:
    return SimpleNamespace(action=action, resource=resource, user=SimpleNamespace(identity="ann"))


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"bearer  {TOKEN}"},
        {b"authorization": f"Bearer {TOKEN}".encode()},
    ],
)
def test_token_is_its_users(headers: dict[Any, Any]) -> None:
    assert token_of(headers) == TOKEN
    known: Any = asyncio.run(authenticate(headers))
    assert known == {"identity": "ann", "display_name": "ann", "is_authenticated": True}


@pytest.mark.parametrize("headers", [{}, {"authorization": TOKEN}, {"authorization": "Bearer"}, {"cookie": TOKEN}])
def test_nobody_else_is_anybody(headers: dict[str, str]) -> None:
    with pytest.raises(Auth.exceptions.HTTPException) as refused:
        asyncio.run(authenticate(headers))
    assert refused.value.status_code == 401


@pytest.mark.parametrize("action", ["create", "create_run", "update"])
@pytest.mark.parametrize("metadata", [None, {"owner": "bob", "a": 1}])
def test_thread_is_its_makers(action: str, metadata: dict[str, Any] | None) -> None:
    value: Any = {"metadata": metadata}
    assert asyncio.run(own_threads(ctx=by(action), value=value)) == {"owner": "ann"}
    assert value == {"metadata": {**(metadata or {}), "owner": "ann"}}
    assert metadata is None or value["metadata"] is metadata


def test_run_calls_nobody() -> None:
    """A server would ask any address of its own network for whoever names it."""
    calling: Any = {"kwargs": {"webhook": "http://10.0.0.1/"}}
    with pytest.raises(Auth.exceptions.HTTPException) as refused:
        asyncio.run(own_threads(ctx=by("create_run"), value=calling))
    assert refused.value.status_code == 422
    usual: Any = {"kwargs": {"webhook": None}}
    assert asyncio.run(own_threads(ctx=by("create_run"), value=usual)) == {"owner": "ann"}


def test_reading_changes_nothing() -> None:
    value: Any = {"metadata": {"owner": "bob"}}
    assert asyncio.run(own_threads(ctx=by("search"), value=value)) == {"owner": "ann"}
    assert value == {"metadata": {"owner": "bob"}}


def test_what_nobody_has_thought_of_is_refused() -> None:
    assert [asyncio.run(refuse(by("put", kind), {})) for kind in ("store", "crons", "assistants", "runs")] == [
        *(False, False, False),
        True,
    ]
    assert asyncio.run(known_assistants(by("search", "assistants"), {})) is True
    assert {key: [each.__name__ for each in found] for key, found in auth._handlers.items()} == {
        ("threads", "*"): ["own_threads"],
        ("assistants", "read"): ["known_assistants"],
        ("assistants", "search"): ["known_assistants"],
    }
    assert [each.__name__ for each in auth._global_handlers] == ["refuse"]
