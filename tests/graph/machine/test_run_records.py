"""How a run that was begun goes on, as its newest state says."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from mendgraph.graph.machine.run_records import RETRIED, ResumePlan, resume_plan
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason

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
        ({"messages": [ASKED], "outcome": None}, ResumePlan.GO_ON),
        ({"messages": [SAID, ASKED], "outcome": FINISHED}, ResumePlan.GO_ON),
        ({"messages": [ASKED, SAID], "outcome": FINISHED}, ResumePlan.NOTHING),
    ],
)
def test_the_request_the_outcome_and_the_last_message_decide(values: dict[str, Any], expected: ResumePlan) -> None:
    assert resume_plan(values, "run-1") is expected


@pytest.mark.parametrize("reason", [*sorted(RETRIED), StopReason.WALL_CLOCK])
def test_a_run_that_ended_early_goes_back_only_where_nothing_was_said_of_the_work(reason: StopReason) -> None:
    values = {"messages": [ASKED, SAID], "outcome": outcome(OutcomeKind.BUDGET_STOP, reason)}
    assert resume_plan(values, "run-1") is (ResumePlan.GO_BACK if reason in RETRIED else ResumePlan.NEW_TURN)


def test_a_run_that_was_undone_begins_a_new_turn() -> None:
    assert resume_plan({"messages": [ASKED], "outcome": None}, "run-1", undone=True) is ResumePlan.NEW_TURN
