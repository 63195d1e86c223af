"""LangGraph's checkpoints in a workspace's own file, and what growing channels are made of."""

import asyncio
import threading
from collections import Counter
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

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.machine.serializer import ScrubbingSerializer
from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver
from mendgraph.graph.persistence.store import Store
from mendgraph.nodes.execute_tools.store.database import StoreError, open_file
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.surfaces.persistence.any_saver import found_rows, opened_saver
from tests.vocabulary import Protocol

CONFIG = RunnableConfig(configurable={"thread_id": "t", "checkpoint_ns": ""})


@pytest.fixture
def saver(any_store: str, tmp_path: Path) -> Iterator[Any]:  # noqa: ARG001 - each test runs with both
    with closing(opened_saver(tmp_path)) as opened:
        yield opened


@pytest.fixture
def file_saver(tmp_path: Path) -> Iterator[SqliteStoreSaver]:
    """One whose database is a file."""
    with closing(opened_saver(tmp_path)) as opened:
        yield opened


def put(saver: Any, number: int, parent: RunnableConfig = CONFIG) -> RunnableConfig:
    child: RunnableConfig = saver.put(parent, {**empty_checkpoint(), "id": f"{number:04}"}, {"step": number}, {})
    return child


# --- Whole or not at all


def test_checkpoint_is_stored_in_one_transaction_with_what_led_to_it(
    file_saver: SqliteStoreSaver, tmp_path: Path
) -> None:
    """Of the writes only those are kept beside it that it does not hold itself."""
    saver = file_saver
    parent = put(saver, 1)
    saver.put_writes(parent, [("plan", "p"), ("messages", ["m"]), ("changes", ["c"])], "task", "path")
    values = {"plan": "p", "changes": _DeltaSnapshot(["c"])}
    child: Any = {**empty_checkpoint(), "id": "0002", "channel_values": values}
    saver.conn.execute("CREATE TEMP TRIGGER t BEFORE INSERT ON checkpoints BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(StoreError, match="no"):
        saver.put(parent, child, {"step": 2}, {})
    assert found_rows(tmp_path, "SELECT count(*) FROM writes") == [(0,)]
    saver.conn.execute("DROP TRIGGER t")
    saver.put_writes(parent, [("plan", "p"), ("messages", ["m"]), ("changes", ["c"])], "task", "path")
    saver.put(parent, child, {"step": 2}, {})
    kept = [("0001", "messages", 1, "task", "path"), ("0001", "changes", 2, "task", "path")]
    assert (
        found_rows(tmp_path, "SELECT checkpoint_id, channel, idx, task_id, task_path FROM writes ORDER BY idx") == kept
    )
    found = next(saver.list(CONFIG))
    assert (found.checkpoint["channel_values"]["plan"], found.parent_config) == ("p", parent)


LOOP: Any = {"source": "loop", "step": 2}


WAITS: list[tuple[Any, list[str] | None, bool]] = [
    (LOOP, ["branch:to:quick", "plan"], True),
    (LOOP, ["branch:to:quick", "branch:to:slow"], False),
    (LOOP, ["branch:to:slow"], False),
    (LOOP, ["plan"], False),
    (LOOP, None, False),
    ({"source": "update", "step": 2}, ["branch:to:quick"], False),
]


@pytest.mark.parametrize(("metadata", "updated", "waits"), WAITS)
def test_only_the_checkpoint_of_a_quick_node_waits_for_the_next_one(
    tmp_path: Path, metadata: Any, updated: list[str] | None, waits: bool
) -> None:
    with closing(opened_saver(tmp_path, ["quick"])) as saver:
        config = put(saver, 1)
        waiting: Any = {**empty_checkpoint(), "id": "0002", "updated_channels": updated}
        child = saver.put(config, waiting, metadata, {})
        stored = found_rows(tmp_path, "SELECT checkpoint_id FROM checkpoints")
        assert stored == [("0001",), ("0002",)][: 1 if waits else 2]
        put(saver, 3, child)
        chain = found_rows(tmp_path, "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints")
        assert chain == [("0001", None), ("0002", "0001"), ("0003", "0002")]


def test_step_of_a_run_is_stored_in_three_transactions_and_little_of_it_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its call, before its tools, and after them: one each; the rest of its five checkpoints goes with them."""
    counted, dumps = Counter[str](), ScrubbingSerializer.dumps_typed

    def counting(self: ScrubbingSerializer, obj: Any) -> tuple[str, bytes]:
        counted.update(["values"] * (obj is not None))  # None is where to begin, which the flush before may take along
        return dumps(self, obj)

    monkeypatch.setattr(ScrubbingSerializer, "dumps_typed", counting)
    for step in range(6):
        (tmp_path / f"{step}.txt").write_text("text")
    store = Store(str(tmp_path))
    assert isinstance(store.saver, SqliteStoreSaver)
    store.saver.conn.set_trace_callback(lambda sql: counted.update([sql] if sql == "COMMIT" else []))
    seen = []
    for steps in (2, 6):
        counted.clear()
        lines = [message_of(use(("read_file", {"path": f"{step}.txt"})), Protocol.NATIVE) for step in range(steps)]
        machine = build_graph(store.saver, model=ScriptedModel([*lines, Say("Done.")]))
        config = RunnableConfig(configurable={"thread_id": str(steps)})
        context = AgentContext(workspace=str(tmp_path), audit=False, protocol="native")
        machine.invoke({"messages": [HumanMessage("Look.")]}, config, context=context, durability="sync")
        seen.append(Counter(counted))
    store.close()
    more = seen[1] - seen[0]
    assert more["COMMIT"] == 4 * 3
    assert more["values"] == 4 * (5 + 3)  # the checkpoints, and the writes to the three channels that grow


# --- From an event loop


def test_write_that_has_begun_is_made_before_its_cancelled_task_ends(
    file_saver: SqliteStoreSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, setup = file_saver, file_saver.setup
    begun, free = threading.Event(), threading.Event()

    def slowly() -> None:
        begun.set()
        free.wait()
        setup()

    async def cancelled() -> None:
        task = asyncio.create_task(saver.aput(CONFIG, {**empty_checkpoint(), "id": "2"}, {"step": 2}, {}))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        free.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(saver, "setup", slowly)
    asyncio.run(cancelled())
    assert found_rows(Path(saver._path).parent, "SELECT checkpoint_id FROM checkpoints") == [("2",)]


CHANNELS = ("a", "b")


@pytest.fixture
def plain_saver(tmp_path: Path) -> Iterator[SqliteSaver]:
    """LangGraph's own, in a database of ours."""
    with closing(open_file(str(tmp_path))) as connection:
        yield SqliteSaver(connection, serde=JsonPlusSerializer())


def config_of(thread: str, checkpoint: str | None) -> RunnableConfig:
    return RunnableConfig(configurable={"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint})


def history(plain_saver: SqliteSaver, thread: str, checkpoint: str, serde: Any = None) -> Any:
    ours = SqliteStoreSaver(plain_saver.conn, "store.sqlite", serde or JsonPlusSerializer())
    return ours.get_delta_channel_history(config=config_of(thread, checkpoint), channels=CHANNELS)


def put_step(plain_saver: SqliteSaver, thread: str, number: int, snapshots: set[str], *, counted: bool = True) -> None:
    """One checkpoint more, with snapshots of these channels; the metadata count the steps of the others."""
    values = {channel: _DeltaSnapshot([f"{channel}{number}"]) for channel in snapshots}
    counters = {channel: (1, 1) for channel in CHANNELS if channel not in snapshots}
    metadata: Any = {"step": number} | ({"counters_since_delta_snapshot": counters} if counted else {})
    checkpoint: Any = {**empty_checkpoint(), "id": f"{number:04}", "channel_values": values}
    plain_saver.put(config_of(thread, f"{number - 1:04}" if number else None), checkpoint, metadata, {})


def write(plain_saver: SqliteSaver, thread: str, number: int, channels: list[str]) -> None:
    for place, channel in enumerate(channels):
        task = f"task{len(channels) - place}"
        plain_saver.put_writes(config_of(thread, f"{number:04}"), [(channel, [number, place]), ("c", 0)], task, task)


STEPS = st.lists(
    st.tuples(st.sets(st.sampled_from(CHANNELS)), st.lists(st.sampled_from(CHANNELS), max_size=3), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_history_of_a_channel_is_that_of_langgraphs_own_saver(plain_saver: SqliteSaver, steps: Any) -> None:
    """Whatever snapshots and writes there are, and where nothing was counted, as older checkpoints have it."""
    plain_saver.delete_thread("t")
    for number, (snapshots, written, counted) in enumerate(steps):
        put_step(plain_saver, "t", number, snapshots, counted=counted)
        write(plain_saver, "t", number, written)
    for number in range(len(steps)):
        found = history(plain_saver, "t", f"{number:04}")
        assert found == plain_saver.get_delta_channel_history(config=config_of("t", f"{number:04}"), channels=CHANNELS)


def test_full_disk_is_told_and_nothing_is_lost(file_saver: SqliteStoreSaver) -> None:
    saver = file_saver
    put(saver, 1)
    pages = saver.conn.execute("PRAGMA page_count").fetchone()[0]
    saver.conn.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="the disk is full"):
        saver.put(CONFIG, {**empty_checkpoint(), "channel_values": {"a": "x" * 100_000}}, {}, {})
    assert [found.metadata["step"] for found in saver.list(CONFIG)] == [1]
