import json
from typing import Any

from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from mendgraph.nodes.call_model.prompts.prompt import Prompt, ShownMessages
from mendgraph.nodes.call_model.turn_prompt import NATIVE_SYSTEM, TEXT_SYSTEM
from mendgraph.nodes.language.chat_messages import MEDIA_BYTES, as_map, describe_tool, json_size, size_of
from mendgraph.nodes.records import (
    Correction,
    EditForm,
    Effect,
    JsonMap,
    Profile,
    Protocol,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)
from tests.row_tables import rows
from tests.rules.call_model.prompts.prompting import (
    BLOCKS,
    NATIVE,
    NATIVE_BLOCKS,
    READ,
    TASK,
    TEXT,
    assistant,
    built,
    offered,
    prompt_of,
    step,
    user,
)

SYSTEM = {
    Protocol.TEXT: TEXT_SYSTEM.format(tools='- read_file({"path": string, "limit"?: integer}): Read a file.'),
    Protocol.NATIVE: NATIVE_SYSTEM,
}


def test_native_prompt_has_schemas_and_calls() -> None:
    exchange = step(ToolResult.success(content="x"), Protocol.NATIVE, text="Let me look.")
    function = {"name": "read_file", "arguments": '{"path":"calc.py"}'}
    assert built(NATIVE, [SystemMessage("Speak plainly."), TASK, *exchange]) == Prompt(
        messages=(
            {"role": "system", "content": SYSTEM[Protocol.NATIVE]},
            {"role": "system", "content": "Speak plainly."},
            user("Fix calc.py"),
            {**assistant("Let me look."), "tool_calls": [{"id": "c0", "type": "function", "function": function}]},
            {"role": "tool", "content": '{"ok":true,"data":{"content":"x"}}', "tool_call_id": "c0"},
        ),
        tools=(
            {
                "type": "function",
                "function": {"name": "read_file", "description": "Read a file.", "parameters": READ.parameters},
            },
        ),
    )


@rows(TEXT, NATIVE)
def test_open_corrections_are_at_the_end(profile: Profile) -> None:
    corrections = [Correction(reply="tool: x", prompt="Fix it."), Correction(reply="", prompt="Say something.")]
    prompt = built(profile, [TASK], *corrections)
    expected = (assistant("tool: x"), user("Fix it."), assistant("(empty)"), user("Say something."))
    assert prompt.messages == (*built(profile, [TASK]).messages, *expected)


RESULTS = st.one_of(
    st.builds(lambda content: ToolResult.success(path="calc.py", content=content), st.text(max_size=20)),
    st.builds(lambda message: ToolResult.failure(ToolErrorCode.NOT_FOUND, message), st.text(max_size=20)),
)


@given(st.sampled_from([TEXT, NATIVE]), st.lists(st.tuples(st.text(max_size=10), RESULTS), max_size=5))
def test_each_step_only_appends_to_the_prompt(profile: Profile, steps: list[tuple[str, ToolResult]]) -> None:
    history: list[AnyMessage] = [TASK]
    before = built(profile, history)
    for at, (text, result) in enumerate(steps):
        history += step(result, profile.protocol, text=text, at=at)
        after = built(profile, history)
        assert after.messages[: len(before.messages)] == before.messages
        assert (len(after.messages), after.tools, after.stop) == (len(before.messages) + 2, before.tools, before.stop)
        before = after


def test_prompts_are_short() -> None:
    """A small model's window and patience; a token has 3 to 4 characters in these texts."""
    specs = offered(EditForm.REPLACE)
    [system, *_] = prompt_of(TEXT, specs, [TASK]).messages
    assert len(system["content"]) / 4 < 600
    blocks = prompt_of(BLOCKS, offered(EditForm.BLOCKS), [TASK])
    assert blocks.size / 4 < 500
    native = prompt_of(NATIVE_BLOCKS, offered(EditForm.BLOCKS), [TASK])
    assert len(json.dumps(native.messages)) <= len(json.dumps(blocks.messages))


@rows(TEXT, NATIVE, BLOCKS, NATIVE_BLOCKS)
@rows(None, 0.0, 0.7)
def test_temperature_is_sent_if_set_and_to_small_models(asked_for: float | None, profile: Profile) -> None:
    """Reasoning models refuse a temperature, and the others have a good default."""
    small, capable = (
        built(profile.model_copy(update={"small": is_small}), [TASK], temperature=asked_for).temperature
        for is_small in (True, False)
    )
    assert (small, capable) == (asked_for or 0.0, asked_for)


STEP: JsonMap = {"title": {}, "status": {"enum": ["open", 1], "type": "x"}}


@rows(
    ({"type": "string"}, "string"),
    ({}, "any"),
    (True, "any"),
    ({"const": 3}, "3"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string|null"),
    ({"type": "array", "items": {"type": "integer"}}, "[integer]"),
    ({"type": "array"}, "[any]"),
    ({"type": "object"}, "object"),
    ({"type": "array", "items": {"type": "object", "properties": STEP}}, '[{"title": any, "status": "open"|1}]'),
)
def test_tool_is_described_on_one_line(schema: dict[str, Any], description: str) -> None:
    parameters = {"properties": {"value": schema}, "required": ["value"]}
    spec = ToolSpec(name="f", description="Does it.", parameters=parameters, effect=Effect.NONE)
    assert describe_tool(spec) == f'- f({{"value": {description}}}): Does it.'


CALL: Any = {"name": "read_file", "args": {"path": "ü"}, "id": "x", "type": "tool_call"}


def test_cache_does_not_confuse_messages_with_a_reused_address() -> None:
    cache = ShownMessages(most_bytes=1)
    for number in range(2_000):
        [message] = cache.messages([HumanMessage(str(number))], native=True)
        assert message.map["content"] == str(number)


def test_cached_messages_are_bounded() -> None:
    """By the text of each message, and some kilobytes for the message with all its fields."""
    cache = ShownMessages(most_bytes=100_000)
    message = HumanMessage("first")
    [first] = cache.messages([message], native=True)
    assert cache.messages([message, HumanMessage("x" * 10_000)], native=True)[0] is first
    cache.messages([HumanMessage("x" * 30_000)], native=True)
    assert cache.messages([message], native=True)[0] is not first


def test_endpoint_fields_are_sent_back_with_native_calls_only() -> None:
    fields = {
        "reasoning_content": "Hm.",
        "reasoning_details": [{"data": "x"}],
        "tool_call_extras": {"x": {"extra_content": {"google": 1}}},
        "other": "not for the wire",
    }
    called = AIMessage("Look:", tool_calls=[CALL], additional_kwargs=fields)
    message = as_map(called, native=True)
    assert (message["reasoning_content"], message["reasoning_details"]) == ("Hm.", [{"data": "x"}])
    assert message["tool_calls"][0]["extra_content"] == {"google": 1}
    assert "other" not in message
    assert size_of(message) > size_of(as_map(AIMessage("Look:", tool_calls=[CALL]), native=True))
    assert set(as_map(called, native=False)) == set(as_map(AIMessage("Done.", additional_kwargs=fields), native=True))


def test_block_that_openai_does_not_define_is_sent_unchanged() -> None:
    video = {"type": "video", "base64": "AAAA", "mime_type": "video/mp4"}
    message = as_map(HumanMessage(["Look:", video]), native=True)
    assert message["content"] == [{"type": "text", "text": "Look:"}, video]
    assert size_of(message) == MEDIA_BYTES + len("Look:")


HISTORY: list[AnyMessage] = [TASK, AIMessage("", tool_calls=[CALL]), ToolMessage("{}", tool_call_id="x")]


def test_native_history_reuses_messages_and_text_history_renders_them() -> None:
    native, text = (ShownMessages().messages(HISTORY, native=native) for native in (True, False))
    assert all(message.message is source for message, source in zip(native, HISTORY, strict=True))
    assert [type(message.message) for message in text] == [HumanMessage, AIMessage, HumanMessage]
    texts = [message.message.text for message in text]
    assert texts == ["Fix calc.py", 'tool: read_file({"path":"ü"})', "tool_result({})"]
    assert [json_size({"a": "ü", "b": [1]}), json_size({1: 2})] == [len('{"a":"ü","b":[1]}'.encode()), len('{"1":2}')]
