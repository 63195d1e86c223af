"""What of a request's deletions and renames a block carries out in its file.

A block merges by name and takes nothing away, so what is to go, and what is to be called otherwise, comes from the
request alone: a definition that it says to delete goes if the block does not hold it; one that it says to rename
makes room for the block's definition of the new name.
"""

import ast
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from nodes.execute_tools.tools.asked_changes import asked_deletions, asked_renames
from nodes.execute_tools.tools.deletions import delete_names
from nodes.execute_tools.tools.elisions import is_stub
from nodes.execute_tools.tools.named_units import NamedUnit, imported_names, named_units
from nodes.execute_tools.tools.python_units import PythonText, SyntaxProblem, Unit, UnitKind, read_python
from nodes.execute_tools.tools.renames import (
    Place,
    attribute_lines,
    bare_uses,
    place_of_name,
    rename_uses,
    replace_places,
)


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


class Carried(NamedTuple):
    """The text after the merge with the rest done: what was deleted, how many uses were renamed, what is still used."""

    text: str
    deleted: tuple[str, ...] = ()
    renamed_uses: int = 0
    still: tuple[str, ...] = ()


def asked_edits(source: PythonText, block: PythonText, task: str, path: str) -> AskedEdits:
    """The deletions and renames that the task asks for and this block, for the file at `path`, carries out."""
    renames = tuple(_renames(source, block, asked_renames(task)))
    old = {each.name for each in named_units(source)} | {each.name for each in imported_names(source)}
    asked = asked_deletions(task, old, path)
    held = _held(source, block, asked) | {rename.name for rename in renames}
    return AskedEdits(renames, frozenset(asked - held))


def without_comment_bodies(block: str, task: str) -> str:
    """The block with `pass` in each function that the task says to delete and whose body may be a comment only."""
    headers = dict.fromkeys(re.findall(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", block, re.MULTILINE))
    for name in asked_deletions(task, headers):
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


def carry_out(text: str, asked: AskedEdits) -> Carried:
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
    return Carried(text, deleted, count, tuple(still))


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
