import json

import pytest

from mendgraph.graph.telemetry.spans import (
    CAPTURE_VARIABLE,
    answered,
    asked,
    captures_messages,
    provider_of,
    server_of,
)
from mendgraph.nodes.call_model.endpoint import Endpoint
from mendgraph.nodes.records import FinishReason, ModelReply, RawCall


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        ("", "openai"),
        ("https://api.openai.com/v1", "openai"),
        ("https://mine.openai.azure.com/openai/v1", "azure.ai.openai"),
        ("https://API.DeepSeek.com", "deepseek"),
        ("https://notapi.deepseek.com.example/v1", "openai"),
        ("http://127.0.0.1:8080/v1", "openai"),
    ],
)
def test_the_provider_is_named_after_its_host(url: str, provider: str) -> None:
    assert provider_of(Endpoint(model="m", base_url=url)) == provider


def test_models_without_an_endpoint_have_a_name_and_no_server() -> None:
    embedded = Endpoint(model="local", embedded=True)
    assert [provider_of(each) for each in (embedded, None)] == ["llama.cpp", "custom"]
    assert [server_of(each) for each in (embedded, None)] == [{}, {}]


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("", {"server.address": "api.openai.com", "server.port": 443}),
        ("http://localhost/v1", {"server.address": "localhost", "server.port": 80}),
        ("http://localhost:81/v1", {"server.address": "localhost", "server.port": 81}),
    ],
)
def test_the_server_is_told_with_its_port(url: str, server: dict[str, object]) -> None:
    assert server_of(Endpoint(model="m", base_url=url)) == server


@pytest.mark.parametrize(
    ("value", "wanted"), [("", False), ("false", False), ("True", True), ("SPAN_ONLY", True), ("EVENT_ONLY", False)]
)
def test_messages_are_told_only_where_the_user_says_so(value: str, wanted: bool) -> None:
    assert captures_messages({CAPTURE_VARIABLE: value}) is wanted
    assert captures_messages({}) is False


def test_a_request_has_the_conventions_form() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}
    said = asked(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "one"},
        ]
    )
    assert json.loads(said["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    assert json.loads(said["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "Look."}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "read_file", "arguments": {}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "one"}]},
    ]


def test_a_reply_has_the_conventions_form() -> None:
    calls = [
        RawCall(call_id="c", tool="read_file", arguments=each) for each in ('{"path":"a","n":NaN}', "{path", "[" * 9999)
    ]
    said = answered(ModelReply(text="So.", reasoning="Hm.", calls=tuple(calls), finish_reason=FinishReason.TOOL_CALLS))
    made = {"type": "tool_call", "id": "c", "name": "read_file"}
    assert json.loads(said["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "Hm."},
                {"type": "text", "content": "So."},
                {**made, "arguments": {"path": "a", "n": "NaN"}},
                {**made, "arguments": "{path"},
                {**made, "arguments": "[" * 9999},
            ],
            "finish_reason": "tool_call",
        }
    ]
    assert json.loads(answered(ModelReply())["gen_ai.output.messages"])[0]["parts"] == []
