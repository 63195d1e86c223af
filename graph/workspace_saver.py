"""LangGraph's checkpoints in a workspace's database.

A checkpoint is stored whole or not at all, together with the writes that led to it, and is on the disk when the call
returns. Only where what comes next is a quick node, which anybody would run again to the same end, the disk hears of it
together with the next checkpoint: flushing a disk costs more than such a node.
"""

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, Final

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.sqlite import SqliteSaver

from graph.delta_history import delta_history
from graph.pending_rows import PendingRows, is_urgent
from graph.remembering_serializer import RememberingSerializer
from graph.stored_checkpoint import checked, checked_history, undamaged
from graph.threaded_saver import ThreadedSaver, config_of, is_quick, place_of
from nodes.execute_tools.environment import database
from nodes.execute_tools.environment.database import Database, store_errors
from nodes.execute_tools.environment.failures import quoted

_FORGET = ("DELETE FROM checkpoints WHERE thread_id = ?", "DELETE FROM writes WHERE thread_id = ?")
_PUT = """
INSERT OR REPLACE INTO checkpoints
    (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata)
VALUES (?, ?, ?, ?, ?, ?, ?)
"""

_ANY: Final[Mapping[str, Any]] = MappingProxyType({})


class WorkspaceSaver(ThreadedSaver, SqliteSaver):
    """A saver for sync and async graphs. Whatever the database or the disk refuses is a `StoreError`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        serde: SerializerProtocol,
        quick: Collection[str] = (),
        types: Mapping[str, Any] = _ANY,
    ) -> None:
        """`connection` is that of `open_database`, `path` what its errors name. `close` closes it.

        `quick` are nodes without effects that take no time to speak of. `types` are those of the machine's channels:
        a stored value of another type is damage.
        """
        super().__init__(connection, serde=serde)
        self._path, self._quick, self._types = path, frozenset(quick), types
        self._memory = RememberingSerializer(serde)
        self._pending = PendingRows(serde)

    def close(self) -> None:
        """Close the connection, after all has been written.

        Raises:
            StoreError: something could not be written; the connection is closed nevertheless.
        """
        try:
            self.flush()
        finally:
            with self.lock:
                self.conn.close()

    def flush(self) -> None:
        """Write what waits for the next checkpoint: whoever goes on elsewhere has to see it.

        Raises:
            StoreError: it cannot be written. Nobody tries it again: a step that is not stored is done once more.
        """
        if self._pending:
            with self.cursor(transaction=False):
                pass

    @contextmanager
    def cursor(self, transaction: bool = True) -> Iterator[sqlite3.Cursor]:
        """A cursor for one thread at a time; what is written with it is written whole, or not at all.

        What waited is written before.
        """
        with store_errors(self._path), self.lock:
            statements = self._pending.take()
            self.setup()
            cursor = self.conn.cursor()
            try:
                if statements:
                    with database.transaction(self.conn):
                        for statement, rows in statements:
                            cursor.executemany(statement, rows)
                with database.transaction(self.conn) if transaction else nullcontext():
                    yield cursor
            finally:
                cursor.close()

    def forget(self, cursor: Database, thread_id: str) -> int:
        """Delete a thread within the transaction of `cursor`. It frees no bytes at once, but when the file shrinks."""
        for statement in _FORGET:
            cursor.execute(statement, (thread_id,))
        return 0

    def shrink(self) -> int:
        """Give what is not used any more back to the disk, and tell how many bytes that were."""
        with self.cursor(transaction=False) as cursor:
            before = _size(cursor)
            cursor.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")  # steps to their ends
            return before - _size(cursor)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - LangGraph's signature
    ) -> RunnableConfig:
        """Store a checkpoint, and the writes that led to it as far as it does not hold what they wrote itself."""
        parent = place_of(config)
        kind, data = self.serde.dumps_typed(checkpoint)
        told = json.dumps(get_checkpoint_metadata(config, metadata), ensure_ascii=False).encode("utf-8", "ignore")
        own = parent._replace(checkpoint=checkpoint["id"])
        row = (*own, parent.checkpoint or None, kind, data, told)
        self._pending.add_checkpoint(parent, checkpoint["channel_values"], (_PUT, [row]))
        if not is_quick(checkpoint, metadata, self._quick):
            self.flush()
        return config_of(own)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote together with the checkpoint to which it leads; an error or a question, at once."""
        with store_errors(self._path):
            _ = self.conn.total_changes  # refused once it is closed
        self._pending.add_writes(place_of(config), task_id, task_path, writes)
        if is_urgent(writes):
            self.flush()

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """The checkpoints, newest first. All are read before the first is given: who has it may ask for others."""
        with self._undamaged(config):
            found = [*super().list(config, filter=filter, before=before, limit=limit)]  # which frees the lock
            return iter([checked(each, self._types) for each in found])

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """A checkpoint, the newest one where `config` names none."""
        with self._undamaged(config):
            found = super().get_tuple(config)
            return found and checked(found, self._types)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the values of delta channels are made of, read with a memory: each checkpoint is one of many's past."""
        place = place_of(config)
        if not place.checkpoint:
            newest = self.get_tuple(config)
            if newest is None:
                return {channel: {"writes": []} for channel in channels}
            place = place_of(newest.config)
        with self._undamaged(config), self.cursor(transaction=False) as walk, closing(self.conn.cursor()) as look:
            found = delta_history(walk, look, place, channels, self._memory)
            return checked_history(found, self._types if not place.namespace else _ANY)

    def _undamaged(self, config: RunnableConfig | None) -> AbstractContextManager[None]:
        """A row that was changed behind our back comes out as a `StoreError`, whatever is wrong with it."""
        return undamaged(place_of(config).thread if config else "", f"The database {quoted(self._path)}")

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's signature
        """The next version of a channel: a number, in few digits, as each row holds one for each channel."""
        return f"{int(current or 0) + 1:08}"


def _size(cursor: sqlite3.Cursor) -> int:
    (pages,), (size,) = (cursor.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    return int(pages) * int(size)
