"""The tool that gives a part of the task to a child: a run of its own, which the machine makes."""

from typing import Literal, Self

from pydantic import Field, model_validator

from mendgraph.nodes.execute_tools.registry import ToolArguments, ToolContext, tool
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode


class DelegateArguments(ToolArguments):
    """What a child is asked for, and which files it may change."""

    task: str = Field(min_length=1, description="All that the child needs to know: it sees nothing of this thread.")
    mode: Literal["explore", "write"] = Field(default="explore", description="explore reads; write changes `paths`.")
    paths: list[str] = Field(
        default_factory=list, max_length=100, description="With write: files and folders that it may change."
    )

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
