"""What a request asks for beside the merge of a block: definitions are renamed or deleted, with certain uses. Pure."""

import ast
import builtins
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.left_out import is_stub
from mendgraph.nodes.execute_tools.edits.python_text import (
    Function,
    LineEdit,
    NamedUnit,
    PythonText,
    SyntaxProblem,
    Unit,
    UnitKind,
    apply_edits,
    imported_names,
    lines_of,
    named_units,
    parse,
    read_python,
    reduced_import,
)
from mendgraph.nodes.execute_tools.edits.request import read_request

_BUILTINS: Final = frozenset(dir(builtins))
_EXAMPLE: Final = re.compile(r"\s*(?:>>>|\.\.\.)[ \t]")


class Place(NamedTuple):
    """A stretch of one line: its number from 1, and columns in characters from 0."""

    line: int
    start: int
    end: int


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
        still += _name_at_lines(rename.old, left)
    text, deleted = delete_names(text, asked.deletions)
    for name in deleted:
        last = name.rpartition(".")[2]
        still += _name_at_lines(last, attribute_lines(text, last) if "." in name else bare_uses(text, last))
    return Merged(text, (), (), deleted, count, tuple(still))


def deleted_in(block: PythonText) -> list[str]:
    """The names that the block says to delete."""
    return [name for unit in block.units for name in _del_names(unit)]


def _name_at_lines(name: str, lines: Collection[int]) -> list[str]:
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


# --- Uses of a name


def replace_places(lines: Iterable[str], places: Iterable[Place], new: str) -> str:
    """The lines joined, with `new` at each of these places, which do not overlap."""
    told = list(lines)
    for line, start, end in sorted(set(places), reverse=True):
        told[line - 1] = told[line - 1][:start] + new + told[line - 1][end:]
    return "".join(told)


def place_of_name(text: PythonText, unit: Unit) -> Place | None:
    """Where the name of a function, class or assignment stands; None for another unit."""
    node = unit.node
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            line = text.lines[node.lineno - 1]
            found = re.compile(rf"(?:def|class)\s+({re.escape(node.name)})\b").search(line, len(unit.indent))
            return Place(node.lineno, *found.span(1)) if found else None
        case ast.Assign(targets=[ast.Name() as target]) | ast.AnnAssign(target=ast.Name() as target):
            return _place(text.lines, target)
        case _:
            return None


def rename_uses(source: str, old: str, new: str) -> tuple[str, int, tuple[int, ...]]:
    """Rename what uses a definition that was renamed from `old` to `new` before; `source` parses.

    Gives the text, how many uses were renamed, and on which lines the old name is left.

    Uses are certain where nothing in the file is called `old` any more, and `new` once, at the top: then the bare
    name, the entry in `__all__`, an annotation in quotes and the examples in docstrings are renamed. Strings and
    attributes of that name may be something else, and are only told, as all is where it is not certain.
    """
    tree, lines = parse(source), lines_of(source)
    if isinstance(tree, SyntaxProblem):
        return source, 0, ()
    if not _is_certain(tree, old, new):
        return source, 0, _left(tree, old)
    places = {*_name_places(tree, lines, old), *_quoted_places(tree, lines, old), *_example_places(tree, lines, old)}
    text = replace_places(lines, places, new)
    after = parse(text)
    if isinstance(after, SyntaxProblem) or _count(after, new) != _count(tree, new) + _count(tree, old):
        return source, 0, _left(tree, old)
    return text, len(places), _left(after, old)


def attribute_lines(source: str, name: str) -> tuple[int, ...]:
    """The lines on which something is used as an attribute of this name."""
    tree = parse(source)
    nodes = [] if isinstance(tree, SyntaxProblem) else ast.walk(tree)
    uses = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr == name]
    return tuple(sorted({node.end_lineno or node.lineno for node in uses}))


def _place(lines: Sequence[str], node: ast.expr) -> Place:
    """The place of an expression on one line, in characters where the parser counts bytes."""
    line = lines[node.lineno - 1].encode()
    start, end = (len(line[:column].decode()) for column in (node.col_offset, node.end_col_offset))
    return Place(node.lineno, start, end)


def _is_certain(tree: ast.Module, old: str, new: str) -> bool:
    """Whether every use of the bare old name means what is bound, once, under the new one."""
    bound = list(_bindings(tree))
    return old not in _BUILTINS and old not in bound and "*" not in bound and bound.count(new) == 1


def _bindings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.alias(name=name, asname=None):
                yield name.partition(".")[0]
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
            case _:
                pass


def _count(tree: ast.AST, name: str) -> int:
    return sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def bare_uses(source: str, name: str) -> tuple[int, ...]:
    """The lines of a Python text on which a bare name, or a whole string, is called so."""
    tree = parse(source)
    return () if isinstance(tree, SyntaxProblem) else _left(tree, name)


def _left(tree: ast.Module, name: str) -> tuple[int, ...]:
    names = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name}
    strings = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value == name}
    return tuple(sorted(names | strings))


# --- Where the uses stand


def _name_places(tree: ast.Module, lines: Sequence[str], name: str) -> Iterator[Place]:
    """Bare names. Inside of an f-string the parser's columns mean nothing, so there the words are looked for.

    Where these words are also text, none of them is given, and so too few places come out of it.
    """
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and _count(node, name)]
    inside = {id(inner) for node in formatted for inner in ast.walk(node)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    plain = {_place(lines, node) for node in names if id(node) not in inside}
    yield from plain
    numbers = {number for node in formatted for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    words = set(_word_places(lines, numbers, name)) - plain
    if len(words) == sum(id(node) in inside for node in names):
        yield from words


def _quoted_places(tree: ast.Module, lines: Sequence[str], name: str) -> Iterator[Place]:
    for node in ast.walk(tree):
        within: list[ast.expr | None] = []
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                within = list(value.elts) if isinstance(value, ast.List | ast.Tuple) else []
            case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation):
                within = [annotation]
            case ast.FunctionDef(returns=annotation) | ast.AsyncFunctionDef(returns=annotation):
                within = [annotation]
            case _:
                pass
        for each in within:
            if isinstance(each, ast.Constant) and each.value == name:
                yield from _word_places(lines, range(each.lineno, each.lineno + 1), name, quoted=True)


def _example_places(tree: ast.Module, lines: Sequence[str], name: str) -> Iterator[Place]:
    for node in ast.walk(tree):
        body = node.body if isinstance(node, Function | ast.ClassDef | ast.Module) else []
        match body:
            case [ast.Expr(value=ast.Constant(value=str())) as docstring, *_]:
                told = range(docstring.lineno, (docstring.end_lineno or 0) + 1)
                yield from _word_places(lines, (at for at in told if _EXAMPLE.match(lines[at - 1])), name)
            case _:
                pass


def _word_places(lines: Sequence[str], numbers: Iterable[int], name: str, *, quoted: bool = False) -> Iterator[Place]:
    """Where the word stands on these lines, and not as an attribute; `quoted` if it is all of a string."""
    before, after = ("(?<=['\"])", "(?=['\"])") if quoted else (r"(?<![\w.'\"])", r"(?![\w'\"])")
    word = re.compile(f"{before}{re.escape(name)}{after}")
    for number in numbers:
        for found in word.finditer(lines[number - 1]):
            yield Place(number, *found.span())


def delete_names(source: str, names: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """The text without the definitions of these names (`load`, `Cart.total`), and which of them it had.

    Imports of them that nothing uses any more go as well; decorators, and the comments directly above, go with a
    definition. A class that would be left without a body keeps `pass`. The rest is kept to the byte, but for the blank
    lines on one side of the gap.
    """
    deleted: list[str] = []
    for name in sorted(names):
        shorter = _without_definition(source, name)
        if shorter is None:
            shorter = _without_import(source, name)
        if shorter is not None:
            source = shorter
            deleted.append(name)
    return source, tuple(deleted)


def _without_definition(source: str, name: str) -> str | None:
    """The text without all definitions of this name; None where it has none."""
    shorter: str | None = None
    while True:
        text = read_python(source)
        found = [] if isinstance(text, SyntaxProblem) else [each for each in named_units(text) if each.name == name]
        if isinstance(text, SyntaxProblem) or not found:
            return shorter
        source = shorter = apply_edits(text.lines, [_deletion(text, found[0])])


def _deletion(text: PythonText, named: NamedUnit) -> LineEdit:
    """The lines of a definition, and the smaller of the gaps around it."""
    first, last = text.head(named.unit), text.tail(named.unit)
    if named.home is not None and len(text.members(named.home)) == 1:
        newline = _newline(text, last)
        return LineEdit(first - 1, last, (f"{named.unit.indent}pass{newline}",))
    above, below = _blank(reversed(text.lines[: first - 1])), _blank(text.lines[last:])
    opens = named.home is not None and text.members(named.home)[0].first == named.unit.first
    at_end, at_start = last + below == len(text.lines), opens or first - above == 1
    if at_end or (above < below and not at_start):
        return LineEdit(first - 1 - above, last, ())
    return LineEdit(first - 1, last + below, ())


def _newline(text: PythonText, line: int) -> str:
    return "\r\n" if text.lines[line - 1].endswith("\r\n") else "\n"


def _blank(lines: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda line: not line.strip(), lines))


def _without_import(source: str, name: str) -> str | None:
    """The text without this import; None where the name is used, or the statement has comments that would be lost."""
    text = read_python(source)
    if isinstance(text, SyntaxProblem) or bare_uses(source, name):
        return None
    found = [each for each in imported_names(text) if each.name == name]
    if len(found) != 1:
        return None
    [imported] = found
    lines = range(imported.unit.first, imported.unit.last + 1)
    rest = [alias for alias in imported.node.names if alias is not imported.alias]
    if rest and any(number in text.comments for number in lines):
        return None
    ended = (reduced_import(imported.node, rest) + _newline(text, imported.unit.last),) if rest else ()
    return apply_edits(text.lines, [LineEdit(lines.start - 1, lines.stop - 1, ended)])
