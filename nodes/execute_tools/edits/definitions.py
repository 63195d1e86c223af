"""Merging a block of Python into a file by the names of its definitions. Pure.

A block holds the new text of what changes: functions, methods, classes, assignments to one name, imports. A namesake in
the file is replaced, a new name is added next to its neighbour in the block, new imports join the others, and every
other byte of the file stays. What a block does not mention is not lost: a definition is deleted or renamed only if the
request says so and the block agrees. A block that leaves out part of a body, or whose place is not clear, is refused.
Documentation that the request is not about stays.
"""

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from textwrap import dedent
from typing import Any, Final, NamedTuple

import libcst as cst

from mendgraph.nodes.execute_tools.edits.asked_edits import (
    AskedEdits,
    Merged,
    asked_edits,
    carry_out,
    del_names,
    rename_definitions,
    units_to_merge,
)
from mendgraph.nodes.execute_tools.edits.imports import (
    add_imports,
    imported_names,
    origins,
    reduced_import,
    remove_imports,
    without_imports_of,
)
from mendgraph.nodes.execute_tools.edits.losses import elision_in, is_elision, is_placeholder, is_stub, torn_statement
from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem, parse, statements_in
from mendgraph.nodes.execute_tools.edits.units import (
    DOCSTRING,
    MAIN_GUARD,
    PythonSource,
    Statement,
    Unit,
    UnitKind,
    blank_lines_between,
    code_of,
    exchange,
    meaning,
    moved_node,
    new_comments,
    pair_units,
    read_units,
    split_leading_lines,
    statement_of,
    units_beyond,
)
from mendgraph.nodes.language.request import read_request
from mendgraph.nodes.workspace.files.text_files import dominant_newline, with_newline

_SHOWN_CHARACTERS: Final = 60
_SHOWN_STATEMENTS: Final = 5
_SHOWN_NAMES: Final = 3


class Refusal(NamedTuple):
    """Why nothing was merged, and what to do. `unchanged` says that the file already is as the block says."""

    reason: str
    unchanged: bool = False


class _RefusedError(Exception):
    """The block cannot be merged; the message is the reason."""


def replace_definitions(
    source: str,
    block: str,
    name: str = "the file",
    *,
    task: str = "",
    path: str = "",
    there: Collection[str] = (),
) -> Merged | Refusal:
    """Merge the definitions of `block` into `source`, whose `name` stands in refusals.

    Functions, methods and assignments are replaced whole, classes member by member. A method may stand alone, at any
    indentation, if exactly one class has it. The `task` may ask for deletions from the file at `path`, for renames,
    and for moves of definitions, which are deleted if they are `there`.
    """
    try:
        return _merged(source, block, name, task, path, there)
    except _RefusedError as refusal:
        return Refusal(str(refusal))
    except RecursionError:
        return Refusal(f"{name} or the block is nested too deeply to be compared; use edit_file.")


def _merged(source: str, block: str, name: str, task: str, path: str, there: Collection[str]) -> Merged | Refusal:
    has_open_end = bool(source) and not source.endswith(("\n", "\r"))
    old = read_units(source + "\n" if has_open_end else source)
    if isinstance(old, SyntaxProblem):
        raise _RefusedError(f"{name} is not valid Python ({old}), so its definitions cannot be replaced by name.")

    newline = dominant_newline(source)
    block = with_newline(block, newline)
    is_indented = next(filter(str.strip, block.splitlines()), "").startswith((" ", "\t"))
    new = read_units(block, indented=is_indented)
    if isinstance(new, SyntaxProblem):
        raise _RefusedError(f"The block is not valid Python ({new}). Send it again: complete, and nothing but code.")

    if torn := torn_statement(new.trees, new.lines):
        raise _RefusedError(f"The block gives only a part of a function ({torn}). Send all of it, with its def line.")

    if not old.units:
        keys = [unit.key for unit in new.units if unit.key]
        return Merged((source and source + newline) + dedent(block), tuple(keys or ["all"]))

    new.units = without_imports_of(new.units, path)
    asked = asked_edits(old, new, task, path, there) if task else AskedEdits()
    merge = _Merge(old, new, name, asked, task, subjects=_subjects(old, task))
    rename_definitions(old, asked.renames)
    merge.merge_module(units_to_merge(new, asked), has_methods=is_indented)

    merged = carry_out(old, asked)
    changed = tuple(dict.fromkeys([*merge.changed, *(rename.label for rename in asked.renames)]))
    if not changed and not merged.deleted:
        return merge.refusal_of_no_change()

    problem = parse(merged.text)
    if isinstance(problem, SyntaxProblem):
        raise _RefusedError(f"With this block {name} would not be valid Python ({problem}), so nothing was changed.")

    text = merged.text
    if has_open_end:
        text = text.removesuffix("\n").removesuffix("\r")

    return merged._replace(text=text, changed=changed, ignored=tuple(merge.ignored))


def identical(name: str, names: Iterable[str] = ()) -> str:
    """Return the message for a block that the file already holds, or its definitions of these `names`."""
    listed = ", ".join(names)
    subject = f"{listed} in {name}" if listed else name
    return f"The block is identical to what {subject} already has, so nothing would change."


def _subjects(source: PythonSource, task: str) -> frozenset[str]:
    """Return the words of a task that names definitions of the file, or nothing if it may be about others as well."""
    request = read_request(task)
    words = frozenset(re.findall(r"\b\w+\b(?!\.py\b)", task))
    if request.whole or request.renames or words.isdisjoint(named.last for named in source.named):
        return frozenset()

    return words


@dataclass
class _Merge:
    """Merges the units of `block` into those of `source`."""

    source: PythonSource
    block: PythonSource
    name: str
    asked: AskedEdits
    task: str
    subjects: frozenset[str]
    changed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    has_kept_documentation: bool = False

    def refusal_of_no_change(self) -> Refusal:
        """Return why the block changes nothing."""
        units = self.block.units
        unasked = ", ".join(sorted({*del_names(units)} - {*del_names(self.source.units)}))
        if unasked:
            reason = f"The request does not say to delete {unasked}, so nothing was changed. Give the new text instead."
            return Refusal(reason)
        if self.ignored:
            aside = "; ".join(self.ignored[:_SHOWN_STATEMENTS])
            return Refusal(
                "Only functions, classes, imports and assignments to one name are merged, and the block changes none"
                f" of those in {self.name}. Left aside: {aside}. Use edit_file for such statements."
            )
        if not units:
            return Refusal(
                "The block holds no code. Give the new text of the functions, methods or classes that change."
            )
        if self.has_kept_documentation:
            reason = f"The block changes only comments and documentation of {self.name} that the request is not about."
            return Refusal(reason, unchanged=True)

        return Refusal(identical(self.name, [unit.key for unit in units if unit.is_definition]), unchanged=True)

    @cached_property
    def _conditional_names(self) -> set[str]:
        """The definitions inside of other statements, such as `if` and `try`."""
        names: set[str] = set()
        for unit in self.source.units:
            if unit.kind is UnitKind.OTHER:
                names.update(getattr(node, "name", "") for node in statements_in([unit.tree]))

        return names

    # --- Which unit of the block belongs where

    def merge_module(self, units: list[Unit], *, has_methods: bool) -> None:
        """Merge units of the block; with `has_methods`, a function is a method if a class has its name."""
        siblings = self.source.units
        top = {unit.key: unit for unit in siblings}
        imported = imported_names(siblings)
        self._merge_imports(units)
        are_alone = has_methods or all(unit.is_assignment for unit in units)

        if not self._is_complete(siblings, units):
            units = self._without_demonstration(units, top)

        of_module: list[Unit] = []
        for unit in units:
            if unit.is_definition and unit.key not in top and unit.key in self._conditional_names:
                message = f"{unit.key} is defined inside an `if` or `try` of {self.name}; use edit_file for it."
                raise _RefusedError(message)
            if unit.is_definition and unit.key not in top and unit.key in imported:
                raise _RefusedError(f"{self.name} imports {unit.key}: change it in the file that defines it.")

            kind = self._member_kind(unit, top.get(unit.key), are_alone=are_alone, has_methods=has_methods)
            if kind:
                home = self._home_of(unit, kind)
                self._merge_body(home.members, [unit], home)
            else:
                of_module.append(unit)

        self._merge_body(siblings, of_module)

    @cached_property
    def _homes_by_key(self) -> dict[str, list[Unit]]:
        homes: dict[str, list[Unit]] = {}
        for unit in self.source.units:
            for key in {member.key for member in unit.members}:
                homes.setdefault(key, []).append(unit)

        return homes

    def _homes(self, key: str) -> list[Unit]:
        """Return the classes that have a member of this name."""
        return self._homes_by_key.get(key, [])

    def _member_kind(self, unit: Unit, namesake: Unit | None, *, are_alone: bool, has_methods: bool) -> str:
        """Return whether a unit outside of classes is "a method" or "an attribute" of one, or "".

        A namesake at the top is the better place, unless it is a plain function and the unit a method.
        """
        homes = self._homes(unit.key)
        if unit.is_assignment:
            return "an attribute" if are_alone and homes and namesake is None else ""
        if unit.kind is not UnitKind.FUNCTION or not (unit.is_method or (has_methods and homes)):
            return ""
        if namesake is not None and (not unit.is_method or namesake.is_method or not homes):
            return ""

        return "a method"

    def _home_of(self, unit: Unit, kind: str) -> Unit:
        """Return the class of a member: the only one that has it, that the task names, or that has members."""
        homes = self._homes(unit.key)
        if not homes:
            homes = [home for home in self.source.units if home.members]
            if len(homes) > 1:
                homes = [home for home in homes if re.search(rf"\b{re.escape(home.key)}\b", self.task)]
            if len(homes) != 1:
                raise _RefusedError(f"No class of {self.name} has a method {unit.key}; put it inside its class.")

        if len(homes) > 1:
            names = ", ".join(home.key for home in homes[:_SHOWN_NAMES])
            raise _RefusedError(f"{len(homes)} classes have {kind} {unit.key} ({names}); give the class line too.")

        return homes[0]

    def _without_demonstration(self, units: list[Unit], names: Collection[str]) -> list[Unit]:
        """Return the units without the new assignments of a call with example values at the end of the block."""
        end = len(units)
        while end and (
            units[end - 1].kind is UnitKind.OTHER or (units[end - 1].is_assignment and units[end - 1].key not in names)
        ):
            end -= 1

        loose = [unit for unit in units[end:] if unit.kind is UnitKind.OTHER]
        if not loose:
            return units

        self.ignored += [self._aside(unit) for unit in units[end:] if unit.kind is not UnitKind.OTHER]
        return [*units[:end], *loose]

    def _aside(self, unit: Unit) -> str:
        return f"line {unit.first} `{self.block.lines[unit.first - 1].strip()[:_SHOWN_CHARACTERS]}`"

    def _is_complete(self, siblings: Iterable[Unit], units: Iterable[Unit]) -> bool:
        gone = self.asked.deletions | {"", DOCSTRING}
        return {unit.key for unit in siblings} <= {unit.key for unit in units} | gone

    def _merge_body(
        self, siblings: list[Unit], units: Sequence[Unit], home: Unit | None = None, label: str = ""
    ) -> None:
        """Replace the namesakes in a body, and add the others after their neighbour in the block, or else before it.

        `label` is the full name of the class `home`, if it is not at the top of the file.
        """
        prefix = f"{label or home.key}." if home else ""
        originals = list(siblings)
        pairs, ambiguous = pair_units(originals, units)
        if ambiguous:
            message = (
                f"{self.name} and the block define {prefix}{ambiguous[0]} differently often; use edit_file for it."
            )
            raise _RefusedError(message)

        current: dict[Unit, Unit] = {}
        for new, old in pairs:
            if old is not None:
                current[old] = self._replace(siblings, old, new, prefix)

        anchor: Unit | None = None
        following = next(iter(current.values()), None)
        added: dict[Unit | None, list[Unit]] = {}

        for new, old in pairs:
            if old is not None:
                anchor = current[old]
            elif new.key == DOCSTRING:
                self._add(siblings, [new], prefix, before=siblings[0])
            else:
                added.setdefault(anchor, []).append(new)

        for anchor, news in added.items():
            self._add(siblings, news, prefix, after=anchor, before=following)

        if home is None:
            self._merge_loose_statements(siblings, originals, units)
        else:
            self.ignored += map(self._aside, units_beyond(_loose_statements(units), originals))

    def _merge_loose_statements(self, siblings: list[Unit], originals: list[Unit], units: Sequence[Unit]) -> None:
        """Replace statements without a name in order, if the block has all names of the file and as many of them."""
        olds = _loose_statements(originals)
        news = _loose_statements(units)
        added = units_beyond(news, olds)
        lost = units_beyond(olds, news)

        if len(added) == len(lost) and self._is_complete(originals, units):
            for old, new in zip(lost, added, strict=True):
                self._replace(siblings, old, new, "")
        else:
            self.ignored += map(self._aside, added)

    # --- One unit in place of another

    def _replace(self, siblings: list[Unit], old: Unit, new: Unit, prefix: str) -> Unit:
        """Replace a unit unless both say the same, and return the one that is there now."""
        label = prefix + new.key if new.key else f"line {old.first}"
        added_comments = new_comments(old, new)
        if meaning(old, like=new) == meaning(new, like=old) and not added_comments:
            return old
        if self._is_unasked_documentation(old, new, label):
            self.has_kept_documentation = True
            return old

        if (old.kind is UnitKind.CLASS) is not (new.kind is UnitKind.CLASS):
            kinds = f"a {old.kind} in {self.name} and a {new.kind} in the block"
            raise _RefusedError(f"{label} is {kinds}; use edit_file for it.")
        if old.kind is UnitKind.CLASS:
            return self._replace_class(siblings, old, new, label)
        if elision := elision_in(old, new):
            raise _RefusedError(f"The block leaves out part of {label}: {elision}. Send {label} with its whole body.")

        return self._exchange(siblings, old, new, label)

    def _is_unasked_documentation(self, old: Unit, new: Unit, label: str) -> bool:
        """Return whether only comments and documentation differ, and the request is about another definition."""
        if not old.is_definition or not self.subjects or not self.subjects.isdisjoint(label.split(".")):
            return False

        return meaning(old, new, texts=False) == meaning(new, old, texts=False)

    def _replace_class(self, siblings: list[Unit], old: Unit, new: Unit, label: str) -> Unit:
        """Merge the members of two classes. Bases and decorators may be added; fewer of them count as left out."""
        before = _class_header(old)
        after = _class_header(new)
        if not (after <= before or after > before):
            message = f"The block gives {label} another base class or decorator; use edit_file for its class line."
            raise _RefusedError(message)

        if old.members and new.members:
            if after > before:
                node = new.node.with_changes(leading_lines=old.node.leading_lines, body=old.node.body)
                old = exchange(siblings, old, replace(old, node=node))
                self.changed.append(label)

            self._merge_body(old.members, new.members, old, label)
            return old

        if after >= before and is_stub(old.tree) and not old.members:
            return self._exchange(siblings, old, new, label)
        if after > before or not is_stub(new.tree):
            raise _RefusedError(f"Write the class {label} over several lines, as it is in {self.name}.")

        return old

    def _exchange(self, siblings: list[Unit], old: Unit, new: Unit, label: str) -> Unit:
        """Put `new` in the place of `old`, with the lines above it, and its decorators if `new` has none."""
        changes: dict[str, Any] = {"leading_lines": old.node.leading_lines}
        if new.is_undecorated and isinstance(old.node, cst.FunctionDef):
            changes["decorators"] = old.node.decorators
            changes["lines_after_decorators"] = old.node.lines_after_decorators

        if isinstance(old.tree, ast.AnnAssign) and isinstance(new.tree, ast.Assign):  # a field of a dataclass needs it
            value = new.node.body[0].value
            changes["body"] = [old.node.body[0].with_changes(value=value)]

        node = moved_node(new, old.indent).with_changes(**changes)
        if isinstance(node.body, cst.IndentedBlock):
            footer = getattr(old.node.body, "footer", ())
            node = node.with_changes(body=node.body.with_changes(footer=footer))

        self.changed.append(label)
        unit = replace(new, node=node, indent=old.indent)
        return exchange(siblings, old, unit)

    # --- New units

    def _merge_imports(self, units: Iterable[Unit]) -> None:
        """Add the imports that the file does not have. What the request moves is no longer imported from elsewhere."""
        present: set[tuple[object, ...]] = set()
        for unit in self.source.units:
            for node in statements_in([unit.tree]):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    present.update(origins(node))

        from_future: list[Statement] = []
        others: list[Statement] = []
        moves = {move.name for move in read_request(self.task).moves}
        moved: set[str] = set()

        for unit in units:
            node = unit.tree
            if unit.kind is not UnitKind.IMPORT or not isinstance(node, ast.Import | ast.ImportFrom):
                continue

            pairs = zip(node.names, origins(node), strict=True)
            missing = [alias for alias, origin in pairs if origin not in present]
            present.update(origins(node))
            if not missing:
                continue

            moved.update(alias.asname or alias.name for alias in missing if alias.name in moves)
            statement = unit.node
            if len(missing) < len(node.names):
                statement = statement_of(reduced_import(node, missing))

            if getattr(node, "module", "") == "__future__":
                from_future.append(statement)
            else:
                others.append(statement)

        originals = list(self.source.units)
        add_imports(self.source.units, from_future, from_future=True)
        add_imports(self.source.units, others)
        remove_imports(self.source.units, moved, originals)

        for statement in from_future + others:
            self.changed.append(code_of(statement.with_changes(leading_lines=())).splitlines()[0])

    def _add(
        self,
        siblings: list[Unit],
        units: Sequence[Unit],
        prefix: str,
        *,
        after: Unit | None = None,
        before: Unit | None = None,
    ) -> None:
        """Add units `after` a unit, else `before` one, else at the end, though before a `__main__` guard."""
        self.changed += [prefix + unit.key for unit in units]
        in_class = bool(prefix)
        indent = siblings[0].indent
        last = siblings[-1]
        if after is None and before is None and last.key == MAIN_GUARD:
            before = last
        if after is not None or before is None:
            upper = after or last
            index = siblings.index(upper) + 1
            while upper.key == DOCSTRING and index < len(siblings) and siblings[index].kind is UnitKind.IMPORT:
                index += 1

            gap = blank_lines_between(upper, units[0], in_class=in_class)
        else:
            index = siblings.index(before)
            gap, comments = split_leading_lines(before.node)
            lines = [*blank_lines_between(units[-1], before, in_class=in_class), *comments]
            before.node = before.node.with_changes(leading_lines=lines)  # in place, as others refer to the unit

        for unit in units:
            siblings.insert(index, _added_unit(unit, gap, indent))
            index += 1
            following = units[units.index(unit) + 1 :]
            if following:
                gap = blank_lines_between(unit, following[0], in_class=in_class)


def _loose_statements(units: Iterable[Unit]) -> list[Unit]:
    """Return the statements without a name, except `pass` and `...`."""
    return [unit for unit in units if unit.kind is UnitKind.OTHER and not is_placeholder(unit.tree)]


def _added_unit(unit: Unit, gap: Sequence[cst.EmptyLine], indent: str) -> Unit:
    """Return a unit of the block below a gap, with its comments except those that only stand for other code."""
    node = moved_node(unit, indent)
    _, comments = split_leading_lines(node)
    node = node.with_changes(leading_lines=[*gap, *_without_elisions(comments)])

    if isinstance(node.body, cst.IndentedBlock):
        lines = _without_elisions(node.body.footer)
        while lines and lines[-1].comment is None:
            lines.pop()

        node = node.with_changes(body=node.body.with_changes(footer=lines))

    return replace(unit, node=node, indent=indent, members=[])


def _without_elisions(lines: Iterable[cst.EmptyLine]) -> list[cst.EmptyLine]:
    return [line for line in lines if line.comment is None or not is_elision(line.comment.value)]


def _class_header(unit: Unit) -> frozenset[str]:
    """Return the bases, keywords and decorators of a class."""
    parts: list[ast.AST] = []
    for name in ("bases", "keywords", "decorator_list"):
        parts += getattr(unit.tree, name, [])

    return frozenset(map(ast.dump, parts))
