"""A request as a model is shown it: its messages and tools in the protocol of the turn, each made once.

A history is sent anew at every call, and all but its end has been sent before. So what a message becomes is kept beside
the message itself: the strong reference makes sure that an address in memory is not taken for another message. Messages
are never changed in place; whoever did that would be shown what they were.
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
    describe_tool,
    from_map,
    json_size,
    message_of,
    native_tool,
    size_of,
    texts_of,
)
from mendgraph.nodes.language.history import HANDOFF_MESSAGE_NAME, is_request
from mendgraph.nodes.language.media import media_of, without_media
from mendgraph.nodes.records import JsonMap, ToolSpec

MOST_BYTES: Final = 64 * 1024 * 1024  # what a cache holds at most; then it begins anew
COPIES: Final = 3
BESIDES: Final = 6_144  # a message holds about so many times its own size, and these bytes besides
MOST_TOOL_SETS: Final = 16
"""Sets of tools that are remembered: one for each way in which the runs of one machine talk to a model."""


class Shown(NamedTuple):
    """One message as an OpenAI map and as LangChain's message of this protocol, and its size in bytes."""

    source: AnyMessage
    map: JsonMap
    message: AnyMessage
    size: int


class ShownTools(NamedTuple):
    """The tools of a call: their schemas as OpenAI's maps, the bytes of those, and their lines in the text protocol."""

    specs: tuple[ToolSpec, ...]
    maps: tuple[JsonMap, ...]
    size: int
    lines: str


class ShownMessages:
    """What the messages and tools of all runs of one machine look like to their model. Safe in threads."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Start empty; a cache that would hold more than `most_bytes` is emptied."""
        self._messages: dict[tuple[int, bool], Shown] = {}
        self._tools: list[ShownTools] = []
        self._size = 0
        self._most = most_bytes
        self._lock = Lock()

    def messages(self, history: Sequence[AnyMessage], *, native: bool) -> list[Shown]:
        """The messages in the protocol of this turn; what other agents said since a request becomes text."""
        handoffs = [place for place, message in enumerate(history) if message.name == HANDOFF_MESSAGE_NAME]
        shown_messages: list[Shown] = []
        start = 0

        for handoff in handoffs:
            requests = [place for place in range(start, handoff) if is_request(history[place])]
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
        """The tools; equal ones give the very same object."""
        for tool in self._tools:
            if tool.specs == tuple(specs):
                return tool

        maps = tuple(map(native_tool, specs))
        shown_tools = ShownTools(tuple(specs), maps, json_size(maps), "\n".join(map(describe_tool, specs)))
        with self._lock:
            self._tools = [shown_tools, *self._tools[: MOST_TOOL_SETS - 1]]

        return shown_tools

    def _show(self, message: AnyMessage, native: bool) -> Shown:
        """Make the message of this protocol, and remember it."""
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
    """What other agents said, as text: some endpoints want thoughts of theirs in all calls, or roles to alternate."""
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
    """Parts of a prompt that were made before: LangChain's messages, and the bytes of messages and tools."""

    messages: tuple[AnyMessage, ...]
    size: int
    tools_size: int


@dataclass(frozen=True)
class Prompt:
    """One request, without the parts that a chat model adds: its messages and tools in OpenAI's form.

    `temperature` is None where nobody asked for one. `without_tools` makes the same request in the text protocol, for a
    model that turns out to have no native tools. `measured` are parts that were made before.
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
        """The messages as LangChain's, with all that the endpoint wants to see again of its own."""
        if self.measured:
            return list(self.measured.messages)

        return list(map(from_map, self.messages))

    def without_media(self, kinds: frozenset[str]) -> "Prompt":
        """The same request with a note in place of what it holds of these kinds, such as images."""
        maps = list(self.messages)
        messages = self.chat_messages.copy()

        for place, message in enumerate(self.chat_messages):
            if not kinds.isdisjoint(media_of(message)):
                messages[place] = without_media(message, kinds)
                maps[place] = as_map(messages[place], native=bool(self.tools))

        measured = Measured(tuple(messages), sum(map(size_of, maps)), json_size(self.tools))
        return replace(self, messages=tuple(maps), measured=measured)

    def believable_tokens(self, reported: int) -> int:
        """The tokens that its endpoint reports for it, but no fewer than its messages' texts can have."""
        return at_least(reported, self.size, (text for message in self.messages for text in texts_of(message)))

    @cached_property
    def size(self) -> int:
        """What the endpoint is told, in bytes of UTF-8, for the estimate of its tokens.

        A letter counts as one, a character of Chinese or an emoji as the three or four that it costs. What JSON adds to
        the messages does not count.
        """
        if self.measured is not None:
            return self.measured.size + self.measured.tools_size
        return sum(map(size_of, self.messages)) + json_size(self.tools)
