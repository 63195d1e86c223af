import json
from time import perf_counter
from typing import Any

import httpx2
import pytest
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from mendgraph.graph.langchain.chat_models import user_model
from mendgraph.graph.langchain.failures import Learned
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply, ProviderFailure, RawCall
from tests.langchain.model_calls import (
    CALL,
    MESSAGES,
    TOOL,
    ask,
    event,
    model_through,
    raw_call,
    reply_of,
    stream_events,
)
from tests.row_tables import rows

FULL = Call(
    prompt=Prompt(messages=MESSAGES, tools=(TOOL,), stop=("\ntool_result(",), temperature=0.5),
    max_output_tokens=50,
    timeout_s=20.0,
    seed=7,
)


def without_streaming(learned: Learned) -> Learned:
    """What is learned of an endpoint that does not stream."""
    learned.streams = False
    return learned


def streamed_reply(*deltas: JsonMap, finish: str = "stop", **more: Any) -> ModelReply:
    """The reply from a stream of these deltas."""
    return reply_of(model_through(stream_events(*map(event, deltas), event({}, finish, **more), b"data: [DONE]\n\n")))


def unstreamed_reply(message: JsonMap, finish: str = "stop", **more: Any) -> ModelReply:
    """The same from an answer without streaming."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    document = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], **more}

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=document)

    return reply_of(model_through(answer, learned=without_streaming(Learned())))


# --- Requests


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_each_field_is_sent_once_and_no_unrequested_field_is_sent(limit: str) -> None:
    """Some endpoints refuse any temperature, stop word or seed."""
    bodies: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.content)
        return stream_events(event({"content": "Hello"}, "stop"))(request)

    least: JsonMap = {
        "messages": list(MESSAGES),
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        limit: 50,
    }
    most = least | {"tools": [TOOL], "stop": ["\ntool_result("], "seed": 7, "temperature": 0.5}
    for call, expected in ((CALL, least), (FULL, most)):
        reply_of(model_through(answer, learned=Learned(limit)), call)
        names = [name for name, _ in json.loads(bodies[-1], object_pairs_hook=list)]
        assert (json.loads(bodies[-1]), sorted(names)) == (expected, sorted(expected))


def test_lone_surrogate_can_be_sent() -> None:
    bodies: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.content)
        return stream_events(event({"content": "Hello"}, "stop"))(request)

    message = {"role": "user", "content": "a\ud800"}
    reply_of(model_through(answer), CALL.model_copy(update={"prompt": Prompt(messages=(message,))}))
    assert b'"a\\ud800"' in bodies[0]


# --- Text and reasoning of a reply


TEXTS: list[tuple[list[JsonMap], JsonMap]] = [
    ([{"role": "assistant", "content": ""}, {"content": "Hel"}, {"content": "lo"}], {"text": "Hello"}),
    ([{"content": "a\ud83d"}, {"content": "\ude00"}], {"text": "a😀"}),
    ([{"content": "a\ud800"}, {"content": "b"}], {"text": "a\ufffdb"}),
    ([{"content": [{"type": "text", "text": "Yes"}, {"type": "image"}]}, {"content": None}], {"text": "Yes"}),
    ([{"refusal": "I "}, {"refusal": "can't."}], {"refusal": "I can't.", "finish_reason": FinishReason.REFUSAL}),
    ([{"content": "No"}, {}], {"text": "No"}),
]


@rows(*TEXTS)
def test_text_and_refusal_chunks_are_joined(deltas: list[JsonMap], expected: JsonMap) -> None:
    assert streamed_reply(*deltas).model_copy(update={"seconds": 0.0}) == ModelReply(model="m", **expected)


def test_users_response_format_does_not_change_the_stream() -> None:
    bodies: list[JsonMap] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return stream_events(event({"reasoning_content": "Hm."}), event({"content": "{}"}), event({}, "stop"))(request)

    form = {"type": "json_object"}
    client = httpx2.Client(transport=httpx2.MockTransport(answer))
    fixed: Any = {"model": "m", "base_url": "http://llm.test/v1", "api_key": "k", "http_client": client}
    result = user_model(ChatOpenAI(**fixed, model_kwargs={"response_format": form})).complete(CALL, lambda _: None)
    assert isinstance(result, ModelReply)
    assert (result.text, result.reasoning, bodies[0]["response_format"]) == ("{}", "Hm.", form)


# --- Calls


def part(index: int | None, call_id: str | None, name: str | None, arguments: Any, **more: Any) -> JsonMap:
    """A delta with a part of one call; None is left out."""
    fields = {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}, **more}
    return {"tool_calls": [{name: value for name, value in fields.items() if value is not None}]}


F, G = raw_call("x", "f", '{"a": 1}'), raw_call("y", "g", "{}")


CALLS: list[tuple[list[JsonMap], tuple[RawCall, ...]]] = [
    ([part(0, "x", "f", ""), part(0, None, None, '{"a"'), part(0, None, None, ": 1}")], (F,)),
    ([part(0, "x", "f", '{"a": 1}'), part(1, "y", "g", "{}")], (F, G)),
    ([part(0, "x", "f", '{"a": 1}'), part(0, "y", "g", "{}")], (F, G)),
    (
        [part(0, "x", "f", '{"a"'), part(1, "y", "g", ""), part(0, None, None, ": 1}"), part(1, None, None, "{}")],
        (F, G),
    ),
    ([part(None, "x", "f", '{"a"'), part(None, None, None, ": 1}"), part(None, "y", "g", "{}")], (F, G)),
    ([part(0, "x", "f", '{"a"'), part(0, "x", "f", ": 1}")], (F,)),
    ([part(0, None, "f", "{}"), part(1, None, "g", "{}")], (raw_call("", "f", "{}"), raw_call("", "g", "{}"))),
    ([part(0, "x", "f", {"a": 1})], (F,)),
    ([part(0, "x", "f", None), {"tool_calls": [{"index": 0, "function": None}]}], (raw_call("x", "f", ""),)),
    ([part(0, 7, "f", '{"a": "x')], (raw_call("7", "f", '{"a": "x'),)),  # type: ignore[arg-type]  # the point of it
]


@rows(*CALLS)
def test_calls_are_separated_whatever_index_or_id_a_server_gives_them(
    deltas: list[JsonMap], calls: tuple[RawCall, ...]
) -> None:
    assert streamed_reply(*deltas, finish="tool_calls").calls == calls


def test_long_invalid_arguments_are_parsed_in_linear_time() -> None:
    """LangChain tries each prefix of them, which took five seconds for these."""
    arguments = '{"a": "\\q' + "x" * 20_000
    began_s = perf_counter()
    assert streamed_reply(part(0, "x", "f", arguments), finish="tool_calls").calls == (raw_call("x", "f", arguments),)
    assert unstreamed_reply(part(0, "x", "f", arguments), "tool_calls").calls == (raw_call("x", "f", arguments),)
    assert perf_counter() - began_s < 2


SIGNED: JsonMap = {"google": {"thought_signature": "abc"}}


def test_extra_field_of_a_call_is_kept_with_the_call() -> None:
    """As Gemini's does, which refuses the next request without it."""
    reply = streamed_reply(
        part(0, "x", "f", "", extra_content=SIGNED),
        part(0, None, None, '{"a": 1}', more=2),
        part(1, "y", "g", "{}"),
        finish="tool_calls",
    )
    assert reply.calls == (F, G)
    assert reply.provider["additional_kwargs"]["tool_call_extras"] == {"x": {"extra_content": SIGNED, "more": 2}}
    late = streamed_reply(part(0, "x", "f", "{}"), part(0, None, None, "", extra_content=SIGNED), finish="tool_calls")
    assert late.provider["additional_kwargs"]["tool_call_extras"] == {"x": {"extra_content": SIGNED}}


# --- Finish reason


def test_stream_that_ends_with_done_is_complete_without_a_finish_reason() -> None:
    text, done = event({"content": '"finish_reason": "stop"'}), b"data: [DONE]\n\n"
    assert reply_of(model_through(stream_events(text, done))).finish_reason is FinishReason.STOP
    client = httpx2.Client(transport=httpx2.MockTransport(stream_events(text, done)))
    chat = ChatOpenAI(model="m", base_url="http://llm.test/v1", api_key=SecretStr("k"), http_client=client)
    assert isinstance(user_model(chat).complete(CALL, lambda _: None), ModelReply)

    assert reply_of(model_through(stream_events(text, event({}, "length"), done))).finish_reason is FinishReason.LENGTH
    assert (
        reply_of(model_through(stream_events(event({"content": "a"}, "length"), text, done))).finish_reason
        is FinishReason.LENGTH
    )
    broken, _ = ask(model_through(stream_events(text)))
    assert isinstance(broken, ProviderFailure)


# --- Usage

SEVEN: JsonMap = {"prompt_tokens": 7, "completion_tokens": 3}
COUNTS: list[tuple[JsonMap, JsonMap | None, tuple[int, int, int, int, int]]] = [
    (
        SEVEN | {"prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 2}},
        None,
        (7, 3, 5, 0, 2),
    ),
    (
        {"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2},
        None,
        (7, 3, 4, 2, 0),
    ),
    (SEVEN | {"prompt_cache_hit_tokens": 5}, None, (7, 3, 5, 0, 0)),
    (SEVEN, {"cache_n": 5, "prompt_n": 2}, (7, 3, 5, 0, 0)),
    (SEVEN | {"prompt_tokens_details": {"cache_write_tokens": 5}}, None, (7, 3, 0, 5, 0)),
    ({"prompt_tokens": -7, "completion_tokens": -3}, None, (0, 0, 0, 0, 0)),
    ({"prompt_tokens": "many", "completion_tokens": [3], "prompt_tokens_details": "x"}, None, (0, 0, 0, 0, 0)),
]


def counts(reply: ModelReply) -> tuple[int, ...]:
    names = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
    return tuple(getattr(reply, name) for name in names)


@rows(*COUNTS)
def test_usage_is_read_in_the_format_of_each_endpoint(
    usage: JsonMap, timings: JsonMap | None, expected: tuple[int, int, int, int, int]
) -> None:
    usage_fields: Any = {"usage": usage} | ({} if timings is None else {"timings": timings})
    assert counts(streamed_reply({"content": "Hi"}, **usage_fields)) == expected
    assert counts(unstreamed_reply({"content": "Hi"}, **usage_fields)) == expected


def test_cumulative_usage_is_counted_once() -> None:
    events = [
        event({"content": text}, usage={"prompt_tokens": 7, "completion_tokens": number})
        for number, text in enumerate("abc", 1)
    ]
    reply = reply_of(model_through(stream_events(*events, event({}, "stop"))))
    assert (reply.text, counts(reply)) == ("abc", (7, 3, 0, 0, 0))


def test_later_usage_report_with_smaller_counts_is_ignored() -> None:
    usages: list[JsonMap] = [
        {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}},
        {"prompt_tokens": 0, "completion_tokens": 3},
    ]
    events = [event({"content": "a"}, usage=usage) for usage in usages]
    assert counts(reply_of(model_through(stream_events(*events, event({}, "stop"))))) == (7, 3, 5, 0, 0)


def test_second_choice_of_a_stream_is_ignored() -> None:
    second: Any = {"index": 1, "delta": {"content": "B"}, "finish_reason": None}
    reply = reply_of(model_through(stream_events(event({"content": "A"}), event(choices=[second]), event({}, "stop"))))
    assert reply.text == "A"


# --- Without streaming


def test_reply_without_streaming_is_read_the_same() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    details = [{"type": "reasoning.encrypted", "data": "abc", "id": "r"}]
    thinking = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Look:"}]
    reply = unstreamed_reply(
        {
            "content": thinking,
            "reasoning_details": details,
            "tool_calls": [{"id": "x", "type": "function", "function": function, "extra_content": SIGNED}],
        },
        "tool_calls",
        usage={"prompt_tokens": 7, "completion_tokens": 3},
    )
    assert (reply.text, reply.reasoning, reply.calls) == ("Look:", "Hm.", (F,))
    assert (reply.finish_reason, counts(reply)) == (FinishReason.TOOL_CALLS, (7, 3, 0, 0, 0))
    extras = reply.provider["additional_kwargs"]
    assert (extras["reasoning_details"], extras["tool_call_extras"]) == (details, {"x": {"extra_content": SIGNED}})
    assert unstreamed_reply({"content": None, "refusal": "No."}).finish_reason is FinishReason.REFUSAL


# --- Not a chat completion


BAD = (
    b"data: {bad\n\n",
    b"data: null\n\n",
    b'data: {"choices": [null]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": "Hi"}]}\n\n',
    b'data: {"error": {"message": "overloaded"}}\n\n',
    b"data: \xff\n\n",
)


def test_stream_that_is_not_a_chat_completion_is_a_failure(subtests: pytest.Subtests) -> None:
    for document in BAD:
        for first, kind in (((), "server_error"), ((event({"content": "Hello"}),), "incomplete_stream")):
            with subtests.test(document=document, kind=kind):
                result, _ = ask(model_through(stream_events(*first, document)))
                assert isinstance(result, ProviderFailure)
                assert result.kind.value == kind
