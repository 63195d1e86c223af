import sys
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from nodes.call_model.prompt import build_prompt
from nodes.call_model.shown_messages import (
    MEDIA_BYTES,
    MOST_TOOL_SETS,
    ShownMessages,
    _held_by,
    as_map,
    describe_tool,
    from_map,
    json_size,
    message_of,
    native_tool,
    size_of,
)
from nodes.records import EditForm, Effect, JsonMap, ToolSpec
from tests.nodes.call_model.prompting import NATIVE, READ, TEXT, assistant, built, offered


def test_arguments_are_shown_as_they_are() -> None:
    call = AIMessage("", tool_calls=[{"name": "f", "args": {"a": "ü", "b": 1}, "id": "x", "type": "tool_call"}])
    assert built(TEXT, [call]).messages[1] == assistant('tool: f({"a":"ü","b":1})')
    [sent] = built(NATIVE, [call]).messages[1]["tool_calls"]
    assert sent["function"]["arguments"] == '{"a":"ü","b":1}'


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string"}, "string"),
        ({}, "any"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string|null"),
        ({"type": "array", "items": {"type": "integer"}}, "[integer]"),
        ({"type": "array"}, "[any]"),
        ({"type": "object"}, "object"),
        (
            {
                "type": "array",
                "items": {"type": "object", "properties": {"title": {}, "status": {"enum": ["open", 1], "type": "x"}}},
            },
            '[{"title": any, "status": "open"|1}]',
        ),
    ],
)
def test_a_tool_is_one_line(schema: dict[str, Any], shown: str) -> None:
    parameters = {"properties": {"value": schema}, "required": ["value"]}
    spec = ToolSpec(name="f", description="Does it.", parameters=parameters, effect=Effect.NONE)
    assert describe_tool(spec) == f'- f({{"value": {shown}}}): Does it.'


def test_a_tool_without_arguments_is_one_line_too() -> None:
    assert describe_tool(ToolSpec(name="f", description="D.", parameters={}, effect=Effect.NONE)) == "- f({}): D."


def test_a_tool_as_the_endpoint_takes_it() -> None:
    function = {"name": "read_file", "description": "Read a file.", "parameters": READ.parameters}
    assert native_tool(READ) == {"type": "function", "function": function}


@pytest.mark.parametrize(
    ("message", "role"), [(SystemMessage("x"), "system"), (HumanMessage("x"), "user"), (AIMessage("x"), "assistant")]
)
@pytest.mark.parametrize("native", [True, False])
def test_plain_messages_keep_their_role(message: AnyMessage, role: str, native: bool) -> None:
    assert as_map(message, native=native) == message_of(role, "x") == {"role": role, "content": "x"}


CALL: Any = {"name": "read_file", "args": {"path": "ü"}, "id": "x", "type": "tool_call"}
HISTORY: list[AnyMessage] = [
    HumanMessage("Fix 字.py"),
    AIMessage("", tool_calls=[CALL]),
    ToolMessage("{}", tool_call_id="x"),
]


@pytest.mark.parametrize("native", [True, False])
def test_a_message_is_made_once(native: bool) -> None:
    cache = ShownMessages()
    first, second = (
        cache.messages(HISTORY, native=native),
        cache.messages([*HISTORY, AIMessage("Done.")], native=native),
    )
    assert all(a is b for a, b in zip(first, second, strict=False))
    assert [each.map for each in first] == [as_map(message, native=native) for message in HISTORY]
    assert [each.size for each in first] == [size_of(each.map) for each in first]


def test_each_protocol_has_its_own() -> None:
    cache = ShownMessages()
    native, text = (cache.messages(HISTORY, native=native) for native in (True, False))
    assert [native[1].map["content"], text[1].map["content"]] == ["", 'tool: read_file({"path":"ü"})']


def test_a_message_at_an_old_address_is_not_taken_for_the_old_one() -> None:
    cache = ShownMessages(most_bytes=1)
    for number in range(2_000):
        [made] = cache.messages([HumanMessage(str(number))], native=True)
        assert made.map["content"] == str(number)


def test_what_is_kept_is_bounded_and_the_oldest_goes() -> None:
    messages = [HumanMessage("x" * 100 + str(number)) for number in range(10)]
    [made] = ShownMessages().messages(messages[:1], native=True)
    size = _held_by(made)
    cache = ShownMessages(most_bytes=3 * size)
    first = cache.messages(messages, native=True)
    assert len(cache._messages) == 3
    again = cache.messages(messages[-3:], native=True)
    assert all(a is b for a, b in zip(again, first[-3:], strict=True))
    assert cache._size == 3 * size


@pytest.mark.parametrize("text", ["", "字" * 50_000, "x" * 100_000])
def test_a_message_counts_as_what_it_holds_and_not_only_as_its_bytes(text: str) -> None:
    """Its text, and some kilobytes for the message with all its fields."""
    [made] = ShownMessages().messages([HumanMessage(text)], native=True)
    assert _held_by(made) >= sys.getsizeof(made.message.content) + 5_500


def test_one_message_that_is_too_large_is_kept_alone() -> None:
    cache = ShownMessages(most_bytes=10)
    cache.messages([HumanMessage("a" * 50), HumanMessage("b" * 50)], native=True)
    assert len(cache._messages) == 1


def test_equal_tools_are_the_very_same() -> None:
    cache = ShownMessages()
    specs = offered(EditForm.REPLACE)
    made = cache.tools(specs)
    assert cache.tools([spec.model_copy(deep=True) for spec in specs]) is made
    assert made.maps == tuple(map(native_tool, specs))
    assert made.lines.splitlines() == [describe_tool(spec) for spec in specs]
    assert cache.tools(specs[:-1]) is not made


def test_the_sets_of_tools_are_bounded() -> None:
    cache = ShownMessages()
    for number in range(MOST_TOOL_SETS + 5):
        cache.tools([READ.model_copy(update={"name": f"tool_{number}"})])
    assert len(cache._tools) == MOST_TOOL_SETS


@pytest.mark.parametrize("profile", [NATIVE, TEXT])
def test_a_prompt_from_the_cache_is_the_same_prompt(profile: Any) -> None:
    cache, specs = ShownMessages(), offered(EditForm.REPLACE)
    for end in range(1, len(HISTORY) + 1):
        fresh = build_prompt(profile, specs, HISTORY[:end], (), 0.0)
        known = build_prompt(profile, specs, HISTORY[:end], (), 0.0, shown=cache)
        assert (known, known.size) == (fresh, fresh.size)
        assert known.chat_messages == fresh.chat_messages


def test_the_front_never_changes() -> None:
    cache, specs = ShownMessages(), offered(EditForm.REPLACE)
    first, second = (build_prompt(NATIVE, specs, HISTORY[:end], (), 0.0, shown=cache) for end in (1, 3))
    assert second.tools is first.tools
    assert second.messages[:2] == first.messages


# --- What endpoints want to see again


def test_what_an_endpoint_added_goes_back_with_its_calls_and_only_natively() -> None:
    kept = {
        "reasoning_content": "Hm.",
        "reasoning_details": [{"data": "x"}],
        "tool_call_extras": {"x": {"extra_content": {"google": 1}}},
        "other": "not for the wire",
    }
    called = AIMessage("Look:", tool_calls=[CALL], additional_kwargs=kept)
    shown = as_map(called, native=True)
    assert (shown["reasoning_content"], shown["reasoning_details"]) == ("Hm.", [{"data": "x"}])
    assert shown["tool_calls"][0]["extra_content"] == {"google": 1}
    assert "other" not in shown
    assert size_of(shown) > size_of(as_map(AIMessage("Look:", tool_calls=[CALL]), native=True))
    assert set(as_map(called, native=False)) == set(as_map(AIMessage("Done.", additional_kwargs=kept), native=True))


def test_a_chat_model_gets_the_very_messages_of_a_native_history() -> None:
    """With all that its provider wants to see again; in text they are made of what is shown."""
    native, text = (ShownMessages().messages(HISTORY, native=native) for native in (True, False))
    assert all(each.message is source for each, source in zip(native, HISTORY, strict=True))
    assert [type(each.message) for each in text] == [HumanMessage, AIMessage, HumanMessage]
    assert [each.message for each in text] == [HISTORY[0], *(from_map(each.map) for each in text[1:])]
    assert not getattr(text[1].message, "tool_calls", None)


# --- Images and files

IMAGE: JsonMap = {"type": "image", "base64": "aGk=" * 30_000, "mime_type": "image/png"}


def test_a_persons_image_is_sent_and_counts_as_what_a_model_reads_of_it() -> None:
    message = HumanMessage([{"type": "text", "text": "What is this?"}, IMAGE])
    shown = as_map(message, native=True)
    text, image = shown["content"]
    assert (text, image["type"]) == ({"type": "text", "text": "What is this?"}, "image_url")
    assert size_of(shown) == MEDIA_BYTES + len("What is this?")


def test_what_has_no_form_of_openais_is_shown_as_it_came() -> None:
    video = {"type": "video", "base64": "AAAA", "mime_type": "video/mp4"}
    shown = as_map(HumanMessage(["Look:", video]), native=True)
    assert shown["content"] == [{"type": "text", "text": "Look:"}, video]
    assert size_of(shown) == MEDIA_BYTES + len("Look:")


def test_a_size_is_that_of_compact_json_whatever_the_value() -> None:
    assert [json_size({"a": "ü", "b": [1]}), json_size({1: 2})] == [len('{"a":"ü","b":[1]}'.encode()), len('{"1":2}')]
