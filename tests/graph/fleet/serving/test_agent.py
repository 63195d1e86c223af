"""What the configurations of servers name."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mendgraph.graph.fleet.serving.admission import TENANTS_VARIABLE, CannotServeError, open_admitter
from mendgraph.graph.fleet.serving.agent import app, graph, lifespan
from mendgraph.graph.fleet.serving.engine import CONFIGURATION
from mendgraph.graph.fleet.serving.machine import ServedMachine
from mendgraph.graph.machine.routes import NODES
from tests.architecture.product import ROOT


def test_the_machine_is_served_without_a_saver_of_its_own() -> None:
    assert isinstance(graph, ServedMachine)
    assert graph.checkpointer is None
    assert set(graph.get_graph().nodes) == {"__start__", "__end__", *NODES}


def test_nothing_is_opened_before_it_is_needed() -> None:
    open_admitter.cache_clear()
    with pytest.raises(CannotServeError):
        graph.admitter()


def test_both_servers_load_the_same() -> None:
    read = {
        path.name: json.loads(path.read_text("utf-8"))
        for path in (CONFIGURATION, Path(CONFIGURATION.parent, "aegra.json"))
    }
    assert read["langgraph.json"]["graphs"] == {"mendgraph": "mendgraph.graph.fleet.serving.agent:graph"}
    assert read["aegra.json"]["graphs"] == {"mendgraph": "./agent.py:graph"}
    assert [each["auth"]["path"] for each in read.values()] == ["mendgraph.graph.fleet.serving.authentication:auth"] * 2
    of_studio = json.loads((ROOT / "langgraph.json").read_text("utf-8"))
    assert read["langgraph.json"]["checkpointer"] == of_studio["checkpointer"]
    closed = {"disable_mcp", "disable_a2a", "disable_store"}
    assert {name for name, value in read["langgraph.json"]["http"].items() if value is True} == closed


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    open_admitter.cache_clear()
    yield
    open_admitter.cache_clear()


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
