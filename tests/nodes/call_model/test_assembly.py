from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.call_model.assembly import MOST_TOKENS, ReplyAssembly
from nodes.records import FinishReason, ModelReply, RawCall

Part = tuple[int | None, str | None, str | None, str | None]


def assembled(parts: list[Part], text: str = "", finish_reason: str = "tool_calls") -> ModelReply:
    assembly = ReplyAssembly(finish_reason=finish_reason)
    assembly.add_text(text)
    for part in parts:
        assembly.add_call_part(*part)
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


def test_what_an_endpoint_claims_fits_into_a_checkpoint() -> None:
    assembly = ReplyAssembly(finish_reason="stop")
    assembly.add_usage({"prompt_tokens": 10**30, "completion_tokens": -5}, {})
    assert (assembly.input_tokens, assembly.output_tokens) == (MOST_TOKENS, 0)


def test_without_a_finish_reason_there_is_no_reply() -> None:
    assembly = ReplyAssembly()
    assert not assembly.begun
    assembly.add_text("half a rep")
    assert assembly.reply(1.0) is None


@pytest.mark.parametrize(
    ("usage", "timings", "counts"),
    [
        ({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}, {}, (7, 3, 5)),
        ({"input_tokens": 7, "output_tokens": 3, "cache_read_input_tokens": 5}, {}, (7, 3, 5)),
        ({"prompt_tokens": 7, "completion_tokens": 3, "prompt_cache_hit_tokens": 5}, {}, (7, 3, 5)),
        ({"prompt_tokens": 7, "completion_tokens": 3}, {"cache_n": 5, "prompt_n": 2}, (7, 3, 5)),
        ({"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 9}}, {}, (7, 0, 7)),
        ({"prompt_tokens": None, "prompt_tokens_details": None}, {}, (0, 0, 0)),
        ({"prompt_tokens": -7, "completion_tokens": -3, "prompt_tokens_details": {"cached_tokens": -5}}, {}, (0, 0, 0)),
        ({"prompt_tokens": "many", "completion_tokens": [3], "prompt_tokens_details": "x"}, {}, (0, 0, 0)),
        ({"prompt_tokens": float("nan"), "completion_tokens": float("inf")}, {}, (0, MOST_TOKENS, 0)),
    ],
)
def test_usage_never_gives_budget_back(
    usage: dict[str, Any], timings: dict[str, Any], counts: tuple[int, int, int]
) -> None:
    assembly = ReplyAssembly(finish_reason="stop")
    assembly.add_usage(usage, timings)
    reply = assembly.reply(0.0)
    assert reply is not None
    assert (reply.input_tokens, reply.output_tokens, reply.cached_tokens) == counts


def test_the_last_word_on_usage_counts() -> None:
    assembly = ReplyAssembly(finish_reason="stop")
    assembly.add_usage({"prompt_tokens": 7, "completion_tokens": 1}, {"cache_n": 5})
    assembly.add_usage({"prompt_tokens": 7, "completion_tokens": 3}, {})
    assembly.add_usage({}, {"cache_n": 6})
    reply = assembly.reply(0.0)
    assert reply == ModelReply(input_tokens=7, output_tokens=3, cached_tokens=6)


def test_thoughts_are_no_text() -> None:
    assembly = ReplyAssembly(finish_reason="stop")
    assert not assembly.spoken
    assembly.add_reasoning("Let me ")
    assembly.add_reasoning("see.")
    assert (assembly.spoken, assembly.characters) == (True, 11)
    assert assembly.reply(0.0) == ModelReply(reasoning="Let me see.")


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
        assembly.add_text(piece)
    for number, ((_, pieces), head_alone) in enumerate(arguments):
        index = {"own": number, "one": 0, "none": None}[indices]
        head, rest = ("", pieces) if head_alone else (pieces[0], pieces[1:])
        assembly.add_call_part(index, f"call_{number}", "edit_file", head)
        for piece in rest:
            assembly.add_call_part(index, None, None, piece)
    calls = tuple(call(f"call_{number}", "edit_file", whole) for number, ((whole, _), _) in enumerate(arguments))
    assert assembly.reply(0.0) == ModelReply(text=text[0], calls=calls)
