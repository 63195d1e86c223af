import json

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.records import JsonMap
from tests.doubles.replies import (
    CREATED,
    NO_USAGE,
    Calls,
    Chunked,
    Cut,
    CutAt,
    Delivery,
    Disconnect,
    Drip,
    Empty,
    Fault,
    Filtered,
    Message,
    NoFinish,
    Refuse,
    Reply,
    Say,
    Slow,
    Stall,
    Status,
    Think,
    completion_document,
    delivery,
    event_bytes,
    status_document,
    stream_documents,
)

REQUEST: JsonMap = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def test_a_completion_is_one_document() -> None:
    assert completion_document(Say("four chars"), REQUEST, 3) == {
        "id": "chatcmpl-3",
        "object": "chat.completion",
        "created": CREATED,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "four chars"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10},
    }


@pytest.mark.parametrize(
    ("reply", "message", "finish_reason"),
    [
        (Cut("half a"), {"role": "assistant", "content": "half a"}, "length"),
        (Empty(), {"role": "assistant", "content": ""}, "stop"),
        (Refuse("no"), {"role": "assistant", "content": "", "refusal": "no"}, "stop"),
        (Filtered(), {"role": "assistant", "content": ""}, "content_filter"),
        (NoFinish("so"), {"role": "assistant", "content": "so"}, None),
        (Think("Hm."), {"role": "assistant", "content": "", "reasoning_content": "Hm."}, "stop"),
        (Think("Hm.", "So.", "reasoning"), {"role": "assistant", "content": "So.", "reasoning": "Hm."}, "stop"),
        (
            Calls([("read", "{}"), ("write", "{", "mine")]),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1_1", "type": "function", "function": {"name": "read", "arguments": "{}"}},
                    {"id": "mine", "type": "function", "function": {"name": "write", "arguments": "{"}},
                ],
            },
            "tool_calls",
        ),
    ],
)
def test_each_reply_is_a_case_of_a_message(reply: Message, message: JsonMap, finish_reason: str | None) -> None:
    choice = completion_document(reply, REQUEST, 1)["choices"][0]
    assert choice == {"index": 0, "message": message, "finish_reason": finish_reason}


def test_given_usage_is_told_as_it_is() -> None:
    usage = completion_document(Say("", usage=(7, 5)), REQUEST, 1)["usage"]
    assert usage == {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def test_usage_may_lie_to_the_letter_or_be_missing() -> None:
    lie: JsonMap = {"prompt_tokens": -1, "completion_tokens": 10**30, "prompt_tokens_details": {"cached_tokens": "x"}}
    asked = REQUEST | {"stream_options": {"include_usage": True}}
    assert completion_document(Say("", usage=lie), REQUEST, 1)["usage"] == lie
    assert list(stream_documents(Say("", usage=lie), asked, 1, 0))[-1]["usage"] == lie
    assert "usage" not in completion_document(Say("", usage=NO_USAGE), REQUEST, 1)
    assert list(stream_documents(Say("a", usage=NO_USAGE), asked, 1, 0)) == list(
        stream_documents(Say("a"), REQUEST, 1, 0)
    )


def test_thoughts_are_streamed_first_and_counted() -> None:
    documents = list(stream_documents(Think("Hm. So.", "It adds."), REQUEST, 1, 4))
    deltas = [each["choices"][0]["delta"] for each in documents]
    assert deltas[1:-1] == [
        {"reasoning_content": "Hm. "},
        {"reasoning_content": "So."},
        {"content": "It a"},
        {"content": "dds."},
    ]
    assert completion_document(Think("Hm. So.", "It adds."), REQUEST, 1)["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(("message", "done"), [(Say("ä"), [b"data: [DONE]\n\n"]), (NoFinish("ä"), [])])
def test_events_are_the_documents_in_bytes(message: Message, done: list[bytes]) -> None:
    documents = stream_documents(message, REQUEST, 1, 0)
    written = [f"data: {json.dumps(each, ensure_ascii=False)}\n\n".encode() for each in documents]
    assert event_bytes(message, REQUEST, 1, 0) == written + done


def test_usage_is_streamed_only_where_it_was_asked_for() -> None:
    silent = list(stream_documents(Say("hi"), REQUEST, 1, 0))
    asked = list(stream_documents(Say("hi"), REQUEST | {"stream_options": {"include_usage": True}}, 1, 0))
    assert asked[:-1] == silent
    assert (asked[-1]["choices"], asked[-1]["usage"]["completion_tokens"]) == ([], 0)


def test_a_stream_without_a_finish_says_no_more_than_its_text() -> None:
    deltas = [each["choices"][0] for each in stream_documents(NoFinish("so"), REQUEST, 1, 0)]
    assert [(each["delta"].get("content"), each["finish_reason"]) for each in deltas] == [("", None), ("so", None)]


@given(text=texts, refusal=texts, calls=st.lists(st.tuples(texts, texts), max_size=3), size=st.integers(0, 9))
def test_streamed_pieces_add_up_to_the_whole(text: str, refusal: str, calls: list[tuple[str, str]], size: int) -> None:
    message = Message(text=text, refusal=refusal, calls=tuple(calls))
    said, declined, arguments = "", "", [""] * len(calls)
    for document in stream_documents(message, REQUEST, 1, size):
        delta = document["choices"][0]["delta"]
        said += delta.get("content") or ""
        declined += delta.get("refusal") or ""
        for call in delta.get("tool_calls", []):
            arguments[call["index"]] += call["function"]["arguments"]
    assert (said, declined, arguments) == (text, refusal, [call[1] for call in calls])


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Say("a"), Delivery(Say("a"))),
        (Status(429), Delivery(Status(429))),
        (Slow(1.5, Chunked(Say("a"), 2)), Delivery(Say("a"), seconds=1.5, size=2)),
        (Disconnect(3, Say("a")), Delivery(Say("a"), events=3, fault=Fault.BREAK)),
        (Disconnect(0, Say("a"), reset=True), Delivery(Say("a"), events=0, fault=Fault.RESET)),
        (Stall(2, Say("a"), 0.5), Delivery(Say("a"), events=2, fault=Fault.PAUSE, pause_s=0.5)),
        (Slow(1.5, Stall(2, Say("a"))), Delivery(Say("a"), 1.5, events=2, fault=Fault.PAUSE, pause_s=600.0)),
        (Drip(1, Say("a")), Delivery(Say("a"), events=1, fault=Fault.COMMENTS, pause_s=0.01)),
        (CutAt(9, Say("a")), Delivery(Say("a"), at_byte=9, fault=Fault.BREAK)),
        (CutAt(9, Chunked(Say("a"), 2), clean=True), Delivery(Say("a"), size=2, at_byte=9)),
    ],
)
def test_wrappers_say_how_a_reply_is_delivered(reply: Reply, expected: Delivery) -> None:
    assert delivery(reply) == expected


@pytest.mark.parametrize(
    ("status", "document"),
    [
        (Status(503, "down"), "down"),
        (Status(400, {"error": "x"}), '{"error": "x"}'),
        (Status(500), json.dumps({"error": {"message": "scripted status 500", "type": "scripted", "code": None}})),
    ],
)
def test_a_status_has_the_body_that_was_scripted(status: Status, document: str) -> None:
    assert status_document(status) == document
