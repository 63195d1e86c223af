"""Spec 5 in whole runs: what the engine promises of a call holds from step to step, and in the graph's event loop."""

import asyncio
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.runs.events import Traced
from mendgraph.nodes.execute_tools.registry import ToolOutput, tool
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import Effect, Protocol
from tests.doubles.tool_use import Use, use
from tests.runs.tool_play import DONE, FILES, codes, played, scripted
from tests.workspace_files import write_files

READ = ("read_file", {"path": "a.py"})
WRITE = ("write_file", {"path": "new.txt", "content": "new\n"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path, FILES)
    return tmp_path


@pytest.mark.parametrize(
    ("replies", "cache"),
    [
        ([use(READ, READ)], ["cache.miss", "cache.store", "cache.hit"]),
        ([use(READ, WRITE, READ)], ["cache.miss", "cache.store", "cache.miss", "cache.store"]),
        ([use(READ), use(READ)], ["cache.miss", "cache.store", "cache.miss", "cache.store"]),
    ],
    ids=["at once", "after a write", "in a later step"],
)
def test_same_read_in_a_step_is_a_hit_until_something_changes(root: Path, replies: list[Use], cache: list[str]) -> None:
    """Between two steps another program may change the file, so it is read again."""
    events = played(root, *replies, DONE)
    assert set(codes(events)) == {"ok"}
    assert [event.name for event in events if isinstance(event, Traced) and event.name.startswith("cache.")] == cache


def test_async_tool_runs_on_the_loop_of_ainvoke(root: Path) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @tool(effect=Effect.NONE)
    async def look(name: str) -> ToolOutput:
        """Look."""
        loops.append(asyncio.get_running_loop())
        return ToolOutput.ok(name=name)

    async def run() -> asyncio.AbstractEventLoop:
        model = scripted(Protocol.NATIVE, use(("look", {"name": "a"})), DONE)
        machine = build_graph(model=model, tools=(*default_tools(), look))
        await machine.ainvoke({"messages": [HumanMessage("Go.")]}, context=AgentContext(workspace=str(root)))
        return asyncio.get_running_loop()

    assert loops == [asyncio.run(run())]
