"""The tool that deletes a file."""

from nodes.execute_tools.environment.workspace import DeleteFile
from nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from nodes.execute_tools.tools.saving import NO_FILE, changed, file_change, load_text, unread
from nodes.records import Effect, ToolError


class DeleteFileArguments(ToolArguments):
    """Which file."""

    path: FilePath


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",))
def delete_file(context: ToolContext, arguments: DeleteFileArguments) -> ToolOutput:
    """Delete a text file that you have read.

    A directory stays, also an empty one, and so does a symbolic link.
    """
    before = load_text(context, arguments.path, "deleted")
    if isinstance(before, ToolError):
        return ToolOutput.failed(before)
    refusal = unread(context, before, "read_file it before you delete it")
    if refusal:
        return ToolOutput.failed(refusal)
    done = context.workspace.change_files([DeleteFile(arguments.path, before.sha256)])
    if isinstance(done, ToolError):
        return ToolOutput.failed(done)
    change = file_change(done[0].path, before.version, NO_FILE)
    return changed((change,), path=done[0].path, action="deleted")
