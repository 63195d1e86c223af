"""What a reply is read with: the run's tools, what the model has seen and was told, and what the turn has done."""

from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.reply_reader import reply_reader
from mendgraph.graph.machine.run_records import resuming_request
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.machine.tool_runtime import ToolRuntime
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.language.history import settle_exchange
from mendgraph.nodes.parse.answers import TurnFacts
from mendgraph.nodes.parse.reading import Reader, read_reply
from mendgraph.nodes.records import (
    CallResult,
    ChangeKind,
    EditForm,
    ExtractionError,
    ExtractionErrorType as Kind,
    FileChange,
    ModelReply,
    Profile,
    Protocol,
    ToolCall,
    ToolErrorCode,
    ToolResult,
)

GATEWAY = ToolRuntime(None, (), {}, ())
BLOCKS = Profile(edit_form=EditForm.BLOCKS)
SMALL = Profile(edit_form=EditForm.BLOCKS, small=True)
TASK = HumanMessage("Fix calc.py.")
FOUND = ToolResult.failure(ToolErrorCode.CHECK_FAILED, "add(1, 2) gives -1.")
MISSED = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, "The block is not Python.")
DENIED = ToolResult.failure(ToolErrorCode.PERMISSION_DENIED, "Not .env.")
CHANGE = FileChange(path="calc.py", kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="")


def step(*results: ToolResult) -> list[AnyMessage]:
    """One exchange whose calls came to these results."""
    tools = ["run_checks" if result is FOUND else "read_file" for result in results]
    done = [CallResult(call_id=f"c{at}", tool=tools[at], result=result) for at, result in enumerate(results)]
    calls = [ToolCall(call_id=each.call_id, tool=each.tool, arguments={}, raw_arguments="{}") for each in done]
    return settle_exchange(ModelReply(text="x"), calls, done, Protocol.TEXT)


def shown(path: str) -> ToolResult:
    return ToolResult.success(path=path, content="x = 1\n")


def state(*messages: AnyMessage, profile: Profile = BLOCKS, **fields: Any) -> AgentState:
    base = AgentState(context=AgentContext(), profile=profile, messages=list(messages))
    return cast("AgentState", {**base, **fields})


def met(*kinds: Kind) -> list[HealingAttempt]:
    return [HealingAttempt(at, "", [ExtractionError(kind, 0, "", "")], "") for at, kind in enumerate(kinds)]


HISTORY = (TASK, *step(shown("calc.py"), FOUND), *step(shown("util.py"), MISSED))
ATTEMPTS = [HealingAttempt(0, "x", [], "Send it again, all of it.\nComplete it.")]


def test_in_the_block_form_it_knows_what_the_model_was_shown() -> None:
    assert reply_reader(GATEWAY, state(*HISTORY)).shown_files == ("calc.py", "util.py")


IDLE = TurnFacts(request="Fix calc.py.", checked=True)


@pytest.mark.parametrize(
    ("given", "turn"),
    [
        (state(TASK), IDLE),
        (state(TASK, AIMessage("Done."), HumanMessage("And now?")), IDLE._replace(request="And now?")),
        (
            state(TASK, changes=[CHANGE, CHANGE.model_copy(update={"path": "a.md"}), CHANGE]),
            IDLE._replace(changed=("calc.py", "a.md")),
        ),
        (state(TASK, context=AgentContext(evidence=False)), IDLE._replace(checked=False)),
        (state(TASK, context=AgentContext(require_changes=True)), IDLE._replace(change_required=True)),
        (state(TASK, context=AgentContext(checks=("make test",))), IDLE),
        (state(), IDLE._replace(request="")),
    ],
)
def test_answer_is_held_against_this_turn(given: AgentState, turn: TurnFacts) -> None:
    assert reply_reader(GATEWAY, given).turn == turn


CLAIM = "I have fixed calc.py."


@pytest.mark.parametrize(
    ("given", "answer", "problem"),
    [
        (state(TASK), CLAIM, None),
        (state(TASK, profile=SMALL), CLAIM, "has not happened."),
        (state(TASK, profile=SMALL), "calc.py is right.", "asks for a change"),
        (state(TASK, profile=SMALL, changes=[CHANGE]), CLAIM, None),
        (state(HumanMessage(resuming_request("Fix calc.py.")), profile=SMALL), CLAIM, None),
        (state(TASK, AIMessage("Done."), HumanMessage("Hello."), profile=SMALL), CLAIM, None),
        (state(HumanMessage("Hello."), profile=SMALL), CLAIM, "has not happened."),
        (state(TASK, *step(DENIED), profile=SMALL), CLAIM, "Say what was not done, and why."),
        (state(TASK, *step(DENIED), profile=SMALL), "calc.py is right.", None),
        (
            state(HumanMessage("Read .env."), *step(DENIED), AIMessage("No."), TASK, profile=SMALL),
            "calc.py is right.",
            "asks for a change",
        ),
        (state(TASK, profile=SMALL, context=AgentContext(mode="read-only")), "calc.py is right.", None),
        (state(TASK, profile=SMALL, healing_attempts=met(Kind.EMPTY_REPLY, Kind.UNFOUNDED_CLAIM)), CLAIM, "happened."),
        (state(TASK, profile=SMALL, healing_attempts=met(*[Kind.UNFOUNDED_CLAIM] * 2)), CLAIM, None),
        (state(*HISTORY, profile=SMALL), "Sorry: the block is not Python.", "asks for a change"),
    ],
)
def test_only_the_answer_of_a_small_model_is_held_against_its_words(
    given: AgentState, answer: str, problem: str | None
) -> None:
    error = reply_reader(GATEWAY, given).judge_answer(answer)
    assert (error is None) is (problem is None)
    assert error is None or (problem or "") in error.details


# --- A reply in another form, read as it is


def reader(**fields: Any) -> Reader:
    return reply_reader(GATEWAY, state(TASK, **{"profile": Profile(), **fields}))


def test_edit_in_another_format_is_in_the_block_form_the_whole_work_and_checked() -> None:
    edit = ModelReply(text='{"name": "write_file", "arguments": {"path": "a.py", "content": "x = 1"}}')
    assert [each.tool for each in read_reply(edit, 4, reader(profile=BLOCKS)).items] == [
        "write_file",
        "run_checks",
        "final_answer",
    ]
    assert [each.tool for each in read_reply(edit, 4, reader()).items] == ["write_file"]
