"""Replacing Python definitions by name: the block form that small models master. Pure.

A model gives the new text of what changes: functions, methods, classes, assignments to one name, imports. What has the
same name in the file is replaced, what has a new name is added next to its neighbour in the block, new imports join the
others, and every other byte of the file stays. A block cannot lose what it does not mention: a definition goes only if
the request says to delete it and the block does not hold it, or if the request says to rename it and the block holds it
under the new name. A block that leaves out part of a body, or whose place is a matter of opinion, is refused.
Documentation stays that the request is not about.
"""

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, product
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
    LineEdit,
    PythonText,
    SyntaxProblem,
    Unit,
    UnitKind,
    apply_edits,
    moved,
    named_units,
    parse,
    read_python,
    reduced_import,
    statements_in,
    string_of,
)
from mendgraph.nodes.execute_tools.edits.unit_comparison import (
    aliases_of,
    blank_lines_between,
    class_header,
    class_header_end,
    classes_by_member,
    comments_of,
    is_assignment,
    is_method,
    is_shortened,
    is_undecorated,
    meaning,
    pair_units,
    units_beyond,
    unused_parameters,
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
    if _FIRST_LINE_MOVED.match(block):
        block = f"    {block}"

    indented = block.lstrip("\n").startswith((" ", "\t"))
    new = read_python(block, indented=indented)

    if isinstance(new, SyntaxProblem):
        return Refusal(f"The block is not valid Python ({new}). Send it again: complete, and nothing but code.")

    try:
        new = without_imports_of(new, path)
        torn = torn_statement(new)
        if torn:
            return Refusal(f"The block gives only a part of a function ({torn}). Send all of it, with its def line.")

        request_edits = asked_edits(old, new, task, path, there) if task else AskedEdits()
        renamed = with_new_names(old, request_edits)
        merging = block_to_merge(new, request_edits)
        merge = _Merge(renamed, merging, name, dominant_newline(source), request_edits, task)
        merge.module(methods=indented)

        return merge.result(open_end=open_end)
    except RecursionError:
        return Refusal(f"{name} or the block is nested too deeply to be compared; use edit_file.")


def identical(name: str, names: Iterable[str] = ()) -> str:
    """The message for a block that the file already holds, or its definitions of these `names`."""
    listed = ", ".join(names)
    subject = f"{listed} in {name}" if listed else name
    return f"The block is identical to what {subject} already has, so nothing would change."


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
    documentation_stays: bool = False
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

        text = merged.text
        if open_end:
            text = text.removesuffix("\n").removesuffix("\r")

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
        if self.documentation_stays:
            reason = f"The block changes only comments and documentation of {self.name} that the request is not about."
            return Refusal(reason, unchanged=True)
        names = [unit.key for unit in self.block.units if unit.kind in DEFINITIONS]
        return Refusal(identical(self.name, names), unchanged=True)

    # --- Pairs of units

    def module(self, *, methods: bool) -> None:
        """Merge all units of the block; with `methods`, its functions are methods wherever a class has their name."""
        units = self.block.units
        if not self.source.units:
            self._fill()
            return

        self._merge_imports()
        body = _Body(self.source.units)
        named = {unit.key: unit for unit in self.source.units}
        homes = classes_by_member(self.source)
        conditional = self._conditional_names()
        imported = {alias.asname or alias.name for _, alias in imports_of(self.source)}
        lone = methods or all(map(is_assignment, units))

        if not self._is_complete(body, units):
            units = self._without_demonstration(units, named.keys())

        of_module: list[Unit] = []
        for unit in units:
            is_new_definition = unit.kind in DEFINITIONS and unit.key not in named
            if is_new_definition and unit.key in conditional:
                self._refuse(f"{unit.key} is defined inside an `if` or `try` of {self.name}; use edit_file for it.")
            elif is_new_definition and unit.key in imported:
                self._refuse(f"{self.name} imports {unit.key}: change it in the file that defines it.")
            elif not self._merged_into_class(
                unit, named.get(unit.key), homes.get(unit.key, []), lone=lone, methods=methods
            ):
                of_module.append(unit)

        self._merge_body(body, of_module)

    def _conditional_names(self) -> set[str]:
        """The definitions inside of other statements, such as `if` and `try`."""
        names: set[str] = set()
        for unit in self.source.units:
            if unit.kind is UnitKind.OTHER:
                names.update(getattr(node, "name", "") for node in statements_in(unit.nodes))

        return names

    def _merged_into_class(
        self, unit: Unit, namesake: Unit | None, homes: list[Unit], *, lone: bool, methods: bool
    ) -> bool:
        """Merge a method or an attribute that stands outside of its class; False where it is the module's own.

        A namesake at the top is the better place, unless it is a plain function and the unit a method.
        """
        kind = self._member_kind(unit, namesake, homes, lone=lone, methods=methods)
        if not kind:
            return False

        if kind == "a method" and not homes:
            homes = self._meant_class()

        if not homes:
            self._refuse(f"No class of {self.name} has a method {unit.key}; put it inside its class.")
        elif len(homes) > 1:
            names = ", ".join(home.key for home in homes[:_SHOWN_NAMES])
            self._refuse(f"{len(homes)} classes have {kind} {unit.key} ({names}); give the class line too.")
        else:
            members = self.source.members(homes[0])
            self._merge_body(_Body(members, members[0].indent, f"{homes[0].key}."), [unit])

        return True

    def _member_kind(self, unit: Unit, namesake: Unit | None, homes: list[Unit], *, lone: bool, methods: bool) -> str:
        """Whether a unit outside of classes is "a method" or "an attribute" of one, "" where it is the module's own."""
        if is_assignment(unit):
            return "an attribute" if lone and homes and namesake is None else ""
        if unit.kind is not UnitKind.FUNCTION:
            return ""

        method = is_method(unit.node)
        if not method and not (methods and homes):
            return ""
        if namesake is not None and (not method or is_method(namesake.node) or not homes):
            return ""

        return "a method"

    def _meant_class(self) -> list[Unit]:
        """The only class with members, or the only one that the task names; none otherwise."""
        homes = [unit for unit in self.source.units if self.source.members(unit)]
        if len(homes) == 1:
            return homes

        named = [unit for unit in homes if re.search(rf"\b{re.escape(unit.key)}\b", self.task)]
        return named if len(named) == 1 else []

    def _without_demonstration(self, units: tuple[Unit, ...], names: Collection[str]) -> tuple[Unit, ...]:
        """The units without a call with an example's values at the end: new assignments and loose statements."""
        end = len(units)
        while end:
            unit = units[end - 1]
            is_new_assignment = is_assignment(unit) and unit.key not in names
            if unit.kind is not UnitKind.OTHER and not is_new_assignment:
                break
            end -= 1

        loose = [unit for unit in units[end:] if unit.kind is UnitKind.OTHER]
        if not loose:
            return units

        self.ignored += [self._aside(unit) for unit in units[end:] if unit.kind is not UnitKind.OTHER]
        return (*units[:end], *loose)

    def _merge_body(self, body: _Body, units: Sequence[Unit]) -> None:
        """Replace the namesakes in a body, and add the others after their neighbour in the block, or else before it."""
        pairs, ambiguous = pair_units(body.units, units)
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
        cut: list[Unit] = []

        for old, new in product(olds, news):
            if string_of(new.node) is not None and self._cut(old, new) is not None:
                cut += [old, new]

        olds = [unit for unit in olds if unit not in cut]
        news = [unit for unit in news if unit not in cut]
        added = units_beyond(news, olds)
        lost = units_beyond(olds, news)

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
        same = meaning(old, like=new) == meaning(new, like=new)
        if same and not comments_of(self.block, new) - comments_of(self.source, old):  # then the old layout stays
            return

        if self._stays(old, new, label):
            self.documentation_stays = True
        elif (old.kind is UnitKind.CLASS) is not (new.kind is UnitKind.CLASS):
            kinds = f"a {old.kind} in {self.name} and a {new.kind} in the block"
            self._refuse(f"{label} is {kinds}; use edit_file for it.")
        elif old.kind is UnitKind.CLASS:
            self._replace_class(old, new, label)
        else:
            self._replace_code(old, new, label)

    def _replace_code(self, old: Unit, new: Unit, label: str) -> None:
        elision = elision_in((self.source, old), (self.block, new))
        if elision:
            self._refuse(f"The block leaves out part of {label}: {elision}. Send {label} with its whole body.")
            return

        for parameter in unused_parameters(old, new):
            if re.search(rf"\b{parameter}\b", self.task):
                self._refuse(f"The body of {label} does not use its new parameter {parameter}. Write the body with it.")
                return

        self._exchange(old, new, label)

    def _stays(self, old: Unit, new: Unit, label: str) -> bool:
        """Whether only comments and documentation change, and those are shortened, or not asked for."""
        if old.kind in {UnitKind.CLASS, UnitKind.OTHER}:
            return False

        unasked = bool(self.subjects) and self.subjects.isdisjoint(label.split("."))
        new_comments = comments_of(self.block, new) - comments_of(self.source, old)
        cut = self._cut(old, new) is not None and not new_comments
        return (unasked or cut) and meaning(old, new, texts=False) == meaning(new, old, texts=False)

    def _cut(self, old: Unit, new: Unit) -> tuple[Unit, Unit] | None:
        """The documentation of `old`, and what `new` has there if it leaves that out or shortens it unasked."""
        old_first = next(iter(self.source.inner(old)), old)
        new_first = next(iter(self.block.inner(new)), new)
        if not self.task or read_request(self.task).documents:
            return None
        if len(old_first.nodes) != 1 or len(new_first.nodes) != 1:
            return None
        if not is_shortened(string_of(new_first.node) or "", string_of(old_first.node) or ""):
            return None

        return old_first, new_first

    def _replace_class(self, old: Unit, new: Unit, label: str) -> None:
        """Merge the members of two classes. Bases and decorators may be added; fewer of them count as left out."""
        olds = self.source.members(old)
        news = self.block.members(new)
        before = class_header(old)
        after = class_header(new)
        if not (after <= before or after > before):
            self._refuse(f"The block gives {label} another base class or decorator; use edit_file for its class line.")
        elif olds and news:
            if after > before:
                header = range(new.first, class_header_end(self.block, new) + 1)
                lines = self._moved(header, new.indent, old.indent)
                self._put(old.first, class_header_end(self.source, old), lines, label)
            self._merge_body(_Body(olds, olds[0].indent, f"{label}."), news)
        elif after >= before and is_stub(old.node) and not olds:
            self._exchange(old, new, label)
        elif after > before or not is_stub(new.node):
            self._refuse(f"Write the class {label} over several lines, as it is in {self.name}.")

    def _refuse(self, reason: str) -> None:
        self.refusals.append(reason)

    def _aside(self, unit: Unit) -> str:
        return f"line {unit.first} `{self.block.lines[unit.first - 1].strip()[:_SHOWN_CHARACTERS]}`"

    # --- Edits of lines

    def _fill(self) -> None:
        units = self.block.units
        if not units:
            return

        end = len(self.source.lines)
        lines = self._moved(range(1, len(self.block.lines) + 1), units[0].indent, "")
        if end:
            lines.insert(0, "")

        self._insert(end, lines)
        self.changed += [unit.key for unit in units if unit.key] or ["all"]

    def _merge_imports(self) -> None:
        """Add the block's top-level imports that the source does not have; those from `__future__` come first."""
        present: set[tuple[object, ...]] = set()
        for unit in self.source.units:
            for node in statements_in(unit.nodes):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    present.update(aliases_of(node))

        from_future: list[list[str]] = []
        others: list[list[str]] = []
        added: list[ast.alias] = []

        for unit in self.block.units:
            node = unit.node
            if unit.kind is not UnitKind.IMPORT or not isinstance(node, ast.Import | ast.ImportFrom):
                continue

            pairs = zip(node.names, aliases_of(node), strict=True)
            missing = [alias for alias, imported in pairs if imported not in present]
            present.update(aliases_of(node))
            if not missing:
                continue

            added += missing
            lines = [reduced_import(node, missing)]
            if len(missing) == len(node.names):
                lines = self._moved(range(unit.first, unit.last + 1), unit.indent, "") or lines

            if getattr(node, "module", "") == "__future__":
                from_future.append(lines)
            else:
                others.append(lines)

        self._drop_imports(added)
        self._add_imports(from_future, from_future=True)
        self._add_imports(others, from_future=False)

    def _add_imports(self, imports: Sequence[list[str]], *, from_future: bool) -> None:
        if imports:
            line, above, below = place_of_imports(self.source, from_future=from_future)
            self._insert(line, [*[""] * above, *chain.from_iterable(imports), *[""] * below])
            self.changed += [lines[0] for lines in imports]

    def _drop_imports(self, added: Iterable[ast.alias]) -> None:
        """Take out the imports of what the request moves, where the block imports it from elsewhere."""
        moves = {move.name for move in read_request(self.task).moves}
        again = {alias.asname or alias.name for alias in added if alias.name in moves}

        for unit in self.source.units:
            node = unit.node
            if unit.kind is not UnitKind.IMPORT or not isinstance(node, ast.ImportFrom):
                continue

            remaining = [alias for alias in node.names if (alias.asname or alias.name) not in again]
            if len(remaining) < len(node.names):
                lines = (reduced_import(node, remaining) + self.newline,) if remaining else ()
                self.edits.append(LineEdit(unit.first - 1, unit.last, lines))

    def _exchange(self, old: Unit, new: Unit, label: str) -> None:
        """Put `new` in the place of `old`, whose decorators stay where `new` is a function without any."""
        first = old.node.lineno if is_undecorated(new) else old.first
        lines = self._moved(range(new.first, new.last + 1), new.indent, old.indent)
        cut = self._cut(old, new)
        if cut is not None and cut[1] is not new:
            self._restore_documentation(lines, cut, old, new)

        if isinstance(old.node, ast.AnnAssign) and isinstance(new.node, ast.Assign):  # a field of a dataclass needs it
            lines[0] = lines[0].replace(new.key, f"{new.key}: {ast.unparse(old.node.annotation)}", 1)

        self._put(first, old.last, lines, label)

    def _restore_documentation(self, lines: list[str], cut: tuple[Unit, Unit], old: Unit, new: Unit) -> None:
        """Put the old documentation, which the block has cut, into the new lines."""
        documentation, replacement = cut
        if string_of(replacement.node) is None:
            start = self.block.head(replacement)
            end = start
        else:
            start = replacement.first
            end = replacement.last + 1

        numbers = range(documentation.first, documentation.last + 1)
        indents = documentation.indent, old.indent + replacement.indent.removeprefix(new.indent)
        restored = moved(self.source.lines, numbers, indents, self.source.frozen)
        lines[start - new.first : end - new.first] = restored

    def _add(self, body: _Body, anchor: Unit | None, following: Unit | None, units: Sequence[Unit]) -> None:
        """Add units after `anchor`, else before `following`, else at the end, though before a `__main__` guard."""
        last = body.units[-1]
        lines: list[str] = []

        if anchor is None and (following is not None or last.key == MAIN_GUARD):
            below = following or last
            for unit, lower in zip(units, [*units[1:], below], strict=True):
                lines += self._added(unit, body.indent)
                lines += [""] * blank_lines_between(unit, lower, in_class=bool(body.prefix))

            self._insert(self.source.head(below) - 1, lines)
        else:
            above = anchor or last
            for upper, unit in zip([above, *units], units, strict=False):
                lines += [""] * blank_lines_between(upper, unit, in_class=bool(body.prefix))
                lines += self._added(unit, body.indent)

            self._insert(self.source.tail(above), lines)

        self.changed += [body.prefix + unit.key for unit in units]

    def _added(self, unit: Unit, indent: str) -> list[str]:
        """The lines of a unit with its comments, but for those that only stand for other code."""
        numbers: list[int] = []
        for line in range(self.block.head(unit), self.block.tail(unit) + 1):
            inside = unit.first <= line <= unit.last
            if inside or not is_elision(self.block.comments.get(line, "")):
                numbers.append(line)

        return self._moved(numbers, unit.indent, indent)

    def _moved(self, numbers: Iterable[int], old_indent: str, new_indent: str) -> list[str]:
        return moved(self.block.lines, numbers, (old_indent, new_indent), self.block.frozen)

    def _put(self, first: int, last: int, lines: Iterable[str], label: str) -> None:
        self.edits.append(LineEdit(first - 1, last, tuple(line + self.newline for line in lines)))
        self.changed.append(label)

    def _insert(self, line: int, lines: Iterable[str]) -> None:
        self.edits.append(LineEdit(line, line, tuple(new_line + self.newline for new_line in lines)))
