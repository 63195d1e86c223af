"""LangGraph's checkpoint savers over the store of a workspace: the common part, and the one for SQLite."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver

from mendgraph.nodes.records import quoted
from mendgraph.nodes.workspace.store import database
from mendgraph.nodes.workspace.store.database import StoreError, UnreadableValueError, store_errors

Result = TypeVar("Result")

_DAMAGE: tuple[type[Exception], ...] = (
    *(UnreadableValueError, ValueError, TypeError, LookupError),
    *(AttributeError, ArithmeticError, RecursionError),
)
"""The errors that damaged rows raise."""


class StoreSaver(BaseCheckpointSaver[str]):
    """A mix-in for LangGraph's savers: async methods, lists that are read at once, and a `StoreError` for damaged rows.

    An async method runs the sync one in a thread. If it is cancelled, it waits for its end, so that nothing is written
    afterwards.
    """

    description: str
    """The database in error messages."""
    prefix: str = ""
    """Begins the name of each thread in the database."""

    def close(self) -> None:
        """Close the database."""
        raise NotImplementedError

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, by default the newest of its thread."""
        with self._report_damage(config):
            return super().get_tuple(config)

    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Return the checkpoints, newest first; all are read at once, as the caller may read others meanwhile."""
        with self._report_damage(config):
            return iter(tuple(super().list(config, **options)))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes to delta channels since their last snapshot."""
        with self._report_damage(config):
            return super().get_delta_channel_history(config=config, channels=channels)

    @contextmanager
    def _report_damage(self, config: RunnableConfig | None) -> Iterator[None]:
        """Raise a `StoreError` that names the run for rows that cannot be read."""
        try:
            yield
        except _DAMAGE as error:
            run = str(config["configurable"]["thread_id"]).removeprefix(self.prefix) if config else ""
            who = f"The run {run} cannot be read. " if run else ""
            undo = f", and `mendgraph undo {run}` takes back its changes" if run else ""

            if isinstance(error, UnreadableValueError) and not error.is_damage:
                raise StoreError(f"{who}{error}") from error

            reason = " ".join(str(error).split())[:300].rstrip(".")
            message = (
                f"{who}{self.description} is damaged ({reason}): restore a backup, or move it away to start"
                f" with a new one. Its other runs can still be used{undo}."
            )
            raise StoreError(message) from error

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        return await _in_thread(lambda: self.get_tuple(config))

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        for checkpoint in await _in_thread(lambda: self.list(config, **options)):
            yield checkpoint

    async def aput(self, *arguments: Any, **options: Any) -> RunnableConfig:
        """As `put`."""
        return await _in_thread(lambda: self.put(*arguments, **options))

    async def aput_writes(self, *arguments: Any, **options: Any) -> None:
        """As `put_writes`."""
        await _in_thread(lambda: self.put_writes(*arguments, **options))

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await _in_thread(lambda: self.delete_thread(thread_id))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await _in_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))


async def _in_thread(work: Callable[[], Result]) -> Result:
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # so that asyncio does not log it
        raise


class SqliteStoreSaver(StoreSaver, SqliteSaver):
    """LangGraph's saver for SQLite; each write is one transaction, and every refusal is a `StoreError`."""

    def __init__(self, connection: sqlite3.Connection, path: str, serde: SerializerProtocol) -> None:
        """`connection` is one of `open_file`, which `close` closes; `path` is its file in error messages."""
        super().__init__(connection, serde=serde)
        self._path = path
        self.description = f"The database {quoted(path)}"

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            self.conn.close()

    @contextmanager
    def cursor(self, transaction: bool = True) -> Iterator[sqlite3.Cursor]:
        """Yield a cursor to one thread at a time."""
        with store_errors(self._path), self.lock, closing(self.conn.cursor()) as cursor:
            self.setup()
            with database.transaction(self.conn) if transaction else nullcontext():
                yield cursor

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's signature
        """Return the next version of a channel in few digits, since each checkpoint holds one for each channel."""
        return f"{int(current or 0) + 1:08}"
