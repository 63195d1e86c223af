"""Replacing Python definitions by name: the block form that small models master.

A model gives the new text of what changes: functions, methods, classes, assignments to one name, imports. What has the
same name in the file is replaced, what has a new name is added next to its neighbour in the block, new imports join the
others, and every other byte of the file stays. A block cannot lose what it does not mention: a definition goes only if
the request says to delete it and the block does not hold it, or if the request says to rename it and the block holds it
under the new name. A block that leaves out part of a body, or whose place is a matter of opinion, is refused.
"""

from typing import NamedTuple

from mendgraph.nodes.execute_tools.edits.asked_edits import (
    AskedEdits,
    Merged,
    asked_edits,
    block_to_merge,
    carry_out,
    deleted_in,
    with_new_names,
    without_comment_bodies,
)
from mendgraph.nodes.execute_tools.edits.definition_merge import MergeDraft, merge_module
from mendgraph.nodes.execute_tools.edits.left_out import function_names, left_out, torn_statement, unwritten_bodies
from mendgraph.nodes.execute_tools.edits.python_text import PythonText, SyntaxProblem, apply_edits, parse, read_python
from mendgraph.nodes.execute_tools.files.text_files import dominant_newline, to_unix

_SHOWN_STATEMENTS = 5


class Refusal(NamedTuple):
    """Why nothing was merged: the fact, and what to do. `unchanged` says that the file already is as the block says."""

    reason: str
    unchanged: bool = False


def replace_definitions(
    source: str, block: str, name: str = "the file", *, task: str = "", path: str = ""
) -> Merged | Refusal:
    """Merge the definitions of `block` into `source`; `name` is how a refusal calls the file.

    Functions, methods and assignments are replaced whole, classes member by member. A method may stand alone, at any
    indent, where exactly one class has it. Outside of what is replaced or added, the text is the same to the byte; only
    what the `task` says to delete from the file at `path`, or to rename, goes or changes beside.
    """
    open_end = bool(source) and not source.endswith(("\n", "\r"))
    old = read_python(source + "\n" if open_end else source)
    if isinstance(old, SyntaxProblem):
        return Refusal(f"{name} is not valid Python ({old}), so its definitions cannot be replaced by name.")
    indented = block.lstrip("\r\n").startswith((" ", "\t"))
    new = _read_block(block, task, indented=indented)
    if isinstance(new, SyntaxProblem):
        return Refusal(f"The block is not valid Python ({new}). Send it again: complete, and nothing but code.")
    try:
        torn = torn_statement(new)
        if torn:
            return Refusal(f"The block gives only a part of a function ({torn}). Send all of it, with its def line.")
        asked = asked_edits(old, new, task, path) if task else AskedEdits()
        renamed, merging = with_new_names(old, asked), block_to_merge(new, asked)
        unwritten = unwritten_bodies(merging, function_names(renamed), task, path)
        if unwritten:
            return Refusal(left_out(unwritten))
        draft = MergeDraft(renamed, merging, name, dominant_newline(source), gone=asked.deletions, task=task)
        merge_module(draft, methods=indented)
    except RecursionError:
        return Refusal(f"{name} or the block is nested too deeply to be compared; use edit_file.")
    return _result(draft, asked, open_end=open_end)


def _read_block(block: str, task: str, *, indented: bool) -> PythonText | SyntaxProblem:
    text = to_unix(block)
    new = read_python(text, indented=indented)
    if isinstance(new, SyntaxProblem) and task:
        mended = read_python(without_comment_bodies(text, task), indented=indented)
        return new if isinstance(mended, SyntaxProblem) else mended
    return new


def _result(draft: MergeDraft, asked: AskedEdits, *, open_end: bool) -> Merged | Refusal:
    """The merged text, without a last line end if `open_end`, or the first thing that speaks against it."""
    if draft.refusals:
        return Refusal(draft.refusals[0])
    merged = carry_out(apply_edits(draft.source.lines, draft.edits), asked)
    changed = tuple(dict.fromkeys([*draft.changed, *(rename.label for rename in asked.renames)]))
    if not changed and not merged.deleted:
        return _nothing(draft)
    problem = parse(merged.text)
    if isinstance(problem, SyntaxProblem):
        return Refusal(f"With this block {draft.name} would not be valid Python ({problem}), so nothing was changed.")
    text = merged.text.removesuffix("\n").removesuffix("\r") if open_end else merged.text
    return merged._replace(text=text, changed=changed, ignored=tuple(draft.ignored))


def _nothing(draft: MergeDraft) -> Refusal:
    unasked = deleted_in(draft.block)
    if unasked:
        names = ", ".join(unasked)
        return Refusal(
            f"The request does not say to delete {names}, so nothing was changed. Give the new text instead."
        )
    if draft.ignored:
        aside = "; ".join(draft.ignored[:_SHOWN_STATEMENTS])
        return Refusal(
            "Only functions, classes, imports and assignments to one name are merged, and the block changes none"
            f" of those in {draft.name}. Left aside: {aside}. Use edit_file for such statements."
        )
    if not draft.block.units:
        return Refusal("The block holds no code. Give the new text of the functions, methods or classes that change.")
    return Refusal(identical(draft.name), unchanged=True)


def identical(name: str) -> str:
    """What is said of a block that the file already holds."""
    return f"The block is identical to what {name} already has, so nothing would change."
