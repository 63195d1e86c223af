"""Messages and tools as an endpoint takes them: plain dictionaries, each made once."""

import json
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

from nodes.records import JsonMap, ToolSpec


def describe_tool(spec: ToolSpec) -> str:
    """One line of the text protocol's tool list: `- name({"argument": type, "optional"?: type}): what it does`."""
    required = spec.parameters.get("required", [])
    fields = ", ".join(
        f'"{name}"{"" if name in required else "?"}: {_type_name(schema)}'
        for name, schema in spec.parameters.get("properties", {}).items()
    )
    return f"- {spec.name}({{{fields}}}): {spec.description}"


def _type_name(schema: JsonMap) -> str:
    if "enum" in schema:
        return "|".join(map(_compact, schema["enum"]))
    if "anyOf" in schema:
        return "|".join(map(_type_name, schema["anyOf"]))
    if schema.get("type") == "array":
        return f"[{_type_name(schema.get('items', {}))}]"
    if schema.get("type") == "object" and "properties" in schema:
        fields = (f'"{name}": {_type_name(field)}' for name, field in schema["properties"].items())
        return "{" + ", ".join(fields) + "}"
    return str(schema.get("type", "any"))


def native_tool(spec: ToolSpec) -> JsonMap:
    """One entry of the request's `tools`."""
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "function": function}


def message_of(role: str, content: str) -> JsonMap:
    """A message with nothing but text."""
    return {"role": role, "content": content}


def on_the_wire(message: AnyMessage, *, native: bool) -> JsonMap:
    """One message of the history for the endpoint, in the protocol of this turn."""
    if isinstance(message, AIMessage):
        if not message.tool_calls:
            return message_of("assistant", message.text)
        if native:
            calls = [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": _compact(c["args"])}}
                for c in message.tool_calls
            ]
            return {**message_of("assistant", message.text), "tool_calls": calls}
        lines = [f"tool: {call['name']}({_compact(call['args'])})" for call in message.tool_calls]
        return message_of("assistant", "\n".join([message.text, *lines]).strip())
    if isinstance(message, ToolMessage):
        if native:
            return {**message_of("tool", message.text), "tool_call_id": message.tool_call_id}
        return message_of("user", f"tool_result({message.text})")
    return message_of("system" if message.type == "system" else "user", message.text)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
