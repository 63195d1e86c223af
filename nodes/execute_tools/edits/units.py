"""Python files as lists of named statements, which are compared, replaced and written again byte for byte. Pure.

`PythonSource.units` are the statements of a module; a class has the statements of its body as `members`. Merging
replaces entries of these lists; `PythonSource.code` is the text with the current entries.
"""

import ast
import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import islice, takewhile, zip_longest
from typing import Any, Final, NamedTuple, TypeAlias, cast

import libcst as cst

from mendgraph.nodes.execute_tools.edits.python_text import (
    Function,
    SyntaxProblem,
    WithoutStrings,
    comments_by_line,
    parse,
)
from mendgraph.nodes.workspace.files.text_files import dominant_newline

Statement: TypeAlias = Any
"""A `cst.SimpleStatementLine` or a `cst.BaseCompoundStatement`, whose bodies have no type in common."""
DOCSTRING: Final = "the docstring"
MAIN_GUARD: Final = "if __name__"
BLANK: Final = cst.EmptyLine(indent=False)


class UnitKind(StrEnum):
    """The kinds of statements; STATEMENT is an assignment to one name, a docstring or a `__main__` guard."""

    FUNCTION = "function"
    CLASS = "class"
    STATEMENT = "statement"
    IMPORT = "import"
    OTHER = "other"


DEFINITIONS: Final = frozenset({UnitKind.FUNCTION, UnitKind.CLASS})


@dataclass(eq=False)
class Unit:
    """A statement of a file, or several that share a line.

    Attributes:
        key: the name under which it is replaced, or "".
        kind: its kind.
        node: its text.
        trees: its syntax trees.
        indent: its indentation.
        first: its first line, with decorators.
        last: its last line.
        comments: its comments by line, with those that follow it at a deeper indentation.
        members: the statements of a class.
    """

    key: str
    kind: UnitKind
    node: Statement
    trees: Sequence[ast.stmt]
    indent: str = ""
    first: int = 0
    last: int = 0
    comments: Mapping[int, str] = field(default_factory=dict)
    members: list["Unit"] = field(default_factory=list)

    @property
    def tree(self) -> ast.stmt:
        """The first syntax tree."""
        return self.trees[0]

    @cached_property
    def meaning(self) -> str:
        """A text that is equal for equal code, whatever its layout and comments."""
        return "\n".join(map(ast.dump, self.trees))

    @property
    def is_definition(self) -> bool:
        """Whether this is a function or a class."""
        return self.kind in DEFINITIONS

    @property
    def is_assignment(self) -> bool:
        """Whether this assigns to one name."""
        return self.kind is UnitKind.STATEMENT and self.key not in {DOCSTRING, MAIN_GUARD}

    @property
    def is_undecorated(self) -> bool:
        """Whether this is a function without decorators."""
        return isinstance(self.node, cst.FunctionDef) and not self.node.decorators

    @property
    def is_method(self) -> bool:
        """Whether this is a function that is a method by its first parameter or its decorators."""
        if not isinstance(self.tree, Function):
            return False

        parameters = [*self.tree.args.posonlyargs, *self.tree.args.args]
        if parameters and parameters[0].arg in {"self", "cls"}:
            return True

        decorators = {getattr(decorator, "id", "") for decorator in self.tree.decorator_list}
        return not decorators.isdisjoint({"staticmethod", "classmethod"})

    @property
    def current_node(self) -> Statement:
        """The statement with its current members."""
        if not self.members:
            return self.node

        body = self.node.body.with_changes(body=[member.current_node for member in self.members])
        return self.node.with_changes(body=body)


@dataclass(eq=False)
class PythonSource:
    """A parsed text with its lines, its syntax trees and its statements."""

    module: cst.Module
    lines: list[str]
    trees: list[ast.stmt]
    units: list[Unit]

    @property
    def code(self) -> str:
        """The text with the current units."""
        return self.module.with_changes(body=[unit.current_node for unit in self.units]).code

    @property
    def named(self) -> "list[NamedUnit]":
        """The definitions of the module and of its classes."""
        return named_units(self.units)

    @property
    def names(self) -> set[str]:
        """The full names of these definitions."""
        return {named.name for named in self.named}


def code_of(node: cst.CSTNode) -> str:
    """Return the text of a node."""
    return cst.Module(body=()).code_for_node(node)


def read_units(text: str, *, indented: bool = False) -> PythonSource | SyntaxProblem:
    """Parse a text. An `indented` one is a part of a class body."""
    head = "class _:\n" if indented else ""
    tree = parse(head + text)
    if isinstance(tree, SyntaxProblem):
        return tree._replace(line=max(0, tree.line - indented))

    try:
        module = cst.parse_module(head + text)
    except (cst.ParserSyntaxError, RecursionError) as error:
        return SyntaxProblem(0, f"it cannot be rewritten ({type(error).__name__})")

    if text.endswith("\r"):
        module = module.with_changes(has_trailing_newline=True)  # libcst only looks for "\n"
    if "\n" in text and module.default_newline != dominant_newline(text):
        module = _with_default_newline(module, dominant_newline(text))
    if module.code != head + text:  # libcst leaves out form feeds
        return SyntaxProblem(0, "it holds control characters that cannot be written again")

    module = _with_comments_at_statement(module)
    if indented:
        ast.increment_lineno(tree, -1)
        if len(tree.body) > 1:
            return SyntaxProblem(_first_line(tree.body[1]), "it is indented less than the lines above it")

    reader = _Reader(module, comments_by_line(head + text), -indented)
    line_ends = text.count("\n") + text.count("\r") - text.count("\r\n")
    end = line_ends + 1 - len(module.footer)
    trees = tree.body
    units = reader.units(module.body, trees, "", end)

    if indented:
        trees = cast("ast.ClassDef", trees[0]).body
        units = units[0].members

    return PythonSource(module, text.splitlines(), trees, units)


def _with_comments_at_statement(module: cst.Module) -> cst.Module:
    """Return the module with comments directly above its first statement as part of it: libcst's header has them."""
    header = module.header
    blank = max((number for number, line in enumerate(header) if line.comment is None), default=-1)
    comments = header[blank + 1 :]
    if blank < 0 or not comments or not module.body:
        return module

    first, *others = module.body
    first = first.with_changes(leading_lines=[*comments, *first.leading_lines])
    return module.with_changes(header=header[: blank + 1], body=[first, *others])


def _with_default_newline(module: cst.Module, newline: str) -> cst.Module:
    """Return the module with the line end of new lines; libcst takes the first of a text, and old lines keep theirs."""
    explicit = module.visit(_ExplicitNewlines(module.default_newline))
    return explicit.with_changes(default_newline=newline)


class _ExplicitNewlines(cst.CSTTransformer):
    """Writes the default line end into each line that has it."""

    def __init__(self, default: str) -> None:
        super().__init__()
        self.default = default

    def leave_Newline(self, original_node: cst.Newline, updated_node: cst.Newline) -> cst.Newline:  # noqa: N802, ARG002 - libcst's
        """Set the line end."""
        if updated_node.value is None:
            return updated_node.with_changes(value=self.default)
        return updated_node


class _Reader(NamedTuple):
    """Makes units of statements. `shift` is added to the lines of `comments`."""

    module: cst.Module
    comments: Mapping[int, str]
    shift: int

    def units(self, body: Sequence[Statement], trees: Sequence[ast.stmt], indent: str, end: int) -> list[Unit]:
        """Return the units of a body up to the line `end`."""
        units: list[Unit] = []
        remaining = iter(trees)

        for node in body:
            size = len(node.body) if isinstance(node, cst.SimpleStatementLine) else 1
            group = list(islice(remaining, size))
            key, kind = _key_and_kind(node, first=node is body[0])
            last = group[-1].end_lineno or 0
            units.append(Unit(key, kind, node, group, indent, _first_line(group[0]), last))

        for unit, below in zip_longest(units, units[1:]):
            limit = end
            if below is not None:
                limit = below.first - len(below.node.leading_lines) - 1

            unit.comments = {
                line: self.comments[line - self.shift]
                for line in range(unit.first, limit + 1)
                if line - self.shift in self.comments
            }
            if isinstance(unit.tree, ast.ClassDef) and isinstance(unit.node.body, cst.IndentedBlock):
                inner = unit.node.body.indent
                inner = indent + (self.module.default_indent if inner is None else inner)
                unit.members = self.units(unit.node.body.body, unit.tree.body, inner, limit)

        return units


def _first_line(tree: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(tree, "decorator_list", [])
    return min([tree.lineno, *(decorator.lineno for decorator in decorators)])


def _key_and_kind(node: Statement, *, first: bool) -> tuple[str, UnitKind]:
    match node:
        case cst.FunctionDef():
            return _function_key(node), UnitKind.FUNCTION
        case cst.ClassDef():
            return node.name.value, UnitKind.CLASS
        case cst.If(test=cst.Comparison(left=cst.Name(value="__name__"))):
            return MAIN_GUARD, UnitKind.STATEMENT
        case cst.SimpleStatementLine(body=[cst.Import() | cst.ImportFrom()]):
            return "", UnitKind.IMPORT
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString())]) if first:
            return DOCSTRING, UnitKind.STATEMENT

    name = name_node(node)
    if name is None:
        return "", UnitKind.OTHER

    return name.value, UnitKind.STATEMENT


def _function_key(node: cst.FunctionDef) -> str:
    """Return the name, with a suffix for parts of a property and for overloads, which share their names."""
    for decorator in node.decorators:
        last = code_of(decorator.decorator).rpartition(".")[2]
        if last in {"setter", "deleter", "getter", "overload"}:
            return f"{node.name.value}.{last}"

    return node.name.value


def name_node(node: Statement) -> cst.Name | None:
    """Return the name that a definition or an assignment binds."""
    match node:
        case cst.FunctionDef(name=name) | cst.ClassDef(name=name):
            return name
        case cst.SimpleStatementLine(body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name() as name)])]):
            return name
        case cst.SimpleStatementLine(body=[cst.AnnAssign(target=cst.Name() as name)]):
            return name

    return None


def statement_of(code: str) -> Statement:
    """Parse one statement."""
    return cst.parse_statement(code)


# --- Full names


class NamedUnit(NamedTuple):
    """A definition by its full name (`load`, `Cart.total`), and the list and the class that hold it."""

    name: str
    unit: Unit
    siblings: list[Unit]
    home: Unit | None = None

    @property
    def last(self) -> str:
        """The name without its class."""
        return self.name.rpartition(".")[2]


def named_units(units: list[Unit]) -> list[NamedUnit]:
    """Return all definitions of a module and of its classes, in order. Parts of a property share one name."""
    named: list[NamedUnit] = []

    for unit in units:
        if unit.is_definition or unit.is_assignment:
            named.append(NamedUnit(unit.key.partition(".")[0], unit, units))

        for member in unit.members:
            if member.is_definition or member.is_assignment:
                named.append(NamedUnit(f"{unit.key}.{member.key.partition('.')[0]}", member, unit.members, unit))

    return named


def exchange(siblings: list[Unit], old: Unit, new: Unit) -> Unit:
    """Put a unit in the place of another one and return it."""
    siblings[siblings.index(old)] = new
    return new


# --- Comparison


def meaning(unit: Unit, like: Unit, *, texts: bool = True) -> str:
    """Return a text that is equal for equal code, without decorators if `like` has none, or without documentation."""
    has_extra_decorators = like.is_undecorated and isinstance(unit.tree, Function) and bool(unit.tree.decorator_list)
    if texts and not has_extra_decorators:
        return unit.meaning

    module = ast.Module(copy.deepcopy(list(unit.trees)), [])
    if has_extra_decorators and isinstance(module.body[0], Function):
        module.body[0].decorator_list = []
    if not texts:
        module = WithoutStrings().visit(module)

    return "\n".join(map(ast.dump, module.body))


def new_comments(old: Unit, new: Unit) -> set[str]:
    """Return the comments inside of `new` that `old` does not have."""
    comments = {comment for line, comment in new.comments.items() if line <= new.last}
    return comments.difference(old.comments.values())


def pair_units(olds: Sequence[Unit], news: Sequence[Unit]) -> tuple[list[tuple[Unit, Unit | None]], list[str]]:
    """Return each named unit of `news` with its namesake among `olds`, and the names that are ambiguous.

    Namesakes are paired in order if both sides have equally many. If a block repeats a unit beside its new form, the
    new form counts.
    """
    partners: dict[Unit, Unit | None] = {}
    ambiguous: list[str] = []
    old_by_key = _by_key(olds)

    for key, candidates in _by_key(news).items():
        old = old_by_key.get(key, [])
        if not key:
            continue
        if not old:
            partners.update(dict.fromkeys(candidates))
            continue

        if len(old) != len(candidates):
            old_meanings = {unit.meaning for unit in old}
            candidates = [unit for unit in candidates if unit.meaning not in old_meanings]  # noqa: PLW2901
            if len(candidates) > (len(old) == 1):
                ambiguous.append(key)
                continue

        partners.update(zip(candidates, old, strict=False))

    return [(unit, partners[unit]) for unit in news if unit in partners], ambiguous


def _by_key(units: Iterable[Unit]) -> dict[str, list[Unit]]:
    by_key: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        by_key[unit.key].append(unit)

    return by_key


def units_beyond(units: Sequence[Unit], others: Sequence[Unit]) -> list[Unit]:
    """Return the units with a meaning that they have more often than the others."""
    counts = Counter(unit.meaning for unit in others)
    counts.subtract(unit.meaning for unit in units)
    return [unit for unit in units if counts[unit.meaning] < 0]


# --- Layout


def moved_node(unit: Unit, indent: str) -> Statement:
    """Return the node for another indentation: the lines of its docstrings move with it."""
    if unit.indent == indent:
        return unit.node
    return unit.node.visit(_MovedDocstrings(unit.indent, indent))


class _MovedDocstrings(cst.CSTTransformer):
    """Indents the lines of strings that stand alone, which libcst leaves as they are."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__()
        self.old = old
        self.new = new

    def leave_Expr(self, original_node: cst.Expr, updated_node: cst.Expr) -> cst.Expr:  # noqa: N802, ARG002 - libcst's
        """Move the lines of a string."""
        string = updated_node.value
        if not isinstance(string, cst.SimpleString):
            return updated_node

        first, *lines = string.value.splitlines(keepends=True)
        moved = [first]
        for line in lines:
            if line.strip() and line.startswith(self.old):
                moved.append(self.new + line.removeprefix(self.old))
            else:
                moved.append(line)

        return updated_node.with_changes(value=string.with_changes(value="".join(moved)))


def split_leading_lines(node: Statement) -> tuple[list[cst.EmptyLine], list[cst.EmptyLine]]:
    """Return the lines above a statement up to the last blank one, and the comments directly above it."""
    lines = list(node.leading_lines)
    start = len(lines)
    while start and lines[start - 1].comment is not None:
        start -= 1

    return lines[:start], lines[start:]


def blank_lines_between(upper: Unit, lower: Unit, *, in_class: bool) -> list[cst.EmptyLine]:
    """Return the blank lines between two units of a module or a class. Source: PEP 8."""
    if upper.is_definition or lower.is_definition or MAIN_GUARD in {upper.key, lower.key}:
        return [BLANK] * (1 if in_class else 2)
    if upper.kind is not lower.kind or upper.key == DOCSTRING:
        return [BLANK]

    return []


def remove_unit(siblings: list[Unit], unit: Unit, home: Unit | None) -> None:
    """Remove a definition with the comments directly above it, and the smaller of the gaps around it.

    A class keeps `pass` in place of its only member.
    """
    index = siblings.index(unit)
    lines_above, _ = split_leading_lines(unit.node)

    if home is not None and len(siblings) == 1:
        node = statement_of("pass").with_changes(leading_lines=lines_above)
        siblings[0] = Unit("", UnitKind.OTHER, node, [ast.Pass()], unit.indent)
        return

    del siblings[index]
    if index == len(siblings):
        return

    below = siblings[index]
    lines_below = list(below.node.leading_lines)
    blank_below = list(takewhile(lambda line: line.comment is None, lines_below))
    if index == 0 or len(lines_above) > len(blank_below):
        lines = [*lines_above, *lines_below[len(blank_below) :]]
        siblings[index] = replace(below, node=below.node.with_changes(leading_lines=lines))
