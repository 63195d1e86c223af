"""Python as lines and units: what stands where, and edits of whole lines that are applied at once. Pure."""

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, TypeAlias

from mendgraph.nodes.language.documents import parse_quietly


class LineEdit(NamedTuple):
    """`lines` in place of the lines `start` up to, and without, `end`, counted from 0; an equal `end` inserts."""

    start: int
    end: int
    lines: tuple[str, ...]


def apply_edits(lines: Sequence[str], edits: Iterable[LineEdit]) -> str:
    """The text after all edits, which may touch but not overlap; at one place, insertions come first and in order."""
    pieces: list[str] = []
    kept_to = 0
    for edit in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [*lines[kept_to : edit.start], *edit.lines]
        kept_to = edit.end

    return "".join([*pieces, *lines[kept_to:]])


def moved(lines: Sequence[str], numbers: Iterable[int], indents: tuple[str, str], frozen: Collection[int]) -> list[str]:
    """The lines with these numbers, counted from 1, moved from the first indent to the second, without their line ends.

    Frozen and blank lines stay as they are, and so does a line that is indented less than the first of them.
    """
    old, new = indents
    bare = [(number, lines[number - 1].rstrip("\r\n")) for number in numbers]

    return [
        new + line.removeprefix(old) if number not in frozen and line.strip() and line.startswith(old) else line
        for number, line in bare
    ]


Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
DOCSTRING = "the docstring"
MAIN_GUARD = "if __name__"

_LINES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class UnitKind(StrEnum):
    """What a statement is to a merge. A STATEMENT is an assignment to one name, a docstring or a `__main__` guard."""

    FUNCTION = "function"
    CLASS = "class"
    STATEMENT = "statement"
    IMPORT = "import"
    OTHER = "other"


DEFINITIONS = frozenset({UnitKind.FUNCTION, UnitKind.CLASS})


@dataclass(frozen=True)
class Unit:
    """Statements that stand on lines of their own, `first` (of the first decorator) to `last`, counted from 1.

    `key` is the name under which it is replaced, "" where it has none. Several nodes are statements that share a line.
    """

    key: str
    kind: UnitKind
    first: int
    last: int
    indent: str
    nodes: tuple[ast.stmt, ...]

    @property
    def node(self) -> ast.stmt:
        """The first statement."""
        return self.nodes[0]

    @cached_property
    def meaning(self) -> str:
        """Equal for equal code, whatever its layout and comments."""
        return "\n".join(ast.dump(node) for node in self.nodes)


@dataclass(frozen=True)
class PythonText:
    """Parsed text: its lines with their line ends, its top-level units, its comments by line number.

    `frozen` are the lines that begin inside a string which is not a docstring: to indent them would change its value.
    """

    lines: tuple[str, ...]
    units: tuple[Unit, ...]
    comments: Mapping[int, str]
    frozen: frozenset[int]
    _members: dict[ast.stmt, tuple[Unit, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def members(self, unit: Unit) -> tuple[Unit, ...]:
        """The units in the body of a class; none where the body stands on the line of the header."""
        if isinstance(unit.node, ast.ClassDef):
            return self.inner(unit)
        return ()

    def inner(self, unit: Unit) -> tuple[Unit, ...]:
        """The units in the body of a class or function; none where the body stands on the line of the header."""
        if unit.node not in self._members:
            body: list[ast.stmt] = []
            if isinstance(unit.node, Function | ast.ClassDef):
                body = unit.node.body

            inline = body and self.lines[body[0].lineno - 1].encode()[: body[0].col_offset].strip()
            self._members[unit.node] = () if inline else tuple(_units(self.lines, body))

        return self._members[unit.node]

    def tail(self, unit: Unit) -> int:
        """The last line of a unit with the indented comments that follow it, which belong to its body."""
        last = unit.last

        for number in range(unit.last + 1, len(self.lines) + 1):
            line = self.lines[number - 1]
            if not line.strip():
                continue

            indent = len(line) - len(line.lstrip())
            if number not in self.comments or indent <= len(unit.indent):
                break

            last = number

        return last

    def head(self, unit: Unit) -> int:
        """The first line of a unit with the comments directly above it, but for those with which the text begins."""
        first = unit.first
        while first - 1 in self.comments and self.lines[first - 2].startswith(unit.indent + "#"):
            first -= 1

        return first if first > 1 else unit.first


class SyntaxProblem(NamedTuple):
    """Why a text is not Python: the parser's sentence, and the line it names (0 for none)."""

    line: int
    message: str

    def __str__(self) -> str:
        """`line 3: invalid syntax`."""
        if self.line:
            return f"line {self.line}: {self.message}"
        return self.message


def lines_of(text: str) -> list[str]:
    """The lines with their line ends, as the parser counts them."""
    return _LINES.findall(text)


def read_python(text: str, *, indented: bool = False) -> PythonText | SyntaxProblem:
    """Parses a text; a problem comes back instead of an exception, also for text that is nested too deeply.

    An `indented` text is a stretch from inside a class: it is parsed without its indent, and shown with it.
    """
    first = ""
    if indented:
        first = next((line for line in text.split("\n") if line.strip()), "")

    indent = first[: len(first) - len(first.lstrip())]
    code = "\n".join(line.removeprefix(indent) for line in text.split("\n"))
    tree = parse(code)

    if isinstance(tree, SyntaxProblem):
        return tree

    lines = tuple(lines_of(text))
    comments, inside = _tokens(code)
    return PythonText(lines, tuple(_units(lines, tree.body)), comments, frozenset(inside - _docstring_lines(tree)))


def parse(text: str) -> ast.Module | SyntaxProblem:
    """The syntax tree. Warnings of the parser (such as invalid escapes) are about old lines too, and stay silent."""
    try:
        return parse_quietly(text)
    except SyntaxError as error:
        return SyntaxProblem(error.lineno or 0, error.msg)
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxProblem(0, str(error) or "nested too deeply")


class WithoutStrings(ast.NodeTransformer):
    """Leaves docstrings and other strings that stand alone out of a tree, whose bodies may be empty then."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """The node without such statements."""
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                block[:] = [statement for statement in block if string_of(statement) is None]

        return super().generic_visit(node)


def string_of(node: ast.stmt) -> str | None:
    """The string that a statement is, None for another one."""
    match node:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            return text
        case _:
            return None


def statements_in(nodes: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements inside these, at any depth but not inside functions and classes."""
    for node in nodes:
        yield node
        if isinstance(node, Function | ast.ClassDef):
            continue

        for part in (node, *getattr(node, "handlers", []), *getattr(node, "cases", [])):
            for name in ("body", "orelse", "finalbody"):
                yield from statements_in(getattr(part, name, []))


def _units(lines: tuple[str, ...], body: list[ast.stmt]) -> Iterator[Unit]:
    group: list[ast.stmt] = []

    for node in body:
        if group and first_line(node) > (group[-1].end_lineno or 0):
            yield _unit(lines, group, body)
            group = []

        group.append(node)

    if group:
        yield _unit(lines, group, body)


def _unit(lines: tuple[str, ...], group: list[ast.stmt], body: list[ast.stmt]) -> Unit:
    key = ""
    kind = UnitKind.OTHER
    if len(group) == 1:
        key, kind = _name(group[0], first=group[0] is body[0])

    first = first_line(group[0])
    line = lines[first - 1]
    indent = line[: len(line) - len(line.lstrip())]

    return Unit(key, kind, first, group[-1].end_lineno or first, indent, tuple(group))


def first_line(node: ast.stmt) -> int:
    """The line on which a statement begins, with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _name(node: ast.stmt, *, first: bool) -> tuple[str, UnitKind]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _function_key(node), UnitKind.FUNCTION
        case ast.ClassDef():
            return node.name, UnitKind.CLASS
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name, UnitKind.STATEMENT
        case ast.Import() | ast.ImportFrom():
            return "", UnitKind.IMPORT
        case ast.Expr(value=ast.Constant(value=str())) if first:
            return DOCSTRING, UnitKind.STATEMENT
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return MAIN_GUARD, UnitKind.STATEMENT
        case _:
            return "", UnitKind.OTHER


def _function_key(node: Function) -> str:
    """The name, and for the parts of a property and for overloads what sets them apart from their namesakes."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Attribute):
            last = decorator.attr
        else:
            last = getattr(decorator, "id", "")

        if last in {"setter", "deleter", "getter", "overload"}:
            return f"{node.name}.{last}"

    return node.name


def _tokens(code: str) -> tuple[dict[int, str], set[int]]:
    """The comments by line, and the lines that begin inside a token: only strings go over several lines."""
    comments: dict[int, str] = {}
    inside: set[int] = set()

    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(code, newline="").readline):
            if token.type == tokenize.COMMENT:
                comments[token.start[0]] = token.string

            inside.update(range(token.start[0] + 1, token.end[0] + 1))

    return comments, inside


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno + 1, (docstring.end_lineno or 0) + 1))

    return lines


class NamedUnit(NamedTuple):
    """A definition by its full name (`load`, `Cart.total`), and the class that it stands in."""

    name: str
    unit: Unit
    home: Unit | None = None

    @property
    def last(self) -> str:
        """The name without its class."""
        return self.name.rpartition(".")[2]


def named_units(text: PythonText) -> list[NamedUnit]:
    """All definitions at the top and in the bodies of classes at the top, in order.

    The parts of a property are several with one name.
    """
    units: list[NamedUnit] = []

    for unit in text.units:
        if _is_named(unit):
            units.append(NamedUnit(_plain(unit), unit))
        if unit.kind is UnitKind.CLASS:
            members = filter(_is_named, text.members(unit))
            units += [NamedUnit(f"{unit.key}.{_plain(member)}", member, unit) for member in members]

    return units


def _is_named(unit: Unit) -> bool:
    return unit.kind not in {UnitKind.IMPORT, UnitKind.OTHER} and unit.key not in {DOCSTRING, MAIN_GUARD}


def _plain(unit: Unit) -> str:
    return unit.key.partition(".")[0]


def reduced_import(node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> str:
    """The statement with these names only."""
    if isinstance(node, ast.ImportFrom):
        return ast.unparse(ast.ImportFrom(node.module, names, node.level))
    return ast.unparse(ast.Import(names))
