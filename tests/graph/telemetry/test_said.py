import json

import pytest

from graph.telemetry.said import answered, asked
from nodes.records import FinishReason, ModelReply, RawCall


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


def test_a_request_without_instructions_has_none() -> None:
    assert [*asked([{"role": "user", "content": "Look."}])] == ["gen_ai.input.messages"]


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


@pytest.mark.parametrize("reason", FinishReason)
def test_a_reason_is_one_of_the_conventions(reason: FinishReason) -> None:
    (message,) = json.loads(answered(ModelReply(finish_reason=reason))["gen_ai.output.messages"])
    assert message["finish_reason"] in {"stop", "length", "content_filter", "tool_call", "error"}
