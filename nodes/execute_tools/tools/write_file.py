"""The tool that writes a whole file."""

from pydantic import Field

from mendgraph.nodes.execute_tools.files.failures import invalid
from mendgraph.nodes.execute_tools.files.text_files import (
    BOM,
    TextForm,
    count_lines,
    encode_text,
    unstorable,
    with_newline,
)
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from mendgraph.nodes.execute_tools.tools.saving import (
    LoadedText,
    load_text,
    outdated,
    save_text,
    shown_unread,
    was_read,
)
from mendgraph.nodes.records import EditForm, Effect, ToolErrorCode


class WriteFileArguments(ToolArguments):
    """Which file, and its whole text."""

    path: FilePath
    content: str = Field(description="The whole text of the file.")


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",), edit_forms=tuple(EditForm), body_argument="content")
def write_file(context: ToolContext, arguments: WriteFileArguments) -> ToolOutput:
    """Create a file, or replace one that you have read.

    One that is there and was not read is shown instead, and nothing is written. A file that is replaced keeps its BOM
    and, if it ends its lines with CRLF, those: read_file does not show them.
    """
    problem = unstorable(arguments.content, "content")
    if problem:
        return ToolOutput.failed(invalid(problem))
    before = load_text(context, arguments.path)
    if isinstance(before, LoadedText):
        return _overwrite(context, arguments, before)
    if before.code is not ToolErrorCode.NOT_FOUND:
        return ToolOutput.failed(before)
    return _save(context, arguments, arguments.content.removeprefix(BOM), None)


def _overwrite(context: ToolContext, arguments: WriteFileArguments, before: LoadedText) -> ToolOutput:
    content = arguments.content.removeprefix(BOM)
    text = with_newline(content, "\r\n") if before.file.form.newline == "\r\n" else content
    if text == before.file.text:
        return ToolOutput.failed(
            invalid(f"{before.name} already has exactly this content, so there is nothing to write.")
        )
    if not was_read(context, before):
        return shown_unread(context, before)
    refusal = outdated(context, before.path, before.version)
    return ToolOutput.failed(refusal) if refusal else _save(context, arguments, text, before)


def _save(context: ToolContext, arguments: WriteFileArguments, text: str, before: LoadedText | None) -> ToolOutput:
    form = before.file.form if before else TextForm()
    size, lines = len(encode_text(text, form)), count_lines(text)
    action = "overwritten" if before else "created"
    return save_text(context, arguments.path, text, before, action=action, bytes=size, lines=lines)
