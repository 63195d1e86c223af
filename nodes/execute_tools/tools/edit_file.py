"""The tool that replaces an exact text in a file."""

from pydantic import Field

from mendgraph.nodes.execute_tools.edits.exact_edits import EQUAL, replace_text, tier_data
from mendgraph.nodes.execute_tools.files.failures import invalid
from mendgraph.nodes.execute_tools.files.text_files import BOM, count_lines, unstorable
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from mendgraph.nodes.execute_tools.tools.saving import LoadedText, instead_of, load_current, save_text
from mendgraph.nodes.language.tool_results import is_miss
from mendgraph.nodes.records import EditForm, Effect, ToolError, ToolErrorCode


class EditFileArguments(ToolArguments):
    """Which text of which file, and what to put in its place."""

    path: FilePath
    old_str: str = Field(description='Exact text to replace; "" creates a new file.')
    new_str: str
    replace_all: bool = False


@tool(
    effect=Effect.WRITE, one_change=True, path_fields=("path",), edit_forms=(EditForm.REPLACE,), body_argument="new_str"
)
def edit_file(context: ToolContext, arguments: EditFileArguments) -> ToolOutput:
    """Replace a text that occurs exactly once in a file, or create a file.

    No reading is asked for: that the text is there, once, proves that the model knows the place; only a file that has
    changed since it was read is to be read again, and one that was never read is shown where the text is not in it.
    A text that is nowhere as it is may differ in blanks at the ends of lines, or in how deep all of it is indented.
    Bytes outside of the replaced text, BOM, line ends and the mode of the file are kept.
    """
    problem = unstorable(arguments.new_str, "new_str")
    if problem:
        return ToolOutput.failed(invalid(problem))
    if arguments.old_str == arguments.new_str:
        return ToolOutput.failed(invalid(EQUAL))
    before = load_current(context, arguments.path)
    if isinstance(before, LoadedText):
        return _edit(context, arguments, before)
    if before.code is not ToolErrorCode.NOT_FOUND or arguments.old_str:
        return ToolOutput.failed(before)
    text = arguments.new_str.removeprefix(BOM)
    lines = count_lines(text)
    return save_text(context, arguments.path, text, None, replacements=0, start_line=1, lines_changed=lines)


def _edit(context: ToolContext, arguments: EditFileArguments, before: LoadedText) -> ToolOutput:
    old, new = arguments.old_str, arguments.new_str
    edited = replace_text(before.file.text, before.name, old, new, replace_all=arguments.replace_all)
    if isinstance(edited, ToolError):
        return instead_of(edited, context, before) if is_miss(edited) else ToolOutput.failed(edited)
    text, replacements, start_line, lines_changed, tier = edited
    data = {"replacements": replacements, "start_line": start_line, "lines_changed": lines_changed, **tier_data(tier)}
    return save_text(context, arguments.path, text, before, **data)
