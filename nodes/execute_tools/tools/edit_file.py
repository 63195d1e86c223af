"""The tool that replaces an exact text in a file."""

from itertools import islice
from typing import NamedTuple

from pydantic import Field

from nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from nodes.execute_tools.tools.nearest_lines import nearest_regions
from nodes.execute_tools.tools.saving import LoadedText, invalid, load_text, outdated, save_text
from nodes.execute_tools.tools.text_edits import Spot, find_spots, replace_spots
from nodes.execute_tools.tools.text_files import BOM, count_lines, unstorable
from nodes.records import Effect, ToolError, ToolErrorCode

_LISTED_SPOTS = 10
_TELLING_CHARACTERS = 4
"""A shorter new text occurs by chance, so that finding it says nothing."""


class EditFileArguments(ToolArguments):
    """Which text of which file, and what to put in its place."""

    path: FilePath
    old_str: str = Field(description='Exact text to replace; "" creates a new file.')
    new_str: str = Field(description="Text to put in its place.")
    replace_all: bool = Field(default=False, description="Replace every occurrence.")


class Replacement(NamedTuple):
    """The text after an edit: how many stretches were replaced, where the first began, and how many lines they are."""

    text: str
    replacements: int
    start_line: int
    lines_changed: int


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",))
def edit_file(context: ToolContext, arguments: EditFileArguments) -> ToolOutput:
    """Replace a text that occurs exactly once in a file, or create a file.

    No reading is asked for: that the text is there, once, proves that the model knows the place; only a file that has
    changed since it was read is to be read again. Bytes outside of the replaced text, BOM, line ends and the mode of
    the file are kept.
    """
    problem = unstorable(arguments.new_str, "new_str")
    if problem:
        return ToolOutput.failed(invalid(problem))
    if arguments.old_str == arguments.new_str:
        return ToolOutput.failed(_equal())
    before = load_text(context, arguments.path)
    if isinstance(before, LoadedText):
        return _edit(context, arguments, before)
    if before.code is not ToolErrorCode.NOT_FOUND or arguments.old_str:
        return ToolOutput.failed(before)
    text = arguments.new_str.removeprefix(BOM)
    lines = count_lines(text)
    return save_text(context, arguments.path, text, None, replacements=0, start_line=1, lines_changed=lines)


def replace_text(text: str, name: str, old_str: str, new_str: str, *, replace_all: bool) -> Replacement | ToolError:
    """The text with `new_str` in place of `old_str`, or why that is not clear; `name` is the file's, for messages."""
    if old_str == new_str:
        return _equal()
    spots = _spots(text, name, old_str, new_str, replace_all=replace_all)
    if isinstance(spots, ToolError):
        return spots
    new = replace_spots(text, spots, new_str.removeprefix(BOM))
    if new == text:
        return invalid(f"old_str and new_str differ only in their line ends, which {name} keeps: nothing would change.")
    changed = len(spots) * max(count_lines(old_str), count_lines(new_str))
    return Replacement(new, len(spots), spots[0].line, changed)


def _edit(context: ToolContext, arguments: EditFileArguments, before: LoadedText) -> ToolOutput:
    refusal = outdated(context, before.path, before.version)
    if refusal:
        return ToolOutput.failed(refusal)
    old, new = arguments.old_str, arguments.new_str
    edited = replace_text(before.file.text, before.name, old, new, replace_all=arguments.replace_all)
    if isinstance(edited, ToolError):
        return ToolOutput.failed(edited)
    text, replacements, start_line, lines_changed = edited
    data = {"replacements": replacements, "start_line": start_line, "lines_changed": lines_changed}
    return save_text(context, arguments.path, text, before, **data)


def _equal() -> ToolError:
    return invalid("old_str and new_str are equal, so the edit would change nothing.")


def _spots(text: str, name: str, old_str: str, new_str: str, *, replace_all: bool) -> tuple[Spot, ...] | ToolError:
    """Where to edit, or why that is not clear."""
    wanted = old_str.removeprefix(BOM)
    if not wanted and not text:
        return invalid(f"{name} exists and is empty: read_file it, then write_file its text.")
    if not wanted:
        return invalid(f"{name} exists: old_str may be empty only to create a file. Give the text to replace.")
    if replace_all:
        spots = tuple(find_spots(text, wanted, overlapping=False))
    else:
        spots = tuple(islice(find_spots(text, wanted), _LISTED_SPOTS + 1))
    if not spots:
        return _miss(text, name, old_str, new_str)
    if len(spots) == 1 or replace_all:
        return spots
    times = str(len(spots)) if len(spots) <= _LISTED_SPOTS else f"more than {_LISTED_SPOTS}"
    lines = ", ".join(str(spot.line) for spot in spots[:_LISTED_SPOTS])
    return invalid(
        f"old_str occurs {times} times in {name}, at lines {lines}: add lines around it until it occurs once,"
        " or set replace_all."
    )


def _miss(text: str, name: str, old_str: str, new_str: str) -> ToolError:
    """Says what stands in the file instead: the new text already, or something near."""
    applied = ""
    if len(new_str.strip()) >= _TELLING_CHARACTERS:
        found = next(find_spots(text, new_str), None)
        applied = f" new_str is already there, at line {found.line}: this edit looks already applied." if found else ""
    regions = nearest_regions(text, old_str)
    ranges = ", ".join(f"{region.first}-{region.last}" for region in regions)
    near = f" The nearest lines are {ranges}: take old_str from the suggestions, which show them as they are."
    none = "" if applied else " Nothing in it is near: read_file it first."
    message = f"old_str does not occur in {name}.{applied}{near if regions else none}"
    return invalid(message, *(region.text for region in regions))
