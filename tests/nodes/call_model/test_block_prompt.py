import pytest
from langchain_core.messages import AIMessage, HumanMessage

from nodes.call_model import block_prompt as texts
from nodes.call_model.prompt import Prompt, build_prompt
from nodes.call_model.wire import describe_tool
from nodes.language.blocks import EXAMPLE_EDITS, read_blocks, render_file
from nodes.language.history import settle_exchange
from nodes.records import (
    CallResult,
    Correction,
    EditForm,
    Effect,
    ModelReply,
    Protocol,
    ToolCall,
    ToolInvocation,
    ToolResult,
    ToolSpec,
)
from tests.nodes.call_model.prompting import (
    BLOCKS,
    CALC,
    NATIVE,
    READ,
    TASK,
    TEXT,
    assistant,
    built,
    edited,
    failed,
    offered,
    read,
    step,
    user,
)

FRONT = built(BLOCKS, [TASK]).messages[:-1]
"""The system prompt and the examples, which are the same in every request."""


def request_of(prompt: Prompt) -> str:
    assert prompt.messages[: len(FRONT)] == FRONT
    return str(prompt.messages[-1]["content"])


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
        '{"matches": ["calc.py:1"]}\nThe workspace has: calc.py',
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
    edits = [render_file(path, content) for path, content in EXAMPLE_EDITS.items()]
    assert [str(turn["content"]) for turn in turns[1::2]][-len(edits) :] == edits
    for path, text in zip(EXAMPLE_EDITS, edits, strict=True):
        [edit] = read_blocks(
            text.replace("return", "return 1 or").replace("3", "4").replace("red", "green"), [path]
        ).outcomes
        assert isinstance(edit, ToolInvocation)
        assert edit.args["path"] == path


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
