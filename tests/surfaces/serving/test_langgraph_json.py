"""What langgraph.json names, loaded as servers and harbor load it."""

import asyncio
import json
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph.state import CompiledStateGraph

from mendgraph.graph.agent import graph
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import CONFIG_VARIABLE
from mendgraph.graph.configuration.narrowing import operator_allowance
from mendgraph.graph.machine.routes import NODES
from mendgraph.nodes.records import OutcomeKind, StopReason
from tests.architecture.product import ROOT, text_of
from tests.doubles.replies import Calls, Say
from tests.doubles.scripted_server import ScriptedServer
from tests.extent import slow


def load_graph(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The graph of the file that langgraph.json names, in a module of another name."""
    path, _, name = json.loads(text_of("langgraph.json"))["graphs"]["mendgraph"]["path"].partition(":")
    spec = spec_from_file_location("graph_of_a_server", ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_served_graph_brings_no_checkpointer() -> None:
    """The server has its own, and refuses to start with another one."""
    assert graph.checkpointer is None
    assert (graph.name, graph.context_schema) == ("mendgraph", AgentContext)
    assert set(NODES) < set(graph.nodes)


def test_file_named_in_langgraph_json_has_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    served = load_graph(monkeypatch)
    assert isinstance(served, CompiledStateGraph)
    assert set(served.nodes) == set(graph.nodes)


# --- harbor's `--agent langgraph`, which calls `ainvoke` with the model in `configurable` and no context


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a task; the operator's settings are those that we ship for harbor."""
    (tmp_path / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(CONFIG_VARIABLE, str(ROOT / ".ci" / "harbor.toml"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    operator_allowance.cache_clear()
    yield tmp_path
    operator_allowance.cache_clear()


def turn(served: Any, **configurable: Any) -> Any:
    messages = [{"role": "user", "content": "The add function in calc.py subtracts. Fix it."}]
    config = {
        "configurable": {"thread_id": "t", "mcp_servers": [], **configurable},
        "metadata": {"ls_runner": "harbor"},
    }
    return asyncio.run(served.ainvoke({"messages": messages}, config=config))


@slow
def test_harbor_turn_runs_with_its_model_and_our_settings(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit = {"path": "calc.py", "old_str": "a - b", "new_str": "a + b"}
    argv = ["bash", "-c", "echo 5 > result.txt"]
    script = [
        Calls([("edit_file", json.dumps(edit))]),
        Calls([("run_command", json.dumps({"argv": argv}))]),
        Say("Done."),
    ]
    with ScriptedServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        result = turn(load_graph(monkeypatch), model="openai:gpt-5-mini", model_kwargs={"base_url": server.base_url})

    assert (result["outcome"].kind, result["messages"][-1].content) == (OutcomeKind.FINISHED, "Done.")
    assert [request["model"] for request in server.requests] == ["gpt-5-mini"] * 3
    assert (container / "calc.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert (container / "result.txt").read_text() == "5\n"


def test_setting_that_the_operator_does_not_allow_is_refused_in_configurable(
    container: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = turn(load_graph(monkeypatch), model="m", model_kwargs={"base_url": "https://elsewhere.test/v1"})
    assert (result["outcome"].kind, result["outcome"].reason) == (OutcomeKind.SYSTEM_ERROR, StopReason.INVALID_REQUEST)
    assert "base_url" in result["outcome"].message
    assert sorted(path.name for path in container.iterdir()) == ["calc.py"]
