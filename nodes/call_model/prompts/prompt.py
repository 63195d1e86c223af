"""A request as a model is shown it: its messages and tools in the protocol of the turn, each made once.

A history is sent anew at every call, and all but its end has been sent before. So what a message becomes is kept beside
the message itself: the strong reference makes sure that an address in memory is not taken for another message. Messages
are never changed in place; whoever did that would be shown what they were.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, Final, NamedTuple

import orjson
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from mendgraph.nodes.call_model.prompts.estimates import at_least
from mendgraph.nodes.language.history import (
    EXTRA_FIELDS,
    HANDOFF_MESSAGE_NAME,
    TOOL_CALL_EXTRAS,
    in_openai_form,
    is_request,
    media_of,
    without_media,
)
from mendgraph.nodes.records import JsonMap, ToolSpec

MOST_BYTES: Final = 64 * 1024 * 1024  # what a cache holds at most; then it begins anew
COPIES: Final = 3
BESIDES: Final = 6_144  # a message holds about so many times its own size, and these bytes besides
MOST_TOOL_SETS: Final = 16
"""Sets of tools that are remembered: one for each way in which the runs of one machine talk to a model."""

MEDIA_BYTES: Final = 4_800
"""What an image counts as, about 1,600 tokens. Source: Anthropic's documentation, "Vision": images up to 1.15 MP."""

_FILE_SHARE: Final = 40
"""A file of other media counts as one byte of text for so many of its own; the endpoint's first count corrects it."""


def describe_tool(spec: ToolSpec) -> str:
    """One line of the text protocol's tool list: `- name({"argument": type, "optional"?: type}): what it does`."""
    required = spec.parameters.get("required", [])
    fields = ", ".join(
        f'"{name}"{"" if name in required else "?"}: {_type_name(schema)}'
        for name, schema in spec.parameters.get("properties", {}).items()
    )
    kinds = spec.parameters.get("$defs", {}) | spec.parameters.get("definitions", {})
    named = "".join(f" {name} is {_type_name(schema)}." for name, schema in kinds.items())

    return f"- {spec.name}({{{fields}}}): {spec.description}{named}"


def _type_name(schema: JsonMap | bool) -> str:
    if isinstance(schema, bool):
        return "any"
    if "enum" in schema:
        return "|".join(map(_compact, schema["enum"]))
    if "const" in schema:
        return _compact(schema["const"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return "|".join(map(_type_name, several))
    if schema.get("type") == "array":
        return f"[{_type_name(schema.get('items', {}))}]"
    if schema.get("type") == "object" and "properties" in schema:
        return "{" + ", ".join(f'"{name}": {_described(field)}' for name, field in schema["properties"].items()) + "}"

    types = schema.get("type", "any")
    if isinstance(types, list):
        return "|".join(map(str, types))

    return str(types)


def _described(schema: JsonMap | bool) -> str:
    if isinstance(schema, bool):
        description = ""
    else:
        description = " ".join(str(schema.get("description", "")).split())

    if description:
        return f"{_type_name(schema)} ({description})"
    return _type_name(schema)


def native_tool(spec: ToolSpec) -> JsonMap:
    """One entry of a request's `tools`, in OpenAI's form, which every chat model of LangChain takes."""
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def message_of(role: str, content: str) -> JsonMap:
    """A message with nothing but text, in OpenAI's form."""
    return {"role": role, "content": content}


def as_map(message: AnyMessage, *, native: bool) -> JsonMap:
    """One message of the history in OpenAI's form and in the protocol of this turn, with what its endpoint added."""
    if isinstance(message, AIMessage):
        if native and message.tool_calls:
            return _with_calls(message)

        lines = [f"tool: {call['name']}({_compact(call['args'])})" for call in message.tool_calls]
        return message_of("assistant", "\n".join([message.text, *lines]).strip() if lines else message.text)

    if isinstance(message, ToolMessage) and not native:
        return message_of("user", f"tool_result({message.text})")

    if isinstance(message, ToolMessage):
        called = {"tool_call_id": message.tool_call_id}
    else:
        called = {}

    if called:
        role = "tool"
    elif message.type == "system":
        role = "system"
    else:
        role = "user"

    if media_of(message):
        contents = [message.content] if isinstance(message.content, str) else message.content
        blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in contents]
        return {"role": role, "content": in_openai_form(message) or blocks, **called}

    return {**message_of(role, message.text), **called}


def _with_calls(message: AIMessage) -> JsonMap:
    added = message.additional_kwargs
    extras = added.get(TOOL_CALL_EXTRAS) or {}
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": _compact(call["args"])},
            **extras.get(call["id"], {}),
        }
        for call in message.tool_calls
    ]
    fields = {name: added[name] for name in EXTRA_FIELDS if added.get(name)}

    return {**message_of("assistant", message.text), **fields, "tool_calls": calls}


def size_of(message: JsonMap) -> int:
    """What a message has to say, in bytes of UTF-8: its text as the model reads it, its calls, its media as text."""
    content = message.get("content") or ""
    if isinstance(content, str):
        size = text_size(content)
    else:
        size = sum(map(_block_size, content))

    return size + sum(json_size(message[name]) for name in ("tool_calls", *EXTRA_FIELDS) if message.get(name))


def _block_size(block: JsonMap) -> int:
    if block.get("type") == "text":
        return text_size(str(block.get("text", "")))
    if block.get("type") == "image_url":
        return MEDIA_BYTES
    return max(MEDIA_BYTES, json_size(block) // _FILE_SHARE)


def _texts_of(message: JsonMap) -> list[str]:
    content = message.get("content") or ""
    if isinstance(content, str):
        blocks = [{"type": "text", "text": content}]
    else:
        blocks = content

    return [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]


def text_size(text: str) -> int:
    """The bytes of a text as UTF-8."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-8", "replace"))


def json_bytes(value: object) -> bytes:
    """A JSON value as compact UTF-8; what no UTF-8 can say (half a character) as an escape."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def json_size(value: object) -> int:
    """The bytes of a value as compact JSON."""
    return len(json_bytes(value))


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


def from_map(message: JsonMap) -> AnyMessage:
    """LangChain's message for a map of `message_of`; a system message stays one."""
    role = message["role"]
    content = message["content"]
    if role == "assistant":
        return AIMessage(content)
    if role == "system":
        return SystemMessage(content)

    return HumanMessage(content)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


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
        return at_least(reported, self.size, (text for message in self.messages for text in _texts_of(message)))

    @cached_property
    def size(self) -> int:
        """What the endpoint is told, in bytes of UTF-8, for the estimate of its tokens.

        A letter counts as one, a character of Chinese or an emoji as the three or four that it costs. What JSON adds to
        the messages does not count.
        """
        if self.known is not None:
            return self.known.size + self.known.tools_size
        return sum(map(size_of, self.messages)) + json_size(self.tools)
