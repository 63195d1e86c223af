"""Messages and tools as they go on the wire, each converted and encoded once.

A history is sent anew at every call, and all but its end has been sent before. So what a message becomes is kept beside
the message itself: the strong reference makes sure that an address in memory is not taken for another message. Messages
are never changed in place here; whoever did that would be shown what they were.
"""

import json
from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple

import orjson
from langchain_core.messages import AnyMessage

from nodes.call_model.wire import describe_tool, native_tool, on_the_wire
from nodes.records import JsonMap, ToolSpec

MOST_BYTES: Final = 64 * 1024 * 1024
"""What a cache holds at most; the oldest goes first."""

COPIES: Final = 4
BESIDES: Final = 6_144
"""A message holds about so many times the bytes that are sent of it, and these besides: see `held_by`."""

MOST_TOOL_SETS: Final = 16
"""Sets of tools that are remembered: one for each way in which the runs of one machine talk to a model."""


def encoded(value: object) -> bytes:
    """A JSON value as compact UTF-8; what no UTF-8 can say (half a character) as an escape."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def size_of(message: JsonMap) -> int:
    """What a message has to say, in bytes of UTF-8: its text as the model reads it, and its calls."""
    text = message.get("content") or ""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return size + len(encoded(message["tool_calls"])) if message.get("tool_calls") else size


class WireMessage(NamedTuple):
    """One message as a JSON map, the bytes that are sent of it, and its size."""

    message: AnyMessage
    map: JsonMap
    bytes: bytes
    size: int


def held_by(made: WireMessage) -> int:
    """The memory that a message keeps, in bytes: its bytes, its map, and the message itself with all its fields."""
    return COPIES * len(made.bytes) + BESIDES


class WireTools(NamedTuple):
    """The tools of a call: their schemas as maps and as bytes, and their lines in the text protocol."""

    specs: tuple[ToolSpec, ...]
    maps: tuple[JsonMap, ...]
    bytes: bytes
    lines: str


class WireCache:
    """What the messages and tools of all runs of one machine look like on the wire. Safe in threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Nothing is known yet; what is kept beyond `most_bytes` is forgotten again."""
        self._messages: dict[tuple[int, bool], WireMessage] = {}
        self._tools: list[WireTools] = []
        self._size, self._most = 0, most_bytes
        self._lock = Lock()

    def messages(self, history: Sequence[AnyMessage], *, native: bool) -> list[WireMessage]:
        """Each message in the protocol of this turn."""
        known = self._messages.get
        found = []
        for message in history:
            kept = known((id(message), native))
            found.append(self._learned(message, native) if kept is None or kept.message is not message else kept)
        return found

    def tools(self, specs: Sequence[ToolSpec]) -> WireTools:
        """The tools; equal ones give the very same object, so their bytes are the same from call to call."""
        for known in self._tools:
            if len(known.specs) == len(specs) and all(
                a is b or a == b for a, b in zip(known.specs, specs, strict=True)
            ):
                return known
        maps = tuple(map(native_tool, specs))
        made = WireTools(tuple(specs), maps, encoded(maps), "\n".join(map(describe_tool, specs)))
        with self._lock:
            self._tools = [made, *self._tools[: MOST_TOOL_SETS - 1]]
        return made

    def _learned(self, message: AnyMessage, native: bool) -> WireMessage:
        shown = on_the_wire(message, native=native)
        made = WireMessage(message, shown, encoded(shown), size_of(shown))
        with self._lock:
            old = self._messages.pop((id(message), native), None)
            self._size += held_by(made) - (held_by(old) if old else 0)
            self._messages[id(message), native] = made
            while self._size > self._most and len(self._messages) > 1:
                oldest = next(iter(self._messages))
                self._size -= held_by(self._messages.pop(oldest))
        return made
