import json
from typing import Any

import pytest

from nodes.call_model.assembly import ReplyAssembly
from nodes.call_model.failures import StreamedError
from nodes.call_model.reply_events import read_event, said_and_thought, take
from nodes.records import FinishReason, JsonMap, ModelReply, RawCall


def delta(**fields: Any) -> JsonMap:
    return {"choices": [{"index": 0, "delta": fields}]}


END: JsonMap = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def taken(*events: JsonMap) -> tuple[ModelReply | None, list[str]]:
    assembly = ReplyAssembly()
    said = [take(event, assembly) for event in (*events, END)]
    return assembly.reply(0.0), [text for text in said if text]


CALL = {"index": 0, "id": "x", "function": {"name": "f", "arguments": '{"a'}}


@pytest.mark.parametrize(
    ("events", "reply", "said"),
    [
        (
            [delta(role="assistant", content=""), delta(content="Hel"), delta(content="lo")],
            {"text": "Hello"},
            ["Hel", "lo"],
        ),
        ([delta(reasoning_content="Hm."), delta(content="Yes")], {"reasoning": "Hm.", "text": "Yes"}, ["Yes"]),
        ([delta(reasoning="Hm."), delta(content=None)], {"reasoning": "Hm."}, []),
        (
            [
                delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]),
                delta(content=[{"type": "text", "text": "Yes"}, {"type": "image"}]),
            ],
            {"reasoning": "Hm.", "text": "Yes"},
            ["Yes"],
        ),
        (
            [delta(refusal="I "), delta(refusal="can't.")],
            {"refusal": "I can't.", "finish_reason": FinishReason.REFUSAL},
            [],
        ),
        (
            [delta(tool_calls=[CALL]), delta(tool_calls=[{"index": 0, "function": {"arguments": '": 1'}}])],
            {"calls": (RawCall(call_id="x", tool="f", arguments='{"a": 1'),)},
            [],
        ),
        ([{"choices": []}, {}, {"choices": [{"index": 0, "delta": None}]}], {}, []),
        (
            [{"model": "m", "usage": {"prompt_tokens": 7, "completion_tokens": 3}, "timings": {"cache_n": 5}}],
            {"model": "m", "input_tokens": 7, "output_tokens": 3, "cached_tokens": 5},
            [],
        ),
    ],
    ids=["text", "reasoning_content", "reasoning", "thinking parts", "refusal", "call cut off", "nothing", "usage"],
)
def test_what_an_event_adds(events: list[JsonMap], reply: dict[str, Any], said: list[str]) -> None:
    assert taken(*events) == (ModelReply(**reply), said)


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [None]},
        {"choices": {"a": 1}},
        {"choices": [{"delta": "text"}]},
        {"choices": [{"delta": {"content": 7}}]},
        {"choices": [{"delta": {"reasoning": {"a": 1}}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": None}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {"a": 1}}}]}}]},
    ],
)
def test_what_is_no_chat_completion_is_an_error(event: JsonMap) -> None:
    assembly = ReplyAssembly()
    with pytest.raises((TypeError, AttributeError, LookupError, ValueError)):
        take(event, assembly)
    assert not assembly.begun


@pytest.mark.parametrize("data", [b"[1]", b"null", b"7", b"{bad", b"\xff", b"", b"[" * 100_000])
def test_an_event_is_one_object(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, RecursionError)):
        read_event(data)


@pytest.mark.parametrize("event", [{"a": "\ud83d"}, {"a": 10**18}, {"a": [{}]}, {}])
def test_whatever_json_can_say_is_read(event: JsonMap) -> None:
    assert read_event(json.dumps(event).encode()) == event


@pytest.mark.parametrize("said", [{"message": "overloaded", "code": "busy"}, "overloaded"])
def test_a_failure_in_the_stream_is_raised(said: Any) -> None:
    with pytest.raises(StreamedError) as raised:
        read_event(json.dumps({"error": said}).encode())
    assert raised.value.said == said


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({}, ("", "")),
        ({"content": "a", "reasoning": "b"}, ("a", "b")),
        ({"content": [{"type": "thinking", "thinking": "b"}, {"type": "text", "text": "a"}]}, ("a", "b")),
    ],
)
def test_the_texts_of_a_delta(delta: JsonMap, expected: tuple[str, str]) -> None:
    assert said_and_thought(delta) == expected
