from typing import Any

import pytest
from pydantic import ValidationError

from mendgraph.nodes.records import Correction, Plan, PlanStep, StopReason, ToolErrorCode, ToolResult
from tests.row_tables import rows


def test_record_refuses_unknown_fields_and_assignment() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Correction.model_validate({"reply": "x", "prompt": "y", "mood": "z"})
    with pytest.raises(ValidationError, match="frozen"):
        setattr(Correction(reply="x", prompt="y"), "reply", "other")  # noqa: B010 - mypy forbids the plain assignment


NOT_FOUND = {"code": "not_found", "message": "There is no a.py.", "suggestions": ["b.py"]}


@rows(
    (ToolResult.success(path="a.py", lines=3), {"ok": True, "data": {"path": "a.py", "lines": 3}}),
    (ToolResult.success(), {"ok": True, "data": {}}),
    (ToolResult.failure(ToolErrorCode.NOT_FOUND, "There is no a.py.", ("b.py",)), {"ok": False, "error": NOT_FOUND}),
)
def test_envelope_has_data_or_an_error(result: ToolResult, expected: dict[str, Any]) -> None:
    assert result.as_map() == expected
    assert result.ok is expected["ok"]
    assert result.error is None or result.error.as_map() == NOT_FOUND


LIMITS = """
    MAX_CALLS_PER_SESSION MAX_CALLS_PER_TURN MAX_INPUT_TOKENS MAX_OUTPUT_TOKENS MAX_STEPS WALL_CLOCK MAX_COST CANCELLED
    DAY_LIMIT ACCOUNT_LIMIT
"""
FROM_OUTSIDE = """
    WALL_CLOCK PROVIDER_FAILED CONTEXT_OVERFLOW CANCELLED INVALID_REQUEST WORKSPACE_FAILED WORKSPACE_CHANGED
    WORKSPACE_BUSY HOOK_FAILED STORE_FAILED HISTORY_PRUNED DAY_LIMIT ACCOUNT_LIMIT
"""


def test_stop_reasons_are_classified_as_limit_or_external() -> None:
    assert {reason.name for reason in StopReason if reason.is_limit} == set(LIMITS.split())
    assert {reason.name for reason in StopReason if reason.from_outside} == set(FROM_OUTSIDE.split())


def test_plan_is_limited_to_50_steps_with_titles_of_200_characters() -> None:
    step = PlanStep(title="x" * 200)
    assert len(Plan(steps=(step,) * 50).steps) == 50
    with pytest.raises(ValidationError):
        Plan(steps=(step,) * 51)
    for title in ("", "x" * 201):
        with pytest.raises(ValidationError):
            PlanStep(title=title)
