"""A request: messages and tools in the protocol of the turn, each converted once.

Every call sends the history again, and only its end is new. So the converted form of a message is cached with the
message itself: the reference keeps its address from being reused. Messages are never changed in place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Final, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from mendgraph.nodes.call_model.prompts.estimates import at_least
from mendgraph.nodes.language.chat_messages import (
    as_map,
    from_map,
    json_size,
    message_of,
    native_tool,
    size_of,
    texts_of,
)
from mendgraph.nodes.language.history import HANDOFF_MESSAGE_NAME, is_typed
from mendgraph.nodes.language.media import media_of, without_media
from mendgraph.nodes.records import JsonMap, ToolSpec

MOST_BYTES: Final = 64 * 1024 * 1024  # of a cache, which is then emptied
COPIES: Final = 3
BESIDES: Final = 6_144  # a cached message has about `COPIES` times its size, and these bytes
MOST_TOOL_SETS: Final = 16
"""The most sets of tools in a cache."""


class Shown(NamedTuple):
    """A message as an OpenAI map and as LangChain's message in this protocol, and its size in bytes."""

    source: AnyMessage
    map: JsonMap
    message: AnyMessage
    size: int


class ShownTools(NamedTuple):
    """The tools of a call as OpenAI maps with their size."""

    specs: tuple[ToolSpec, ...]
    maps: tuple[JsonMap, ...]
    size: int


class ShownMessages:
    """A cache of converted messages and tools for all runs of one machine. Safe in threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """The cache is emptied when it exceeds `most_bytes`."""
        self._messages: dict[tuple[int, bool], Shown] = {}
        self._tools: list[ShownTools] = []
        self._size = 0
        self._most = most_bytes
        self._lock = Lock()

    def messages(self, history: Sequence[AnyMessage], *, native: bool) -> list[Shown]:
        """Return the messages in the protocol of this turn; messages of other agents become text."""
        handoffs = [place for place, message in enumerate(history) if message.name == HANDOFF_MESSAGE_NAME]
        shown_messages: list[Shown] = []
        start = 0

        for handoff in handoffs:
            requests = [place for place in range(start, handoff) if is_typed(history[place])]
            others = requests[-1] + 1 if requests else start
            shown_messages += self._shown_all(history[start:others], native)
            shown_messages += messages_of_others(history[others : handoff + 1])
            start = handoff + 1

        return [*shown_messages, *self._shown_all(history[start:] if start else history, native)]

    def _shown_all(self, history: Sequence[AnyMessage], native: bool) -> list[Shown]:
        shown_messages = []
        for message in history:
            shown_message = self._messages.get((id(message), native))
            if shown_message is None or shown_message.source is not message:
                shown_message = self._show(message, native)

            shown_messages.append(shown_message)

        return shown_messages

    def tools(self, specs: Sequence[ToolSpec]) -> ShownTools:
        """Return the converted tools; equal ones return the same object."""
        for tool in self._tools:
            if tool.specs == tuple(specs):
                return tool

        maps = tuple(map(native_tool, specs))
        shown_tools = ShownTools(tuple(specs), maps, json_size(maps))
        with self._lock:
            self._tools = [shown_tools, *self._tools[: MOST_TOOL_SETS - 1]]

        return shown_tools

    def _show(self, message: AnyMessage, native: bool) -> Shown:
        """Convert the message, and cache it."""
        message_map = as_map(message, native=native)
        chat_message = message
        has_calls = isinstance(message, AIMessage) and bool(message.tool_calls)
        if not native and (has_calls or isinstance(message, ToolMessage)):
            chat_message = from_map(message_map)

        shown_message = Shown(message, message_map, chat_message, size_of(message_map))

        with self._lock:
            self._size += COPIES * shown_message.size + BESIDES
            if self._size > self._most:
                self._messages = {}
                self._size = 0

            self._messages[id(message), native] = shown_message

        return shown_message


def messages_of_others(messages: Sequence[AnyMessage]) -> list[Shown]:
    """Return messages of other agents as text: some endpoints require their reasoning, or alternating roles."""
    merged: list[JsonMap] = []

    for message in messages:
        message_map = as_map(message, native=False)
        role = "assistant" if message_map["role"] == "assistant" else "user"
        text = message_map["content"]

        if merged and merged[-1]["role"] == role:
            text = f"{merged.pop()['content']}\n{text}"

        merged.append(message_of(role, text))

    shown_messages = []
    for message_map in merged:
        chat_message = from_map(message_map)
        shown_messages.append(Shown(chat_message, message_map, chat_message, size_of(message_map)))

    return shown_messages


class Measured(NamedTuple):
    """Converted parts of a prompt: LangChain's messages, and the bytes of messages and tools."""

    messages: tuple[AnyMessage, ...]
    size: int
    tools_size: int


@dataclass(frozen=True)
class Prompt:
    """A request: its messages and tools in OpenAI's form.

    `temperature` is None if it is not configured. `without_tools` returns the same request in the text protocol, for a
    model that refuses native tools. `measured` are converted parts.
    """

    messages: tuple[JsonMap, ...]
    tools: tuple[JsonMap, ...] = ()
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    failed_tries: int = 0
    without_tools: "Callable[[], Prompt] | None" = field(default=None, compare=False, repr=False)
    measured: Measured | None = field(default=None, compare=False, repr=False)

    @cached_property
    def chat_messages(self) -> list[AnyMessage]:
        """The messages as LangChain's, with the provider's own fields."""
        if self.measured:
            return list(self.measured.messages)

        return list(map(from_map, self.messages))

    def without_media(self, kinds: frozenset[str]) -> "Prompt":
        """Return the request with notes instead of content of these kinds, such as images."""
        maps = list(self.messages)
        messages = self.chat_messages.copy()

        for place, message in enumerate(self.chat_messages):
            if not kinds.isdisjoint(media_of(message)):
                messages[place] = without_media(message, kinds)
                maps[place] = as_map(messages[place], native=bool(self.tools))

        measured = Measured(tuple(messages), sum(map(size_of, maps)), json_size(self.tools))
        return replace(self, messages=tuple(maps), measured=measured)

    def believable_tokens(self, reported: int) -> int:
        """Return the reported tokens, but no fewer than the texts of the messages can have."""
        return at_least(reported, self.size, (text for message in self.messages for text in texts_of(message)))

    @cached_property
    def size(self) -> int:
        """The size in bytes of UTF-8, without the JSON around the messages, for the estimate of tokens."""
        if self.measured is not None:
            return self.measured.size + self.measured.tools_size
        return sum(map(size_of, self.messages)) + json_size(self.tools)
