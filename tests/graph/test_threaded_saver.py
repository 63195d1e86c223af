"""What the savers of both databases have in common; single async calls are tested in `test_workspace_saver.py`."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from graph.build import build_graph
from graph.context import AgentContext
from graph.pending_rows import Place
from graph.threaded_saver import config_of, is_quick, place_of
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.graph.any_saver import opened_saver

LOOP: Any = {"source": "loop", "step": 2}


@pytest.mark.parametrize(
    ("configurable", "place"),
    [
        ({"thread_id": 7}, Place("7", "", "")),
        ({"thread_id": "t", "checkpoint_ns": "n", "checkpoint_id": None}, Place("t", "n", "")),
        ({"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c"}, Place("t", "", "c")),
    ],
)
def test_a_configuration_names_a_place(configurable: dict[str, Any], place: Place) -> None:
    assert place_of({"configurable": configurable}) == place
    assert place_of(config_of(place)) == place


@pytest.mark.parametrize(
    ("metadata", "updated", "quick"),
    [
        (LOOP, ["branch:to:quick", "plan"], True),
        (LOOP, ["branch:to:quick", "branch:to:slow"], False),
        (LOOP, ["plan"], False),
        (LOOP, None, False),
        ({"source": "input"}, ["branch:to:quick"], False),
    ],
)
def test_a_step_is_quick_where_nothing_else_begins(metadata: Any, updated: list[str] | None, quick: bool) -> None:
    checkpoint: Any = {"updated_channels": updated}
    assert is_quick(checkpoint, metadata, {"quick", "other"}) is quick


@pytest.fixture
def saver(any_store: str, tmp_path: Path) -> Iterator[Any]:  # noqa: ARG001 - each test runs with both
    with closing(opened_saver(tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_sync_and_async_runs_leave_the_same_thread(
    saver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any, strict: bool
) -> None:
    monkeypatch.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", strict)
    machine = build_graph(saver, model=ScriptedModel([], then=Say("Done.")))
    options: Any = {"context": AgentContext(workspace=str(tmp_path), audit=False), "durability": durability}
    request: Any = {"messages": [HumanMessage("Hi.", id="1")]}
    ways = [RunnableConfig(configurable={"thread_id": name}) for name in ("sync", "async")]
    machine.invoke(request, ways[0], **options)
    asyncio.run(machine.ainvoke(request, ways[1], **options))

    async def read(config: RunnableConfig) -> list[Any]:
        return [each async for each in machine.aget_state_history(config)]

    states = [machine.get_state(config) for config in ways]
    assert [[each.content for each in state.values["messages"]] for state in states] == [["Hi.", "Done."]] * 2
    assert [state.next for state in states] == [(), ()]
    assert [asyncio.run(read(config))[0].values for config in ways] == [state.values for state in states]
    histories = [
        [(each.next, (each.metadata or {})["step"]) for each in machine.get_state_history(config)] for config in ways
    ]
    assert histories[0] == histories[1]
