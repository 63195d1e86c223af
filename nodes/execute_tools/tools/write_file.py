"""The tools that write a whole file, add text to its end, move it or delete it. Source of `append_file`: spec 4."""

from dataclasses import replace
from typing import Final

from pydantic import Field

from mendgraph.nodes.execute_tools.edits.diffs import NO_FILE, Version, file_change
from mendgraph.nodes.execute_tools.edits.losses import why_lossy
from mendgraph.nodes.execute_tools.registry import FilePath, ToolAnswer, ToolArguments, ToolContext, tool
from mendgraph.nodes.execute_tools.tools import saving
from mendgraph.nodes.records import EditForm, Effect, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.text_files import (
    BOM,
    count_lines,
    encode_text,
    text_of,
    unstorable,
    with_ends_of,
    with_newline,
)
from mendgraph.nodes.workspace.files.workspace import DeleteFile, MoveFile


class WriteFileArguments(ToolArguments):
    """Which file, and its whole text."""

    path: FilePath
    content: str = Field(description="The whole text of the file.")


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",), edit_forms=tuple(EditForm))
def write_file(context: ToolContext, arguments: WriteFileArguments) -> ToolAnswer:
    """Create a file, or replace one that you have read.

    One that is there and was not read is shown instead, and nothing is written. A file that is replaced keeps its BOM
    and, if it ends its lines with CRLF, those: read_file does not show them.
    """
    if problem := unstorable(arguments.content, "content"):
        return invalid(problem)

    before = saving.load_text(context, arguments.path)
    if isinstance(before, saving.LoadedText):
        return _overwrite(context, arguments, before)
    if before.code is not ToolErrorCode.NOT_FOUND:
        return before

    return _save(context, arguments, arguments.content, None)


def _overwrite(context: ToolContext, arguments: WriteFileArguments, before: saving.LoadedText) -> ToolAnswer:
    content = arguments.content.removeprefix(BOM)
    text = with_ends_of(before.file.text, content)
    if text == before.file.text:
        return invalid(f"{before.name} already has exactly this content, so there is nothing to write.")
    if before.path not in context.files_read:
        return saving.shown_unread(context, before)
    if loss := why_lossy(before.file.text, text):
        return invalid(f"The content is not all of {before.name}: {loss}. Send the whole text, or use edit_file.")

    refusal = saving.outdated(context, before.path, before.version)
    return refusal or _save(context, arguments, text, before)


def _save(
    context: ToolContext, arguments: WriteFileArguments, text: str, before: saving.LoadedText | None
) -> ToolAnswer:
    lines = count_lines(text)
    if before is None:
        size = len(text.encode())
        return saving.save_text(context, arguments.path, text, None, action="created", bytes=size, lines=lines)

    size = len(encode_text(text, before.file.form))
    return saving.save_text(context, arguments.path, text, before, action="overwritten", bytes=size, lines=lines)


class AppendFileArguments(ToolArguments):
    """Which file, and what to add to it."""

    path: FilePath
    content: str = Field(description="Text to add at the end.")


_FORMS: Final = (EditForm.REPLACE, EditForm.BLOCKS)


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",), edit_forms=_FORMS, seldom_in=_FORMS)
def append_file(context: ToolContext, arguments: AppendFileArguments) -> ToolAnswer:
    """Add text at the end of a file, on a line of its own; creates the file if there is none.

    No reading is asked for, as nothing is lost; only a file that has changed since it was read is to be read again. BOM
    and line ends are kept, and a last line without line end gets one before the new text.
    """
    content = arguments.content.removeprefix(BOM)
    if problem := unstorable(content, "content"):
        return invalid(problem)
    if not content:
        return invalid("content is empty: there is nothing to append.")

    before = saving.load_current(context, arguments.path)
    if isinstance(before, saving.LoadedText):
        return _append(context, arguments.path, content, before)
    if before.code is not ToolErrorCode.NOT_FOUND:
        return before

    lines = count_lines(content)
    return saving.save_text(context, arguments.path, content, None, action="created", start_line=1, lines=lines)


def _append(context: ToolContext, path: str, content: str, before: saving.LoadedText) -> ToolAnswer:
    newline = before.file.form.newline
    old = before.file.text
    added = content

    if old:
        added = with_newline(content, newline)
        if not old.endswith("\n"):
            old += newline

    start_line = count_lines(old) + 1
    lines = count_lines(content)
    return saving.save_text(context, path, old + added, before, action="appended", start_line=start_line, lines=lines)


class MoveFileArguments(ToolArguments):
    """Which file, and where it is to be."""

    path: FilePath
    target: str = Field(description="New workspace-relative path.")


@tool(
    effect=Effect.WRITE,
    one_change=True,
    path_fields=("path", "target"),
    edit_forms=_FORMS,
    seldom_in=_FORMS[1:],
)
def move_file(context: ToolContext, arguments: MoveFileArguments) -> ToolAnswer:
    """Move or rename a file; nothing is overwritten.

    Missing directories above the target are made. Mode and content are kept, so no reading is asked for, and moving a
    file is not reading it: what the thread knows of it goes along.
    """
    before = context.workspace.read_file(arguments.path)
    if isinstance(before, ToolError):
        return before

    if context.workspace.exists(arguments.target):
        return saving.conflict(
            f"Cannot move {quoted(before.path)}: {quoted(arguments.target)} exists. Give a path where nothing is."
        )

    done = context.workspace.change_files([MoveFile(arguments.path, arguments.target, before.sha256)])
    if isinstance(done, ToolError):
        return done

    [moved] = done
    version = Version(before.sha256, text_of(before.data))
    changes = (file_change(moved.path, version, NO_FILE), file_change(moved.target, NO_FILE, version))
    output = saving.changed(context, changes, path=moved.path, target=moved.target, action="moved")
    files_read = {moved.path: ""}
    sha256_read = context.files_read.get(before.path)
    if sha256_read is not None:
        files_read[moved.target] = sha256_read

    return replace(output, files_read=files_read)


class DeleteFileArguments(ToolArguments):
    """Which file."""

    path: FilePath


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",), edit_forms=_FORMS, seldom_in=_FORMS[1:])
def delete_file(context: ToolContext, arguments: DeleteFileArguments) -> ToolAnswer:
    """Delete a text file.

    A directory stays, also an empty one, and so does a symbolic link. No reading is asked for, as it can be undone;
    only a file that has changed since it was read is to be read again.
    """
    before = saving.load_text(context, arguments.path, "deleted")
    if isinstance(before, ToolError):
        return before
    if refusal := saving.outdated(context, before.path, before.version):
        return refusal

    done = context.workspace.change_files([DeleteFile(arguments.path, before.sha256)])
    if isinstance(done, ToolError):
        return done

    change = file_change(done[0].path, before.version, NO_FILE)
    return saving.changed(context, (change,), path=done[0].path, action="deleted")
