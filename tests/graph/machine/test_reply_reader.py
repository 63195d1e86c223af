"""What a reply is read with: the run's tools, what the model has seen and was told, and what the turn has done."""

from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.state import AgentState
from mendgraph.graph.machine.tool_runtime import ToolRuntime, reply_reader
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


def facts(given: AgentState, gateway: ToolRuntime = GATEWAY) -> dict[str, Any]:
    """What the answer is held against, with what functions answer in their place."""
    turn = reply_reader(gateway, given).turn
    return {**turn._asdict(), **{name: getattr(turn, name)() for name in ("hindered", "acted", "first")}}


HISTORY = (TASK, *step(shown("calc.py"), FOUND), *step(shown("util.py"), MISSED))
ATTEMPTS = [HealingAttempt(0, "x", [], "Send it again.\nComplete.")]


def test_in_the_block_form_it_knows_what_the_model_was_shown_and_told() -> None:
    how = reply_reader(GATEWAY, state(*HISTORY, healing_attempts=ATTEMPTS))
    assert how.shown_files == ("calc.py", "util.py")
    assert how.told == ("The block is not Python.", "add(1, 2) gives -1.", "Send it again.", "Complete.")


IDLE = TurnFacts(request="Fix calc.py.", checked=True)._asdict() | {"hindered": False, "first": True, "acted": False}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        (state(TASK), {}),
        (state(HumanMessage("Hello."), AIMessage("Hi."), TASK, *step(MISSED)), {"first": False}),
        (state(TASK, AIMessage("Done."), HumanMessage("And now?")), {"request": "And now?", "first": False}),
        (
            state(TASK, changes=[CHANGE, CHANGE.model_copy(update={"path": "a.md"}), CHANGE]),
            {"changed": ("calc.py", "a.md")},
        ),
        (state(TASK, *step(DENIED)), {"hindered": True}),
        (state(HumanMessage("Read .env."), *step(DENIED), AIMessage("No."), TASK), {"first": False}),
        (state(TASK, context=AgentContext(mode="read-only")), {"hindered": True}),
        (state(TASK, healing_attempts=met(Kind.EMPTY_REPLY, Kind.UNFOUNDED_CLAIM, Kind.UNFOUNDED_CLAIM)), {"met": 2}),
        (state(TASK, profile=Profile(small=True)), {"insistent": True}),
        (state(TASK, context=AgentContext(evidence=False)), {"checked": False}),
        (state(TASK, context=AgentContext(checks=("make test",))), {"configured": True}),
        (state(), {"request": "", "first": False}),
    ],
)
def test_an_answer_is_held_against_this_turn(given: AgentState, changed: dict[str, Any]) -> None:
    assert facts(given) == IDLE | changed


# --- A reply in another form, read as it is


def reader(**fields: Any) -> Reader:
    return reply_reader(GATEWAY, state(TASK, **{"profile": Profile(), **fields}))


def test_an_edit_in_another_format_is_in_the_block_form_the_whole_work_and_checked() -> None:
    edit = ModelReply(text='{"name": "write_file", "arguments": {"path": "a.py", "content": "x = 1"}}')
    assert [each.tool for each in read_reply(edit, 4, reader(profile=BLOCKS)).items] == [
        "write_file",
        "run_checks",
        "final_answer",
    ]
    assert [each.tool for each in read_reply(edit, 4, reader()).items] == ["write_file"]
