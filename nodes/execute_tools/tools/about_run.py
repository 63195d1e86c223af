"""The tools that are about the run itself: its plan, its children, its memory, and its answer."""

from collections import Counter
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator
from pydantic.json_schema import SkipJsonSchema

from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.records import Effect, Plan, PlanStatus, PlanStep, ToolError, ToolErrorCode, net_changes

_STEPS: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"title": {"type": "string"}, "status": {"type": "string", "enum": [*PlanStatus]}},
        "required": ["title"],
        "additionalProperties": False,
    },
}
"""A schema of the steps at a third of the length of pydantic's."""


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
    """The answer; its value is checked against the user's schema, if there is one, before this tool runs."""

    answer: str = Field(description="What was done or found, for the user.")
    value: Any = Field(default=None, description="Structured result, if asked for.")


@tool(effect=Effect.NONE, terminal=True)
def final_answer(context: ToolContext, arguments: FinalAnswerArguments) -> ToolAnswer:
    """End the task with its answer."""
    hints = context.hints
    refused = bool(context.state and context.state["loop"].refused)

    if context.evidence_required and hints is not None and context.changes and not refused:
        undone = hints.left_undone(tuple(net_changes(context.changes)), context.workspace.exists)
        if undone:
            return ToolError(code=ToolErrorCode.CHECK_FAILED, message=undone)

    return ToolOutput.ok(answer=arguments.answer)


class DelegateArguments(ToolArguments):
    """What a child is asked for, and which files it may change."""

    task: str = Field(min_length=1, description="All that the child needs to know: it sees nothing of this thread.")
    mode: Literal["explore", "write"] = Field(default="explore", description="explore reads; write changes `paths`.")
    paths: list[str] = Field(
        default_factory=list, max_length=100, description="With write: files and folders that it may change."
    )
    agent: SkipJsonSchema[str] = ""
    """Offered where there are agents."""

    @model_validator(mode="after")
    def _paths_to_write(self) -> Self:
        if self.mode == "write" and not self.paths:
            raise ValueError("paths is missing: with mode 'write', name the files and folders that may be changed")
        if self.mode == "explore" and self.paths:
            raise ValueError("paths is for mode 'write': an explorer changes nothing and may read everything")
        return self


@tool(effect=Effect.NONE, path_fields=("paths",), child=True, offered=False)
def delegate(context: ToolContext, arguments: DelegateArguments) -> ToolError:  # noqa: ARG001 - a tool's shape
    """Give a part of the task to a child agent, whose answer and changed files come back; calls in a row run at once.

    This function is what a call comes to where no machine runs it.
    """
    message = "Only a run of the agent has children: do this part of the task yourself."
    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)


DECIDE: Final = "Decide yourself, and say in your answer what you decided."


class AskUserArguments(ToolArguments):
    """A question; the person may answer with one of the choices or in their own words."""

    question: str = Field(min_length=1)
    choices: list[str] = Field(default_factory=list, max_length=9)


@tool(effect=Effect.NONE)
def ask_user(context: ToolContext, arguments: AskUserArguments) -> ToolAnswer:  # noqa: ARG001 - a tool's shape
    """Ask the user what the task and the files leave open, and wait for the answer.

    Guard asks the question, so that the run can wait for the answer in a checkpoint.
    """
    if context.answer:
        return ToolOutput.ok(answer=context.answer)

    who = "Nobody can answer."
    if context.answer is not None:
        who = "The user gives no answer."

    return ToolError(code=ToolErrorCode.UNAVAILABLE, message=f"{who} {DECIDE}")


class RememberArguments(ToolArguments):
    """One note."""

    text: str = Field(description="One fact, in one sentence.")


@tool(effect=Effect.WRITE, one_change=True)  # cut off, it is made again: the same note is kept once
def remember(context: ToolContext, arguments: RememberArguments) -> ToolAnswer:
    """Note a fact about this workspace for later runs, such as a command that was hard to find. Never a secret."""
    if context.remember is None:
        message = "Nothing is remembered in this run: say it in your answer, for the person to keep."
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)

    noted = context.remember(arguments.text)
    if isinstance(noted, ToolError):
        return noted

    return ToolOutput.ok(noted=noted)
