"""The tool that replaces an exact text in a file."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from pydantic import Field

from nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from nodes.execute_tools.tools.loose_matches import Tier, find_loosely
from nodes.execute_tools.tools.nearest_lines import nearest_regions
from nodes.execute_tools.tools.saving import LoadedText, invalid, load_text, outdated, save_text
from nodes.execute_tools.tools.text_edits import Spot, find_spots, replace_spots
from nodes.execute_tools.tools.text_files import BOM, count_lines, unstorable
from nodes.execute_tools.tools.unread_files import instead_of
from nodes.language.tool_results import MISSED, is_miss
from nodes.records import Effect, JsonMap, ToolError, ToolErrorCode

_LISTED_SPOTS = 10
_TELLING_CHARACTERS = 4
"""A shorter new text occurs by chance, so that finding it says nothing."""


class EditFileArguments(ToolArguments):
    """Which text of which file, and what to put in its place."""

    path: FilePath
    old_str: str = Field(description='Exact text to replace; "" creates a new file.')
    new_str: str
    replace_all: bool = False


class Replacement(NamedTuple):
    """The text after an edit: how many stretches were replaced, where the first began, and how many lines they are.

    `tier` says what was left out of account to find them.
    """

    text: str
    replacements: int
    start_line: int
    lines_changed: int
    tier: Tier = Tier.EXACT


class _Found(NamedTuple):
    """Where to edit, what to put there, and how strictly the places were matched."""

    spots: tuple[Spot, ...]
    new_str: str
    tier: Tier = Tier.EXACT


@tool(effect=Effect.WRITE, one_change=True, path_fields=("path",))
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
    found = _find(text, name, old_str, new_str, replace_all=replace_all)
    if isinstance(found, ToolError):
        return found
    new = replace_spots(text, found.spots, found.new_str)
    if new == text and found.tier is Tier.EXACT:
        return invalid(f"old_str and new_str differ only in their line ends, which {name} keeps: nothing would change.")
    if new == text:
        return invalid(f"new_str is already there, at line {found.spots[0].line} of {name}: nothing would change.")
    changed = len(found.spots) * max(count_lines(old_str), count_lines(new_str))
    return Replacement(new, len(found.spots), found.spots[0].line, changed, found.tier)


def tier_data(tier: Tier) -> JsonMap:
    """What a result says of a match that is not exact."""
    return {} if tier is Tier.EXACT else {"matched": tier.value}


def _edit(context: ToolContext, arguments: EditFileArguments, before: LoadedText) -> ToolOutput:
    refusal = outdated(context, before.path, before.version)
    if refusal:
        return ToolOutput.failed(refusal)
    old, new = arguments.old_str, arguments.new_str
    edited = replace_text(before.file.text, before.name, old, new, replace_all=arguments.replace_all)
    if isinstance(edited, ToolError):
        return instead_of(edited, context, before) if is_miss(edited) else ToolOutput.failed(edited)
    text, replacements, start_line, lines_changed, tier = edited
    data = {"replacements": replacements, "start_line": start_line, "lines_changed": lines_changed, **tier_data(tier)}
    return save_text(context, arguments.path, text, before, **data)


def _equal() -> ToolError:
    return invalid("old_str and new_str are equal, so the edit would change nothing.")


def _find(text: str, name: str, old_str: str, new_str: str, *, replace_all: bool) -> _Found | ToolError:
    """Where to edit, or why that is not clear."""
    wanted = old_str.removeprefix(BOM)
    if not wanted and not text:
        return invalid(f"{name} exists and is empty: read_file it, then write_file its text.")
    if not wanted:
        return invalid(f"{name} exists: old_str may be empty only to create a file. Give the text to replace.")
    new = new_str.removeprefix(BOM)
    if replace_all:
        spots = tuple(find_spots(text, wanted, overlapping=False))
    else:
        spots = tuple(islice(find_spots(text, wanted), _LISTED_SPOTS + 1))
    if len(spots) == 1 or (spots and replace_all):
        return _Found(spots, new)
    if spots:
        remedy = "add lines around it until it occurs once, or set replace_all"
        return invalid(f"old_str occurs {_places(spots, name)}: {remedy}.")
    loose = find_loosely(text, wanted, new)
    if loose is None:
        return _miss(text, name, old_str, new_str)
    if len(loose.spots) == 1:
        return _Found(loose.spots, loose.replacement, loose.tier)
    remedy = "take it as one of them stands there, with lines around it until it occurs once"
    return invalid(f"But for blanks, old_str occurs {_places(loose.spots, name)}: {remedy}.")


def _places(spots: Sequence[Spot], name: str) -> str:
    times = str(len(spots)) if len(spots) <= _LISTED_SPOTS else f"more than {_LISTED_SPOTS}"
    lines = ", ".join(str(spot.line) for spot in spots[:_LISTED_SPOTS])
    return f"{times} times in {name}, at lines {lines}"


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
    message = f"{MISSED} {name}.{applied}{near if regions else none}"
    return invalid(message, *(region.text for region in regions))
