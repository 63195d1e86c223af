import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage

from nodes.call_model import prompt as texts
from nodes.call_model.ledger import estimate_tokens
from nodes.call_model.offered_tools import offered_tools
from nodes.call_model.prompt import Prompt, build_prompt, describe_tool
from nodes.execute_tools.tools import default_tools
from nodes.language.blocks import EXAMPLE_PATHS, read_blocks
from nodes.language.history import settle_exchange
from nodes.language.text_protocol import extract_tool_invocations_with_errors
from nodes.records import (
    CallResult,
    Correction,
    EditForm,
    Effect,
    JsonMap,
    ModelReply,
    Profile,
    Protocol,
    ToolCall,
    ToolErrorCode,
    ToolInvocation,
    ToolResult,
    ToolSpec,
)

TEXT, NATIVE = Profile(protocol=Protocol.TEXT), Profile(protocol=Protocol.NATIVE)
BLOCKS = Profile(protocol=Protocol.TEXT, edit_form=EditForm.BLOCKS, embedded=True)
TASK = HumanMessage("Fix calc.py")
CALC = "def add(a, b):\n    return a - b\n"
READ = ToolSpec(
    name="read_file",
    description="Read a file.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["path"],
    },
    effect=Effect.READ,
)
SYSTEM = {
    Protocol.TEXT: texts.TEXT_SYSTEM.format(tools='- read_file({"path": string, "limit"?: integer}): Read a file.'),
    Protocol.NATIVE: texts.NATIVE_SYSTEM,
}


def step(
    result: ToolResult, protocol: Protocol = Protocol.TEXT, *, text: str = "", path: str = "calc.py", at: int = 0
) -> list[AnyMessage]:
    """One exchange: a call of read_file and what it came to."""
    raw = json.dumps({"path": path}, separators=(",", ":"))
    call = ToolCall(call_id=f"c{at}", tool="read_file", arguments={"path": path}, raw_arguments=raw)
    said = "\n".join(filter(None, [text, f"tool: read_file({raw})"])) if protocol is Protocol.TEXT else text
    done = CallResult(call_id=call.call_id, tool=call.tool, result=result)
    return settle_exchange(ModelReply(text=said), [call], [done], protocol)


def built(profile: Profile, history: list[AnyMessage], *corrections: Correction, temperature: float = 0.0) -> Prompt:
    return build_prompt(profile, [READ], history, corrections, temperature)


def user(content: str) -> JsonMap:
    return {"role": "user", "content": content}


def assistant(content: str) -> JsonMap:
    return {"role": "assistant", "content": content}


def test_the_text_form_describes_tools_and_shows_calls_as_lines() -> None:
    found = step(ToolResult.success(content="x"), text="Let me look.")
    assert built(TEXT, [TASK, *found], temperature=0.2) == Prompt(
        messages=(
            {"role": "system", "content": SYSTEM[Protocol.TEXT]},
            user("Fix calc.py"),
            assistant('Let me look.\ntool: read_file({"path":"calc.py"})'),
            user('tool_result({"tool":"read_file","ok":true,"data":{"content":"x"}})'),
        ),
        stop=("\ntool_result(",),
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


def test_arguments_are_shown_as_they_are() -> None:
    call = AIMessage("", tool_calls=[{"name": "f", "args": {"a": "ü", "b": 1}, "id": "x", "type": "tool_call"}])
    assert built(TEXT, [call]).messages[1] == assistant('tool: f({"a":"ü","b":1})')
    [sent] = built(NATIVE, [call]).messages[1]["tool_calls"]
    assert sent["function"]["arguments"] == '{"a":"ü","b":1}'


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


FRONT = built(BLOCKS, [TASK]).messages[:-1]
"""The system prompt and the examples, which are the same in every request."""


def request_of(prompt: Prompt) -> str:
    assert prompt.messages[: len(FRONT)] == FRONT
    return str(prompt.messages[-1]["content"])


def read(content: str, path: str = "calc.py") -> ToolResult:
    return ToolResult.success(path=path, content=content)


def edited(path: str) -> ToolResult:
    return ToolResult.success(path=path, action="merged")


def failed(message: str) -> ToolResult:
    return ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, message)


def test_the_block_form_is_one_clean_request() -> None:
    history = [TASK, *step(read(CALC))]
    prompt = built(BLOCKS, history, temperature=0.1)
    assert prompt == Prompt(
        messages=(
            *FRONT,
            user(f"Fix calc.py\n\ncalc.py\n```python\n{CALC}```"),
        ),
        stop=("\ntool_result(",),
        temperature=0.1,
    )


def test_the_request_holds_what_is_known_now_and_never_a_failed_reply() -> None:
    history = [
        TASK,
        *step(read("old"), text="SAID"),
        *step(ToolResult.success(matches=["calc.py:1"]), text="SAID"),
        *step(ToolResult.success(entries=["calc.py"]), text="SAID"),
        *step(edited("util.py"), text="SAID"),
        *step(edited("main.py"), text="SAID"),
        *step(failed("The block is not Python."), text="SAID"),
        *step(read("new"), text="SAID"),
    ]
    correction = Correction(reply="SAID badly", prompt="Send it again, complete.")
    *known, failed_in_words = request_of(built(BLOCKS, history, correction)).split("\n\n")
    assert known == [
        "Fix calc.py",
        "calc.py\n```python\nnew\n```",
        'Found:\n{"matches": ["calc.py:1"]}\n{"entries": ["calc.py"]}',
        "Already changed: util.py, main.py",
    ]
    assert "The block is not Python.\nSend it again, complete." in failed_in_words
    assert "SAID" not in failed_in_words


def test_only_the_last_failures_are_told() -> None:
    results = [CallResult(call_id=f"c{at}", tool="f", result=failed(f"failure {at}")) for at in range(3)]
    calls = [ToolCall(call_id=result.call_id, tool="f", arguments={}, raw_arguments="{}") for result in results]
    history = [TASK, *settle_exchange(ModelReply(text="x"), calls, results, Protocol.TEXT)]
    corrections = [Correction(reply="x", prompt=f"correction {at}") for at in range(2)]
    request = request_of(built(BLOCKS, history, *corrections))
    assert "failure 1\nfailure 2\ncorrection 1" in request
    assert "failure 0" not in request
    assert "correction 0" not in request


def test_earlier_turns_are_told_in_words_alone() -> None:
    history = [
        HumanMessage("What is here?"),
        *step(ToolResult.success(entries=["calc.py"])),
        AIMessage("A calculator."),
        TASK,
        *step(read(CALC)),
    ]
    prompt = built(BLOCKS, history)
    assert prompt.messages[len(FRONT) : -1] == (user("What is here?"), assistant("A calculator."))
    assert request_of(prompt).startswith("Fix calc.py\n\ncalc.py\n")


@pytest.mark.parametrize(
    ("failures", "corrections", "given_temperature", "expected"),
    [
        (0, 0, 0.0, 0.0),
        (1, 0, 0.0, 0.0),
        (0, 1, 0.0, 0.0),
        (1, 1, 0.0, 0.8),
        (2, 0, 0.3, 0.8),
        (0, 3, 1.2, 1.2),
    ],
)
def test_from_the_second_failure_on_a_small_model_is_sampled(
    failures: int, corrections: int, given_temperature: float, expected: float
) -> None:
    history = [TASK, *(message for _ in range(failures) for message in step(failed("no")))]
    asked = [Correction(reply="x", prompt="y")] * corrections
    assert built(BLOCKS, history, *asked, temperature=given_temperature).temperature == expected
    for profile in (TEXT, NATIVE):
        assert built(profile, history, *asked, temperature=given_temperature).temperature == given_temperature


def test_the_examples_are_turns_in_the_form_that_the_reader_reads() -> None:
    system, *turns = FRONT
    assert system == {"role": "system", "content": texts.BLOCKS_SYSTEM}
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * (len(turns) // 2)
    replies = [read_blocks(str(turn["content"]), sorted(EXAMPLE_PATHS)) for turn in turns[1::2]]
    edits = [outcome for reply in replies for outcome in reply.outcomes]
    assert all(isinstance(edit, ToolInvocation) for edit in edits)
    assert {edit.args["path"] for edit in edits if isinstance(edit, ToolInvocation)} == EXAMPLE_PATHS


def offered(edit_form: EditForm, schema: JsonMap | None = None) -> list[ToolSpec]:
    specs = [tool.spec for tool in default_tools()]
    return offered_tools(specs, edit_form, read_only=False, answer_schema=schema)


def test_the_block_form_tells_only_of_tools_that_a_model_cannot_do_without() -> None:
    own = ToolSpec(name="deploy", description="Deploy it.", parameters={}, effect=Effect.NONE)
    told = {
        "usual": offered(EditForm.BLOCKS),
        "own": [READ, own],
        "owed": offered(EditForm.BLOCKS, {"type": "integer"}),
    }
    systems = {
        name: str(build_prompt(BLOCKS, specs, [TASK], (), 0.0).messages[0]["content"]) for name, specs in told.items()
    }
    more = f"{texts.BLOCKS_SYSTEM}\nMore tools, called in the same way:\n"
    assert systems == {
        "usual": texts.BLOCKS_SYSTEM,
        "own": f"{more}- deploy({{}}): Deploy it.",
        "owed": f"{more}{describe_tool(told['owed'][-1])}",
    }


def test_prompts_are_short() -> None:
    """A small model's window and patience; a token has 3 to 4 characters in these texts."""
    specs = offered(EditForm.REPLACE)
    [system, *_] = build_prompt(TEXT, specs, [TASK], (), 0.0).messages
    assert len(system["content"]) / 4 < 600
    blocks = build_prompt(BLOCKS, offered(EditForm.BLOCKS), [TASK], (), 0.0)
    assert blocks.characters() / 4 < 400


@pytest.mark.parametrize("profile", [TEXT, BLOCKS])
def test_a_prompt_that_comes_back_calls_nothing_that_writes(profile: Profile) -> None:
    specs = offered(profile.edit_form)
    effects = {spec.name: spec.effect for spec in specs}
    echoed = str(build_prompt(profile, specs, [TASK], (), 0.0).messages[0]["content"])
    calls, _ = extract_tool_invocations_with_errors(echoed, frozenset(effects))
    assert Effect.WRITE not in {effects[call.tool_name] for call in calls}
    assert read_blocks(echoed, ["calc.py"]).outcomes == []


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


@given(st.sampled_from([TEXT, NATIVE, BLOCKS]), st.text(max_size=200), st.text(max_size=200))
def test_the_estimate_counts_everything_that_is_sent(profile: Profile, task: str, content: str) -> None:
    history = [HumanMessage(task), *step(read(content), profile.protocol)]
    prompt = built(profile, history)
    sent = json.dumps([*prompt.messages, *prompt.tools], ensure_ascii=False)
    names = sum(len('{"role": "assistant", "content": ""}, ') + 20 for _ in prompt.messages)
    assert prompt.characters() >= len(sent) - names - sent.count("\\")
    assert estimate_tokens(prompt.characters(), len(prompt.messages)) * 3 >= prompt.characters()
