"""What our savers have in common: async calls run in threads, and what LangGraph's configuration says.

An async call that is cancelled ends first, so that nothing is written behind the back of whoever goes on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from graph.pending_rows import Place

Result = TypeVar("Result")

_BRANCH: Final = "branch:to:"
"""How LangGraph names the channel that makes a node run."""


class ThreadedSaver(BaseCheckpointSaver[str]):
    """A saver whose async calls are its sync ones, in threads."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await in_thread(lambda: self.get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        for found in await in_thread(lambda: self.list(config, filter=filter, before=before, limit=limit)):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`."""
        return await in_thread(lambda: self.put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        await in_thread(lambda: self.put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await in_thread(lambda: self.delete_thread(thread_id))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await in_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))


def place_of(config: RunnableConfig) -> Place:
    """Which checkpoint is meant."""
    where = config["configurable"]
    return Place(str(where["thread_id"]), str(where.get("checkpoint_ns", "")), str(where.get("checkpoint_id") or ""))


def config_of(place: Place) -> RunnableConfig:
    """How LangGraph names a checkpoint: `place_of` the other way round."""
    return RunnableConfig(
        configurable={"thread_id": place.thread, "checkpoint_ns": place.namespace, "checkpoint_id": place.checkpoint}
    )


def is_quick(checkpoint: Checkpoint, metadata: CheckpointMetadata, quick: Collection[str]) -> bool:
    """Whether nothing but these nodes begins with the checkpoint, so that a machine that stops then loses nothing."""
    begun = {name for name in checkpoint.get("updated_channels") or () if name.startswith(_BRANCH)}
    return metadata.get("source") == "loop" and bool(begun) and begun <= {f"{_BRANCH}{node}" for node in quick}


async def in_thread(work: Callable[[], Result]) -> Result:
    """What `work` gives. Who is cancelled waits for its end first: a write that has begun is made."""
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody asks for it any more
        raise
