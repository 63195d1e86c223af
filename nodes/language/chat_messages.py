"""Messages and tools as OpenAI's maps, in the protocol of a turn, and their sizes in bytes."""

import json
from typing import Any, Final

import orjson
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from mendgraph.nodes.language.media import in_openai_form, media_of
from mendgraph.nodes.language.provider_state import EXTRA_FIELDS, TOOL_CALL_EXTRAS
from mendgraph.nodes.records import JsonMap, ToolSpec

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


def requires_value(spec: ToolSpec) -> bool:
    """Whether this is the terminal tool of a run whose answer has to fit a schema."""
    return spec.terminal and "value" in spec.parameters.get("required", [])


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


def texts_of(message: JsonMap) -> list[str]:
    """The texts of a message in OpenAI's form."""
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
