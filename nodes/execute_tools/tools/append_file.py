"""The tool that adds text to the end of a file. Source: spec 4's `append_file`."""

from pydantic import Field

from mendgraph.nodes.execute_tools.files.failures import invalid
from mendgraph.nodes.execute_tools.files.text_files import BOM, count_lines, unstorable, with_newline
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from mendgraph.nodes.execute_tools.tools.saving import LoadedText, load_current, save_text
from mendgraph.nodes.records import EditForm, Effect, ToolErrorCode


class AppendFileArguments(ToolArguments):
    """Which file, and what to add to it."""

    path: FilePath
    content: str = Field(description="Text to add at the end.")


@tool(
    effect=Effect.WRITE,
    one_change=True,
    path_fields=("path",),
    edit_forms=(EditForm.REPLACE, EditForm.BLOCKS),
    seldom_in=(EditForm.REPLACE, EditForm.BLOCKS),
    body_argument="content",
)
def append_file(context: ToolContext, arguments: AppendFileArguments) -> ToolOutput:
    """Add text at the end of a file, on a line of its own; creates the file if there is none.

    No reading is asked for, as nothing is lost; only a file that has changed since it was read is to be read again. BOM
    and line ends are kept, and a last line without line end gets one before the new text.
    """
    content = arguments.content.removeprefix(BOM)
    problem = unstorable(content, "content") or ("" if content else "content is empty: there is nothing to append.")
    if problem:
        return ToolOutput.failed(invalid(problem))
    before = load_current(context, arguments.path)
    if isinstance(before, LoadedText):
        return _append(context, arguments.path, content, before)
    if before.code is not ToolErrorCode.NOT_FOUND:
        return ToolOutput.failed(before)
    lines = count_lines(content)
    return save_text(context, arguments.path, content, None, action="created", start_line=1, lines=lines)


def _append(context: ToolContext, path: str, content: str, before: LoadedText) -> ToolOutput:
    newline, old = before.file.form.newline, before.file.text
    kept = old if not old or old.endswith("\n") else old + newline
    return save_text(
        context,
        path,
        kept + (with_newline(content, newline) if old else content),
        before,
        action="appended",
        start_line=count_lines(kept) + 1,
        lines=count_lines(content),
    )
