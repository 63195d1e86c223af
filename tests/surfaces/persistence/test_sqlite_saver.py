"""LangGraph's checkpoints in the SQLite file of a workspace."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import build_graph
from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver
from mendgraph.nodes.workspace.store.database import StoreError
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.tool_use import message_of, use
from tests.extent import slow
from tests.surfaces.persistence.any_saver import found_rows, opened_saver
from tests.vocabulary import Protocol

CONFIG = RunnableConfig(configurable={"thread_id": "t", "checkpoint_ns": ""})


@pytest.fixture
def file_saver(tmp_path: Path) -> Iterator[SqliteStoreSaver]:
    """One whose database is a file."""
    with closing(opened_saver(tmp_path)) as opened:
        yield opened


def put(saver: Any, number: int, parent: RunnableConfig = CONFIG) -> RunnableConfig:
    child: RunnableConfig = saver.put(parent, {**empty_checkpoint(), "id": f"{number:04}"}, {"step": number}, {})
    return child


@slow
def test_step_of_a_run_needs_few_transactions(file_saver: SqliteStoreSaver, tmp_path: Path) -> None:
    counted: list[int] = []
    commits: list[str] = []
    file_saver.conn.set_trace_callback(lambda sql: commits.extend([sql] if sql == "COMMIT" else []))
    for step in range(6):
        (tmp_path / f"{step}.txt").write_text("text")
    context = AgentContext(workspace=str(tmp_path), audit=False, protocol="native")
    for steps in (2, 6):
        commits.clear()
        lines = [message_of(use(("read_file", {"path": f"{step}.txt"})), Protocol.NATIVE) for step in range(steps)]
        machine = build_graph(file_saver, model=ScriptedModel([*lines, Say("Done.")]))
        config = RunnableConfig(configurable={"thread_id": str(steps)})
        machine.invoke({"messages": [HumanMessage("Look.")]}, config, context=context, durability="sync")
        counted.append(len(commits))
    assert 0 < counted[1] - counted[0] <= 4 * 10


# --- From an event loop


def test_started_write_completes_before_its_cancelled_task_ends(
    file_saver: SqliteStoreSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver, setup = file_saver, file_saver.setup
    started, free = threading.Event(), threading.Event()

    def slowly() -> None:
        started.set()
        free.wait()
        setup()

    async def cancelled() -> None:
        task = asyncio.create_task(saver.aput(CONFIG, {**empty_checkpoint(), "id": "2"}, {"step": 2}, {}))
        await asyncio.to_thread(started.wait)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        free.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(saver, "setup", slowly)
    asyncio.run(cancelled())
    assert found_rows(Path(saver._path).parent, "SELECT checkpoint_id FROM checkpoints") == [("2",)]


def test_full_disk_is_reported_and_nothing_is_lost(file_saver: SqliteStoreSaver) -> None:
    saver = file_saver
    put(saver, 1)
    pages = saver.conn.execute("PRAGMA page_count").fetchone()[0]
    saver.conn.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="the disk is full"):
        saver.put(CONFIG, {**empty_checkpoint(), "channel_values": {"a": "x" * 100_000}}, {}, {})
    assert [checkpoint.metadata["step"] for checkpoint in saver.list(CONFIG)] == [1]
