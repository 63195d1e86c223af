"""How a run goes on, decided by its own state."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from graph.way_on import RETRIED, WayOn, before_the_call, go_on_with, takes_up, way_on
from nodes.records import Outcome, OutcomeKind, StopReason

ASKED = HumanMessage("Mend it.", id="run-1")
SAID = AIMessage("Done.", id="a")


def outcome(kind: OutcomeKind, reason: StopReason) -> Outcome:
    return Outcome(kind=kind, reason=reason, message="x")


FINISHED = outcome(OutcomeKind.FINISHED, StopReason.ANSWERED)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, WayOn.SEND_AGAIN),
        ({"messages": [HumanMessage("x", id="run-0"), SAID], "outcome": FINISHED}, WayOn.SEND_AGAIN),
        ({"messages": [ASKED]}, WayOn.GO_ON),
        ({"messages": [ASKED], "outcome": None}, WayOn.GO_ON),
        ({"messages": [SAID, ASKED], "outcome": FINISHED}, WayOn.GO_ON),
        ({"messages": [ASKED, SAID], "outcome": None}, WayOn.GO_ON),
        ({"messages": [ASKED, SAID], "outcome": FINISHED}, WayOn.NOTHING),
    ],
)
def test_the_request_the_outcome_and_the_last_message_decide(values: dict[str, Any], expected: WayOn) -> None:
    assert way_on(values, "run-1") is expected


@pytest.mark.parametrize("reason", StopReason)
@pytest.mark.parametrize("kind", [OutcomeKind.BUDGET_STOP, OutcomeKind.SYSTEM_ERROR])
def test_a_run_that_ended_early_goes_back_only_where_nothing_was_said_of_the_work(
    kind: OutcomeKind, reason: StopReason
) -> None:
    values = {"messages": [ASKED, SAID], "outcome": outcome(kind, reason)}
    assert way_on(values, "run-1") is (WayOn.GO_BACK if reason in RETRIED else WayOn.NEW_TURN)


def test_a_run_that_was_taken_back_begins_a_new_turn_unless_it_has_finished() -> None:
    assert way_on({"messages": [ASKED]}, "run-1", undone=True) is WayOn.NEW_TURN
    stopped = {"messages": [ASKED, SAID], "outcome": outcome(OutcomeKind.BUDGET_STOP, StopReason.CANCELLED)}
    assert way_on(stopped, "run-1", undone=True) is WayOn.NEW_TURN
    assert way_on({"messages": [ASKED, SAID], "outcome": FINISHED}, "run-1", undone=True) is WayOn.NOTHING
    assert way_on({}, "run-1", undone=True) is WayOn.SEND_AGAIN


def test_where_nobody_knows_the_request_the_state_alone_decides() -> None:
    assert way_on({"messages": [ASKED, SAID], "outcome": FINISHED}, "") is WayOn.NOTHING
    assert way_on({}, "") is WayOn.GO_ON


class Shot(NamedTuple):
    next: tuple[str, ...]
    number: int


def test_the_newest_checkpoint_before_a_call_is_found() -> None:
    ways = [("BUDGET_STOP",), ("call_model",), ("loop_check",), ("call_model",), ("begin_turn",)]
    history = [Shot(way, number) for number, way in enumerate(ways)]
    assert before_the_call(history) == history[1]
    assert before_the_call(history[2:]) == history[3]
    assert before_the_call(history[:1]) is None


@given(st.text())
def test_a_new_turn_repeats_the_task_and_not_what_was_said_of_it(task: str) -> None:
    assert go_on_with(go_on_with(task)) == f"Go on with this task, which is not finished yet: {task}"
    afresh = go_on_with(go_on_with(task), undone=True)
    assert afresh == f"Your changes of the files were taken back since, so look at them anew. The task is: {task}"
    assert go_on_with(afresh) == go_on_with(task)


@pytest.mark.parametrize("request_text", ["Mend add.", "", go_on_with("Mend add.", undone=True)])
def test_only_a_task_that_is_half_done_is_taken_up(request_text: str) -> None:
    assert takes_up(go_on_with(request_text))
    assert not takes_up(request_text)
