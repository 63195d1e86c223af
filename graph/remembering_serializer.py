"""What was read lately need not be read again: a history is rebuilt, checkpoint by checkpoint, from the same rows."""

import threading
from collections import OrderedDict
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

BUDGET_BYTES = 4_000_000
"""How many stored bytes are remembered; once they are loaded they take some ten times as much."""


class RememberingSerializer(SerializerProtocol):
    """Gives the very value that it gave for the same bytes before, so nobody may change what it gives.

    The bytes that were asked for least lately are forgotten first.
    """

    def __init__(self, serializer: SerializerProtocol, budget: int = BUDGET_BYTES) -> None:
        self._serializer, self._budget = serializer, budget
        self._known: OrderedDict[tuple[str, bytes], Any] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """As the other one's."""
        return self._serializer.dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """As the other one's."""
        with self._lock:
            if data in self._known:
                self._known.move_to_end(data)
                return self._known[data]
        value = self._serializer.loads_typed(data)
        with self._lock:
            if data not in self._known:
                self._known[data] = value
                self._held += len(data[1])
            while self._held > self._budget:
                (_, forgotten), _ = self._known.popitem(last=False)
                self._held -= len(forgotten)
        return value
