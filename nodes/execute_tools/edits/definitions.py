"""Replacing Python definitions by name: the block form that small models master.

A model gives the new text of what changes: functions, methods, classes, assignments to one name, imports. What has the
same name in the file is replaced, what has a new name is added next to its neighbour in the block, new imports join the
others, and every other byte of the file stays. A block cannot lose what it does not mention: a definition goes only if
the request says to delete it and the block does not hold it, or if the request says to rename it and the block holds it
under the new name. A block that leaves out part of a body, or whose place is a matter of opinion, is refused.
"""

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mendgraph.nodes.execute_tools.edits.definition_merge import MergeDraft, merge_module
from mendgraph.nodes.execute_tools.edits.placeholders import (
    function_names,
    is_stub,
    left_out,
    torn_statement,
    unwritten_bodies,
)
from mendgraph.nodes.execute_tools.edits.python_names import (
    Place,
    attribute_lines,
    bare_uses,
    delete_names,
    place_of_name,
    rename_uses,
    replace_places,
)
from mendgraph.nodes.execute_tools.edits.python_text import (
    NamedUnit,
    PythonText,
    SyntaxProblem,
    Unit,
    UnitKind,
    apply_edits,
    imported_names,
    named_units,
    parse,
    read_python,
)
from mendgraph.nodes.execute_tools.edits.request import read_request
from mendgraph.nodes.execute_tools.files.text_files import dominant_newline, to_unix


class Rename(NamedTuple):
    """A definition or import of the file by its full name, its new last name, and where its name stands."""

    name: str
    new: str
    places: tuple[Place, ...]

    @property
    def old(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def label(self) -> str:
        """The full new name."""
        return self.name[: len(self.name) - len(self.old)] + self.new


@dataclass(frozen=True)
class AskedEdits:
    """What is to be done to the file beside the merge."""

    renames: tuple[Rename, ...] = ()
    deletions: frozenset[str] = frozenset()


class Merged(NamedTuple):
    """The new text, the names that changed in it, and what of the block was left aside.

    What the request asked for beside: `deleted` names, the number of uses that were renamed, and where a deleted or
    renamed name is `still` used.
    """

    text: str
    changed: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    renamed_uses: int = 0
    still: tuple[str, ...] = ()


def asked_edits(source: PythonText, block: PythonText, task: str, path: str) -> AskedEdits:
    """The deletions and renames that the task asks for and this block, for the file at `path`, carries out."""
    renames = tuple(_renames(source, block, read_request(task).renames))
    old = {each.name for each in named_units(source)} | {each.name for each in imported_names(source)}
    asked = read_request(task).deletions(old, path)
    held = _held(source, block, asked) | {rename.name for rename in renames}
    return AskedEdits(renames, frozenset(asked - held))


def without_comment_bodies(block: str, task: str) -> str:
    """The block with `pass` in each function that the task says to delete and whose body may be a comment only."""
    headers = dict.fromkeys(re.findall(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", block, re.MULTILINE))
    for name in read_request(task).deletions(headers):
        block = re.sub(
            rf"^([ \t]*(?:async[ \t]+)?def[ \t]+{name}\b[^\n]*:)[ \t]*$", r"\1 pass", block, flags=re.MULTILINE
        )
    return block


def block_to_merge(block: PythonText, asked: AskedEdits) -> PythonText:
    """The block without what only says that a name is to go: `del NAME`, and a definition without a body."""
    lasts = {name.rpartition(".")[2] for name in asked.deletions}
    kept = tuple(unit for unit in block.units if not _is_farewell(unit, lasts))
    return replace(block, units=kept)


def with_new_names(source: PythonText, asked: AskedEdits) -> PythonText:
    """The file with the definitions, though not yet their uses, under their new names."""
    for rename in asked.renames:
        renamed = read_python(replace_places(source.lines, rename.places, rename.new))
        source = source if isinstance(renamed, SyntaxProblem) else renamed
    return source


def carry_out(text: str, asked: AskedEdits) -> Merged:
    """Rename the uses and delete the definitions in the merged text."""
    count, still = 0, []
    for rename in asked.renames:
        if "." in rename.name:
            left = attribute_lines(text, rename.old)
        else:
            text, renamed, left = rename_uses(text, rename.old, rename.new)
            count += renamed
        still += _told(rename.old, left)
    text, deleted = delete_names(text, asked.deletions)
    for name in deleted:
        last = name.rpartition(".")[2]
        still += _told(last, attribute_lines(text, last) if "." in name else bare_uses(text, last))
    return Merged(text, (), (), deleted, count, tuple(still))


def deleted_in(block: PythonText) -> list[str]:
    """The names that the block says to delete."""
    return [name for unit in block.units for name in _del_names(unit)]


def _told(name: str, lines: Collection[int]) -> list[str]:
    listed = ", ".join(map(str, lines))
    return [f"{name} at line{'s' * (len(lines) > 1)} {listed}"] if lines else []


# --- Deletions


def _held(source: PythonText, block: PythonText, asked: Collection[str]) -> set[str]:
    """Those of the names that the block gives a text, be it as a method outside of its class."""
    stubs = {each.name for each in named_units(source) if is_stub(each.unit.node)}
    units = [each for each in named_units(block) if each.name in stubs or not is_stub(each.unit.node)]
    full, alone = {each.name for each in units}, {each.name for each in units if each.home is None}
    full |= {each.name for each in imported_names(block)}
    return {name for name in asked if name in full or ("." in name and name.rpartition(".")[2] in alone)}


def _is_farewell(unit: Unit, lasts: Collection[str]) -> bool:
    dels = _del_names(unit)
    stub = unit.kind in {UnitKind.FUNCTION, UnitKind.CLASS} and unit.key in lasts and is_stub(unit.node)
    return stub or (bool(dels) and all(name in lasts for name in dels))


def _del_names(unit: Unit) -> list[str]:
    targets = [target for node in unit.nodes if isinstance(node, ast.Delete) for target in node.targets]
    return [target.id for target in targets if isinstance(target, ast.Name)]


# --- Renames


def _renames(source: PythonText, block: PythonText, asked: Mapping[str, str]) -> Iterator[Rename]:
    olds, news = named_units(source), named_units(block)
    for old, new in asked.items():
        if any(each.last == old for each in news):
            continue
        if any(each.name == old for each in olds):
            found = _of_module(olds, news, old, new)
        else:
            found = _of_class(olds, news, old, new)
        places = [place_of_name(source, each.unit) for each in found]
        known = tuple(place for place in places if place is not None)
        if known and len(known) == len(places):
            yield Rename(found[0].name, new, known)
        elif not found and not any(each.name in {old, new} and each.home is None for each in olds):
            yield from _of_import(source, block, old, new)


def _of_module(olds: list[NamedUnit], news: list[NamedUnit], old: str, new: str) -> list[NamedUnit]:
    at_top = {each.name for each in news if each.home is None}
    if new not in at_top or any(each.name == new for each in olds):
        return []
    return [each for each in olds if each.name == old]


def _of_class(olds: list[NamedUnit], news: list[NamedUnit], old: str, new: str) -> list[NamedUnit]:
    """The members called `old` of the one class that has any, if the block gives the new one to it or to none."""
    found = [each for each in olds if each.last == old and each.home is not None]
    homes = {each.home.key for each in found if each.home is not None}
    if len(homes) != 1:
        return []
    [home] = homes
    given = any(each.name in {f"{home}.{new}", new} for each in news)
    taken = any(each.name in {f"{home}.{new}", new} for each in olds)
    return found if given and not taken else []


def _of_import(source: PythonText, block: PythonText, old: str, new: str) -> Iterator[Rename]:
    """`from settings import load`, where the block imports the new name from there or uses it without any import."""
    found = [each for each in imported_names(source) if each.alias.name == old and each.origin[1] >= 0]
    known = {each.name for each in imported_names(source)}
    given = [each for each in imported_names(block) if each.alias.name == new]
    if len(found) != 1 or (new in known and found[0].alias.asname is None):
        return
    [imported] = found
    same = any(each.origin == imported.origin and each.alias.asname == imported.alias.asname for each in given)
    foreign = imported.origin[1] == 0 and imported.origin[0].partition(".")[0] in sys.stdlib_module_names
    used = not given and not foreign and bool(bare_uses("".join(block.lines), new))
    if same or used:
        start = imported.alias
        line = source.lines[start.lineno - 1]
        column = len(line.encode()[: start.col_offset].decode())
        yield Rename(old, new, (Place(start.lineno, column, column + len(old)),))


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
