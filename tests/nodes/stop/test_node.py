import pytest
from langchain_core.messages import AIMessage

from mendgraph.nodes.records import (
    CallResult,
    ChangeKind,
    FileChange,
    OutcomeKind,
    Plan,
    PlanStep,
    StopCause,
    StopReason,
    ToolErrorCode,
    ToolResult,
)
from mendgraph.nodes.stop.node import StopState, finish, give_up
from mendgraph.nodes.stop.report import stopped, wrap_up

USAGE = {"total_calls": 2}
CHANGE = FileChange(path="a.py", kind=ChangeKind.CREATED, sha256_before="", sha256_after="1", diff="")
PLAN = Plan(steps=(PlanStep(title="mend"),))
FAILED = CallResult(call_id="x", tool="f", result=ToolResult.failure(ToolErrorCode.NOT_FOUND, "There is no c.py."))
CAUSE = StopCause(reason=StopReason.LOOP_PERSISTED, message="The same call again.", diagnostics=("sig",))


@pytest.mark.parametrize("kind", [OutcomeKind.BUDGET_STOP, OutcomeKind.SYSTEM_ERROR])
def test_the_account_is_the_last_message(kind: OutcomeKind) -> None:
    outcome = stopped(kind, CAUSE, PLAN, [CHANGE], USAGE)
    assert give_up(StopState(plan=PLAN, changes=[CHANGE], results=[FAILED]), kind, CAUSE, USAGE) == {
        "outcome": outcome,
        "messages": [AIMessage(wrap_up(outcome, PLAN, [FAILED]))],
    }


def test_what_was_found_before_anything_was_changed_is_not_said_of_the_work() -> None:
    found = CallResult(call_id="x", tool="run_checks", result=ToolResult.failure(ToolErrorCode.CHECK_FAILED, "No."))
    assert finish(StopState(results=[found]), {})["outcome"].checks == ""
    assert give_up(StopState(results=[found]), OutcomeKind.SYSTEM_ERROR, CAUSE, {})["outcome"].checks == ""
