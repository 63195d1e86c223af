"""How a turn starts: the request with its id, and a reader that knows what came before."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.types import Command

from graph.events import StepDone, ToolStarted
from graph.run_keeper import Begun
from graph.turn_start import TurnStart, last_request, reader_from, request_message
from nodes.language.history import RESULT_MESSAGE_NAME
from nodes.records import ChangeKind, FileChange, ToolCall, Verdict, VerdictKind

CHANGE = FileChange(path="a.py", kind=ChangeKind.EDITED, sha256_before="1", sha256_after="2", diff="")
MADE = FileChange(path="b.py", kind=ChangeKind.CREATED, sha256_before="", sha256_after="3", diff="")


def call(name: str) -> ToolCall:
    return ToolCall(call_id=name, tool="edit_file", arguments={"path": name}, raw_arguments="{}")


def test_the_same_request_has_the_same_id() -> None:
    assert request_message(Begun("Mend it.", "request-1")) == {"messages": [HumanMessage("Mend it.", id="request-1")]}
    assert request_message(Begun("Mend it.", "")) == {"messages": [HumanMessage("Mend it.")]}


def test_the_last_request_is_a_persons() -> None:
    results = HumanMessage("tool_result({})", name=RESULT_MESSAGE_NAME)
    assert last_request({"messages": [HumanMessage("One."), HumanMessage("Two."), AIMessage("x"), results]}) == "Two."
    assert last_request({}) == ""


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


def test_a_reader_of_nothing_knows_nothing() -> None:
    assert reader_from({}).changes == ()


@pytest.mark.parametrize("answer", ["approve", {"decisions": {}}, ["page"], False])
def test_an_answer_is_given_as_it_is(answer: object) -> None:
    assert TurnStart.answering(answer).request == Command(resume=answer)


@pytest.mark.parametrize("answer", [None, {}, {"0": "approve"}])
def test_what_would_be_taken_for_no_answer_is_a_rejection(answer: object) -> None:
    assert TurnStart.answering(answer).request == Command(resume="reject")
