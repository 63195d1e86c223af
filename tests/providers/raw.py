"""Conversations without a client between: the first two requests of each family, as its documentation has them."""

import json
from copy import deepcopy
from functools import cache
from typing import Any, Final

import httpx2

from mendgraph.nodes.records import JsonMap
from tests.providers.provider_server import ProviderServer

SCHEMA: Final = {"type": "object", "properties": {"path": {"type": "string"}}}
FUNCTION: Final[JsonMap] = {"name": "read_file", "description": "Reads a file.", "parameters": SCHEMA}
DROP: Final = object()


def first(server: ProviderServer) -> JsonMap:
    """A request that no rule is against."""
    family = server.family
    if family == "gemini":
        contents = [{"role": "user", "parts": [{"text": "Read a.py"}]}]
        return {"contents": contents, "tools": [{"functionDeclarations": [FUNCTION]}]}
    if family == "openai_responses":
        own = {"store": False, "include": ["reasoning.encrypted_content"]}
        items = [{"role": "user", "content": "Read a.py"}]
        return {"model": server.model, "input": items, "tools": [FUNCTION | {"type": "function"}]} | own
    body: JsonMap = {"model": server.model, "messages": [{"role": "user", "content": "Read a.py"}]}
    if family == "anthropic":
        tool = {"name": "read_file", "input_schema": SCHEMA}
        return body | {"max_tokens": 2048, "thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": [tool]}
    tools = {} if family == "no_tools" else {"tools": [{"type": "function", "function": FUNCTION}]}
    return body | tools | ({"stream": False} if family == "ollama" else {})


def second(server: ProviderServer) -> JsonMap:
    """The request after a call of a tool, which brings back what the first reply said."""
    body = first(server)
    reply = post(server, body).json()
    results: list[JsonMap]
    if server.family == "gemini":
        content = reply["candidates"][0]["content"]
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        results = [{"functionResponse": {"name": call["name"], "response": {"output": "x"}}} for call in calls]
        body["contents"] += [content, {"role": "user", "parts": results}]
    elif server.family == "openai_responses":
        names = [item["call_id"] for item in reply["output"] if item["type"] == "function_call"]
        body["input"] += reply["output"]
        body["input"] += [{"type": "function_call_output", "call_id": name, "output": "x"} for name in names]
    elif server.family == "anthropic":
        names = [block["id"] for block in reply["content"] if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": name, "content": "x"} for name in names]
        body["messages"] += [{"role": "assistant", "content": reply["content"]}, {"role": "user", "content": results}]
    else:
        message = reply["message"] if server.family == "ollama" else reply["choices"][0]["message"]
        body["messages"] += [message, *(_result(call) for call in message["tool_calls"])]
    return body


def post(server: ProviderServer, body: Any, headers: dict[str, str] | None = None, path: str = "") -> httpx2.Response:
    """Send a request, with the family's headers where no others are given."""
    content = body if isinstance(body, bytes) else json.dumps(body)
    own = headers_of(server) if headers is None else headers
    url = server.url + (path or path_of(server))
    return http().post(url, content=content, headers={"Content-Type": "application/json"} | own)


@cache
def http() -> httpx2.Client:
    """One for all: it takes longer to make than to use."""
    return httpx2.Client(trust_env=False)


def path_of(server: ProviderServer) -> str:
    return {
        "anthropic": "/v1/messages",
        "azure": f"/openai/deployments/{server.model}/chat/completions?api-version=2025-04-01-preview",
        "gemini": f"/v1beta/models/{server.model}:generateContent",
        "ollama": "/api/chat",
        "openai_responses": "/responses",
    }.get(server.family, "/chat/completions")


def headers_of(server: ProviderServer) -> dict[str, str]:
    return {
        "anthropic": {"x-api-key": server.key, "anthropic-version": "2023-06-01"},
        "azure": {"api-key": server.key},
        "gemini": {"x-goog-api-key": server.key},
        "ollama": {},
    }.get(server.family, {"Authorization": f"Bearer {server.key}"})


def changed(body: JsonMap, path: tuple[str | int, ...], value: Any) -> JsonMap:
    """A copy with another value, or none, at a place."""
    copy = deepcopy(body)
    *before, last = path
    place: Any = copy
    for step in before:
        place = place[step]
    if value is DROP:
        del place[last]
    else:
        place[last] = value
    return copy


def _result(call: JsonMap) -> JsonMap:
    if "id" not in call:
        return {"role": "tool", "tool_name": call["function"]["name"], "content": "x"}
    return {"role": "tool", "tool_call_id": call["id"], "content": "x"}
