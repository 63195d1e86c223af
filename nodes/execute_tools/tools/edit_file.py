"""The tools that replace parts of a file: an exact text, several at once, or what a block holds anew."""

from functools import partial
from typing import Final

from pydantic import Field

from mendgraph.nodes.execute_tools.edits.exact_edits import EQUAL, Tier, replace_text, tier_data
from mendgraph.nodes.execute_tools.registry import FilePath, ToolAnswer, ToolArguments, ToolContext, tool
from mendgraph.nodes.execute_tools.tools.saving import instead_of, load_current, save_text
from mendgraph.nodes.language.text_protocol import is_miss
from mendgraph.nodes.records import EditForm, Effect, ToolError, ToolErrorCode, invalid
from mendgraph.nodes.workspace.files.text_files import count_lines, unstorable


class EditFileArguments(ToolArguments):
    """Which text of which file, and what to put in its place."""

    path: FilePath
    old_str: str = Field(description='Exact text to replace; "" creates a new file.')
    new_str: str
    replace_all: bool = False


_FORMS: Final = (EditForm.REPLACE,)


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",), edit_forms=_FORMS)
def edit_file(context: ToolContext, arguments: EditFileArguments) -> ToolAnswer:
    """Replace a text that occurs exactly once in a file, or create a file.

    No reading is asked for: that the text is there, once, proves that the model knows the place; only a file that has
    changed since it was read is to be read again, and one that was never read is shown where the text is not in it.
    A text that is nowhere as it is may differ in blanks at the ends of lines, or in how deep all of it is indented.
    Bytes outside of the replaced text, BOM, line ends and the mode of the file are kept.
    """
    if problem := unstorable(arguments.new_str, "new_str"):
        return invalid(problem)
    if arguments.old_str == arguments.new_str:
        return invalid(EQUAL)

    if isinstance(before := load_current(context, arguments.path), ToolError):
        if before.code is not ToolErrorCode.NOT_FOUND or arguments.old_str:
            return before

        text = arguments.new_str
        lines = count_lines(arguments.new_str)
        return save_text(context, arguments.path, text, None, replacements=0, start_line=1, lines_changed=lines)

    old = arguments.old_str
    new = arguments.new_str
    edited = replace_text(before.file.text, before.name, old, new, replace_all=arguments.replace_all)

    if isinstance(edited, ToolError):
        if is_miss(edited):
            return instead_of(edited, context, before)
        return edited

    text, replacements, start_line, lines_changed, tier = edited
    data = {"replacements": replacements, "start_line": start_line, "lines_changed": lines_changed, **tier_data(tier)}
    return save_text(context, arguments.path, text, before, **data)


MAX_EDITS = 50  # edits in one call: whoever has more to change writes the file anew


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


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",), edit_forms=_FORMS, seldom_in=_FORMS)
def multi_edit(context: ToolContext, arguments: MultiEditArguments) -> ToolAnswer:
    """Replace several exact texts of one file in one step: all of the edits are made, or none.

    Each edit follows the rules of edit_file. The file is written once.
    """
    if isinstance(before := load_current(context, arguments.path), ToolError):
        return before

    text = before.file.text
    replacements = lines_changed = 0
    tiers: list[Tier] = []

    for number, edit in enumerate(arguments.edits, start=1):
        problem = unstorable(edit.new_str, "new_str")
        replaced = partial(replace_text, text, before.name, edit.old_str, edit.new_str, replace_all=edit.replace_all)
        done = invalid(problem) if problem else replaced()

        if isinstance(done, ToolError):
            where = f"Edit {number} of {len(arguments.edits)} failed, so none was made: "
            result = done.model_copy(update={"message": where + done.message})
            if is_miss(done):
                return instead_of(result, context, before)

            return result

        text = done.text
        tiers.append(done.tier)
        replacements += done.replacements
        lines_changed += done.lines_changed

    if text == before.file.text:
        return invalid(f"The edits undo each other, so nothing of {before.name} would change.")

    data = {"edits": len(arguments.edits), "replacements": replacements, "lines_changed": lines_changed}
    data |= tier_data(max(tiers, key=list(Tier).index))
    return save_text(context, arguments.path, text, before, **data)


class EditBlocksArguments(ToolArguments):
    """Which file, and the new text of what changes in it."""

    path: FilePath
    content: str = Field(description="New text of the changed functions or classes, or the whole file.")


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",), edit_forms=(EditForm.BLOCKS,))
def edit_blocks(context: ToolContext, arguments: EditBlocksArguments) -> ToolAnswer:
    """Replace functions or classes of a Python file by name, or a whole file of another kind.

    A file must have been read, and is shown where it was not, unless the block only adds to it. What the request says
    to delete or to rename is deleted or renamed. The result carries the new text: the block form shows each file in its
    newest known state.
    """
    from mendgraph.nodes.execute_tools.tools.block_edits import edit

    return edit(context, arguments.path, arguments.content)
