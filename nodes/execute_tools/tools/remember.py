"""The tool that keeps a note for later runs."""

from pydantic import Field

from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode


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
    return noted if isinstance(noted, ToolError) else ToolOutput.ok(noted=noted)
