"""The tools that move and delete files."""

from dataclasses import replace
from typing import Final

from pydantic import Field

from mendgraph.nodes.execute_tools.edits.diffs import NO_FILE, Version, file_change
from mendgraph.nodes.execute_tools.files.text_files import text_of
from mendgraph.nodes.execute_tools.files.workspace import DeleteFile, MoveFile
from mendgraph.nodes.execute_tools.registry import FilePath, ToolAnswer, ToolArguments, ToolContext, tool
from mendgraph.nodes.execute_tools.tools.saving import changed, conflict, load_text, outdated
from mendgraph.nodes.records import EditForm, Effect, ToolError, quoted


class MoveFileArguments(ToolArguments):
    """Which file, and where it is to be."""

    path: FilePath
    target: str = Field(description="New workspace-relative path.")


_FORMS: Final = (EditForm.REPLACE, EditForm.BLOCKS)


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path", "target"), edit_forms=_FORMS, seldom_in=_FORMS[1:])
def move_file(context: ToolContext, arguments: MoveFileArguments) -> ToolAnswer:
    """Move or rename a file; nothing is overwritten.

    Missing directories above the target are made. Mode and content are kept, so no reading is asked for, and moving a
    file is not reading it: what the thread knows of it goes along.
    """
    if isinstance(before := context.workspace.read_file(arguments.path), ToolError):
        return before
    if context.workspace.exists(arguments.target):
        return conflict(
            f"Cannot move {quoted(before.path)}: {quoted(arguments.target)} exists. Give a path where nothing is."
        )
    done = context.workspace.change_files([MoveFile(arguments.path, arguments.target, before.sha256)])
    if isinstance(done, ToolError):
        return done
    [moved] = done
    version = Version(before.sha256, text_of(before.data))
    changes = (file_change(moved.path, version, NO_FILE), file_change(moved.target, NO_FILE, version))
    output = changed(changes, path=moved.path, target=moved.target, action="moved")
    known = context.files_read.get(before.path)
    return replace(output, files_read={moved.path: ""} if known is None else {moved.path: "", moved.target: known})


class DeleteFileArguments(ToolArguments):
    """Which file."""

    path: FilePath


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",), edit_forms=_FORMS, seldom_in=_FORMS[1:])
def delete_file(context: ToolContext, arguments: DeleteFileArguments) -> ToolAnswer:
    """Delete a text file that you have read.

    A directory stays, also an empty one, and so does a symbolic link.
    """
    if isinstance(before := load_text(context, arguments.path, "deleted"), ToolError):
        return before
    if before.path not in context.files_read:
        return conflict(f"{before.name} exists, and was not read yet: read_file it before you delete it.")
    if refusal := outdated(context, before.path, before.version):
        return refusal
    done = context.workspace.change_files([DeleteFile(arguments.path, before.sha256)])
    if isinstance(done, ToolError):
        return done
    change = file_change(done[0].path, before.version, NO_FILE)
    return changed((change,), path=done[0].path, action="deleted")
