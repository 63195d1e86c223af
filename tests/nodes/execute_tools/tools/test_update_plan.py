from typing import Any

import pytest

from nodes.execute_tools.tools.update_plan import update_plan
from nodes.records import Plan, PlanStatus, PlanStep
from tests.nodes.execute_tools.tools.conftest import Bench

STEPS = [{"title": "read"}, {"title": "fix", "status": "in_progress"}, {"title": "look", "status": "done"}]


def test_the_plan_is_kept_and_counted(bench: Bench) -> None:
    output = bench.run(update_plan, steps=STEPS)
    assert output.result.data == {"pending": 1, "in_progress": 1, "done": 1}
    assert output.plan == Plan(
        steps=(
            PlanStep(title="read"),
            PlanStep(title="fix", status=PlanStatus.IN_PROGRESS),
            PlanStep(title="look", status=PlanStatus.DONE),
        )
    )


def test_an_empty_plan_clears_it(bench: Bench) -> None:
    assert bench.run(update_plan, steps=[]).plan == Plan()


@pytest.mark.parametrize(
    ("steps", "error"),
    [
        ([{"title": "a", "status": "in_progress"}] * 2, "at most one step may be in_progress"),
        ([{"title": ""}], "steps.0.title: string should have at least 1 character"),
        ([{"title": "a", "status": "soon"}], "steps.0.status: input should be 'pending', 'in_progress' or 'done'"),
        ([{"name": "a"}], "steps.0.title: field required"),
        ([{"title": "a"}] * 51, "steps: tuple should have at most 50 items after validation, not 51"),
        ("read", "steps: input should be a valid tuple"),
    ],
)
def test_a_plan_is_checked(steps: Any, error: str) -> None:
    errors = update_plan.validate({"steps": steps})
    assert isinstance(errors, list)
    assert error in errors[0]
