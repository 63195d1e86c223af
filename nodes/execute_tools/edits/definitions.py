"""Replacing Python definitions by name: the block form that small models master. Pure.

A model gives the new text of what changes: functions, methods, classes, assignments to one name, imports. What has the
same name in the file is replaced, what has a new name is added next to its neighbour in the block, new imports join the
others, and every other byte of the file stays. A block cannot lose what it does not mention: a definition goes only if
the request says to delete it and the block does not hold it, or if the request says to rename it and the block holds it
under the new name. A block that leaves out part of a body, or whose place is a matter of opinion, is refused.
Documentation stays that the request is not about.
"""

import ast
import copy
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product, takewhile
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.asked_edits import (
    AskedEdits,
    Merged,
    asked_edits,
    block_to_merge,
    carry_out,
    del_names,
    imports_of,
    with_new_names,
)
from mendgraph.nodes.execute_tools.edits.imports import place_of_imports, without_imports_of
from mendgraph.nodes.execute_tools.edits.losses import elision_in, is_elision, is_placeholder, is_stub, torn_statement
from mendgraph.nodes.execute_tools.edits.python_text import (
    DEFINITIONS,
    DOCSTRING,
    MAIN_GUARD,
    Function,
    LineEdit,
    PythonText,
    SyntaxProblem,
    Unit,
    UnitKind,
    WithoutStrings,
    apply_edits,
    moved,
    named_units,
    parse,
    read_python,
    reduced_import,
    statements_in,
    string_of,
)
from mendgraph.nodes.execute_tools.files.text_files import dominant_newline, to_unix
from mendgraph.nodes.language.request import read_request

_SHOWN_CHARACTERS: Final = 60
_SHOWN_STATEMENTS: Final = 5
_SHOWN_NAMES: Final = 3
_FIRST_LINE_MOVED: Final = re.compile(r"(?:async )?def [^\n]+:\n(?: {8}[^\n]*(?:\n|\Z)|\s*\n)+\Z")
"""A method whose first line has lost its indent, and whose body has not."""


class Refusal(NamedTuple):
    """Why nothing was merged: the fact, and what to do. `unchanged` says that the file already is as the block says."""

    reason: str
    unchanged: bool = False


def replace_definitions(
    source: str,
    block: str,
    name: str = "the file",
    *,
    task: str = "",
    path: str = "",
    there: Collection[str] = (),
) -> Merged | Refusal:
    """Merge the definitions of `block` into `source`; `name` is how a refusal calls the file.

    Functions, methods and assignments are replaced whole, classes member by member. A method may stand alone, at any
    indent, where exactly one class has it. Outside of what is replaced or added, the text is the same to the byte; only
    what the `task` says to delete from the file at `path`, or to rename, goes or changes beside. What the task
    moves elsewhere, and is `there`, goes.
    """
    open_end = bool(source) and not source.endswith(("\n", "\r"))
    old = read_python(source + "\n" if open_end else source)
    if isinstance(old, SyntaxProblem):
        return Refusal(f"{name} is not valid Python ({old}), so its definitions cannot be replaced by name.")

    block = to_unix(block)
    block = f"    {block}" if _FIRST_LINE_MOVED.match(block) else block
    indented = block.lstrip("\n").startswith((" ", "\t"))
    new = read_python(block, indented=indented)

    if isinstance(new, SyntaxProblem):
        return Refusal(f"The block is not valid Python ({new}). Send it again: complete, and nothing but code.")

    try:
        new = without_imports_of(new, path)
        torn = torn_statement(new)
        if torn:
            return Refusal(f"The block gives only a part of a function ({torn}). Send all of it, with its def line.")

        if task:
            request_edits = asked_edits(old, new, task, path, there)
        else:
            request_edits = AskedEdits()

        renamed = with_new_names(old, request_edits)
        merging = block_to_merge(new, request_edits)
        merge = _Merge(renamed, merging, name, dominant_newline(source), request_edits, task)
        merge.module(methods=indented)

        return merge.result(open_end=open_end)
    except RecursionError:
        return Refusal(f"{name} or the block is nested too deeply to be compared; use edit_file.")


def identical(name: str, names: Iterable[str] = ()) -> str:
    """What is said of a block that the file already holds, or its definitions of these `names`."""
    of = f"{', '.join(names)} in {name}" if names else name
    return f"The block is identical to what {of} already has, so nothing would change."


def _is_shortened(new: str, old: str) -> bool:
    """Whether `new` is `old` with lines left out; a line may break off, or be `...` for others."""
    lines, lines_of_old = ([line.strip() for line in text.splitlines() if line.strip()] for text in (new, old))
    starts_known = (any(old_line.startswith(line.rstrip(".\u2026 ")) for old_line in lines_of_old) for line in lines)
    return len(lines) < len(lines_of_old) and all(starts_known)


class _Body(NamedTuple):
    """The units of a module or a class, the indent of its statements, and the prefix of the names in it."""

    units: tuple[Unit, ...]
    indent: str = ""
    prefix: str = ""


@dataclass
class _Merge:
    """Collects the edits that bring `block` into `source`, or what speaks against it; `asked` is carried out after."""

    source: PythonText
    block: PythonText
    name: str
    newline: str
    asked: AskedEdits
    task: str
    edits: list[LineEdit] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    kept: bool = False
    refusals: list[str] = field(default_factory=list)

    @cached_property
    def subjects(self) -> frozenset[str]:
        """The words of a task that names definitions of the file; none where it may be about others as well."""
        request = read_request(self.task)
        words = frozenset(re.findall(r"\b\w+\b(?!\.py\b)", self.task))
        named = not words.isdisjoint(unit.last for unit in named_units(self.source))

        if named and not (request.whole or request.renames):
            return words

        return frozenset()

    def result(self, *, open_end: bool) -> Merged | Refusal:
        """The merged text, without a last line end if `open_end`, or the first thing that speaks against it."""
        if self.refusals:
            return Refusal(self.refusals[0])

        merged = carry_out(apply_edits(self.source.lines, self.edits), self.asked)
        changed = tuple(dict.fromkeys([*self.changed, *(rename.label for rename in self.asked.renames)]))
        if not changed and not merged.deleted:
            return self._nothing()
        problem = parse(merged.text)
        if isinstance(problem, SyntaxProblem):
            reason = f"With this block {self.name} would not be valid Python ({problem}), so nothing was changed."
            return Refusal(reason)
        if open_end:
            text = merged.text.removesuffix("\n").removesuffix("\r")
        else:
            text = merged.text
        return merged._replace(text=text, changed=changed, ignored=tuple(self.ignored))

    def _nothing(self) -> Refusal:
        unasked = ", ".join(sorted({*del_names(self.block.units)} - {*del_names(self.source.units)}))
        if unasked:
            reason = f"The request does not say to delete {unasked}, so nothing was changed. Give the new text instead."
            return Refusal(reason)
        if self.ignored:
            aside = "; ".join(self.ignored[:_SHOWN_STATEMENTS])
            return Refusal(
                "Only functions, classes, imports and assignments to one name are merged, and the block changes none"
                f" of those in {self.name}. Left aside: {aside}. Use edit_file for such statements."
            )
        if not self.block.units:
            reason = "The block holds no code. Give the new text of the functions, methods or classes that change."
            return Refusal(reason)
        if self.kept:
            reason = f"The block changes only comments and documentation of {self.name} that the request is not about."
            return Refusal(reason, unchanged=True)
        names = [unit.key for unit in self.block.units if unit.kind in DEFINITIONS]
        return Refusal(identical(self.name, names), unchanged=True)

    # --- What stands for what

    def module(self, *, methods: bool) -> None:
        """Merge all units of the block; with `methods`, its functions are methods wherever a class has their name."""
        source = self.source
        units = self.block.units
        if not source.units:
            return self._fill()
        self._merge_imports()
        body = _Body(source.units)
        named = {unit.key: unit for unit in source.units}
        holders = _holders(source)
        loose = (node for unit in source.units if unit.kind is UnitKind.OTHER for node in unit.nodes)
        conditional = {getattr(node, "name", "") for node in statements_in(loose)}
        imported = {alias.asname or alias.name for _, alias in imports_of(source)}
        lone = methods or all(map(_is_assignment, units))
        if not self._is_complete(body, units):
            units = self._without_demonstration(units, named.keys())
        own_units = []
        for unit in units:
            unit_named = named.get(unit.key)
            if unit.kind in DEFINITIONS and unit_named is None and unit.key in conditional:
                self._refuse(f"{unit.key} is defined inside an `if` or `try` of {self.name}; use edit_file for it.")
            elif unit.kind in DEFINITIONS and unit_named is None and unit.key in imported:
                self._refuse(f"{self.name} imports {unit.key}: change it in the file that defines it.")
            elif not self._merged_into_class(unit, unit_named, holders.get(unit.key, []), lone=lone, methods=methods):
                own_units.append(unit)
        self._merge_body(body, own_units)
        return None

    def _merged_into_class(
        self, unit: Unit, known: Unit | None, homes: list[Unit], *, lone: bool, methods: bool
    ) -> bool:
        """Merge a method or an attribute that stands outside of its class; False where it is the module's own.

        A namesake at the top is the better place, unless it is a plain function and the unit a method.
        """
        method = unit.kind is UnitKind.FUNCTION and _is_method(unit.node)
        if _is_assignment(unit):
            if not lone or known is not None or not homes:
                return False
            what = "an attribute"
        elif unit.kind is UnitKind.FUNCTION and (method or methods):
            if known is not None and (not method or _is_method(known.node) or not homes):
                return False
            if not homes and not method:
                return False
            what = "a method"
            homes = homes or self._meant_class()
        else:
            return False
        if not homes:
            self._refuse(f"No class of {self.name} has a method {unit.key}; put it inside its class.")
        elif len(homes) > 1:
            names = ", ".join(home.key for home in homes[:_SHOWN_NAMES])
            self._refuse(f"{len(homes)} classes have {what} {unit.key} ({names}); give the class line too.")
        else:
            members = self.source.members(homes[0])
            self._merge_body(_Body(members, members[0].indent, f"{homes[0].key}."), [unit])
        return True

    def _meant_class(self) -> list[Unit]:
        homes = [unit for unit in self.source.units if self.source.members(unit)]
        named = [unit for unit in homes if re.search(rf"\b{re.escape(unit.key)}\b", self.task)]
        return next((candidates for candidates in (homes, named) if len(candidates) == 1), [])

    def _without_demonstration(self, units: tuple[Unit, ...], known: Iterable[str]) -> tuple[Unit, ...]:
        """The units without a call with an example's values at the end: new assignments and loose statements."""

        def shows(unit: Unit) -> bool:
            return unit.kind is UnitKind.OTHER or (_is_assignment(unit) and unit.key not in names)

        names = set(known)
        shown_units = [*takewhile(shows, reversed(units))][::-1]
        loose = [unit for unit in shown_units if unit.kind is UnitKind.OTHER]
        if not loose:
            return units
        self.ignored += [self._aside(unit) for unit in shown_units if unit.kind is not UnitKind.OTHER]
        return (*units[: len(units) - len(shown_units)], *loose)

    def _merge_body(self, body: _Body, units: Sequence[Unit]) -> None:
        """Replace the namesakes in a body, and add the rest after its neighbour in the block, or else before it."""
        pairs, ambiguous = _pair_units(body.units, units)
        for key in ambiguous:
            self._refuse(
                f"{self.name} and the block define {body.prefix}{key} differently often; use edit_file for it."
            )
        anchor: Unit | None = None
        following = next((old for _, old in pairs if old is not None), None)
        added: dict[Unit | None, list[Unit]] = {}
        for new, old in pairs:
            if old is not None:
                self._replace(body, old, new)
                anchor = old
            elif new.key == DOCSTRING:
                self._add(body, None, body.units[0], [new])
            else:
                added.setdefault(anchor, []).append(new)
        for anchor, news in added.items():
            self._add(body, anchor, following, news)
        self._merge_loose_statements(body, units)

    def _merge_loose_statements(self, body: _Body, units: Sequence[Unit]) -> None:
        """Replace statements without a name in order, if the block has all names of the file and as many of them."""
        olds = [unit for unit in body.units if unit.kind is UnitKind.OTHER]
        news = [unit for unit in units if unit.kind is UnitKind.OTHER and not all(map(is_placeholder, unit.nodes))]
        strings = [unit for unit in news if string_of(unit.node) is not None]
        cut = [*chain(*(pair for pair in product(olds, strings) if self._cut(*pair)))]
        olds, news = ([unit for unit in each if unit not in cut] for each in (olds, news))
        added = _beyond(news, olds)
        lost = _beyond(olds, news)
        if not body.prefix and len(added) == len(lost) and self._is_complete(body, units):
            for old, new in zip(lost, added, strict=True):
                self._replace(body, old, new)
        else:
            self.ignored += map(self._aside, added)

    def _is_complete(self, body: _Body, units: Sequence[Unit]) -> bool:
        gone = self.asked.deletions | {"", DOCSTRING}
        return {unit.key for unit in body.units} <= {unit.key for unit in units} | gone

    def _replace(self, body: _Body, old: Unit, new: Unit) -> None:
        label = body.prefix + new.key if new.key else f"line {old.first}"
        same = _meaning(old, like=new) == _meaning(new, like=new)
        if same and not _comments(self.block, new) - _comments(self.source, old):  # then the old layout stays
            return
        if self._stays(old, new, label):
            self.kept = True
        elif (old.kind is UnitKind.CLASS) is not (new.kind is UnitKind.CLASS):
            kinds = f"a {old.kind} in {self.name} and a {new.kind} in the block"
            self._refuse(f"{label} is {kinds}; use edit_file for it.")
        elif old.kind is UnitKind.CLASS:
            self._replace_class(old, new, label)
        elif elision := elision_in((self.source, old), (self.block, new)):
            self._refuse(f"The block leaves out part of {label}: {elision}. Send {label} with its whole body.")
        elif idle := [
            parameter for parameter in _unused_parameters(old, new) if re.search(rf"\b{parameter}\b", self.task)
        ]:
            self._refuse(f"The body of {label} does not use its new parameter {idle[0]}. Write the body with it.")
        else:
            self._exchange(old, new, label)

    def _stays(self, old: Unit, new: Unit, label: str) -> bool:
        """Whether only comments and documentation change, and those are shortened, or not asked for."""
        if old.kind in {UnitKind.CLASS, UnitKind.OTHER}:
            return False
        unasked = bool(self.subjects) and self.subjects.isdisjoint(label.split("."))
        cut = self._cut(old, new) is not None and not _comments(self.block, new) - _comments(self.source, old)
        return (unasked or cut) and _meaning(old, new, texts=False) == _meaning(new, old, texts=False)

    def _cut(self, old: Unit, new: Unit) -> tuple[Unit, Unit] | None:
        """The documentation of `old`, and what `new` has there if it leaves that out or shortens it unasked."""
        pair = next(iter(self.source.inner(old)), old), next(iter(self.block.inner(new)), new)
        documented, docstring = (string_of(definition.node) or "" for definition in pair)
        unasked = self.task and not read_request(self.task).documents and len(pair[0].nodes + pair[1].nodes) == 2
        return pair if unasked and _is_shortened(docstring, documented) else None

    def _replace_class(self, old: Unit, new: Unit, label: str) -> None:
        """Merge the members of two classes. Bases and decorators may be added; fewer of them count as left out."""
        olds = self.source.members(old)
        news = self.block.members(new)
        before = _header(old)
        after = _header(new)
        if not (after <= before or after > before):
            self._refuse(f"The block gives {label} another base class or decorator; use edit_file for its class line.")
        elif olds and news:
            if after > before:
                header = range(new.first, _header_end(self.block, new) + 1)
                self._put(old.first, _header_end(self.source, old), self._moved(header, new.indent, old.indent), label)
            self._merge_body(_Body(olds, olds[0].indent, f"{label}."), news)
        elif after >= before and is_stub(old.node) and not olds:
            self._exchange(old, new, label)
        elif after > before or not is_stub(new.node):
            self._refuse(f"Write the class {label} over several lines, as it is in {self.name}.")

    def _refuse(self, reason: str) -> None:
        self.refusals.append(reason)

    def _aside(self, unit: Unit) -> str:
        return f"line {unit.first} `{self.block.lines[unit.first - 1].strip()[:_SHOWN_CHARACTERS]}`"

    # --- What is written where

    def _fill(self) -> None:
        if self.block.units:
            end = len(self.source.lines)
            lines = self._moved(range(1, len(self.block.lines) + 1), self.block.units[0].indent, "")
            self._insert(end, [""] * bool(end) + lines)
            self.changed += [unit.key for unit in self.block.units if unit.key] or ["all"]

    def _merge_imports(self) -> None:
        """Add the block's top-level imports that the source does not have; those from `__future__` come first."""
        nodes = statements_in(node for unit in self.source.units for node in unit.nodes)
        present = {alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in _aliases(node)}
        by_position: dict[bool, list[list[str]]] = {True: [], False: []}
        added: list[ast.alias] = []
        for unit in self.block.units:
            node = unit.node
            if unit.kind is UnitKind.IMPORT and isinstance(node, ast.Import | ast.ImportFrom):
                missing = [
                    alias for alias, aliases in zip(node.names, _aliases(node), strict=True) if aliases not in present
                ]
                present.update(_aliases(node))
                added += missing
                if missing:
                    is_whole = len(missing) == len(node.names)
                    statement_lines = self._moved(range(unit.first, unit.last + 1), unit.indent, "") if is_whole else []
                    first = getattr(node, "module", "") == "__future__"
                    by_position[first].append(statement_lines or [reduced_import(node, missing)])
        self._drop_imports(added)
        for from_future, imports in by_position.items():
            if imports:
                line, above, below = place_of_imports(self.source, from_future=from_future)
                self._insert(
                    line, [""] * above + [line_moved for lines in imports for line_moved in lines] + [""] * below
                )
                self.changed += [lines[0] for lines in imports]

    def _drop_imports(self, added: Iterable[ast.alias]) -> None:
        """Take out the imports of what the request moves, where the block imports it from elsewhere."""
        moves = {move.name for move in read_request(self.task).moves}
        again = {import_alias.asname or import_alias.name for import_alias in added if import_alias.name in moves}
        for unit in self.source.units:
            if unit.kind is UnitKind.IMPORT and isinstance(node := unit.node, ast.ImportFrom):
                names_left = [alias for alias in node.names if (alias.asname or alias.name) not in again]
                if len(names_left) < len(node.names):
                    line = [reduced_import(node, names_left) + self.newline] if names_left else []
                    self.edits.append(LineEdit(unit.first - 1, unit.last, tuple(line)))

    def _exchange(self, old: Unit, new: Unit, label: str) -> None:
        """Put `new` in the place of `old`, whose decorators stay where `new` is a function without any."""
        first = old.node.lineno if _is_undecorated(new) else old.first
        lines = self._moved(range(new.first, new.last + 1), new.indent, old.indent)
        if (cut := self._cut(old, new)) and cut[1] is not new:
            head = self.block.head(cut[1])
            at, end = (head, head) if string_of(cut[1].node) is None else (cut[1].first, cut[1].last + 1)
            shown_lines = range(cut[0].first, cut[0].last + 1)
            indents = cut[0].indent, old.indent + cut[1].indent.removeprefix(new.indent)
            lines[at - new.first : end - new.first] = moved(self.source.lines, shown_lines, indents, self.source.frozen)
        if isinstance(old.node, ast.AnnAssign) and isinstance(new.node, ast.Assign):  # a field of a dataclass needs it
            lines[0] = lines[0].replace(new.key, f"{new.key}: {ast.unparse(old.node.annotation)}", 1)
        self._put(first, old.last, lines, label)

    def _add(self, body: _Body, anchor: Unit | None, following: Unit | None, units: Sequence[Unit]) -> None:
        """Add units after `anchor`, else before `following`, else at the end, though before a `__main__` guard."""
        last = body.units[-1]
        lines: list[str] = []
        if anchor is None and (following is not None or last.key == MAIN_GUARD):
            below = following or last
            for unit, coming in zip(units, [*units[1:], below], strict=True):
                lines += self._added(unit, body.indent) + [""] * _gap(body, unit, coming)
            self._insert(self.source.head(below) - 1, lines)
        else:
            above = anchor or last
            for previous, unit in zip([above, *units], units, strict=False):
                lines += [""] * _gap(body, previous, unit) + self._added(unit, body.indent)
            self._insert(self.source.tail(above), lines)
        self.changed += [body.prefix + unit.key for unit in units]

    def _added(self, unit: Unit, indent: str) -> list[str]:
        """The lines of a unit with its comments, but for those that only stand for other code."""
        around = range(self.block.head(unit), self.block.tail(unit) + 1)
        inside = range(unit.first, unit.last + 1)
        lines_kept = [line for line in around if line in inside or not is_elision(self.block.comments.get(line, ""))]
        return self._moved(lines_kept, unit.indent, indent)

    def _moved(self, numbers: Iterable[int], old_indent: str, new_indent: str) -> list[str]:
        return moved(self.block.lines, numbers, (old_indent, new_indent), self.block.frozen)

    def _put(self, first: int, last: int, lines: Iterable[str], label: str) -> None:
        self.edits.append(LineEdit(first - 1, last, tuple(line + self.newline for line in lines)))
        self.changed.append(label)

    def _insert(self, line: int, lines: Iterable[str]) -> None:
        self.edits.append(LineEdit(line, line, tuple(new_line + self.newline for new_line in lines)))


def _pair_units(olds: Sequence[Unit], news: Sequence[Unit]) -> tuple[list[tuple[Unit, Unit | None]], list[str]]:
    """Each unit of the block with its namesake in the file, in the block's order, and the names that are ambiguous.

    Namesakes are paired in order, if both sides have equally many. Of a unit that a block repeats as it is beside its
    new form, the new form counts.
    """
    pairs: list[tuple[Unit, Unit | None]] = []
    ambiguous: list[str] = []
    old_by_name = _by_name(olds)
    new_by_name = _by_name(news)
    for key in filter(None, new_by_name):
        old = old_by_name.get(key, [])
        new = new_by_name[key]
        if old and len(old) != len(new):
            old_meanings = {unit.meaning for unit in old}
            new = [unit for unit in new if unit.meaning not in old_meanings]
            if len(new) > (1 if len(old) == 1 else 0):
                ambiguous.append(key)
                continue
        pairs += [(unit, old[index] if old else None) for index, unit in enumerate(new)]
    return sorted(pairs, key=lambda pair: pair[0].first), ambiguous


def _by_name(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    named: dict[str, list[Unit]] = {}
    for unit in units:
        named.setdefault(unit.key, []).append(unit)
    return named


def _beyond(units: Sequence[Unit], others: Sequence[Unit]) -> list[Unit]:
    meaning_counts = Counter(unit.meaning for unit in others)
    meaning_counts.subtract(Counter(unit.meaning for unit in units))
    return [unit for unit in units if meaning_counts[unit.meaning] < 0]


def _holders(source: PythonText) -> dict[str, list[Unit]]:
    by_key: dict[str, list[Unit]] = {}
    for home in source.units:
        for key in {member.key for member in source.members(home)}:
            by_key.setdefault(key, []).append(home)
    return by_key


def _is_method(node: ast.stmt) -> bool:
    if not isinstance(node, Function):
        return False
    first = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)][:1]
    decorators = {getattr(decorator, "id", "") for decorator in node.decorator_list}
    return first in (["self"], ["cls"]) or not decorators.isdisjoint({"staticmethod", "classmethod"})


def _is_assignment(unit: Unit) -> bool:
    return unit.kind is UnitKind.STATEMENT and unit.key not in {DOCSTRING, MAIN_GUARD}


def _is_undecorated(unit: Unit) -> bool:
    return isinstance(unit.node, Function) and not unit.node.decorator_list


def _meaning(unit: Unit, like: Unit, *, texts: bool = True) -> str:
    """Equal for equal code, without decorators where `like` has none, and without documentation if not `texts`."""
    if texts and not (_is_undecorated(like) and isinstance(unit.node, Function)):
        return unit.meaning
    bare = copy.copy(unit.node) if texts else copy.deepcopy(unit.node)
    if _is_undecorated(like) and isinstance(bare, Function):
        bare.decorator_list = []
    return ast.dump(bare if texts else WithoutStrings().visit(ast.Module([bare], [])))


def _unused_parameters(old: Unit, new: Unit) -> list[str]:
    """The parameters that a function gets, and that its body does not use; none of what may ask for fixtures."""
    before = old.node
    after = new.node
    if not (isinstance(before, Function) and isinstance(after, Function)) or is_stub(after):
        return []
    old_parameters, new_parameters = (
        {parameter.arg for parameter in ast.walk(node.args) if isinstance(parameter, ast.arg)}
        for node in (before, after)
    )
    names_read = {node.id for statement in after.body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    aside = (
        "locals" in names_read
        or after.name.startswith("test")
        or "fixture" in "".join(map(ast.dump, after.decorator_list))
    )
    return [] if aside else sorted(new_parameters - old_parameters - names_read)


def _comments(text: PythonText, unit: Unit) -> set[str]:
    return {text.comments.get(line, "") for line in range(unit.first, unit.last + 1)} - {""}


def _header(unit: Unit) -> frozenset[str]:
    fields = ("bases", "keywords", "decorator_list")
    return frozenset(ast.dump(part) for field in fields for part in getattr(unit.node, field, []))


def _header_end(text: PythonText, unit: Unit) -> int:
    """The last line of a class's header: what stands between it and the first member is layout."""
    line = text.members(unit)[0].first - 1
    while line > unit.first and text.lines[line - 1].strip()[:1] in {"", "#"}:
        line -= 1
    return line


def _aliases(node: ast.Import | ast.ImportFrom) -> list[tuple[object, ...]]:
    origin = getattr(node, "module", None), getattr(node, "level", -1)
    return [(*origin, alias.name, alias.asname) for alias in node.names]


def _gap(body: _Body, upper: Unit, lower: Unit) -> int:
    """How many blank lines go between two units. Source: PEP 8."""
    if DEFINITIONS & {upper.kind, lower.kind} or MAIN_GUARD in {upper.key, lower.key}:
        return 1 if body.prefix else 2
    return int(upper.kind is not lower.kind or upper.key == DOCSTRING)
