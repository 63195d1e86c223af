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
from mendgraph.nodes.language.history import HANDOFF_MESSAGE_NAME, is_request, media_of, without_media
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
        """Nothing is known yet; where more than `most_bytes` would be kept, all is forgotten."""
        self._messages: dict[tuple[int, bool], Shown] = {}
        self._tools: list[ShownTools] = []
        self._size = 0
        self._most = most_bytes
        self._lock = Lock()

    def messages(self, history: Sequence[AnyMessage], *, native: bool) -> list[Shown]:
        """The messages in the protocol of this turn; what other agents said since a request is told in text."""
        shown_messages = list[Shown]()
        size = 0

        for end in (place for place, message in enumerate(history) if message.name == HANDOFF_MESSAGE_NAME):
            start = max((place + 1 for place in range(size, end) if is_request(history[place])), default=size)
            shown_messages += [*self._each(history[size:start], native), *by_others(history[start : end + 1])]
            size = end + 1

        return [*shown_messages, *self._each(history[size:] if size else history, native)]

    def _each(self, history: Sequence[AnyMessage], native: bool) -> list[Shown]:
        groups = []
        for message in history:
            cached = self._messages.get((id(message), native))
            groups.append(cached if cached is not None and cached.source is message else self._made(message, native))

        return groups

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

    def _made(self, message: AnyMessage, native: bool) -> Shown:
        message_map = as_map(message, native=native)
        same = native or not (
            isinstance(message, ToolMessage) or (isinstance(message, AIMessage) and message.tool_calls)
        )
        shown_message = Shown(message, message_map, message if same else from_map(message_map), size_of(message_map))

        with self._lock:
            self._size += COPIES * shown_message.size + BESIDES
            if self._size > self._most:
                self._messages = {}
                self._size = 0

            self._messages[id(message), native] = shown_message

        return shown_message


def by_others(said: Sequence[AnyMessage]) -> list[Shown]:
    """What other agents said, as text: some endpoints want thoughts of theirs in all calls, or roles to alternate."""
    merged: list[JsonMap] = []

    for message in said:
        one = as_map(message, native=False)
        role = "assistant" if one["role"] == "assistant" else "user"
        text = one["content"]

        if merged and merged[-1]["role"] == role:
            text = f"{merged.pop()['content']}\n{text}"

        merged.append(message_of(role, text))

    return [
        Shown(chat_message := from_map(message_map), message_map, chat_message, size_of(message_map))
        for message_map in merged
    ]


class Known(NamedTuple):
    """What is known of a prompt before it is looked at: LangChain's messages, and the bytes of messages and tools."""

    messages: tuple[AnyMessage, ...]
    size: int
    tools_size: int


@dataclass(frozen=True)
class Prompt:
    """One request, without the parts that a chat model adds: its messages and tools in OpenAI's form.

    `temperature` is None where nobody asked for one. `without_tools` makes the same request in the text protocol, for a
    model that turns out to have no native tools. `known` is what was made of these messages and tools before.
    """

    messages: tuple[JsonMap, ...]
    tools: tuple[JsonMap, ...] = ()
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    failed_tries: int = 0
    without_tools: "Callable[[], Prompt] | None" = field(default=None, compare=False, repr=False)
    known: Known | None = field(default=None, compare=False, repr=False)

    @cached_property
    def chat_messages(self) -> list[AnyMessage]:
        """The messages as LangChain's, with all that the endpoint wants to see again of its own."""
        if self.known:
            return list(self.known.messages)
        return list(map(from_map, self.messages))

    def without_media(self, kinds: frozenset[str]) -> "Prompt":
        """The same request with a note in place of what it holds of these kinds, such as images."""
        maps = list(self.messages)
        messages = self.chat_messages.copy()

        for place, message in enumerate(self.chat_messages):
            if not kinds.isdisjoint(media_of(message)):
                messages[place] = without_media(message, kinds)
                maps[place] = as_map(messages[place], native=bool(self.tools))

        measured = Known(tuple(messages), sum(map(size_of, maps)), json_size(self.tools))
        return replace(self, messages=tuple(maps), known=measured)

    def believable_tokens(self, reported: int) -> int:
        """The tokens that its endpoint reports for it, but no fewer than its messages' texts can have."""
        return at_least(reported, self.size, (text for message in self.messages for text in texts_of(message)))

    @cached_property
    def size(self) -> int:
        """What the endpoint is told, in bytes of UTF-8, for the estimate of its tokens.

        A letter counts as one, a character of Chinese or an emoji as the three or four that it costs. What JSON adds to
        the messages does not count.
        """
        if self.known is not None:
            return self.known.size + self.known.tools_size
        return sum(map(size_of, self.messages)) + json_size(self.tools)
