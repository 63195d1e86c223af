import json

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage

from nodes.call_model.estimates import Gauge, estimate_input
from nodes.call_model.profiles import SMALL_STOP
from nodes.call_model.prompt import NATIVE_SYSTEM, TEXT_SYSTEM, Prompt, build_prompt
from nodes.call_model.shown_messages import describe_tool
from nodes.language.blocks import read_blocks
from nodes.language.text_protocol import BODY_BLOCK_RULE, extract_tool_invocations_with_errors
from nodes.records import (
    Correction,
    EditForm,
    Effect,
    Profile,
    Protocol,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)
from tests.nodes.call_model.prompting import (
    BLOCKS,
    NATIVE,
    NATIVE_BLOCKS,
    READ,
    TASK,
    TEXT,
    assistant,
    built,
    offered,
    read,
    step,
    user,
)

SYSTEM = {
    Protocol.TEXT: TEXT_SYSTEM.format(tools='- read_file({"path": string, "limit"?: integer}): Read a file.'),
    Protocol.NATIVE: NATIVE_SYSTEM,
}


def test_the_text_form_describes_tools_and_shows_calls_as_lines() -> None:
    found = step(ToolResult.success(content="x"), text="Let me look.")
    assert built(TEXT, [TASK, *found], temperature=0.2) == Prompt(
        messages=(
            {"role": "system", "content": SYSTEM[Protocol.TEXT]},
            user("Fix calc.py"),
            assistant('Let me look.\ntool: read_file({"path":"calc.py"})'),
            user('tool_result({"tool":"read_file","ok":true,"data":{"content":"x"}})'),
        ),
        temperature=0.2,
    )


def test_the_native_form_sends_schemas_and_calls() -> None:
    found = step(ToolResult.success(content="x"), Protocol.NATIVE, text="Let me look.")
    function = {"name": "read_file", "arguments": '{"path":"calc.py"}'}
    assert built(NATIVE, [SystemMessage("Speak plainly."), TASK, *found]) == Prompt(
        messages=(
            {"role": "system", "content": SYSTEM[Protocol.NATIVE]},
            {"role": "system", "content": "Speak plainly."},
            user("Fix calc.py"),
            {
                **assistant("Let me look."),
                "tool_calls": [{"id": "c0", "type": "function", "function": function}],
            },
            {"role": "tool", "content": '{"ok":true,"data":{"content":"x"}}', "tool_call_id": "c0"},
        ),
        tools=(
            {
                "type": "function",
                "function": {"name": "read_file", "description": "Read a file.", "parameters": READ.parameters},
            },
        ),
    )


def test_each_tool_has_its_line() -> None:
    other = ToolSpec(name="g", description="D.", parameters={}, effect=Effect.NONE)
    system = str(build_prompt(TEXT, [READ, other], [TASK], (), 0.0).messages[0]["content"])
    assert system.splitlines()[-2:] == [describe_tool(READ), describe_tool(other)]


def test_a_thread_may_change_its_protocol() -> None:
    native = step(ToolResult.success(n=1), Protocol.NATIVE, text="Look:")
    assert built(TEXT, [TASK, *native, AIMessage("Done.")]).messages[2:] == (
        assistant('Look:\ntool: read_file({"path":"calc.py"})'),
        user('tool_result({"ok":true,"data":{"n":1}})'),
        assistant("Done."),
    )
    text = step(ToolResult.success(n=1))
    assert built(NATIVE, [TASK, *text]).messages[2:] == (
        assistant('tool: read_file({"path":"calc.py"})'),
        user('tool_result({"tool":"read_file","ok":true,"data":{"n":1}})'),
    )


@pytest.mark.parametrize("profile", [TEXT, NATIVE])
def test_open_corrections_stand_at_the_end(profile: Profile) -> None:
    corrections = [Correction(reply="tool: x", prompt="Fix it."), Correction(reply="", prompt="Say something.")]
    prompt = built(profile, [TASK], *corrections)
    expected = (assistant("tool: x"), user("Fix it."), assistant("(empty)"), user("Say something."))
    assert prompt.messages[2:] == expected
    assert prompt.messages[:2] == built(profile, [TASK]).messages


RESULTS = st.one_of(
    st.builds(lambda content: ToolResult.success(path="calc.py", content=content), st.text(max_size=20)),
    st.builds(lambda message: ToolResult.failure(ToolErrorCode.NOT_FOUND, message), st.text(max_size=20)),
)


@given(st.sampled_from([TEXT, NATIVE]), st.lists(st.tuples(st.text(max_size=10), RESULTS), max_size=5))
def test_each_step_only_adds_to_the_prompt_before(profile: Profile, steps: list[tuple[str, ToolResult]]) -> None:
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
    [system, *_] = build_prompt(TEXT, specs, [TASK], (), 0.0).messages
    assert len(system["content"]) / 4 < 600
    blocks = build_prompt(BLOCKS, offered(EditForm.BLOCKS), [TASK], (), 0.0)
    assert blocks.size / 4 < 500
    native = build_prompt(NATIVE_BLOCKS, offered(EditForm.BLOCKS), [TASK], (), 0.0)
    assert len(json.dumps(native.messages)) <= len(json.dumps(blocks.messages))


@pytest.mark.parametrize("profile", [TEXT, BLOCKS, NATIVE_BLOCKS])
def test_a_prompt_that_comes_back_calls_nothing_that_writes(profile: Profile) -> None:
    specs = offered(profile.edit_form)
    effects = {spec.name: spec.effect for spec in specs}
    echoed = str(build_prompt(profile, specs, [TASK], (), 0.0).messages[0]["content"])
    calls, _ = extract_tool_invocations_with_errors(echoed, frozenset(effects))
    assert Effect.WRITE not in {effects[call.tool_name] for call in calls}
    assert read_blocks(echoed, ["calc.py"]).outcomes == []


@given(st.sampled_from([TEXT, NATIVE, BLOCKS, NATIVE_BLOCKS]), st.text(max_size=200), st.text(max_size=200))
def test_the_estimate_counts_everything_that_is_sent(profile: Profile, task: str, content: str) -> None:
    history = [HumanMessage(task), *step(read(content), profile.protocol)]
    prompt = built(profile, history)
    sent = json.dumps([*prompt.messages, *prompt.tools], ensure_ascii=False)
    names = sum(len('{"role": "assistant", "content": ""}, ') + 20 for _ in prompt.messages)
    assert prompt.size >= len(sent) - names - sent.count("\\")
    assert estimate_input(prompt.size, len(prompt.messages), Gauge()) * 3 >= prompt.size


def test_a_character_of_another_script_counts_as_a_token() -> None:
    letters, characters = (built(TEXT, [HumanMessage(text * 300)]).size for text in ("a", "字"))
    assert characters - letters == 600


@pytest.mark.parametrize("profile", [TEXT, NATIVE, BLOCKS, NATIVE_BLOCKS])
@pytest.mark.parametrize("asked_for", [None, 0.0, 0.7])
def test_a_temperature_is_sent_where_somebody_asked_for_one_and_to_small_models(
    profile: Profile, asked_for: float | None
) -> None:
    """Models that think refuse any, and the others know their own best."""
    small, capable = (
        built(profile.model_copy(update={"small": each}), [TASK], temperature=asked_for).temperature
        for each in (True, False)
    )
    assert (small, capable) == (asked_for or 0.0, asked_for)


@pytest.mark.parametrize("small", [True, False])
def test_a_small_model_is_told_that_a_text_may_follow_in_a_block(small: bool) -> None:
    """Once, at the end of a prompt that is stable; natively there are no lines that a block could follow."""
    profile = TEXT.model_copy(update={"small": small})
    text, native = (built(each, [TASK]) for each in (profile, NATIVE.model_copy(update={"small": small})))
    assert str(text.messages[0]["content"]).count(BODY_BLOCK_RULE) == small
    assert BODY_BLOCK_RULE not in str(native.messages)
    assert (text.stop, native.stop) == (SMALL_STOP if small else (), ())
