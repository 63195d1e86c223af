"""The scripted endpoint refuses what OpenAI refuses, with OpenAI's status and body."""

from typing import Any

import httpx2
import pytest

from tests.doubles.scripted_server import LenientServer, Say, ScriptedServer
from tests.extent import slow

Body = dict[str, Any]

USER: Body = {"role": "user", "content": "Look at a.py."}
CALL: Body = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
CALLS: Body = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Body = {"role": "tool", "tool_call_id": "call_1", "content": "x = 1"}
SCHEMA: Body = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOL: Body = {"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}
REQUEST: Body = {"model": "m", "messages": [USER, CALLS, RESULT], "tools": [TOOL]}
KEY = {"authorization": "Bearer sk-loopback"}


def post(server: ScriptedServer, body: Body, headers: dict[str, str]) -> httpx2.Response:
    with httpx2.Client(trust_env=False) as client:
        return client.post(f"{server.base_url}/chat/completions", json=body, headers=headers)


def request_without(name: str) -> Body:
    return {key: value for key, value in REQUEST.items() if key != name}


def messages(*message_list: Body) -> Body:
    return REQUEST | {"messages": [*message_list]}


def tool_with(**changes: object) -> Body:
    return REQUEST | {"tools": [TOOL | {"function": TOOL["function"] | changes}]}


REFUSED: list[tuple[Body, str]] = [
    (request_without("model"), "you must provide a model parameter"),
    (messages(), "Invalid 'messages': empty array."),
    (request_without("messages"), "Missing required parameter: 'messages'."),
    (REQUEST | {"top_k": 1}, "Unrecognized request argument supplied: top_k"),
    (messages(USER | {"role": "person"}), "Invalid value: 'person'."),
    (messages(USER | {"content": 1}), "Invalid type for 'messages[0].content'"),
    (messages({"role": "user"}), "Invalid value for 'content'"),
    (messages(USER | {"name": "a b"}), "Invalid 'messages[0].name'"),
    (messages(USER, RESULT), "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."),
    (messages(USER, CALLS, RESULT | {"tool_call_id": "call_2"}), "'tool_call_id' of 'call_2' not found"),
    (messages(USER, CALLS, USER), "The following tool_call_ids did not have response messages: call_1"),
    (messages(USER, CALLS), "The following tool_call_ids did not have response messages: call_1"),
    (messages(USER, CALLS, RESULT, RESULT), "messages with role 'tool' must be a response to a preceeding message"),
    (messages(USER, CALLS | {"tool_calls": [CALL, CALL]}, RESULT, RESULT), "Duplicate value for 'tool_calls[].id'"),
    (messages(USER, CALLS | {"tool_calls": [CALL | {"id": ""}]}), "Missing required parameter: 'messages[1]."),
    (messages(USER, CALLS | {"tool_calls": [CALL | {"id": "c" * 41}]}), "tool_calls[0].id': string too long."),
    (REQUEST | {"tools": []}, "Invalid 'tools': empty array."),
    (tool_with(name="files.read"), "Invalid 'tools[0].function.name': string does not match"),
    (tool_with(name="n" * 65), "Invalid 'tools[0].function.name': string too long."),
    (tool_with(parameters={"type": "string"}), "Invalid schema for function 'read_file': schema must be a JSON Schema"),
    (tool_with(parameters={"type": "object", "properties": {"a": {"type": "array"}}}), "array schema missing items."),
    (request_without("tools") | {"tool_choice": "auto"}, "'tool_choice' is only allowed when"),
    (REQUEST | {"stream_options": {}}, "The 'stream_options' parameter"),
    (REQUEST | {"max_tokens": 9, "max_completion_tokens": 9}, "Setting 'max_tokens' and"),
    (REQUEST | {"max_completion_tokens": 0}, "integer below minimum value."),
    (REQUEST | {"stop": ["a", "b", "c", "d", "e"]}, "Invalid 'stop': array too long."),
]  # fmt: skip


@slow
def test_scripted_server_refuses_invalid_requests() -> None:
    with ScriptedServer([Say("Hello")], refuses=True) as server:
        for body, message in REFUSED:
            answer = post(server, body, KEY)
            assert answer.status_code == 400, message
            assert message in answer.json()["error"]["message"]
    assert (server.requests, len(server.refusals)) == ([], len(REFUSED))


def test_scripted_server_refuses_wrong_key() -> None:
    with ScriptedServer([Say("Hello")], key="sk-loopback", refuses=True) as server:
        assert [post(server, REQUEST, headers).status_code for headers in ({}, {"authorization": "Bearer o"})] == [
            401
        ] * 2
    assert server.requests == []


def test_scripted_server_accepts_valid_requests_on_one_connection() -> None:
    with ScriptedServer(then=lambda _: Say("Hello")) as server, httpx2.Client(trust_env=False) as client:
        for _ in range(3):
            answer = client.post(f"{server.base_url}/chat/completions", json=REQUEST, headers=KEY)
            assert answer.json()["choices"][0]["message"]["content"] == "Hello"
    assert server.connections == 1


def test_unexpected_refusal_of_the_scripted_server_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="you must provide a model parameter"), ScriptedServer() as server:
        post(server, request_without("model"), KEY)


def test_lenient_server_accepts_invalid_request_without_a_key() -> None:
    with LenientServer([Say("Hello")]) as server:
        assert post(server, {"messages": [RESULT]}, {}).status_code == 200
