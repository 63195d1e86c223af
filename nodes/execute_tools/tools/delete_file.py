"""The tool that deletes a file."""

from mendgraph.nodes.execute_tools.edits.diffs import NO_FILE, file_change
from mendgraph.nodes.execute_tools.files.workspace import DeleteFile
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from mendgraph.nodes.execute_tools.tools.saving import changed, conflict, load_text, outdated, was_read
from mendgraph.nodes.records import EditForm, Effect, ToolError


class DeleteFileArguments(ToolArguments):
    """Which file."""

    path: FilePath


@tool(
    effect=Effect.WRITE,
    one_change=True,
    path_fields=("path",),
    edit_forms=(EditForm.REPLACE, EditForm.BLOCKS),
    seldom_in=(EditForm.BLOCKS,),
)
def delete_file(context: ToolContext, arguments: DeleteFileArguments) -> ToolOutput:
    """Delete a text file that you have read.

    A directory stays, also an empty one, and so does a symbolic link.
    """
    before = load_text(context, arguments.path, "deleted")
    if isinstance(before, ToolError):
        return ToolOutput.failed(before)
    if not was_read(context, before):
        return ToolOutput.failed(
            conflict(f"{before.name} exists, and was not read yet: read_file it before you delete it.")
        )
    refusal = outdated(context, before.path, before.version)
    if refusal:
        return ToolOutput.failed(refusal)
    done = context.workspace.change_files([DeleteFile(arguments.path, before.sha256)])
    if isinstance(done, ToolError):
        return ToolOutput.failed(done)
    change = file_change(done[0].path, before.version, NO_FILE)
    return changed((change,), path=done[0].path, action="deleted")
