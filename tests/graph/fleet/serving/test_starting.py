"""`langgraph dev` fails early where there are no users."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.graph.fleet.serving.opening import TENANTS_VARIABLE, CannotServeError, open_desk
from mendgraph.graph.fleet.serving.starting import app, lifespan


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    open_desk.cache_clear()
    yield
    open_desk.cache_clear()


async def start() -> str:
    async with lifespan(app):
        return "started"


def test_a_server_starts_with_its_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(CannotServeError):
        asyncio.run(start())
    path = tmp_path / "tenants.toml"
    path.write_text(f'root = "{tmp_path}"\n[users.ann]\ntoken_sha256 = []\n', encoding="utf-8")
    monkeypatch.setenv(TENANTS_VARIABLE, str(path))
    assert asyncio.run(start()) == "started"
