"""All ways to stream a graph in LangChain and LangGraph, on ours."""

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest
from langchain_core._api import LangChainBetaWarning

from mendgraph import build_graph
from tests.langchain.embedding import ASKED, REPAIR, THREAD, context, native_model, saver
from tests.scenarios.sample_repair import CALC, DONE, MENDED, TASK
from tests.workspace_files import changed_files

MODES: Any = ["values", "updates", "messages", "custom", "checkpoints", "tasks", "debug"]
STEP = ("call_model", "parse", "guard", "execute_tools", "loop_check")
PATH = ["begin_turn", *STEP, *STEP, "call_model", "parse", "FINISHED"]


@pytest.fixture
def machine(tmp_path: Path) -> Any:
    """It repairs a bug in three replies."""
    return build_graph(saver(), model=native_model(*REPAIR), context=context(tmp_path))


def parts_of(machine: Any, way: str) -> list[tuple[str, Any]]:
    """Each part of the stream and its mode, in this way with all modes at once."""

    async def later() -> list[Any]:
        return [part async for part in machine.astream(ASKED, THREAD, stream_mode=MODES, version="v2")]

    if way == "stream":
        return [(mode, part) for mode, part in machine.stream(ASKED, THREAD, stream_mode=MODES)]
    parts = asyncio.run(later())
    assert {part["ns"] for part in parts} == {()}
    return [(part["type"], part["data"]) for part in parts]


@pytest.mark.parametrize("way", ["stream", "astream v2"])
def test_every_stream_mode_shows_the_whole_run(machine: Any, way: str) -> None:
    by_mode: dict[str, list[Any]] = {mode: [] for mode in MODES}
    for mode, part in parts_of(machine, way):
        by_mode[mode].append(part)
    assert by_mode["values"][-1]["outcome"].kind == "FINISHED"
    assert [node for part in by_mode["updates"] for node in part] == PATH
    assert [part["name"] for part in by_mode["tasks"] if "triggers" in part] == PATH
    messages = [message for message, _ in by_mode["messages"]]
    assert "".join(message.text for message in messages if message.type != "tool") == DONE.text
    ids = [message.id for message in machine.get_state(THREAD).values["messages"]]
    assert (
        list(dict.fromkeys(message.id for message in messages)) == ids[1:]
    )  # each reply is one message, streamed once
    assert {part["type"] for part in by_mode["custom"]} == {"text", "trace"}
    assert [part["type"] for part in by_mode["debug"]].count("task") == len(PATH)
    checkpoints = [snapshot.config["configurable"]["checkpoint_id"] for snapshot in machine.get_state_history(THREAD)]
    assert [part["config"]["configurable"]["checkpoint_id"] for part in by_mode["checkpoints"]] == checkpoints[::-1]


def test_astream_events_names_each_node_and_each_reply(machine: Any) -> None:
    async def seen() -> list[Any]:
        return [event async for event in machine.astream_events(ASKED, THREAD, version="v2")]

    events = asyncio.run(seen())
    started = [event["name"] for event in events if event["event"] == "on_chain_start" and event["name"] in PATH]
    assert list(dict.fromkeys(started)) == list(dict.fromkeys(PATH))
    assert [event["event"] for event in events].count("on_chat_model_end") == len(REPAIR)
    assert events[-1]["data"]["output"]["outcome"].kind == "FINISHED"


def test_tool_made_with_as_tool_runs_the_graph(tmp_path: Path) -> None:
    """LangChain derives no schema from messages: for any graph `as_tool` needs `arg_types` with a list."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LangChainBetaWarning)
        machine = build_graph(model=native_model(*REPAIR), context=context(tmp_path))
        coder = machine.as_tool(arg_types={"messages": list}, name="coder", description="Repairs bugs.")
    assert coder.invoke({"messages": [("user", TASK)]})["outcome"].kind == "FINISHED"
    assert changed_files(tmp_path, CALC) == {"calc.py": MENDED}
