"""The edits of a merge while it is worked out: what changes, what is left aside, what speaks against it."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nodes.execute_tools.tools.elisions import is_elision
from nodes.execute_tools.tools.line_edits import LineEdit, moved
from nodes.execute_tools.tools.python_units import DOCSTRING, MAIN_GUARD, Function, PythonText, Unit, UnitKind

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
        in_place = (
            _body_indent(self.block, new) == _body_indent(self.source, old) is not None
        )  # only the first line was moved
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
        ended = self._ended(lines)
        if ended != self.source.lines[first - 1 : last]:
            self.edits.append(LineEdit(first - 1, last, ended))
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
