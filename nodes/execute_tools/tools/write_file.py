"""The tools that write a whole file, or add text to its end. Source: spec 4's `append_file`."""

from typing import Final

from pydantic import Field

from mendgraph.nodes.execute_tools.files.text_files import (
    BOM,
    TextForm,
    count_lines,
    encode_text,
    unstorable,
    with_newline,
)
from mendgraph.nodes.execute_tools.registry import FilePath, ToolAnswer, ToolArguments, ToolContext, tool
from mendgraph.nodes.execute_tools.tools import saving
from mendgraph.nodes.records import EditForm, Effect, ToolErrorCode, invalid


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
    if isinstance(before := saving.load_text(context, arguments.path), saving.LoadedText):
        return _overwrite(context, arguments, before)
    if before.code is not ToolErrorCode.NOT_FOUND:
        return before
    return _save(context, arguments, arguments.content.removeprefix(BOM), None)


def _overwrite(context: ToolContext, arguments: WriteFileArguments, before: saving.LoadedText) -> ToolAnswer:
    content = arguments.content.removeprefix(BOM)
    text = with_newline(content, "\r\n") if before.file.form.newline == "\r\n" else content
    if text == before.file.text:
        return invalid(f"{before.name} already has exactly this content, so there is nothing to write.")
    if before.path not in context.files_read:
        return saving.shown_unread(context, before)
    refusal = saving.outdated(context, before.path, before.version)
    return refusal or _save(context, arguments, text, before)


def _save(
    context: ToolContext, arguments: WriteFileArguments, text: str, before: saving.LoadedText | None
) -> ToolAnswer:
    form = before.file.form if before else TextForm()
    size, lines = len(encode_text(text, form)), count_lines(text)
    action = "overwritten" if before else "created"
    return saving.save_text(context, arguments.path, text, before, action=action, bytes=size, lines=lines)


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
    problem = unstorable(content, "content") or ("" if content else "content is empty: there is nothing to append.")
    if problem:
        return invalid(problem)
    if isinstance(before := saving.load_current(context, arguments.path), saving.LoadedText):
        return _append(context, arguments.path, content, before)
    if before.code is not ToolErrorCode.NOT_FOUND:
        return before
    lines = count_lines(content)
    return saving.save_text(context, arguments.path, content, None, action="created", start_line=1, lines=lines)


def _append(context: ToolContext, path: str, content: str, before: saving.LoadedText) -> ToolAnswer:
    newline, old = before.file.form.newline, before.file.text
    kept = old if not old or old.endswith("\n") else old + newline
    return saving.save_text(
        context,
        path,
        kept + (with_newline(content, newline) if old else content),
        before,
        action="appended",
        start_line=count_lines(kept) + 1,
        lines=count_lines(content),
    )
