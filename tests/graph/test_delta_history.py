"""What growing channels are made of is what LangGraph's own saver finds, and hardly a checkpoint is unpacked for it."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.checkpoint.sqlite import SqliteSaver

from graph.build import build_graph
from graph.context import AgentContext
from graph.delta_history import delta_history
from graph.pending_rows import Place
from graph.state import serializer
from graph.workspace_saver import WorkspaceSaver
from nodes.execute_tools.environment.database import open_file
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel

CHANNELS = ("a", "b")


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[SqliteSaver]:
    """LangGraph's own, in a database of ours."""
    with closing(open_file(str(tmp_path))) as connection:
        yield SqliteSaver(connection, serde=JsonPlusSerializer())


class Counting(JsonPlusSerializer):
    """Counts the checkpoints that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints = 0

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.checkpoints += b"channel_values" in data[1]
        return super().loads_typed(data)


def config_of(thread: str, checkpoint: str | None) -> RunnableConfig:
    return RunnableConfig(configurable={"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint})


def history(saver: SqliteSaver, thread: str, checkpoint: str, serde: Any = None) -> Any:
    with saver.cursor(transaction=False) as walk, closing(saver.conn.cursor()) as look:
        return delta_history(walk, look, Place(thread, "", checkpoint), CHANNELS, serde or JsonPlusSerializer())


def put(saver: SqliteSaver, thread: str, number: int, snapshots: set[str], *, counted: bool = True) -> None:
    """One checkpoint more, with snapshots of these channels; the metadata count the steps of the others."""
    values = {channel: _DeltaSnapshot([f"{channel}{number}"]) for channel in snapshots}
    counters = {channel: (1, 1) for channel in CHANNELS if channel not in snapshots}
    metadata: Any = {"step": number} | ({"counters_since_delta_snapshot": counters} if counted else {})
    checkpoint: Any = {**empty_checkpoint(), "id": f"{number:04}", "channel_values": values}
    saver.put(config_of(thread, f"{number - 1:04}" if number else None), checkpoint, metadata, {})


def write(saver: SqliteSaver, thread: str, number: int, channels: list[str]) -> None:
    for place, channel in enumerate(channels):
        task = f"task{len(channels) - place}"
        saver.put_writes(config_of(thread, f"{number:04}"), [(channel, [number, place]), ("c", 0)], task, task)


STEPS = st.lists(
    st.tuples(st.sets(st.sampled_from(CHANNELS)), st.lists(st.sampled_from(CHANNELS), max_size=3), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_it_is_what_langgraphs_own_saver_finds(saver: SqliteSaver, steps: Any) -> None:
    """Whatever snapshots and writes there are, and where nothing was counted, as older checkpoints have it."""
    saver.delete_thread("t")
    for number, (snapshots, written, counted) in enumerate(steps):
        put(saver, "t", number, snapshots, counted=counted)
        write(saver, "t", number, written)
    for number in range(len(steps)):
        found = history(saver, "t", f"{number:04}")
        assert found == saver.get_delta_channel_history(config=config_of("t", f"{number:04}"), channels=CHANNELS)


def test_only_checkpoints_that_may_hold_a_snapshot_are_unpacked(saver: SqliteSaver) -> None:
    for number in range(100):
        put(saver, "t", number, {0: {"a", "b"}, 40: {"a"}}.get(number, set()))
    serde = Counting()
    found = history(saver, "t", "0099", serde)
    assert ([found[channel]["seed"].value for channel in CHANNELS], serde.checkpoints) == ([["a40"], ["b0"]], 2)


def test_a_checkpoint_that_nobody_knows_has_no_history(saver: SqliteSaver) -> None:
    put(saver, "t", 0, {"a"})
    put(saver, "t", 1, set())
    assert history(saver, "t", "0009") == history(saver, "other", "0001") == {"a": {"writes": []}, "b": {"writes": []}}


def test_a_line_that_runs_in_a_circle_comes_to_an_end(saver: SqliteSaver) -> None:
    for number in range(3):
        put(saver, "t", number, set())
        write(saver, "t", number, ["a"])
    saver.conn.execute("UPDATE checkpoints SET parent_checkpoint_id = '0002' WHERE checkpoint_id = '0000'")
    assert [value for _, _, value in history(saver, "t", "0002")["a"]["writes"]] == [[0, 0], [1, 0]]


def test_a_thread_of_many_turns_is_read_from_few_checkpoints(tmp_path: Path) -> None:
    path = str(tmp_path / "store.sqlite")
    with closing(WorkspaceSaver(open_file(str(tmp_path)), path, serializer())) as saver:
        machine = build_graph(saver, model=ScriptedModel([], then=Say("Done.")))
        config = RunnableConfig(configurable={"thread_id": "t"})
        for number in range(20):
            request: Any = {"messages": [HumanMessage(f"Hi {number}.", id=f"{number}")]}
            machine.invoke(request, config, context=AgentContext(workspace=str(tmp_path), audit=False))
        newest = machine.get_state(config)
        serde = Counting()
        place = Place("t", "", newest.config["configurable"]["checkpoint_id"])
        with saver.cursor(transaction=False) as walk, closing(saver.conn.cursor()) as look:
            delta_history(walk, look, place, ["messages"], serde)
    assert (len(newest.values["messages"]), serde.checkpoints) == (40, 1)
