"""The tools that move and delete files."""

import posixpath
from dataclasses import replace

from pydantic import Field

from mendgraph.nodes.execute_tools.argument_schema import FilePath, ToolArguments
from mendgraph.nodes.execute_tools.edits.diffs import NO_FILE, Version, file_change
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.files.text_files import text_of
from mendgraph.nodes.execute_tools.files.workspace import DeleteFile, MoveFile, Workspace
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolContext, tool
from mendgraph.nodes.execute_tools.tools.saving import changed, conflict, load_text, outdated, was_read
from mendgraph.nodes.records import EditForm, Effect, ToolError, ToolErrorCode

_TRIED_NUMBERS = range(2, 10)


class MoveFileArguments(ToolArguments):
    """Which file, and where it is to be."""

    path: FilePath
    target: str = Field(description="New workspace-relative path.")


@tool(
    effect=Effect.WRITE,
    one_change=True,
    path_fields=("path", "target"),
    edit_forms=(EditForm.REPLACE, EditForm.BLOCKS),
    seldom_in=(EditForm.BLOCKS,),
)
def move_file(context: ToolContext, arguments: MoveFileArguments) -> ToolAnswer:
    """Move or rename a file; nothing is overwritten.

    Missing directories above the target are made. Mode and content are kept, so no reading is asked for, and moving a
    file is not reading it: what the thread knows of it goes along.
    """
    before = context.workspace.read_file(arguments.path)
    if isinstance(before, ToolError):
        return before
    taken = _taken(context.workspace, before.path, arguments.target)
    if taken is not None:
        return taken
    done = context.workspace.change_files([MoveFile(arguments.path, arguments.target, before.sha256)])
    if isinstance(done, ToolError):
        return done
    [moved] = done
    version = Version(before.sha256, text_of(before.data))
    changes = (file_change(moved.path, version, NO_FILE), file_change(moved.target, NO_FILE, version))
    output = changed(changes, path=moved.path, target=moved.target, action="moved")
    known = context.files_read.get(before.path)
    return replace(output, files_read={moved.path: ""} if known is None else {moved.path: "", moved.target: known})


def _taken(workspace: Workspace, path: str, target: str) -> ToolError | None:
    """The error where something is at the target, with a free name beside it, or in it if it is a directory."""
    if not workspace.exists(target):
        return None
    inside = not isinstance(workspace.list_directory(target), ToolError)
    stem, extension = posixpath.splitext(target)
    name = posixpath.join(target, posixpath.basename(path))
    names = [name] if inside else [f"{stem}_{number}{extension}" for number in _TRIED_NUMBERS]
    free = [each for each in names if not workspace.exists(each) and workspace.denied(each, for_write=True) is None]
    what = "is a directory" if inside else "exists already"
    message = f"Cannot move {quoted(path)} to {quoted(target)}: that {what}. Give a path where nothing is."
    return ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=tuple(free[:1]))


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
def delete_file(context: ToolContext, arguments: DeleteFileArguments) -> ToolAnswer:
    """Delete a text file that you have read.

    A directory stays, also an empty one, and so does a symbolic link.
    """
    before = load_text(context, arguments.path, "deleted")
    if isinstance(before, ToolError):
        return before
    if not was_read(context, before):
        return conflict(f"{before.name} exists, and was not read yet: read_file it before you delete it.")
    refusal = outdated(context, before.path, before.version)
    if refusal:
        return refusal
    done = context.workspace.change_files([DeleteFile(arguments.path, before.sha256)])
    if isinstance(done, ToolError):
        return done
    change = file_change(done[0].path, before.version, NO_FILE)
    return changed((change,), path=done[0].path, action="deleted")
