from typing import Any

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk

from graph.langchain.replies import ReplyAssembly
from nodes.call_model.estimates import MOST_TOKENS
from nodes.records import FinishReason, ModelReply, RawCall

Part = tuple[int | None, str | None, str | None, str | None]


def assembled(parts: list[Part], text: str = "", finish_reason: str = "tool_calls") -> ModelReply:
    assembly = ReplyAssembly(finish_reason=finish_reason)
    assembly.take(AIMessageChunk(content=text))
    for index, call_id, tool, arguments in parts:
        part = tool_call_chunk(index=index, id=call_id, name=tool, args=arguments)
        assembly.take(AIMessageChunk(content="", tool_call_chunks=[part]))
    reply = assembly.reply(0.0)
    assert reply is not None
    return reply


def call(call_id: str, tool: str, arguments: str) -> RawCall:
    return RawCall(call_id=call_id, tool=tool, arguments=arguments)


A, B = call("a", "read_file", '{"path": "a"}'), call("b", "read_file", '{"path": "b"}')


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        ([], ()),
        ([(0, "a", "read_file", ""), (0, None, None, '{"path"'), (0, None, None, ': "a"}')], (A,)),
        ([(0, "a", "read_file", '{"path": "a"}'), (1, "b", "read_file", '{"path": "b"}')], (A, B)),
        ([(0, "a", "read_file", '{"path": "a"}'), (0, "b", "read_file", '{"path": "b"}')], (A, B)),
        ([(None, "a", "read_file", '{"path": "a"}'), (None, "b", "read_file", '{"path": "b"}')], (A, B)),
        (
            [
                (0, "a", "read_file", '{"path"'),
                (1, "b", "read_file", '{"path"'),
                (0, None, None, ': "a"}'),
                (1, None, None, ': "b"}'),
            ],
            (A, B),
        ),
        (
            [(0, "a", "read_file", ""), (None, None, None, '{"path": "a"}'), (None, "b", "read_file", '{"path": "b"}')],
            (A, B),
        ),
        ([(None, None, None, "{}")], (call("", "", "{}"),)),
    ],
    ids=["none", "pieces", "indices", "one index", "no index", "interleaved", "index lost", "nameless"],
)
def test_calls_are_told_apart(parts: list[Part], calls: tuple[RawCall, ...]) -> None:
    assert assembled(parts).calls == calls


@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("missing", ["", None])
def test_where_ids_are_missing_a_name_after_arguments_begins_a_call(index: int | None, missing: str | None) -> None:
    first, second = (index, missing, "read_file", "{}"), (index, missing, "list_files", "{}")
    assert assembled([first, first, second]).calls == (
        call("", "read_file", "{}"),
        call("", "read_file", "{}"),
        call("", "list_files", "{}"),
    )


@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("call_id", ["a", "", None])
def test_another_name_begins_another_call_also_where_the_first_has_no_arguments(
    index: int | None, call_id: str | None
) -> None:
    parts: list[Part] = [(index, call_id, "list_files", ""), (index, call_id, "read_file", "{}")]
    given = call_id or ""
    assert assembled(parts).calls == (call(given, "list_files", ""), call(given, "read_file", "{}"))
    assert assembled(parts[::-1]).calls == (call(given, "read_file", "{}"), call(given, "list_files", ""))


@pytest.mark.parametrize(
    "repeats",
    [
        [(0, "a", "read_file", '{"path"'), (0, "a", "read_file", ': "a"}')],
        [(0, "a", "read_file", ""), (0, None, "read_file", '{"path": "a"}')],
        [(0, "a", "read_file", '{"path": "a"}'), (0, None, "read_file", "")],
    ],
    ids=["id and name in each part", "name twice before arguments", "name once more at the end"],
)
def test_a_server_that_repeats_itself_makes_no_second_call(repeats: list[Part]) -> None:
    assert assembled(repeats).calls == (A,)


@pytest.mark.parametrize(
    ("said", "refusal", "finish"),
    [
        ("stop", "", FinishReason.STOP),
        ("tool_calls", "", FinishReason.TOOL_CALLS),
        ("function_call", "", FinishReason.TOOL_CALLS),
        ("length", "", FinishReason.LENGTH),
        ("content_filter", "", FinishReason.CONTENT_FILTER),
        ("end_turn", "", FinishReason.STOP),
        ("max_tokens", "", FinishReason.LENGTH),
        ("MAX_TOKENS", "", FinishReason.LENGTH),
        ("content-filter", "", FinishReason.CONTENT_FILTER),
        ("SAFETY", "", FinishReason.CONTENT_FILTER),
        ("stop", "I can't.", FinishReason.REFUSAL),
        ("length", "I can't.", FinishReason.REFUSAL),
    ],
)
def test_the_finish_reason_in_our_words(said: str, refusal: str, finish: FinishReason) -> None:
    reply = ReplyAssembly(finish_reason=said, refusal=refusal).reply(1.5)
    assert reply == ModelReply(finish_reason=finish, refusal=refusal, seconds=1.5)


@pytest.mark.parametrize("said", ["error", "abort", "something new"])
def test_a_word_that_does_not_say_so_is_no_complete_reply(said: str) -> None:
    assert ReplyAssembly(finish_reason=said).reply(1.5) is None


def chunk(text: str = "", **fields: Any) -> AIMessageChunk:
    return AIMessageChunk(content=text, **fields)


def replied(*messages: AIMessage) -> ModelReply | None:
    assembly = ReplyAssembly()
    for message in messages:
        assembly.take(message)
    return assembly.reply(0.0)


@pytest.mark.parametrize(
    ("metadata", "finish"),
    [
        ({"finish_reason": "tool_calls", "model_name": "m"}, FinishReason.TOOL_CALLS),
        ({"stop_reason": "max_tokens", "model": "m"}, FinishReason.LENGTH),
        ({"done_reason": "stop", "model_name": "m"}, FinishReason.STOP),
        ({"stopReason": "guardrail", "model_name": "m"}, None),
        ({"status": "completed", "model_name": "m"}, FinishReason.STOP),
        ({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, FinishReason.CONTENT_FILTER),
        ({"finish_reason": "MAX_TOKENS"}, FinishReason.LENGTH),
        ({"model_provider": "openai", "model_name": "m"}, None),
        ({"model_provider": "openai", "finish_reason": None}, None),
    ],
)
def test_each_provider_says_in_its_own_place_why_a_reply_ended(
    metadata: dict[str, Any], finish: FinishReason | None
) -> None:
    """And one that has not said so has broken off."""
    reply = replied(chunk("half a rep"), chunk(response_metadata=metadata))
    assert (reply.finish_reason if reply else None) == finish
    assert reply is None or reply.model == (metadata.get("model_name") or metadata.get("model") or "")


def test_a_chat_model_of_the_users_own_need_not_say_why_it_ended() -> None:
    made = tool_call_chunk(name="f", args="{}", id="a", index=0)
    assert replied(chunk("whole")) == ModelReply(text="whole")
    assert replied(chunk(tool_call_chunks=[made])) == ModelReply(
        calls=(call("a", "f", "{}"),), finish_reason=FinishReason.TOOL_CALLS
    )


def test_a_reply_that_was_not_streamed_keeps_its_calls_and_those_that_are_no_json() -> None:
    whole = AIMessage(
        "Look:",
        tool_calls=[{"name": "f", "args": {"a": "ü"}, "id": "a"}, {"name": "f", "args": {}, "id": None}],
        invalid_tool_calls=[{"name": "g", "args": '{"a": "x', "id": "b", "error": None}],
        response_metadata={"finish_reason": "tool_calls", "model_provider": "openai"},
    )
    reply = replied(whole)
    assert reply is not None
    assert (reply.text, reply.calls) == (
        "Look:",
        (call("a", "f", '{"a": "ü"}'), call("", "f", "{}"), call("b", "g", '{"a": "x')),
    )


def used(given: Any, taken: Any, **details: Any) -> AIMessageChunk:
    """A part of a reply that tells of tokens, as no validation has seen it."""
    message = chunk()
    message.usage_metadata = UsageMetadata(
        input_tokens=given,
        output_tokens=taken,
        total_tokens=0,
        input_token_details=details,  # type: ignore[typeddict-item]  # of any kind
        output_token_details={"reasoning": details.pop("reasoning", 0)},
    )
    return message


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        (used(7, 3, cache_read=5, cache_creation=1, reasoning=2), (7, 3, 5, 1, 2)),
        (used(7, 3, cache_read=9, cache_creation=9, reasoning=9), (7, 3, 7, 0, 3)),
        (used(20, 3, cache_read=5, ephemeral_5m_input_tokens=4, ephemeral_1h_input_tokens=2), (20, 3, 5, 6, 0)),
        (used(-7, -3, cache_read=-5, reasoning=-1), (0, 0, 0, 0, 0)),
        (used("many", [3], cache_read="x"), (0, 0, 0, 0, 0)),
        (used(float("nan"), float("inf")), (0, MOST_TOKENS, 0, 0, 0)),
        (used(10**30, None), (MOST_TOKENS, 0, 0, 0, 0)),
    ],
)
def test_usage_never_gives_budget_back_and_fits_into_a_checkpoint(
    told: AIMessageChunk, counts: tuple[int, int, int, int, int]
) -> None:
    reply = replied(told)
    assert reply is not None
    names = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
    assert tuple(getattr(reply, name) for name in names) == counts


def test_counts_that_come_in_parts_are_added() -> None:
    """Anthropic tells of the input at the start and of the output at the end."""
    reply = replied(used(7, 1, cache_read=5), chunk("Hi"), used(0, 2))
    assert reply == ModelReply(text="Hi", input_tokens=7, output_tokens=3, cached_tokens=5)


@pytest.mark.parametrize(
    "parts",
    [
        [chunk(additional_kwargs={"reasoning_content": each}) for each in ("Let me ", "see.")],
        [AIMessageChunk(content=[{"type": "thinking", "thinking": each, "index": 0}]) for each in ("Let me ", "see.")],
        [AIMessageChunk(content=[{"type": "reasoning", "reasoning": "Let me see."}])],
    ],
)
def test_thoughts_are_no_text_and_are_kept_for_the_provider(parts: list[AIMessageChunk]) -> None:
    assembly = ReplyAssembly()
    assert not assembly.spoken
    assert [assembly.take(part) for part in parts] == [""] * len(parts)
    assert (assembly.spoken, assembly.characters) == (True, 11)
    reply = assembly.reply(0.0)
    assert reply is not None
    assert (reply.text, reply.reasoning) == ("", "Let me see.")
    assert "Let me see." in str(reply.provider)


def test_the_frame_of_a_reply_is_not_yet_a_part_of_it() -> None:
    """Silence counts from its first part on: an endpoint may send the frame at once, and then read for minutes."""
    assembly = ReplyAssembly()
    assembly.take(chunk(response_metadata={"model_provider": "openai"}))
    assert not assembly.spoken
    assembly.take(chunk("x"))
    assert assembly.spoken


def units(text: str) -> list[str]:
    """The text in UTF-16 units, as the JSON escapes of a stream carry it."""
    raw = text.encode("utf-16-le")
    return [raw[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(raw), 2)]


@st.composite
def cuts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A text, and the same text in pieces that are cut anywhere, inside characters too."""
    text = draw(st.text(max_size=30))
    whole = units(text)
    at = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    return text, ["".join(whole[a:b]) for a, b in zip([0, *at], [*at, len(whole)], strict=True)]


@given(cuts(), st.lists(st.tuples(cuts(), st.booleans()), max_size=3), st.sampled_from(["own", "one", "none"]))
def test_where_a_stream_is_cut_makes_no_difference(
    text: tuple[str, list[str]], arguments: list[tuple[tuple[str, list[str]], bool]], indices: str
) -> None:
    assembly = ReplyAssembly(finish_reason="stop")
    for piece in text[1]:
        assembly.take(chunk(piece))
    for number, ((_, pieces), head_alone) in enumerate(arguments):
        index = {"own": number, "one": 0, "none": None}[indices]
        head, rest = ("", pieces) if head_alone else (pieces[0], pieces[1:])
        assembly.add_call_part(index, f"call_{number}", "edit_file", head)
        for piece in rest:
            assembly.add_call_part(index, None, None, piece)
    calls = tuple(call(f"call_{number}", "edit_file", whole) for number, ((whole, _), _) in enumerate(arguments))
    assert assembly.reply(0.0) == ModelReply(text=text[0], calls=calls)
