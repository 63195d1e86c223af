"""How a run goes on, decided by its own state."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.types import Command

from mendgraph.graph.machine.run_records import is_resuming, resuming_request
from mendgraph.graph.runs.events import StepDone, ToolStarted
from mendgraph.graph.runs.run_keeper import RETRIED, ResumePlan, TurnStart, before_the_call, reader_from, resume_plan
from mendgraph.nodes.records import (
    ChangeKind,
    FileChange,
    Outcome,
    OutcomeKind,
    StopReason,
    ToolCall,
    Verdict,
    VerdictKind,
)

ASKED = HumanMessage("Mend it.", id="run-1")
SAID = AIMessage("Done.", id="a")


def outcome(kind: OutcomeKind, reason: StopReason) -> Outcome:
    return Outcome(kind=kind, reason=reason, message="x")


FINISHED = outcome(OutcomeKind.FINISHED, StopReason.ANSWERED)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ResumePlan.SEND_AGAIN),
        ({"messages": [HumanMessage("x", id="run-0"), SAID], "outcome": FINISHED}, ResumePlan.SEND_AGAIN),
        ({"messages": [ASKED]}, ResumePlan.GO_ON),
        ({"messages": [ASKED], "outcome": None}, ResumePlan.GO_ON),
        ({"messages": [SAID, ASKED], "outcome": FINISHED}, ResumePlan.GO_ON),
        ({"messages": [ASKED, SAID], "outcome": None}, ResumePlan.GO_ON),
        ({"messages": [ASKED, SAID], "outcome": FINISHED}, ResumePlan.NOTHING),
    ],
)
def test_the_request_the_outcome_and_the_last_message_decide(values: dict[str, Any], expected: ResumePlan) -> None:
    assert resume_plan(values, "run-1") is expected


@pytest.mark.parametrize("reason", StopReason)
@pytest.mark.parametrize("kind", [OutcomeKind.BUDGET_STOP, OutcomeKind.SYSTEM_ERROR])
def test_a_run_that_ended_early_goes_back_only_where_nothing_was_said_of_the_work(
    kind: OutcomeKind, reason: StopReason
) -> None:
    values = {"messages": [ASKED, SAID], "outcome": outcome(kind, reason)}
    assert resume_plan(values, "run-1") is (ResumePlan.GO_BACK if reason in RETRIED else ResumePlan.NEW_TURN)


def test_a_run_that_was_taken_back_begins_a_new_turn_unless_it_has_finished() -> None:
    assert resume_plan({"messages": [ASKED]}, "run-1", undone=True) is ResumePlan.NEW_TURN
    stopped = {"messages": [ASKED, SAID], "outcome": outcome(OutcomeKind.BUDGET_STOP, StopReason.CANCELLED)}
    assert resume_plan(stopped, "run-1", undone=True) is ResumePlan.NEW_TURN
    assert resume_plan({"messages": [ASKED, SAID], "outcome": FINISHED}, "run-1", undone=True) is ResumePlan.NOTHING
    assert resume_plan({}, "run-1", undone=True) is ResumePlan.SEND_AGAIN


def test_where_nobody_knows_the_request_the_state_alone_decides() -> None:
    assert resume_plan({"messages": [ASKED, SAID], "outcome": FINISHED}, "") is ResumePlan.NOTHING
    assert resume_plan({}, "") is ResumePlan.GO_ON


class Shot(NamedTuple):
    next: tuple[str, ...]
    values: dict[str, int]


def test_the_newest_checkpoint_before_a_call_is_found() -> None:
    ways = [("BUDGET_STOP",), ("call_model",), ("loop_check",), ("call_model",), ("begin_turn",)]
    history = [Shot(way, {"step": number}) for number, way in enumerate(ways)]
    assert before_the_call(history) == history[1]
    assert before_the_call(history[2:]) == history[3]
    assert before_the_call(history[:1]) is None


@given(st.text())
def test_a_new_turn_repeats_the_task_and_not_what_was_said_of_it(task: str) -> None:
    assert resuming_request(resuming_request(task)) == f"Go on with this task, which is not finished yet: {task}"
    afresh = resuming_request(resuming_request(task), undone=True)
    assert afresh == f"Your changes of the files were taken back since, so look at them anew. The task is: {task}"
    assert resuming_request(afresh) == resuming_request(task)


@pytest.mark.parametrize("request_text", ["Mend add.", "", resuming_request("Mend add.", undone=True)])
def test_only_a_task_that_is_half_done_is_taken_up(request_text: str) -> None:
    assert is_resuming(resuming_request(request_text))
    assert not is_resuming(request_text)


CHANGE = FileChange(path="a.py", kind=ChangeKind.EDITED, sha256_before="1", sha256_after="2", diff="")
MADE = FileChange(path="b.py", kind=ChangeKind.CREATED, sha256_before="", sha256_after="3", diff="")


def call(name: str) -> ToolCall:
    return ToolCall(call_id=name, tool="edit_file", arguments={"path": name}, raw_arguments="{}")


def test_a_reader_goes_on_where_the_turn_was_left() -> None:
    values: dict[str, Any] = {
        "changes": [CHANGE],
        "items": [call("a.py"), call("b.py")],
        "verdicts": [Verdict(kind=VerdictKind.DENY), Verdict(kind=VerdictKind.ALLOW)],
    }
    reader = reader_from(values)
    started = {"type": "trace", "name": "tool.invoke.start", "payload": {"tool_name": "edit_file"}}
    events = list(reader.read("custom", {**started, "run_id": "r", "step_id": "1", "ms": 0}))
    assert events[0] == ToolStarted(call("b.py"))
    (done,) = reader.read("updates", {"execute_tools": {"changes": [MADE], "results": []}})
    assert done == StepDone((), (CHANGE, MADE))


@pytest.mark.parametrize("answer", ["approve", {"decisions": {}}, ["page"], False])
def test_an_answer_is_given_as_it_is(answer: object) -> None:
    assert TurnStart.answering(answer).request == Command(resume=answer)


@pytest.mark.parametrize("answer", [None, {}, {"0": "approve"}])
def test_what_would_be_taken_for_no_answer_is_a_rejection(answer: object) -> None:
    assert TurnStart.answering(answer).request == Command(resume="reject")
