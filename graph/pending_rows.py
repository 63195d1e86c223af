"""What a saver has still to write: the writes of tasks until the checkpoint that they lead to, and rows that wait.

A checkpoint holds the channels whole but for those that grow, so of the writes that led to it only those to growing
channels are ever read again: the others are not stored beside it.
"""

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot

Write = tuple[str, Any]
"""A channel and a value."""

Statement = tuple[str, list[tuple[Any, ...]]]
"""SQL and the rows that it is executed for."""

_INSERT: Final = """
    INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, value)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_MOST_LATE: Final = 16
"""After how many checkpoints a write can still come that led to an earlier one."""

_ONCE: Final = f"INSERT OR IGNORE {_INSERT}"
_ANEW: Final = f"INSERT OR REPLACE {_INSERT}"


class Place(NamedTuple):
    """Which checkpoint of which thread; "" where there is none."""

    thread: str
    namespace: str
    checkpoint: str


class _TaskWrites(NamedTuple):
    task: str
    path: str
    writes: tuple[Write, ...]


class PendingRows:
    """Any thread may add to it; who takes what there is has it alone."""

    def __init__(self, serializer: SerializerProtocol, once: str = _ONCE, anew: str = _ANEW) -> None:
        """`once` inserts a write that may be there already, `anew` one that takes the place of what is there."""
        self._serializer, self._once, self._anew = serializer, once, anew
        self._writes: dict[Place, list[_TaskWrites]] = {}
        self._rows: list[Statement] = []
        self._passed: deque[tuple[Place, Collection[str]]] = deque(maxlen=_MOST_LATE)
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._writes or self._rows)

    def add_writes(self, place: Place, task: str, path: str, writes: Sequence[Write]) -> None:
        """What a task wrote that ran from the checkpoint at `place`.

        LangGraph sends it from a thread of its own, and waits only for what is written to growing channels: the rest
        may come after the checkpoint that holds it, and is not stored either then.
        """
        with self._lock:
            held = next((held for passed, held in self._passed if passed == place), ())
            if all(channel in held for channel, _ in writes):
                return
            self._writes.setdefault(place, []).append(_TaskWrites(task, path, tuple(writes)))

    def add_checkpoint(self, parent: Place, values: Mapping[str, Any], *rows: Statement) -> None:
        """The rows of a checkpoint with these channels. It holds most of what was written at its parent.

        Raises:
            StoreError: something of what it does not hold has no stored form.
        """
        held = {name for name, value in values.items() if not isinstance(value, _DeltaSnapshot)}
        with self._lock:
            led_to_it = self._writes.pop(parent, [])
            self._passed.append((parent, held))
        statements = [
            self._statement(
                parent, each, [index for index, (channel, _) in enumerate(each.writes) if channel not in held]
            )
            for each in led_to_it
        ]
        with self._lock:
            self._rows.extend(each for each in (*statements, *rows) if each[1])

    def take(self) -> list[Statement]:
        """All that waits, which waits no more, in an order in which it may be written.

        Raises:
            StoreError: something of it has no stored form; all of it is gone then.
        """
        with self._lock:
            waiting, rows = dict(self._writes), [*self._rows]
            self._writes.clear()
            self._rows.clear()
        for place, written in waiting.items():
            rows.extend(self._statement(place, each, range(len(each.writes))) for each in written)
        return rows

    def _statement(self, place: Place, written: _TaskWrites, indices: Sequence[int]) -> Statement:
        """The rows of the writes with these indices, as LangGraph's own savers store them."""
        special = all(channel in WRITES_IDX_MAP for channel, _ in written.writes)
        rows = []
        for index in indices:
            channel, value = written.writes[index]
            where = (*place, written.task, written.path, WRITES_IDX_MAP.get(channel, index), channel)
            rows.append((*where, *self._serializer.dumps_typed(value)))
        return (self._anew if special else self._once), rows


def is_urgent(writes: Sequence[Write]) -> bool:
    """Whether they are no part of a state: an error, a question to a person or its answer. No checkpoint may follow."""
    return any(channel in WRITES_IDX_MAP for channel, _ in writes)
