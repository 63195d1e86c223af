"""LangGraph's checkpoints in a workspace's database.

A checkpoint, or the writes of a task, is stored whole or not at all, and is on the disk when the call returns. Async
calls run in threads; one that is cancelled ends first, so that nothing is written behind the back of whoever goes on.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver

from graph.remembering_serializer import RememberingSerializer
from nodes.execute_tools.environment import database
from nodes.execute_tools.environment.database import store_errors

Result = TypeVar("Result")


class WorkspaceSaver(SqliteSaver):
    """A saver for sync and async graphs. Whatever the database or the disk refuses is a `StoreError`."""

    def __init__(self, connection: sqlite3.Connection, path: str, serde: SerializerProtocol) -> None:
        """`connection` is that of `open_database`, `path` what its errors name. `close` closes it."""
        super().__init__(connection, serde=serde)
        self._path = path
        self._memory = RememberingSerializer(serde)

    def close(self) -> None:
        """Close the connection, after what is being written has been written."""
        with self.lock:
            self.conn.close()

    @contextmanager
    def cursor(self, transaction: bool = True) -> Iterator[sqlite3.Cursor]:
        """A cursor for one thread at a time; what is written with it is written whole, or not at all."""
        with store_errors(self._path), self.lock:
            self.setup()
            cursor = self.conn.cursor()
            try:
                with database.transaction(self.conn) if transaction else nullcontext():
                    yield cursor
            finally:
                cursor.close()

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints, newest first. All are read before the first is given: who has it may ask for others."""
        return iter([*super().list(config, filter=filter, before=before, limit=limit)])

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the values of delta channels are made of, read with a memory: each checkpoint is one of many's past."""
        reader = copy(self)
        reader.serde = self._memory
        return SqliteSaver.get_delta_channel_history(reader, config=config, channels=channels)

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's signature
        """The next version of a channel: a number, in few digits, as each row holds one for each channel."""
        return f"{int(current or 0) + 1:08}"

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await _in_thread(lambda: self.get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        for found in await _in_thread(lambda: self.list(config, filter=filter, before=before, limit=limit)):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`."""
        return await _in_thread(lambda: self.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        await _in_thread(lambda: self.put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await _in_thread(lambda: self.delete_thread(thread_id))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await _in_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))


async def _in_thread(work: Callable[[], Result]) -> Result:
    """What `work` gives. Who is cancelled waits for its end first: a write that has begun is made."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody asks for it any more
        raise
