import pytest
from langchain_core.messages import AIMessage

from mendgraph.nodes.records import (
    Answer,
    CallResult,
    ChangeKind,
    FileChange,
    Outcome,
    OutcomeKind,
    Plan,
    PlanStatus,
    PlanStep,
    StopCause,
    StopReason,
    ToolErrorCode,
    ToolResult,
)
from mendgraph.nodes.stop.node import StopState, finish, give_up
from mendgraph.nodes.stop.report import checks_of, finished, stopped, wrap_up

USAGE = {"total_calls": 2}
PLAN = Plan(
    steps=(
        PlanStep(title="look", status=PlanStatus.DONE),
        PlanStep(title="mend", status=PlanStatus.IN_PROGRESS),
        PlanStep(title="test"),
        PlanStep(title="read", status=PlanStatus.DONE),
    )
)
CAUSE = StopCause(reason=StopReason.MAX_STEPS, message="Limit 'max_steps' exceeded: 3/3", diagnostics=("one", "two"))


def change(path: str) -> FileChange:
    return FileChange(path=path, kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="")


def result(message: str | None) -> CallResult:
    came = ToolResult.success() if message is None else ToolResult.failure(ToolErrorCode.NOT_FOUND, message)
    return CallResult(call_id="x", tool="f", result=came)


CHANGES = [change("b.py"), change("a.py"), change("b.py")]


def test_every_reason_says_how_to_go_on_in_one_sentence() -> None:
    said = [reason.how_to_go_on for reason in StopReason]
    assert [sentence for sentence in said if not sentence[0].isupper() or sentence[-1] != "."] == []


@pytest.mark.parametrize(("text", "message"), [("It adds.", "It adds."), ("", "Done.")])
def test_a_finished_run(text: str, message: str) -> None:
    assert finished(Answer(text=text, value={"n": 1}), CHANGES, USAGE) == Outcome(
        kind=OutcomeKind.FINISHED,
        reason=StopReason.ANSWERED,
        message=message,
        answer=text,
        value={"n": 1},
        changed_files=("b.py", "a.py"),
        usage=USAGE,
        how_to_go_on="Send another message to go on.",
    )


@pytest.mark.parametrize(
    ("plan", "left"), [(PLAN, "Left: mend; test. "), (Plan(), ""), (Plan(steps=PLAN.steps[:1]), "")]
)
def test_a_stopped_run_says_what_is_left(plan: Plan, left: str) -> None:
    assert stopped(OutcomeKind.BUDGET_STOP, CAUSE, plan, CHANGES, USAGE) == Outcome(
        kind=OutcomeKind.BUDGET_STOP,
        reason=StopReason.MAX_STEPS,
        message=CAUSE.message,
        diagnostics=("one", "two"),
        changed_files=("b.py", "a.py"),
        usage=USAGE,
        how_to_go_on=f"{left}Send another message, or `mendgraph resume --max-steps N`.",
    )


def test_the_last_message_is_a_full_account() -> None:
    outcome = stopped(OutcomeKind.BUDGET_STOP, CAUSE, PLAN, CHANGES, USAGE)
    assert wrap_up(outcome, PLAN, [result("first"), result("There is no c.py."), result(None)]).splitlines() == [
        "BUDGET_STOP (max_steps): Limit 'max_steps' exceeded: 3/3",
        "- one",
        "- two",
        "Done: look; read.",
        "Changed files: b.py, a.py.",
        "Last failure: There is no c.py.",
        "How to go on: Left: mend; test. Send another message, or `mendgraph resume --max-steps N`.",
    ]


def test_the_account_of_a_run_that_did_nothing() -> None:
    cause = StopCause(reason=StopReason.PROVIDER_FAILED, message="The endpoint cannot be reached.")
    outcome = stopped(OutcomeKind.SYSTEM_ERROR, cause, Plan(), [], {})
    assert wrap_up(outcome, Plan(), [result(None)]).splitlines() == [
        "SYSTEM_ERROR (provider_failed): The endpoint cannot be reached.",
        "Done: no step of a plan.",
        "Changed files: none.",
        "How to go on: Mend what the message names, then go on with `mendgraph resume`.",
    ]


def checked(data: str | None = None, code: ToolErrorCode = ToolErrorCode.CHECK_FAILED) -> CallResult:
    came = ToolResult.failure(code, "no") if data is None else ToolResult.success(checks=data)
    return CallResult(call_id="x", tool="run_checks", result=came)


@pytest.mark.parametrize(
    ("results", "checks"),
    [
        ([], ""),
        ([result(None), result("There is no c.py.")], ""),
        ([result(None), checked("passed")], "passed"),
        ([checked("none"), result("no")], "none"),
        ([checked("unavailable")], "unavailable"),
        ([result(None), checked()], "failed"),
        ([checked(None, ToolErrorCode.CANCELLED)], ""),
    ],
)
def test_the_outcome_says_what_the_last_checks_came_to(results: list[CallResult], checks: str) -> None:
    assert checks_of(results) == checks


FAILED = result("There is no c.py.")


@pytest.mark.parametrize("kind", [OutcomeKind.BUDGET_STOP, OutcomeKind.SYSTEM_ERROR])
def test_the_account_is_the_last_message(kind: OutcomeKind) -> None:
    outcome = stopped(kind, CAUSE, PLAN, [CHANGES[0]], USAGE)
    assert give_up(StopState(plan=PLAN, changes=[CHANGES[0]], results=[FAILED]), kind, CAUSE, USAGE) == {
        "outcome": outcome,
        "messages": [AIMessage(wrap_up(outcome, PLAN, [FAILED]))],
    }


def test_what_was_found_before_anything_was_changed_is_not_said_of_the_work() -> None:
    found = checked()
    assert finish(StopState(results=[found]), {})["outcome"].checks == ""
    assert give_up(StopState(results=[found]), OutcomeKind.SYSTEM_ERROR, CAUSE, {})["outcome"].checks == ""
