"""The scripted endpoint refuses what OpenAI refuses, with OpenAI's status and body."""

import httpx2
import pytest

from mendgraph.nodes.records import JsonMap
from tests.doubles.scripted_server import LenientServer, Say, ScriptedServer

USER: JsonMap = {"role": "user", "content": "Look at a.py."}
CALL: JsonMap = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
ASSISTANT: JsonMap = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: JsonMap = {"role": "tool", "tool_call_id": "call_1", "content": "x = 1"}
TOOL: JsonMap = {
    "type": "function",
    "function": {"name": "read_file", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
}
REQUEST: JsonMap = {"model": "m", "messages": [USER, ASSISTANT, RESULT], "tools": [TOOL]}
KEY = {"authorization": "Bearer sk-loopback"}


def post(server: ScriptedServer, body: JsonMap, headers: dict[str, str]) -> httpx2.Response:
    with httpx2.Client(trust_env=False) as client:
        return client.post(f"{server.base_url}/chat/completions", json=body, headers=headers)


def without(name: str) -> JsonMap:
    return {key: value for key, value in REQUEST.items() if key != name}


def tool_with(**changes: object) -> JsonMap:
    return REQUEST | {"tools": [TOOL | {"function": TOOL["function"] | changes}]}


REFUSED: dict[str, tuple[JsonMap, str]] = {
    "no model": (without("model"), "you must provide a model parameter"),
    "no messages": (REQUEST | {"messages": []}, "Invalid 'messages': empty array."),
    "messages are missing": (without("messages"), "Missing required parameter: 'messages'."),
    "unknown parameter": (REQUEST | {"top_k": 1}, "Unrecognized request argument supplied: top_k"),
    "unknown role": (REQUEST | {"messages": [USER | {"role": "person"}]}, "Invalid value: 'person'."),
    "content that is no text": (REQUEST | {"messages": [USER | {"content": 1}]}, "Invalid type for 'messages[0].con"),
    "user message without content": (REQUEST | {"messages": [{"role": "user"}]}, "Invalid value for 'content'"),
    "name with a blank": (REQUEST | {"messages": [USER | {"name": "a b"}]}, "Invalid 'messages[0].name'"),
    "tool message without a call": (
        REQUEST | {"messages": [USER, RESULT]},
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    ),
    "tool message for another call": (
        REQUEST | {"messages": [USER, ASSISTANT, RESULT | {"tool_call_id": "call_2"}]},
        "'tool_call_id' of 'call_2' not found in 'tool_calls' of previous message.",
    ),
    "call without a tool message": (
        REQUEST | {"messages": [USER, ASSISTANT, USER]},
        "The following tool_call_ids did not have response messages: call_1",
    ),
    "last call without a tool message": (
        REQUEST | {"messages": [USER, ASSISTANT]},
        "The following tool_call_ids did not have response messages: call_1",
    ),
    "second tool message for a call": (
        REQUEST | {"messages": [USER, ASSISTANT, RESULT, RESULT]},
        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    ),
    "two calls with one id": (
        REQUEST | {"messages": [USER, ASSISTANT | {"tool_calls": [CALL, CALL]}, RESULT, RESULT]},
        "Duplicate value for 'tool_calls[].id'",
    ),
    "call without an id": (
        REQUEST | {"messages": [USER, ASSISTANT | {"tool_calls": [CALL | {"id": ""}]}]},
        "Missing required parameter: 'messages[1].tool_calls[0].id'.",
    ),
    "long call id": (
        REQUEST | {"messages": [USER, ASSISTANT | {"tool_calls": [CALL | {"id": "c" * 41}]}]},
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40",
    ),
    "no tools in the list": (REQUEST | {"tools": []}, "Invalid 'tools': empty array."),
    "tool name with a dot": (tool_with(name="files.read"), "Invalid 'tools[0].function.name': string does not match"),
    "long tool name": (tool_with(name="n" * 65), "Invalid 'tools[0].function.name': string too long."),
    "tool schema that is no object": (
        tool_with(parameters={"type": "string"}),
        "Invalid schema for function 'read_file': schema must be a JSON Schema of 'type: \"object\"'",
    ),
    "array without items": (
        tool_with(parameters={"type": "object", "properties": {"paths": {"type": "array"}}}),
        "array schema missing items.",
    ),
    "tool choice without tools": (without("tools") | {"tool_choice": "auto"}, "'tool_choice' is only allowed when"),
    "stream options without a stream": (REQUEST | {"stream_options": {}}, "The 'stream_options' parameter"),
    "two limits": (REQUEST | {"max_tokens": 9, "max_completion_tokens": 9}, "Setting 'max_tokens' and"),
    "no tokens for the reply": (REQUEST | {"max_completion_tokens": 0}, "integer below minimum value."),
    "five stop words": (REQUEST | {"stop": ["a", "b", "c", "d", "e"]}, "Invalid 'stop': array too long."),
}


@pytest.mark.parametrize("case", REFUSED)
def test_scripted_server_refuses_invalid_request(case: str) -> None:
    body, message = REFUSED[case]
    with ScriptedServer([Say("Hello")], refuses=True) as server:
        answer = post(server, body, KEY)

    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert (server.requests, len(server.refusals)) == ([], 1)


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-other"}])
def test_scripted_server_refuses_wrong_key(headers: dict[str, str]) -> None:
    with ScriptedServer([Say("Hello")], key="sk-loopback", refuses=True) as server:
        answer = post(server, REQUEST, headers)

    assert (answer.status_code, server.requests) == (401, [])


def test_scripted_server_accepts_valid_requests_on_one_connection() -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server, httpx2.Client(trust_env=False) as client:
        for _ in range(3):
            answer = client.post(f"{server.base_url}/chat/completions", json=REQUEST, headers=KEY)
            assert answer.json()["choices"][0]["message"]["content"] == "Hello"

    assert server.connections == 1


def test_refusal_that_no_test_expects_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="you must provide a model parameter"), ScriptedServer() as server:
        post(server, without("model"), KEY)


def test_lenient_server_accepts_invalid_request_without_a_key() -> None:
    with LenientServer([Say("Hello")]) as server:
        answer = post(server, {"messages": [RESULT]}, {})

    assert answer.status_code == 200
