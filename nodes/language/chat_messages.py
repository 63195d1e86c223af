"""Messages and tools in OpenAI's form, for both protocols, and their sizes in bytes."""

import json
from typing import Any, Final

import orjson
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from mendgraph.nodes.language.media import in_openai_form, media_of
from mendgraph.nodes.language.provider_state import EXTRA_FIELDS, TOOL_CALL_EXTRAS
from mendgraph.nodes.records import JsonMap, ToolSpec

MEDIA_BYTES: Final = 4_800
"""The size counted for an image, about 1,600 tokens. Source: Anthropic, "Vision": images up to 1.15 MP."""

_FILE_SHARE: Final = 40
"""Bytes of a file of other media for each byte of text counted; the endpoint's first token count corrects this."""


def describe_tool(spec: ToolSpec) -> str:
    """Return a line of the text protocol's tool list: `- name({"argument": type, "optional"?: type}): description`."""
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
    """Return whether this is the terminal tool of a run whose answer must match a schema."""
    return spec.terminal and "value" in spec.parameters.get("required", [])


def native_tool(spec: ToolSpec) -> JsonMap:
    """Return the entry of a request's `tools` in OpenAI's form, which all LangChain chat models accept."""
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def message_of(role: str, content: str) -> JsonMap:
    """Return a message with text only, in OpenAI's form."""
    return {"role": role, "content": content}


def as_map(message: AnyMessage, *, native: bool) -> JsonMap:
    """Return a message of the history in OpenAI's form, with the fields that its endpoint added."""
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
    """Return the size of a message in bytes of UTF-8: text, calls, and media at their estimated size."""
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
    """Return the texts of a message in OpenAI's form."""
    content = message.get("content") or ""
    if isinstance(content, str):
        blocks = [{"type": "text", "text": content}]
    else:
        blocks = content

    return [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]


def text_size(text: str) -> int:
    """Return the number of bytes of the text in UTF-8."""
    if text.isascii():
        return len(text)
    return len(text.encode("utf-8", "replace"))


def json_bytes(value: object) -> bytes:
    """Return the value as compact JSON in UTF-8, with lone surrogates escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def json_size(value: object) -> int:
    """Return the number of bytes of the value as compact JSON."""
    return len(json_bytes(value))


def from_map(message: JsonMap) -> AnyMessage:
    """Return the LangChain message for a map of `message_of`."""
    role = message["role"]
    content = message["content"]
    if role == "assistant":
        return AIMessage(content)
    if role == "system":
        return SystemMessage(content)

    return HumanMessage(content)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
