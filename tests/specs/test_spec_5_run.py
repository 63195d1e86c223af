"""Spec 5 in whole runs: what the engine promises of a call holds from step to step, and in the graph's event loop."""

import asyncio
from pathlib import Path

import pytest

from mendgraph import AgentContext, Effect, Session, StepDone, ToolOutput, Traced, arun_task, default_tools, tool
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import Use, message_of, use
from tests.vocabulary import Protocol
from tests.workspace_files import write_files

READ = ("read_file", {"path": "a.py"})
WRITE = ("write_file", {"path": "new.txt", "content": "new\n"})


def model_of(*replies: Use) -> ScriptedModel:
    return ScriptedModel([message_of(reply, Protocol.NATIVE) for reply in replies])


@pytest.mark.parametrize(
    ("replies", "cache"),
    [
        ([use(READ, READ)], ["miss", "store", "hit"]),
        ([use(READ, WRITE, READ)], ["miss", "store", "miss", "store"]),
        ([use(READ), use(READ)], ["miss", "store", "miss", "store"]),
    ],
    ids=["at once", "after a write", "in a later step"],
)
def test_repeated_read_in_a_step_is_a_cache_hit_until_something_changes(
    tmp_path: Path, replies: list[Use], cache: list[str]
) -> None:
    """Between two steps another program may change the file, so it is read again."""
    write_files(tmp_path, {"a.py": "x = 1\n"})
    context = AgentContext(workspace=str(tmp_path), protocol="native", evidence=False)
    with Session(context, model=model_of(*replies)) as session:
        events = list(session.stream("Go."))
    assert {result.result.ok for event in events if isinstance(event, StepDone) for result in event.results} == {True}
    names = [event.name for event in events if isinstance(event, Traced)]
    assert [name.removeprefix("cache.") for name in names if name.startswith("cache.")] == cache


def test_async_tool_runs_on_the_event_loop_of_its_run(tmp_path: Path) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @tool(effect=Effect.NONE)
    async def look(name: str) -> ToolOutput:
        """Look."""
        loops.append(asyncio.get_running_loop())
        return ToolOutput.ok(name=name)

    async def run() -> asyncio.AbstractEventLoop:
        context = AgentContext(workspace=str(tmp_path), protocol="native")
        await arun_task("Go.", context, model=model_of(use(("look", {"name": "a"}))), tools=(*default_tools(), look))
        return asyncio.get_running_loop()

    assert loops == [asyncio.run(run())]
