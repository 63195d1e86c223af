"""The tool that makes several edits of one file at once."""

from pydantic import Field

from mendgraph.nodes.execute_tools.edits.exact_edits import Replacement, Tier, replace_text, tier_data
from mendgraph.nodes.execute_tools.files.failures import invalid
from mendgraph.nodes.execute_tools.files.text_files import unstorable
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from mendgraph.nodes.execute_tools.tools.saving import instead_of, load_current, save_text
from mendgraph.nodes.language.tool_results import is_miss
from mendgraph.nodes.records import EditForm, Effect, ToolError

MAX_EDITS = 50
"""Edits in one call: whoever has more to change writes the file anew."""


class TextEdit(ToolArguments):
    """Which text, and what to put in its place."""

    old_str: str = Field(description="Exact text to replace.")
    new_str: str
    replace_all: bool = False


class MultiEditArguments(ToolArguments):
    """The edits of one file, in order."""

    path: FilePath
    edits: list[TextEdit] = Field(  # a tuple would tell of wrong elements as missing ones too
        min_length=1, max_length=MAX_EDITS, description="Edits in order; each sees the text after those before it."
    )


@tool(
    effect=Effect.WRITE,
    one_change=True,
    path_fields=("path",),
    edit_forms=(EditForm.REPLACE,),
    seldom_in=(EditForm.REPLACE,),
)
def multi_edit(context: ToolContext, arguments: MultiEditArguments) -> ToolOutput:
    """Replace several exact texts of one file in one step: all of the edits are made, or none.

    Each edit follows the rules of edit_file. The file is written once.
    """
    before = load_current(context, arguments.path)
    if isinstance(before, ToolError):
        return ToolOutput.failed(before)
    text = before.file.text
    replacements = lines_changed = 0
    tiers: list[Tier] = []
    for number, edit in enumerate(arguments.edits, start=1):
        done = _edited(text, before.name, edit)
        if isinstance(done, ToolError):
            where = f"Edit {number} of {len(arguments.edits)} failed, so none was made: "
            told = done.model_copy(update={"message": where + done.message})
            return instead_of(told, context, before) if is_miss(done) else ToolOutput.failed(told)
        text = done.text
        tiers.append(done.tier)
        replacements += done.replacements
        lines_changed += done.lines_changed
    if text == before.file.text:
        return ToolOutput.failed(invalid(f"The edits undo each other, so nothing of {before.name} would change."))
    loosest = max(tiers, key=list(Tier).index)
    data = {"edits": len(arguments.edits), "replacements": replacements, "lines_changed": lines_changed}
    data |= tier_data(loosest)
    return save_text(context, arguments.path, text, before, **data)


def _edited(text: str, name: str, edit: TextEdit) -> Replacement | ToolError:
    problem = unstorable(edit.new_str, "new_str")
    return (
        invalid(problem)
        if problem
        else replace_text(text, name, edit.old_str, edit.new_str, replace_all=edit.replace_all)
    )
