"""LangGraph's checkpoint saver for PostgreSQL, in LangGraph's own tables. Imported only if the store is in PostgreSQL.

LangGraph's saver stores texts and numbers of the state as JSON. Here all values pass through our serializer, so that no
secret is stored, nor a character that PostgreSQL refuses.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
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
    DeltaChannelHistory,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from psycopg import Cursor
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb

from mendgraph.graph.persistence.checkpoint_saver import StoreSaver
from mendgraph.nodes.workspace.store.database import once_more
from mendgraph.nodes.workspace.store.database_schema import PostgresTables
from mendgraph.nodes.workspace.store.postgres import PostgresDatabase

_REDUNDANT_INDEX: Final = "_thread_id_idx"
"""LangGraph's indexes on the thread alone, with which each primary key begins."""


def _migrations() -> Iterator[str]:
    """Yield LangGraph's migrations, to be run in one transaction."""
    for number, migration in enumerate(PostgresSaver.MIGRATIONS):
        if _REDUNDANT_INDEX not in migration:
            yield migration.replace(" CONCURRENTLY ", " ")

        yield f"INSERT INTO checkpoint_migrations (v) VALUES ({number})"  # noqa: S608 - a number


CHECKPOINTS: Final = PostgresTables("checkpoints", len([*_migrations()]), tuple(_migrations()), grow=True)

_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""An escaped NUL in JSON."""


class PostgresStoreSaver(StoreSaver, PostgresSaver):
    """The saver of one workspace. Its threads are stored under the workspace's name and their own."""

    def __init__(self, database: PostgresDatabase, serde: SerializerProtocol) -> None:
        """`database` has the tables of `CHECKPOINTS`."""
        super().__init__(cast("Any", None), serde=serde)
        self._database = database
        self.prefix = f"{database.workspace}:"
        self.description = f"The shared store {database.name}"

    def close(self) -> None:
        """Write nothing any more."""
        self._database.close()

    @once_more
    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint, by default the newest of its thread."""
        checkpoint = super().get_tuple(self._stored(config))
        if checkpoint is None:
            return None

        return self._public(checkpoint)

    @once_more
    def list(self, config: RunnableConfig | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Return the checkpoints, newest first."""
        if config is not None:
            config = self._stored(config)

        return map(self._public, super().list(config, **options))

    @once_more
    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; all of its values are blobs."""
        where = self._stored(config)["configurable"]
        thread, namespace = where["thread_id"], where["checkpoint_ns"]
        values = checkpoint["channel_values"]
        versions = {name: version for name, version in new_versions.items() if name in values}
        row = (
            *(thread, namespace, checkpoint["id"], where.get("checkpoint_id")),
            _json({**checkpoint, "channel_values": {}}),
            _json(get_serializable_checkpoint_metadata(config, metadata)),
        )
        with self._cursor() as cursor:
            blobs = self._dump_blobs(thread, namespace, values, versions)
            cursor.executemany(self.UPSERT_CHECKPOINT_BLOBS_SQL, blobs)
            cursor.execute(self.UPSERT_CHECKPOINTS_SQL, row)

        thread = config["configurable"]["thread_id"]
        return _with({"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint["id"]})

    @once_more
    def put_writes(self, config: RunnableConfig, *arguments: Any, **options: Any) -> None:
        """Store the writes of a task."""
        super().put_writes(self._stored(config), *arguments, **options)

    @once_more
    def delete_thread(self, thread_id: str) -> None:
        """Delete everything that is stored of a thread."""
        super().delete_thread(f"{self.prefix}{thread_id}")

    @once_more
    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes to delta channels since their last snapshot."""
        if not config["configurable"].get("checkpoint_id"):
            newest = self.get_tuple(config)
            if newest is None:
                return {channel: {"writes": []} for channel in channels}

            config = newest.config

        return super().get_delta_channel_history(config=self._stored(config), channels=channels)

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002 - LangGraph's signature
        """Return the next version of a channel; two forks share a table of values, so it has a unique part."""
        number = int(current.partition(".")[0]) if current else 0
        return f"{number + 1:08}.{uuid4().hex[:10]}"

    def _search_where(
        self,
        config: RunnableConfig | None,
        filter: dict[str, Any] | None,  # noqa: A002 - LangGraph's name
        before: RunnableConfig | None = None,
    ) -> tuple[str, Any]:
        where, values = super()._search_where(config, filter, before)
        return f"{where or 'WHERE true'} AND starts_with(thread_id, %s) ", [*values, self.prefix]

    @contextmanager
    def _cursor(self, *, pipeline: bool = False) -> Iterator[Cursor[DictRow]]:  # noqa: ARG002 - LangGraph's signature
        """Yield a cursor in a transaction of the workspace's database."""
        with (
            self._database.connection() as connection,
            connection.cursor(binary=True, row_factory=dict_row) as cursor,
        ):
            yield cursor

    def _stored(self, config: RunnableConfig) -> RunnableConfig:
        where = config["configurable"]
        return _with({**where, "thread_id": f"{self.prefix}{where['thread_id']}"})

    def _public(self, checkpoint: CheckpointTuple) -> CheckpointTuple:
        def without_prefix(config: RunnableConfig) -> RunnableConfig:
            where = config["configurable"]
            return _with({**where, "thread_id": str(where["thread_id"]).removeprefix(self.prefix)})

        parent = checkpoint.parent_config
        return checkpoint._replace(
            config=without_prefix(checkpoint.config), parent_config=parent and without_prefix(parent)
        )


def _with(configurable: dict[str, Any]) -> RunnableConfig:
    return cast("RunnableConfig", {"configurable": configurable})


def _dump_json(value: Any) -> bytes:
    """Return JSON that PostgreSQL accepts: without NUL and lone surrogates."""
    return _NUL.sub(r"\1", json.dumps(value, ensure_ascii=False)).encode("utf-8", "ignore")


_json: Final = partial(Jsonb, dumps=_dump_json)
