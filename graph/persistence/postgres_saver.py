"""LangGraph's checkpoints in a PostgreSQL database, in LangGraph's own tables.

Each call has one of the process's connections for its transaction, which is on the server's disk when the call
returns; a moment later where what comes next is a quick node. LangGraph's own saver keeps texts and numbers of the
state as they are: here all values go through our serializer, so that no secret is stored, nor any sign that PostgreSQL
refuses. Imported only where the store is in PostgreSQL.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import Cursor
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb

from mendgraph.graph.persistence.checkpoint_saver import PendingRows, StoreSaver, config_of, is_quick, place_of
from mendgraph.nodes.execute_tools.store.database import Database, once_more
from mendgraph.nodes.execute_tools.store.database_schema import PostgresTables
from mendgraph.nodes.execute_tools.store.postgres import PostgresDatabase

_PRIMARY_KEYS_DO: Final = "_thread_id_idx"
"""Indexes on the thread alone, with which each primary key begins: half of what an index costs, for nothing."""


def _steps() -> Iterator[str]:
    """LangGraph's migrations, each noted as its own `setup` would; in one transaction, so not concurrently."""
    for number, migration in enumerate(PostgresSaver.MIGRATIONS):
        if _PRIMARY_KEYS_DO not in migration:
            yield migration.replace(" CONCURRENTLY ", " ")

        yield f"INSERT INTO checkpoint_migrations (v) VALUES ({number})"  # noqa: S608 - a number


CHECKPOINTS: Final = PostgresTables("checkpoints", len([*_steps()]), tuple(_steps()), grow=True)

_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""In JSON, where it is no text about itself."""


class PostgresStoreSaver(StoreSaver, PostgresSaver):
    """A saver of one workspace for sync and async graphs. Whatever the server refuses is a `StoreError`.

    Threads are stored under the workspace's name and their own, so those of two workspaces never meet.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        serde: SerializerProtocol,
        quick: Collection[str] = (),
    ) -> None:
        """`database` has the tables of `CHECKPOINTS`; `quick` as that of `SqliteStoreSaver`."""
        super().__init__(cast("Any", None), serde=serde)
        self._database = database
        self._quick = frozenset(quick)
        self._described = f"The shared store {database.name}"
        self._pending = PendingRows(serde, self.INSERT_CHECKPOINT_WRITES_SQL, self.UPSERT_CHECKPOINT_WRITES_SQL)

    def setup(self) -> None:
        """Nothing is left to do: the tables are there."""

    def close(self) -> None:
        """Write what waits, and write nothing any more. Raises StoreError: something could not be written."""
        try:
            self.flush()
        finally:
            self._database.close()

    def flush(self) -> None:
        """Write what waits."""
        self._flush(quick=False)

    @contextmanager
    def cursor(self, transaction: bool = True) -> Iterator[PostgresDatabase]:  # noqa: ARG002 - as `SqliteStoreSaver.cursor`
        """The database in one transaction. What waited is written before."""
        self.flush()
        with self._database.connection():
            yield self._database

    def forget(self, cursor: Database, thread_id: str) -> None:  # noqa: ARG002 - as `SqliteStoreSaver.forget`
        """Delete a thread within the transaction that `cursor` has begun."""
        super().delete_thread(self._stored(thread_id))

    def shrink(self) -> int:
        """The server does that by itself; no bytes are given back at once."""
        return 0

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, and the writes that led to it as far as it does not hold what they wrote itself."""
        place = place_of(config)
        parent = place._replace(thread=self._stored(place.thread))
        own_place = parent._replace(checkpoint=checkpoint["id"])
        values = checkpoint["channel_values"]
        written = {name: version for name, version in new_versions.items() if name in values}
        blobs = self._dump_blobs(own_place.thread, own_place.namespace, values, written)
        metadata_text = _json(get_serializable_checkpoint_metadata(config, metadata))
        row = (*own_place, parent.checkpoint or None, _json({**checkpoint, "channel_values": {}}), metadata_text)
        self._pending.add_checkpoint(
            parent, values, (self.UPSERT_CHECKPOINT_BLOBS_SQL, [*blobs]), (self.UPSERT_CHECKPOINTS_SQL, [row])
        )
        self._flush(quick=is_quick(checkpoint, metadata, self._quick))

        return config_of(own_place._replace(thread=place.thread))

    def delete_thread(self, thread_id: str) -> None:
        """Delete all that is stored of a thread."""
        self.flush()
        self.forget(self._database, str(thread_id))

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's signature
        """The next version of a channel: a number, and a sign of its own, as two forks share a table of values."""
        number = int(current.partition(".")[0]) if current else 0
        return f"{number + 1:08}.{uuid4().hex[:10]}"

    def _search_where(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
    ) -> tuple[str, Any]:
        where, values = super()._search_where(config, filter, before)
        if config is not None:
            return where, values
        return f"{where} {'AND' if where else 'WHERE'} starts_with(thread_id, %s) ", [*values, self._stored("")]

    @contextmanager
    def _cursor(self, *, pipeline: bool = False) -> Iterator[Cursor[DictRow]]:  # noqa: ARG002 - LangGraph's signature
        """LangGraph's own access to the database: a transaction on one of the process's connections."""
        with (
            self._database.connection() as connection,
            connection.cursor(binary=True, row_factory=dict_row) as cursor,
        ):
            yield cursor

    def _flush(self, *, quick: bool) -> None:
        statements = self._pending.take()
        if not statements:
            return

        self._write(statements, quick=quick)

    @once_more
    def _write(self, statements: Sequence[tuple[str, Any]], *, quick: bool) -> None:
        with (
            self._database.connection(quick=quick) as connection,
            connection.pipeline(),
            connection.cursor() as cursor,
        ):
            for statement, rows in statements:
                cursor.executemany(statement, rows)

    def _stored(self, thread_id: str) -> str:
        return f"{self._database.workspace}:{thread_id}"

    def _inner(self, config: RunnableConfig) -> RunnableConfig:
        where = config["configurable"]
        return cast("RunnableConfig", {"configurable": {**where, "thread_id": self._stored(str(where["thread_id"]))}})

    def _outer(self, checkpoint: CheckpointTuple) -> CheckpointTuple:
        parent = checkpoint.parent_config and self._public_config(checkpoint.parent_config)
        return checkpoint._replace(config=self._public_config(checkpoint.config), parent_config=parent)

    def _public_config(self, config: RunnableConfig) -> RunnableConfig:
        where = config["configurable"]
        thread = str(where["thread_id"]).partition(":")[2]
        return cast("RunnableConfig", {"configurable": {**where, "thread_id": thread}})


def _dumps(value: Any) -> bytes:
    """JSON that PostgreSQL takes: without NUL and half characters."""
    return _NUL.sub(r"\1", json.dumps(value, ensure_ascii=False)).encode("utf-8", "ignore")


_json: Final = partial(Jsonb, dumps=_dumps)
