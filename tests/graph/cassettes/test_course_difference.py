"""Where a run went another way, in one sentence."""

from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from graph.cassettes.course_difference import course_difference
from graph.cassettes.run_course import RunCourse, ToolStep
from graph.context import AgentContext
from nodes.records import Outcome, OutcomeKind, Profile, StopReason

DONE = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.")
DOWN = Outcome(kind=OutcomeKind.SYSTEM_ERROR, reason=StopReason.PROVIDER_FAILED, message="http://x refuses the key.")
CALL: Any = {"name": "read_file", "args": {"path": "a"}, "id": "1", "type": "tool_call"}
STORED = RunCourse(
    context=AgentContext(workspace="/stored"),
    profile=Profile(),
    requests=("Mend.",),
    turns=(),
    path=((0, "call_model"), (1, "guard")),
    results=(ToolStep(1, "read_file", '{"text": "/stored/a"}'),),
    calls=(),
    outcomes=(DONE,),
    messages=(HumanMessage("Mend."), AIMessage("", tool_calls=[CALL]), ToolMessage("in /stored/a", tool_call_id="1")),
    files_read={},
)

RESULT = (
    'in step 1 read_file gave another result: it was ...\'{"text": "<workspace>/a"}\', and is now ...\'{"text": "b"}\''
)


def played(**changed: Any) -> RunCourse:
    """The same in another folder."""
    messages = (*STORED.messages[:2], ToolMessage("in /played/a", tool_call_id="1"))
    usual: dict[str, Any] = {
        "context": AgentContext(workspace="/played"),
        "messages": messages,
        "results": (ToolStep(1, "read_file", '{"text": "/played/a"}'),),
    }
    return replace(STORED, **{**usual, **changed})


def test_another_folder_makes_no_difference() -> None:
    assert course_difference(STORED, played()) == ""


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"path": ((0, "call_model"), (1, "heal"))}, "in step 1 the run went to guard, and now it goes to heal"),
        ({"path": ((0, "call_model"),)}, "in step 1 the run went to guard, and now it goes to nothing"),
        (
            {"outcomes": (DOWN,)},
            "turn 1 ended with FINISHED (answered), and now it ends with SYSTEM_ERROR (provider_failed)",
        ),
        (
            {"messages": (HumanMessage("Mind."), *played().messages[1:])},
            "message 1 of the conversation is another one: it was ...'human: Mend.', and is now ...'human: Mind.'",
        ),
        (
            {"messages": played().messages[:2], "results": (ToolStep(1, "read_file", '{"text": "b"}'),)},
            RESULT,
        ),
    ],
)
def test_the_first_difference_is_told(changed: dict[str, Any], sentence: str) -> None:
    assert course_difference(STORED, played(**changed)) == sentence


def test_results_that_the_model_does_not_see_make_none() -> None:
    assert course_difference(STORED, played(results=(ToolStep(1, "read_file", '{"ms": 7}'),))) == ""


def test_the_address_of_an_endpoint_that_failed_makes_none() -> None:
    elsewhere = DOWN.model_copy(update={"message": "http://y refuses the key."})
    messages = tuple(AIMessage(f"(SYSTEM_ERROR): {outcome.message}") for outcome in (DOWN, elsewhere))
    stored = replace(STORED, outcomes=(DOWN,), messages=messages[:1])
    assert course_difference(stored, replace(stored, outcomes=(elsewhere,), messages=messages[1:])) == ""
