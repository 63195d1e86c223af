from typing import Any

import pytest
from pydantic import ValidationError

from mendgraph.nodes.records import (
    Answer,
    CallResult,
    Correction,
    LoopRecord,
    ModelReply,
    Outcome,
    OutcomeKind,
    Plan,
    PlanStep,
    Profile,
    RawCall,
    Record,
    StopCause,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
)

EXAMPLES: list[Record] = [
    ModelReply(text="hi", calls=(RawCall(call_id="a", tool="read_file", arguments="{}"),)),
    ToolCall(call_id="a", tool="read_file", arguments={"path": "a.py"}, raw_arguments="{}"),
    Correction(reply="x", prompt="y"),
    Answer(text="done", value={"n": 1}),
    CallResult(call_id="a", tool="read_file", result=ToolResult.success(content="x")),
    Plan(steps=(PlanStep(title="one"),)),
    Profile(),
    LoopRecord(recent=(("a", "b"),)),
    StopCause(reason=StopReason.ANSWERED, message="m"),
    Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="m", usage={"total_calls": 1}),
]


def test_record_refuses_unknown_fields_and_changes() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Correction.model_validate({"reply": "x", "prompt": "y", "mood": "z"})
    with pytest.raises(ValidationError, match="frozen"):
        setattr(EXAMPLES[0], "text", "other")  # noqa: B010 - mypy forbids the plain assignment, as it should


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ToolResult.success(path="a.py", lines=3), {"ok": True, "data": {"path": "a.py", "lines": 3}}),
        (ToolResult.success(), {"ok": True, "data": {}}),
        (
            ToolResult.failure(ToolErrorCode.NOT_FOUND, "There is no a.py.", ("b.py",)),
            {"ok": False, "error": {"code": "not_found", "message": "There is no a.py.", "suggestions": ["b.py"]}},
        ),
    ],
)
def test_envelope_has_data_or_an_error(result: ToolResult, expected: dict[str, Any]) -> None:
    assert result.as_map() == expected
    assert result.ok is expected["ok"]


def test_error_alone_is_the_inner_envelope() -> None:
    error = ToolError(code=ToolErrorCode.TIMEOUT, message="Too slow.")
    assert error.as_map() == {"code": "timeout", "message": "Too slow.", "suggestions": []}


LIMITS = """
    MAX_CALLS_PER_SESSION MAX_CALLS_PER_TURN MAX_INPUT_TOKENS MAX_OUTPUT_TOKENS MAX_STEPS WALL_CLOCK MAX_COST CANCELLED
    DAY_LIMIT ACCOUNT_LIMIT
"""
FROM_OUTSIDE = """
    WALL_CLOCK PROVIDER_FAILED CONTEXT_OVERFLOW CANCELLED INVALID_REQUEST WORKSPACE_FAILED WORKSPACE_CHANGED
    WORKSPACE_BUSY HOOK_FAILED STORE_FAILED HISTORY_PRUNED DAY_LIMIT ACCOUNT_LIMIT
"""


def test_limits_end_a_run_in_a_budget_stop() -> None:
    assert {reason.name for reason in StopReason if reason.is_limit} == set(LIMITS.split())


def test_reasons_from_outside_are_no_part_of_the_model() -> None:
    assert {reason.name for reason in StopReason if reason.from_outside} == set(FROM_OUTSIDE.split())


def test_plan_has_fifty_steps_with_titles_of_two_hundred_characters_at_most() -> None:
    step = PlanStep(title="x" * 200)
    assert len(Plan(steps=(step,) * 50).steps) == 50
    with pytest.raises(ValidationError):
        Plan(steps=(step,) * 51)
    for title in ("", "x" * 201):
        with pytest.raises(ValidationError):
            PlanStep(title=title)
