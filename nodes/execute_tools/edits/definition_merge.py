"""Merging a block of Python into a file: what stands for what, where new things go, what is refused. Pure."""

import ast
import copy
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.edits.left_out import elision_in, is_elision, is_placeholder, is_stub
from mendgraph.nodes.execute_tools.edits.python_text import (
    DOCSTRING,
    MAIN_GUARD,
    Function,
    LineEdit,
    PythonText,
    Unit,
    UnitKind,
    moved,
    reduced_import,
    statements_in,
)


def _pair_units(olds: Sequence[Unit], news: Sequence[Unit]) -> tuple[list[tuple[Unit, Unit | None]], list[str]]:
    """Each unit of the block with its namesake in the file, in the block's order, and the names that are ambiguous.

    Namesakes within one side are paired in order, if both sides have equally many.

    Where a block repeats a unit as it is beside its new form, the new form counts; where it repeats one of several
    namesakes as it is, nothing changes.
    """
    pairs: list[tuple[Unit, Unit | None]] = []
    ambiguous: list[str] = []
    known, given = _by_name(olds), _by_name(news)
    for key in filter(None, given):
        old, new = known.get(key, []), given[key]
        if old and len(old) != len(new):
            said = {unit.meaning for unit in old}
            new = [unit for unit in new if unit.meaning not in said]
            if len(new) > (1 if len(old) == 1 else 0):
                ambiguous.append(key)
                continue
        pairs += [(unit, old[index] if old else None) for index, unit in enumerate(new)]
    return sorted(pairs, key=lambda pair: pair[0].first), ambiguous


def beyond(units: Sequence[Unit], others: Sequence[Unit]) -> list[Unit]:
    """The units that mean something which `others` do not say, or do not say as often."""
    said = Counter(unit.meaning for unit in others)
    found = []
    for unit in units:
        if said[unit.meaning]:
            said[unit.meaning] -= 1
        else:
            found.append(unit)
    return found


def adds_nothing(old: tuple[PythonText, Unit], new: tuple[PythonText, Unit]) -> bool:
    """Whether `new` has neither other code nor a comment that `old` lacks: then the old layout and comments stay."""
    same = _meaning_like(old[1], like=new[1]) == _meaning_like(new[1], like=new[1])
    return same and not _comments(*new) - _comments(*old)


def is_method(node: ast.stmt) -> bool:
    """Whether a function looks like a method: it takes `self` or `cls`, or is decorated as one."""
    if not isinstance(node, Function):
        return False
    arguments = [*node.args.posonlyargs, *node.args.args]
    decorators = {getattr(decorator, "id", "") for decorator in node.decorator_list}
    first = arguments[0].arg if arguments else ""
    return first in {"self", "cls"} or bool(decorators & {"staticmethod", "classmethod"})


def _comments(text: PythonText, unit: Unit) -> set[str]:
    return {text.comments.get(line, "") for line in range(unit.first, unit.last + 1)} - {""}


def _meaning_like(unit: Unit, like: Unit) -> str:
    """What a unit means, without its decorators where `like` is a function without any."""
    if not undecorated(like):
        return unit.meaning
    bare = copy.copy(unit.node)
    bare.decorator_list = []  # type: ignore[attr-defined]  # a statement that is no function may bear the attribute too
    return ast.dump(bare)


def _by_name(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    named: dict[str, list[Unit]] = {}
    for unit in units:
        named.setdefault(unit.key, []).append(unit)
    return named


_Alias: TypeAlias = tuple[str | None, int, str, str | None]
_Import: TypeAlias = ast.Import | ast.ImportFrom


def _aliases(nodes: Iterable[ast.stmt]) -> Iterator[_Alias]:
    for node in nodes:
        if isinstance(node, _Import):
            yield from (_alias(node, name) for name in node.names)


def _alias(node: _Import, name: ast.alias) -> _Alias:
    if isinstance(node, ast.Import):
        return None, 0, name.name, name.asname
    return node.module or "", node.level, name.name, name.asname


def _import_lines(block: PythonText, unit: Unit, node: _Import, missing: list[ast.alias]) -> list[str]:
    """An import of the block, reduced to the names that are missing in the file."""
    if len(missing) < len(node.names):
        return [reduced_import(node, missing)]
    return moved(block.lines, range(unit.first, unit.last + 1), (unit.indent, ""), block.frozen)


def _place_of_imports(source: PythonText, *, from_future: bool) -> tuple[int, int, int]:
    """After how many lines, and with how many blank lines before and after.

    That is after the last import before the first definition, else after the docstring, else at the top.
    """
    rest = source.units
    docstring = rest[0] if rest and rest[0].key == DOCSTRING else None
    rest = rest[1:] if docstring else rest
    leading = takewhile(lambda unit: unit.kind not in _DEFINITIONS, rest)
    imports = [unit for unit in leading if unit.kind is UnitKind.IMPORT]
    if imports:
        return imports[0].first - 1 if from_future else imports[-1].last, 0, 0
    if docstring:
        return docstring.last, 1, 0
    return source.head(rest[0]) - 1, 0, 2 if rest[0].kind in _DEFINITIONS else 1


_DEFINITIONS = frozenset({UnitKind.FUNCTION, UnitKind.CLASS})


class Body(NamedTuple):
    """The units of a module or a class, the indent of its statements, and the prefix of the names in it."""

    units: tuple[Unit, ...]
    indent: str = ""
    prefix: str = ""


@dataclass
class MergeDraft:
    """Brings lines of `block` into `source`, with the line ends of `source`. `name` is how messages call the file.

    `gone` are names that are deleted afterwards, so that the block need not hold them to be complete. `task` is the
    request, for what the block leaves open.
    """

    source: PythonText
    block: PythonText
    name: str
    newline: str
    gone: frozenset[str] = frozenset()
    task: str = ""
    edits: list[LineEdit] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def fill(self) -> None:
        """Takes the whole block into a source that has no code, after its comments."""
        if self.block.units:
            end = len(self.source.lines)
            lines = self._moved(range(1, len(self.block.lines) + 1), self.block.units[0].indent, "")
            self.insert(end, [""] * bool(end) + lines)
            self.changed += [unit.key for unit in self.block.units if unit.key] or ["all"]

    def remove(self, unit: Unit) -> None:
        """Takes a statement out."""
        self.edits.append(LineEdit(unit.first - 1, unit.last, ()))
        self.changed.append(f"line {unit.first}")

    def exchange(self, old: Unit, new: Unit, label: str) -> None:
        """Puts `new` in the place of `old`, whose decorators stay where `new` is a function without any."""
        first = old.node.lineno if undecorated(new) else old.first
        header, body = range(new.first, _body_start(self.block, new)), range(_body_start(self.block, new), new.last + 1)
        # only the first line was moved, where the bodies stand equally deep
        in_place = _body_indent(self.block, new) == _body_indent(self.source, old) is not None
        lines = self._moved(header, new.indent, old.indent)
        lines += self._moved(body, *("", "") if in_place else (new.indent, old.indent))
        if isinstance(old.node, ast.AnnAssign) and isinstance(new.node, ast.Assign):  # a field of a dataclass needs it
            lines[0] = lines[0].replace(new.key, f"{new.key}: {ast.unparse(old.node.annotation)}", 1)
        self._put(first, old.last, lines, label)

    def exchange_headers(self, old: Unit, new: Unit, label: str) -> None:
        """Puts the class line of `new`, and the decorators above it, in the place of those of `old`."""
        taken = range(new.first, _header_end(self.block, new) + 1)
        self._put(old.first, _header_end(self.source, old), self._moved(taken, new.indent, old.indent), label)

    def add(self, body: Body, anchor: Unit | None, following: Unit | None, units: Sequence[Unit]) -> None:
        """Adds units after `anchor`, else before `following`, else at the end, though before a `__main__` guard."""
        if not units:
            return
        last = body.units[-1]
        lines: list[str] = []
        if anchor is None and (following is not None or last.key == MAIN_GUARD):
            below = following or last
            for unit, coming in zip(units, [*units[1:], below], strict=True):
                lines += self._added(unit, body.indent) + [""] * _gap(body, unit, coming)
            self.insert(self.source.head(below) - 1, lines)
        else:
            above = anchor or last
            for previous, unit in zip([above, *units], units, strict=False):
                lines += [""] * _gap(body, previous, unit) + self._added(unit, body.indent)
            self.insert(self.source.tail(above), lines)
        self.changed += [body.prefix + unit.key for unit in units]

    def insert(self, line: int, lines: Iterable[str]) -> None:
        """Adds lines, given without line ends, after this many lines of the source."""
        self.edits.append(LineEdit(line, line, self._ended(lines)))

    def _put(self, first: int, last: int, lines: Iterable[str], label: str) -> None:
        self.edits.append(LineEdit(first - 1, last, self._ended(lines)))
        self.changed.append(label)

    def _added(self, unit: Unit, indent: str) -> list[str]:
        """The lines of a unit with its comments, but for those that only stand for other code."""
        around = range(self.block.head(unit), self.block.tail(unit) + 1)
        inside = range(unit.first, unit.last + 1)
        kept = [line for line in around if line in inside or not is_elision(self.block.comments.get(line, ""))]
        return self._moved(kept, unit.indent, indent)

    def _moved(self, numbers: Iterable[int], old_indent: str, new_indent: str) -> list[str]:
        return moved(self.block.lines, numbers, (old_indent, new_indent), self.block.frozen)

    def _ended(self, lines: Iterable[str]) -> tuple[str, ...]:
        return tuple(line + self.newline for line in lines)


def undecorated(unit: Unit) -> bool:
    """Whether the unit is a function without decorators."""
    return isinstance(unit.node, Function) and not unit.node.decorator_list


def _body_start(text: PythonText, unit: Unit) -> int:
    """The line after the header of a function, which is its last and one more where the body stands on it."""
    body = unit.node.body if isinstance(unit.node, Function) else []
    line = min([body[0].lineno, *_decorator_lines(body[0])]) if body else unit.last + 1
    if not body or text.lines[line - 1].encode()[: body[0].col_offset].strip():
        return unit.last + 1
    while text.lines[line - 2].strip()[:1] in {"", "#"}:
        line -= 1
    return line


def _decorator_lines(node: ast.stmt) -> list[int]:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return [decorator.lineno for decorator in decorators]


def _body_indent(text: PythonText, unit: Unit) -> str | None:
    """The indent of the first statement of a function's body, None where it has no line of its own."""
    start = _body_start(text, unit)
    if start > unit.last or not isinstance(unit.node, Function):
        return None
    line = text.lines[unit.node.body[0].lineno - 1]
    return line[: len(line) - len(line.lstrip())]


def _gap(body: Body, upper: Unit, lower: Unit) -> int:
    """How many blank lines go between two units. Source: PEP 8."""
    if _DEFINITIONS & {upper.kind, lower.kind} or MAIN_GUARD in {upper.key, lower.key}:
        return 1 if body.prefix else 2
    return int(upper.kind is not lower.kind or upper.key == DOCSTRING)


def _header_end(text: PythonText, unit: Unit) -> int:
    """The last line of a class's header: what stands between it and the first member is layout."""
    line = text.members(unit)[0].first - 1
    while line > unit.first and text.lines[line - 1].strip()[:1] in {"", "#"}:
        line -= 1
    return line


_SHOWN_CHARACTERS = 60
_SHOWN_NAMES = 3


def merge_module(draft: MergeDraft, *, methods: bool) -> None:
    """Merge all units of the block; with `methods`, its functions are methods wherever a class has their name."""
    if not draft.source.units:
        draft.fill()
        return
    _merge_imports(draft)
    known = {unit.key: unit for unit in draft.source.units if unit.kind in _DEFINITIONS}
    conditional = _conditional_names(draft.source)
    attributes = methods or all(_is_assignment(unit) for unit in draft.block.units)
    shown_only = _demonstrations(draft)
    shown = frozenset(shown_only)
    own = []
    for unit in draft.block.units:
        namesake = known.get(unit.key)
        if unit in shown or (attributes and _merge_lone_attribute(draft, unit)):
            continue
        if unit.kind in _DEFINITIONS and namesake is None and unit.key in conditional:
            draft.refusals.append(
                f"{unit.key} is defined inside an `if` or `try` of {draft.name}; use edit_file for it."
            )
        elif not _is_lone_method(unit, namesake, methods=methods) or not _merge_lone_method(draft, unit, namesake):
            own.append(unit)
    draft.ignored += [_aside(draft, unit) for unit in shown_only]
    _merge_body(draft, Body(draft.source.units), own)


def _merge_imports(draft: MergeDraft) -> None:
    """Add the block's top-level imports that the source does not have; those from `__future__` before all others."""
    present = set(_aliases(statements_in(node for unit in draft.source.units for node in unit.nodes)))
    found: dict[bool, list[list[str]]] = {True: [], False: []}
    for unit in draft.block.units:
        if unit.kind is UnitKind.IMPORT and isinstance(unit.node, _Import):
            missing = [name for name in unit.node.names if _alias(unit.node, name) not in present]
            present.update(_aliases([unit.node]))
            if missing:
                found[getattr(unit.node, "module", "") == "__future__"].append(
                    _import_lines(draft.block, unit, unit.node, missing)
                )
    for from_future, imports in found.items():
        if imports:
            line, above, below = _place_of_imports(draft.source, from_future=from_future)
            draft.insert(line, [""] * above + [each for lines in imports for each in lines] + [""] * below)
            draft.changed += [lines[0] for lines in imports]


def _is_lone_method(unit: Unit, namesake: Unit | None, *, methods: bool) -> bool:
    """Whether a function may be meant for a class: a top-level namesake is the better place, if they are alike."""
    if unit.kind is not UnitKind.FUNCTION or not (methods or is_method(unit.node)):
        return False
    return namesake is None or (is_method(unit.node) and not is_method(namesake.node))


def _merge_lone_attribute(draft: MergeDraft, unit: Unit) -> bool:
    """Replace the attribute of a class that stands outside of it; False where it is an assignment of the module."""
    if not _is_assignment(unit) or unit.key in draft.source.names:
        return False
    return _merge_member(draft, unit, [home for home, _times in draft.source.holders.get(unit.key, ())], "an attribute")


def _merge_member(draft: MergeDraft, unit: Unit, homes: Sequence[Unit], what: str) -> bool:
    """Merge what stands outside of its class into the only one of `homes`; False where there is none."""
    if len(homes) == 1:
        members = draft.source.members(homes[0])
        _merge_body(draft, Body(members, members[0].indent, f"{homes[0].key}."), [unit])
    elif homes:
        names = ", ".join(home.key for home in homes[:_SHOWN_NAMES])
        draft.refusals.append(f"{len(homes)} classes have {what} {unit.key} ({names}); give the class line too.")
    return bool(homes)


def _demonstrations(draft: MergeDraft) -> list[Unit]:
    """New assignments of the block that only its loose statements use, such as a call with an example's values."""
    units, known = draft.block.units, {unit.key for unit in draft.source.units}
    loose = [unit for unit in units if unit.kind is UnitKind.OTHER]
    if not loose or _is_complete(draft, Body(draft.source.units), units):
        return []
    users_of: dict[str, list[Unit]] = {}
    for unit in units:
        for name in _names_in(unit):
            users_of.setdefault(name, []).append(unit)
    shown: dict[Unit, None] = {}
    aside = set(loose)
    for unit in reversed(units):
        users = [each for each in users_of.get(unit.key, ()) if each is not unit]
        if _is_assignment(unit) and unit.key not in known and users and aside.issuperset(users):
            shown[unit] = None
            aside.add(unit)
    return list(shown)[::-1]


def _merge_lone_method(draft: MergeDraft, unit: Unit, namesake: Unit | None) -> bool:
    """Replace a method that stands outside of its class; False where it is not a method after all."""
    homes = [home for home, times in draft.source.holders.get(unit.key, ()) if times == 1]
    if _merge_member(draft, unit, homes, "a method"):
        return True
    if not is_method(unit.node) or namesake is not None:
        return False
    if not _merge_member(draft, unit, _meant_class(draft), "a method"):
        draft.refusals.append(f"No class of {draft.name} has a method {unit.key}; put it inside its class.")
    return True


def _meant_class(draft: MergeDraft) -> list[Unit]:
    """The class to which a new method belongs: the only one of the file, or the only one that the request names."""
    homes = [unit for unit in draft.source.units if unit.kind is UnitKind.CLASS and draft.source.members(unit)]
    named = [unit for unit in homes if re.search(rf"\b{re.escape(unit.key)}\b", draft.task)]
    return next((found for found in (homes, named) if len(found) == 1), [])


def _merge_body(draft: MergeDraft, body: Body, units: Sequence[Unit]) -> None:
    """Replace the namesakes in a body, and add the rest after its neighbour in the block, or else before it."""
    pairs, ambiguous = _pair_units(body.units, units)
    for key in ambiguous:
        draft.refusals.append(
            f"{draft.name} and the block define {body.prefix}{key} differently often; use edit_file for it."
        )
    groups: list[tuple[Unit | None, list[Unit]]] = [(None, [])]
    for new, old in pairs:
        if old is not None:
            _replace(draft, body, old, new)
            groups.append((old, []))
        elif new.key == DOCSTRING:
            draft.add(body, None, body.units[0], [new])
        else:
            groups[-1][1].append(new)
    following = groups[1][0] if len(groups) > 1 else None
    for anchor, added in groups:
        draft.add(body, anchor, following, added)
    _merge_other_statements(draft, body, units)


def _merge_other_statements(draft: MergeDraft, body: Body, units: Sequence[Unit]) -> None:
    """Replace statements without a name in order, if the block repeats all names of the file and as many of them."""
    olds = [unit for unit in body.units if unit.kind is UnitKind.OTHER]
    news = [unit for unit in units if unit.kind is UnitKind.OTHER and not all(map(is_placeholder, unit.nodes))]
    added, lost = beyond(news, olds), beyond(olds, news)
    complete = _is_complete(draft, body, units)
    if complete and not body.prefix:
        using = [unit for unit in lost if _uses_any(unit, draft.gone)][: max(0, len(lost) - len(added))]
        for unit in using:
            draft.remove(unit)
        lost = [unit for unit in lost if unit not in using]
    if complete and not body.prefix and len(added) == len(lost):
        for old, new in zip(lost, added, strict=True):
            _replace(draft, body, old, new)
        return
    draft.ignored += [_aside(draft, unit) for unit in added]


def _is_complete(draft: MergeDraft, body: Body, units: Sequence[Unit]) -> bool:
    """Whether a body is repeated as a whole, but for what is deleted."""
    return {unit.key for unit in body.units} <= {unit.key for unit in units} | {"", DOCSTRING} | draft.gone


def _aside(draft: MergeDraft, unit: Unit) -> str:
    return f"line {unit.first} `{draft.block.lines[unit.first - 1].strip()[:_SHOWN_CHARACTERS]}`"


def _replace(draft: MergeDraft, body: Body, old: Unit, new: Unit) -> None:
    label = body.prefix + new.key if new.key else f"line {old.first}"
    if adds_nothing((draft.source, old), (draft.block, new)):
        return
    if (old.kind is UnitKind.CLASS) is not (new.kind is UnitKind.CLASS):
        draft.refusals.append(
            f"{label} is a {old.kind} in {draft.name} and a {new.kind} in the block; use edit_file for it."
        )
    elif old.kind is UnitKind.CLASS:
        _replace_class(draft, old, new, label)
    elif elision := elision_in((draft.source, old), (draft.block, new)):
        draft.refusals.append(f"The block leaves out part of {label}: {elision}. Send {label} with its whole body.")
    else:
        draft.exchange(old, new, label)


def _replace_class(draft: MergeDraft, old: Unit, new: Unit, label: str) -> None:
    """Merge the members of two classes. Bases and decorators may be added; fewer of them count as left out."""
    olds, news = draft.source.members(old), draft.block.members(new)
    before, after = _header(old), _header(new)
    if not (after <= before or after > before):
        draft.refusals.append(
            f"The block gives {label} another base class or decorator; use edit_file for its class line."
        )
    elif after >= before and is_stub(old.node) and (news or after > before) and _documented(olds) <= _documented(news):
        draft.exchange(old, new, label)
    elif olds and news:
        if after > before:
            draft.exchange_headers(old, new, label)
        _merge_body(draft, Body(olds, olds[0].indent, f"{label}."), news)
    elif after > before or not is_stub(new.node):
        draft.refusals.append(f"Write the class {label} over several lines, as it is in {draft.name}.")


def _header(unit: Unit) -> frozenset[str]:
    fields = ("bases", "keywords", "decorator_list")
    return frozenset(ast.dump(part) for field in fields for part in getattr(unit.node, field, []))


def _is_assignment(unit: Unit) -> bool:
    return unit.kind is UnitKind.STATEMENT and unit.key not in {DOCSTRING, MAIN_GUARD}


def _uses_any(unit: Unit, names: Collection[str]) -> bool:
    return not _names_in(unit).isdisjoint(names)


def _names_in(unit: Unit) -> set[str]:
    inner = (each for node in unit.nodes for each in ast.walk(node))
    return {each.id for each in inner if isinstance(each, ast.Name)}


def _documented(members: Sequence[Unit]) -> bool:
    return any(member.key == DOCSTRING for member in members)


def _conditional_names(text: PythonText) -> set[str]:
    """The names of functions and classes that are defined in the branches of top-level statements."""
    inner = statements_in(node for unit in text.units if unit.kind is UnitKind.OTHER for node in unit.nodes)
    return {getattr(node, "name", "") for node in inner}
