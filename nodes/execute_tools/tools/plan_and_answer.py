"""The tools that write the plan, and end the run."""

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any, Final, Self

from pydantic import Field, WithJsonSchema, model_validator

from mendgraph.nodes.execute_tools.registry import ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.records import Effect, Plan, PlanStatus, PlanStep

_STEPS: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"title": {"type": "string"}, "status": {"type": "string", "enum": [*PlanStatus]}},
        "required": ["title"],
        "additionalProperties": False,
    },
}
"""What a model has to know of the steps; the schema of the records says it at three times the length."""


class UpdatePlanArguments(ToolArguments):
    """The whole plan, in order."""

    steps: Annotated[tuple[PlanStep, ...], Field(max_length=50), WithJsonSchema(_STEPS)]

    @model_validator(mode="after")
    def _one_at_a_time(self) -> Self:
        if sum(step.status is PlanStatus.IN_PROGRESS for step in self.steps) > 1:
            raise ValueError("at most one step may be in_progress")
        return self


@tool(effect=Effect.NONE)
def update_plan(context: ToolContext, arguments: UpdatePlanArguments) -> ToolOutput:  # noqa: ARG001 - a tool's shape
    """Write the whole plan: what is done and what is left."""
    counts = Counter(step.status for step in arguments.steps)
    output = ToolOutput.ok(**{status.value: counts[status] for status in PlanStatus})
    return replace(output, plan=Plan(steps=arguments.steps))


class FinalAnswerArguments(ToolArguments):
    """The answer; its value is checked against the user's schema where one was given, before this tool runs."""

    answer: str = Field(description="What was done or found, for the user.")
    value: Any = Field(default=None, description="Structured result, if asked for.")


@tool(effect=Effect.NONE, terminal=True)
def final_answer(context: ToolContext, arguments: FinalAnswerArguments) -> ToolOutput:  # noqa: ARG001 - a tool's shape
    """End the task with its answer."""
    return ToolOutput.ok(answer=arguments.answer)
