"""What was said, in the conventions' own form: told only where the user has asked for it. Pure.

Source: open-telemetry/semantic-conventions v1.41.0, docs/gen-ai: gen-ai-input-messages.json and
gen-ai-output-messages.json.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nodes.records import FinishReason, JsonMap, ModelReply

_FINISH_REASONS: Final = {FinishReason.TOOL_CALLS: "tool_call", FinishReason.REFUSAL: "content_filter"}
"""Where the schema's word is another one than the endpoint's, which the span's own attribute keeps."""


def asked(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The attributes for the messages of a request, as they go on the wire."""
    system = [_text(message) for message in messages if message.get("role") == "system"]
    others = [_message(message) for message in messages if message.get("role") != "system"]
    said = {"gen_ai.input.messages": as_json(others)}
    return {**said, "gen_ai.system_instructions": as_json(system)} if system else said


def answered(reply: ModelReply) -> dict[str, str]:
    """The attributes for a reply."""
    parts: list[JsonMap] = [{"type": "reasoning", "content": reply.reasoning}] if reply.reasoning else []
    parts += [{"type": "text", "content": reply.text}] if reply.text else []
    parts += [_call(call.call_id, call.tool, call.arguments) for call in reply.calls]
    reason = _FINISH_REASONS.get(reply.finish_reason, reply.finish_reason.value)
    message = {"role": "assistant", "parts": parts, "finish_reason": reason}
    return {"gen_ai.output.messages": as_json([message])}


def as_json(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _message(message: Mapping[str, Any]) -> JsonMap:
    role = str(message.get("role"))
    if role == "tool":
        part = {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": message.get("content")}
        return {"role": role, "parts": [part]}
    calls: Iterable[Mapping[str, Any]] = message.get("tool_calls") or ()
    made = [_call(each.get("id"), each["function"]["name"], each["function"]["arguments"]) for each in calls]
    return {"role": role, "parts": [*([_text(message)] if message.get("content") else []), *made]}


def _text(message: Mapping[str, Any]) -> JsonMap:
    return {"type": "text", "content": message.get("content")}


def _call(call_id: Any, name: str, arguments: str) -> JsonMap:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": _read(arguments)}


def _read(arguments: str) -> Any:
    """The arguments as the object that they are; a text that is none as it is."""
    try:
        return json.loads(arguments, parse_constant=str)
    except (ValueError, RecursionError):
        return arguments
