"""The tool that ends the run."""

from typing import Any

from pydantic import Field

from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.arguments import ToolArguments
from mendgraph.nodes.records import Effect


class FinalAnswerArguments(ToolArguments):
    """The answer; its value is checked against the user's schema where one was given, before this tool runs."""

    answer: str = Field(description="What was done or found, for the user.")
    value: Any = Field(default=None, description="Structured result, if asked for.")


@tool(effect=Effect.NONE, terminal=True)
def final_answer(context: ToolContext, arguments: FinalAnswerArguments) -> ToolOutput:  # noqa: ARG001 - a tool's shape
    """End the task with its answer."""
    return ToolOutput.ok(answer=arguments.answer)
