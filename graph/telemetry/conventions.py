"""Names of OpenTelemetry's conventions for generative AI, and what of ours they are given. Pure.

Source: open-telemetry/semantic-conventions v1.41.0, docs/gen-ai: gen-ai-spans.md, gen-ai-agent-spans.md,
gen-ai-metrics.md, gen-ai-input-messages.json and gen-ai-output-messages.json. What they have no name for begins with
`mendgraph.`. What was said is an attribute only where the user has asked for it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from mendgraph.nodes.call_model.endpoint import Endpoint
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply

AGENT_NAME: Final = "mendgraph"
OPERATION, PROVIDER, ERROR_TYPE = "gen_ai.operation.name", "gen_ai.provider.name", "error.type"
REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.request.model", "gen_ai.response.model"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
CACHED_TOKENS, CACHE_WRITE_TOKENS = "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS, FINISH_REASONS = "gen_ai.usage.reasoning.output_tokens", "gen_ai.response.finish_reasons"
CONVERSATION, TOOL_NAME, TOOL_CALL = "gen_ai.conversation.id", "gen_ai.tool.name", "gen_ai.tool.call.id"

TOKEN_BUCKETS: Final = tuple(float(4**power) for power in range(14))
DURATION_BUCKETS: Final = tuple(0.01 * 2**power for power in range(14))

CAPTURE_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON_SPANS: Final = frozenset({"true", "span_only", "span_and_event"})

_PROVIDERS: Final[Mapping[str, str]] = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure.ai.openai",
    "api.anthropic.com": "anthropic",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
}
"""The conventions' own names, by the ends of host names."""

_PACKAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bedrock", "bedrock_converse", "anthropic_bedrock"), "aws.bedrock"),
    **dict.fromkeys(("google_vertexai", "google_anthropic_vertex"), "gcp.vertex_ai"),
    "azure_openai": "azure.ai.openai",
    "google_genai": "gcp.gemini",
    "ibm": "ibm.watsonx.ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}
"""The conventions' names for the providers of LangChain's packages, where they differ."""


_FINISH_REASONS: Final = {FinishReason.TOOL_CALLS: "tool_call", FinishReason.REFUSAL: "content_filter"}
"""Where the schema's word is another one than the endpoint's, which the span's own attribute keeps."""


def captures_messages(environment: Mapping[str, str]) -> bool:
    """Whether what is said may be told as well: only where the user says so."""
    return environment.get(CAPTURE_VARIABLE, "").strip().lower() in _ON_SPANS


def provider_of(endpoint: Endpoint | None) -> str:
    """Who answers: by the endpoint's host, `llama.cpp` for the embedded model, `custom` for a model of the user's own.

    An unknown host speaks OpenAI's language, so it is named after that, as the conventions have it.
    """
    if endpoint is None:
        return "custom"
    if endpoint.embedded:
        return "llama.cpp"
    if endpoint.provider:
        return _PACKAGES.get(endpoint.provider, endpoint.provider)
    host = (urlsplit(endpoint.base_url).hostname or "").lower() if endpoint.base_url else "api.openai.com"
    known = (name for end, name in _PROVIDERS.items() if host == end or host.endswith(f".{end}"))
    return next(known, "openai")


def server_of(endpoint: Endpoint | None) -> dict[str, str | int]:
    """The address and port of the endpoint; nothing for the embedded model and for one of the user's own."""
    if endpoint is None or endpoint.embedded or (endpoint.provider and not endpoint.base_url):
        return {}
    parts = urlsplit(endpoint.base_url or "https://api.openai.com")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname or "", "server.port": port}


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
