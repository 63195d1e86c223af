import json
import sys
from typing import Any

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from nodes.call_model.prompt import build_prompt
from nodes.call_model.wire import describe_tool, native_tool, on_the_wire
from nodes.call_model.wire_cache import MOST_TOOL_SETS, WireCache, encoded, held_by, size_of
from nodes.records import EditForm
from tests.nodes.call_model.prompting import NATIVE, READ, TEXT, offered

CALL: Any = {"name": "read_file", "args": {"path": "ü"}, "id": "x", "type": "tool_call"}
HISTORY: list[AnyMessage] = [
    HumanMessage("Fix 字.py"),
    AIMessage("", tool_calls=[CALL]),
    ToolMessage("{}", tool_call_id="x"),
]


@pytest.mark.parametrize("native", [True, False])
def test_a_message_is_made_once(native: bool) -> None:
    cache = WireCache()
    first, second = (
        cache.messages(HISTORY, native=native),
        cache.messages([*HISTORY, AIMessage("Done.")], native=native),
    )
    assert all(a is b for a, b in zip(first, second, strict=False))
    assert [each.map for each in first] == [on_the_wire(message, native=native) for message in HISTORY]
    assert [json.loads(each.bytes) for each in first] == [each.map for each in first]
    assert [each.size for each in first] == [size_of(each.map) for each in first]


def test_each_protocol_has_its_own() -> None:
    cache = WireCache()
    native, text = (cache.messages(HISTORY, native=native) for native in (True, False))
    assert [native[1].map["content"], text[1].map["content"]] == ["", 'tool: read_file({"path":"ü"})']


def test_a_message_at_an_old_address_is_not_taken_for_the_old_one() -> None:
    cache = WireCache(most_bytes=1)
    for number in range(2_000):
        [made] = cache.messages([HumanMessage(str(number))], native=True)
        assert made.map["content"] == str(number)


def test_what_is_kept_is_bounded_and_the_oldest_goes() -> None:
    messages = [HumanMessage("x" * 100 + str(number)) for number in range(10)]
    [made] = WireCache().messages(messages[:1], native=True)
    size = held_by(made)
    cache = WireCache(most_bytes=3 * size)
    first = cache.messages(messages, native=True)
    assert len(cache._messages) == 3
    again = cache.messages(messages[-3:], native=True)
    assert all(a is b for a, b in zip(again, first[-3:], strict=True))
    assert cache._size == 3 * size


@pytest.mark.parametrize("text", ["", "字" * 50_000, "x" * 100_000])
def test_a_message_counts_as_what_it_holds_and_not_only_as_its_bytes(text: str) -> None:
    """Its text, the bytes made of it, and some kilobytes for the message with all its fields."""
    [made] = WireCache().messages([HumanMessage(text)], native=True)
    assert held_by(made) >= sys.getsizeof(made.message.content) + sys.getsizeof(made.bytes) + 5_500


def test_one_message_that_is_too_large_is_kept_alone() -> None:
    cache = WireCache(most_bytes=10)
    cache.messages([HumanMessage("a" * 50), HumanMessage("b" * 50)], native=True)
    assert len(cache._messages) == 1


def test_equal_tools_are_the_same_bytes() -> None:
    cache = WireCache()
    specs = offered(EditForm.REPLACE)
    made = cache.tools(specs)
    assert cache.tools([spec.model_copy(deep=True) for spec in specs]) is made
    assert made.maps == tuple(map(native_tool, specs))
    assert json.loads(made.bytes) == list(made.maps)
    assert made.lines.splitlines() == [describe_tool(spec) for spec in specs]
    assert cache.tools(specs[:-1]) is not made


def test_the_sets_of_tools_are_bounded() -> None:
    cache = WireCache()
    for number in range(MOST_TOOL_SETS + 5):
        cache.tools([READ.model_copy(update={"name": f"tool_{number}"})])
    assert len(cache._tools) == MOST_TOOL_SETS


@given(st.text(st.characters() | st.sampled_from(["\ud83d", "\ude00"])))
def test_every_text_can_be_sent(text: str) -> None:
    assert json.loads(encoded({"content": text})) == json.loads(json.dumps({"content": text}))


@pytest.mark.parametrize("profile", [NATIVE, TEXT])
def test_a_prompt_from_the_cache_is_the_same_prompt(profile: Any) -> None:
    cache, specs = WireCache(), offered(EditForm.REPLACE)
    for end in range(1, len(HISTORY) + 1):
        fresh = build_prompt(profile, specs, HISTORY[:end], (), 0.0)
        known = build_prompt(profile, specs, HISTORY[:end], (), 0.0, wire=cache)
        assert (known, known.encoded, known.size) == (fresh, fresh.encoded, fresh.size)
        assert tuple(map(json.loads, known.encoded.messages)) == known.messages
        assert json.loads(known.encoded.tools) == list(known.tools)


def test_the_front_never_changes() -> None:
    cache, specs = WireCache(), offered(EditForm.REPLACE)
    first, second = (build_prompt(NATIVE, specs, HISTORY[:end], (), 0.0, wire=cache) for end in (1, 3))
    assert second.encoded.tools is first.encoded.tools
    assert second.encoded.messages[:2] == first.encoded.messages
