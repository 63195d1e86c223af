"""LangGraph's checkpoints in a workspace's own file, and what growing channels are made of."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from mendgraph.graph.persistence.checkpoint_saver import SqliteStoreSaver
from mendgraph.nodes.workspace.store.database import StoreError
from tests.surfaces.persistence.any_saver import found_rows, opened_saver

CONFIG = RunnableConfig(configurable={"thread_id": "t", "checkpoint_ns": ""})


@pytest.fixture
def file_saver(tmp_path: Path) -> Iterator[SqliteStoreSaver]:
    """One whose database is a file."""
    with closing(opened_saver(tmp_path)) as opened:
        yield opened


def put(saver: Any, number: int, parent: RunnableConfig = CONFIG) -> RunnableConfig:
    child: RunnableConfig = saver.put(parent, {**empty_checkpoint(), "id": f"{number:04}"}, {"step": number}, {})
    return child


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


def test_full_disk_is_told_and_nothing_is_lost(file_saver: SqliteStoreSaver) -> None:
    saver = file_saver
    put(saver, 1)
    pages = saver.conn.execute("PRAGMA page_count").fetchone()[0]
    saver.conn.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="the disk is full"):
        saver.put(CONFIG, {**empty_checkpoint(), "channel_values": {"a": "x" * 100_000}}, {}, {})
    assert [found.metadata["step"] for found in saver.list(CONFIG)] == [1]
