"""The checkpoints of the engine, for `mendgraph resume`: a run whose server died continues without a server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.postgres import PostgresSaver


class EngineSaver(PostgresSaver):
    """The engine's checkpoints for sync and async graphs: async methods run the sync ones in threads."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        for checkpoint in await asyncio.to_thread(lambda: [*self.list(config, **options)]):
            yield checkpoint

    async def aput(self, config: RunnableConfig, *parts: Any) -> RunnableConfig:
        """As `put`."""
        return await asyncio.to_thread(self.put, config, *parts)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        await asyncio.to_thread(self.put_writes, config, writes, task_id, task_path)
