"""What the values of growing channels are made of: the last snapshot, and the writes since then.

As `SqliteSaver.get_delta_channel_history`, but a checkpoint's metadata tell which channels it holds no snapshot of, so
that of the hundreds of checkpoints since a snapshot none is unpacked.
"""

import json
from collections.abc import Mapping, Sequence
from sqlite3 import Cursor
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import DeltaChannelHistory, writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from graph.pending_rows import Place

_LINE: Final = """
WITH RECURSIVE line(id, parent, metadata) AS (
    SELECT checkpoint_id, parent_checkpoint_id, metadata FROM checkpoints
    WHERE thread_id = :thread AND checkpoint_ns = :namespace AND checkpoint_id = :checkpoint
    UNION
    SELECT c.checkpoint_id, c.parent_checkpoint_id, c.metadata
    FROM line CROSS JOIN checkpoints c ON c.checkpoint_id = line.parent
    WHERE c.thread_id = :thread AND c.checkpoint_ns = :namespace
)
SELECT id, metadata FROM line WHERE id <> :checkpoint
"""
"""The ancestors, nearest first; `CROSS JOIN` makes each of them one look into the index."""

_WRITES: Final = """
SELECT channel, task_path, task_id, idx, type, value FROM writes
WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?
"""
_CHECKPOINT: Final = """
SELECT type, checkpoint FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?
"""


class _Stored(NamedTuple):
    """A write as it is in the database."""

    channel: str
    task_path: str
    task: str
    idx: int
    kind: str
    data: bytes


def delta_history(
    walk: Cursor, look: Cursor, place: Place, channels: Sequence[str], serializer: SerializerProtocol
) -> Mapping[str, DeltaChannelHistory]:
    """Each channel's snapshot, its `seed`, and its writes from then on to the checkpoint at `place`, oldest first.

    Two cursors of one database: the one walks along the ancestors, the other looks at each.

    Raises:
        StoreError: something stored is damaged.
    """
    seeds: dict[str, Any] = {}
    newest_first: list[_Stored] = []
    sought = set(channels)
    for ancestor, metadata in walk.execute(_LINE, place._asdict()):
        here = (place.thread, place.namespace, ancestor)
        written = [each for row in look.execute(_WRITES, here) if (each := _Stored(*row)).channel in sought]
        newest_first += sorted(written, key=_order, reverse=True)
        if sought <= _counted(metadata):
            continue
        values = serializer.loads_typed(look.execute(_CHECKPOINT, here).fetchone()).get("channel_values") or {}
        found = sought & values.keys()
        seeds |= {channel: values[channel] for channel in found}
        sought -= found
        if not sought:
            break
    histories: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
    for each in reversed(newest_first):
        value = serializer.loads_typed((each.kind, each.data))
        histories[each.channel]["writes"].append((each.task, each.channel, value))
    for channel, seed in seeds.items():
        histories[channel]["seed"] = seed
    return histories


def _order(write: _Stored) -> tuple[Any, ...]:
    return tuple(writes_sort_key(write.task_path, write.task, write.idx))


def _counted(metadata: bytes | str | None) -> set[str]:
    """The channels whose steps since their last snapshot LangGraph counts: this checkpoint holds none of them."""
    return set((json.loads(metadata or "{}").get("counters_since_delta_snapshot") or {}).keys())
