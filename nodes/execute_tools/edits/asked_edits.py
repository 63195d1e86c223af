"""What a request asks for in a Python file beside the merge of a block: definitions are renamed or deleted. Pure."""

import ast
import builtins
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.losses import is_stub
from mendgraph.nodes.execute_tools.edits.python_text import (
    LineEdit,
    NamedUnit,
    PythonText,
    SyntaxProblem,
    Unit,
    UnitKind,
    apply_edits,
    lines_of,
    named_units,
    parse,
    read_python,
    reduced_import,
)
from mendgraph.nodes.execute_tools.files.text_files import to_unix
from mendgraph.nodes.language.request import module_of, read_request

_BUILTINS: Final = frozenset(dir(builtins))
_EXAMPLE: Final = re.compile(r"\s*(?:>>>|\.\.\.)[ \t]")


class Rename(NamedTuple):
    """A definition or import by its full name, its new last name, and the line and byte where its statement begins."""

    name: str
    new: str
    places: tuple[tuple[int, int], ...]

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
    changed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    renamed_uses: int = 0
    still: tuple[str, ...] = ()


def asked_edits(source: PythonText, block: PythonText, task: str, path: str, there: Collection[str] = ()) -> AskedEdits:
    """The deletions and renames that the task asks for and this block, for the file at `path`, carries out.

    What is moved to another file goes where it is `there`, or the block says `del`, imports it, or has all the rest of
    the file. What the block imports anew takes the place of the file's own, where the task speaks of it. A task about
    names renames what the block gives another name, with nothing else changed, where it speaks of both.
    """
    request, news = read_request(task), imports_of(block)
    pairs = {**(_given_names(source, block, task) if request.names and not request.creates else {}), **request.renames}
    renames = tuple(each for old, new in pairs.items() if (each := _rename(source, block, old, new)))
    names = {each.name for each in named_units(source)}
    asked = request.deletions(names, path) - {rename.name for rename in renames}
    said = {*del_names(block.units), *(alias.name.rpartition(".")[2] for _, alias in news)}
    rest = {name for name in names - asked if "." not in name} - {each.name for each in named_units(block)}
    unsaid = {each.name for each in request.moves if rest and said.isdisjoint({each.name, module_of(each.new)})}
    taken = {alias.asname or alias.name for node, alias in news if isinstance(node, ast.ImportFrom)}
    taken -= {alias.asname or alias.name for _, alias in imports_of(source)}
    asked |= names & taken & {*re.findall(r"\w+", task)}
    return AskedEdits(renames, frozenset(asked - _held(source, block, asked) - unsaid | names.intersection(there)))


def _given_names(source: PythonText, block: PythonText, task: str) -> dict[str, str]:
    olds, news = named_units(source), named_units(block)
    words, known, given = {*re.findall(r"\w+", task)}, {each.name for each in olds}, {each.name for each in news}
    lost = [each for each in olds if each.name not in given and each.last in words]
    added = [each for each in news if each.name not in known and each.last in words]
    return {
        each.last: new.last
        for each in lost
        for new in added
        if re.sub(rf"\b{each.last}\b", new.last, each.unit.meaning) == new.unit.meaning
    }


def definition_text(text: str, name: str) -> str:
    """All definitions of a name at the top of a text, with their comments, below the imports that they use; or ""."""
    code = read_python(to_unix(text))
    units = [] if isinstance(code, SyntaxProblem) else [each.unit for each in named_units(code) if each.name == name]
    if isinstance(code, SyntaxProblem) or not units:
        return ""
    used = {node.id for unit in units for each in unit.nodes for node in ast.walk(each) if isinstance(node, ast.Name)}
    own = ((node, alias) for node, alias in imports_of(code) if (alias.asname or alias.name.partition(".")[0]) in used)
    lines = (line for unit in units for line in code.lines[code.head(unit) - 1 : code.tail(unit)])
    return "\n".join([*(reduced_import(node, [alias]) for node, alias in own), "", ""]) + "".join(lines)


def block_to_merge(block: PythonText, asked: AskedEdits) -> PythonText:
    """The block without what only says that a name is to go: `del NAME`, and a definition without a body."""
    lasts = {name.rpartition(".")[2] for name in asked.deletions}

    def says_it(unit: Unit) -> bool:
        dels = del_names([unit])
        return (unit.key in lasts and is_stub(unit.node)) or (bool(dels) and lasts.issuperset(dels))

    return replace(block, units=tuple(unit for unit in block.units if not says_it(unit)))


def with_new_names(source: PythonText, asked: AskedEdits) -> PythonText:
    """The file with the definitions, though not yet their uses, under their new names."""
    lines = list(source.lines)
    for rename in asked.renames:
        for number, column in rename.places:
            line = lines[number - 1].encode()
            head, rest = line[:column].decode(), line[column:].decode()
            lines[number - 1] = head + re.sub(rf"\b{re.escape(rename.old)}\b", rename.new, rest, count=1)
    renamed = read_python("".join(lines))
    return source if isinstance(renamed, SyntaxProblem) else renamed


def carry_out(text: str, asked: AskedEdits) -> Merged:
    """Rename the uses and delete the definitions in the merged text."""
    count, still, deleted = 0, [], []
    for rename in asked.renames:
        if "." not in rename.name:
            text, renamed = rename_uses(text, rename.old, rename.new)
            count += renamed
        still += _still(text, rename.name)
    for name in sorted(asked.deletions):
        shorter = _without_definition(text, name)
        if shorter is not None:
            text = shorter
            deleted.append(name)
    still += (each for name in deleted for each in _still(text, name))
    return Merged(text, deleted=tuple(deleted), renamed_uses=count, still=tuple(still))


def del_names(units: Iterable[Unit]) -> list[str]:
    """The names that `del` statements among them delete."""
    nodes = (node for unit in units for node in unit.nodes if isinstance(node, ast.Delete))
    return [target.id for node in nodes for target in node.targets if isinstance(target, ast.Name)]


def _held(source: PythonText, block: PythonText, asked: Collection[str]) -> set[str]:
    """Those of the names that the block gives a new text, be it as a method outside of its class."""
    old = {(each.name, each.unit.meaning) for each in named_units(source)}
    given = (each for each in named_units(block) if (each.name, each.unit.meaning) not in old)
    units = [each for each in given if not is_stub(each.unit.node)]
    full, alone = {each.name for each in units}, {each.name for each in units if each.home is None}
    return {name for name in asked if name in full or ("." in name and name.rpartition(".")[2] in alone)}


def _rename(source: PythonText, block: PythonText, old: str, new: str) -> Rename | None:
    """A definition, a member of the one class that has any, or else an import, which the block calls anew."""
    olds, news = named_units(source), named_units(block)
    found = [each for each in olds if each.name == old] or [each for each in olds if each.last == old]
    homes = {each.home.key if each.home else "" for each in found}
    if any(each.last == old for each in news) or len(homes) > 1:
        return None
    if not found:
        return _renamed_import(source, block, old, new)
    names = {f"{home}.{new}" for home in homes if home} | {new}
    given = any(each.name in names for each in news)
    if not given or any(each.name in names for each in olds):
        return None
    return Rename(found[0].name, new, tuple((each.unit.node.lineno, each.unit.node.col_offset) for each in found))


def _renamed_import(source: PythonText, block: PythonText, old: str, new: str) -> Rename | None:
    known = imports_of(source)
    found = [(node, alias) for node, alias in known if alias.name == old and isinstance(node, ast.ImportFrom)]
    bound = {alias.asname or alias.name.partition(".")[0] for _, alias in known}
    if len(found) != 1 or new in bound | {each.name for each in named_units(source)}:
        return None
    [(node, alias)] = found
    given = any(alias.name == new for _, alias in imports_of(block)) or uses_of("".join(block.lines), new)
    if not given or getattr(node, "module", "") in sys.stdlib_module_names:
        return None
    return Rename(old, new, ((alias.lineno, alias.col_offset),))


def imports_of(text: PythonText) -> list[tuple[ast.Import | ast.ImportFrom, ast.alias]]:
    """What a text imports at its top, with the statements."""
    nodes = (unit.node for unit in text.units if unit.kind is UnitKind.IMPORT)
    return [(node, alias) for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]


# --- Uses of a name


def rename_uses(source: str, old: str, new: str) -> tuple[str, int]:
    """Rename what uses a definition that was renamed from `old` to `new` before; and how many uses these are.

    Uses are certain where nothing in the file is called `old` any more, and `new` once: then the bare name, the entry
    in `__all__` and the examples in docstrings are renamed. Other strings, and attributes, may be something else.
    """
    tree, lines = parse(source), lines_of(source)
    if isinstance(tree, SyntaxProblem) or old in _BUILTINS or any(_binds(node, old) for node in ast.walk(tree)):
        return source, 0
    if sum(_binds(node, new) for node in ast.walk(tree)) != 1:
        return source, 0
    places = {(line, at) for line, at in _use_places(tree, lines, old) if lines[line - 1].startswith(old, at)}
    for line, start in sorted(places, reverse=True):
        lines[line - 1] = lines[line - 1][:start] + new + lines[line - 1][start + len(old) :]
    return "".join(lines), len(places)


def uses_of(source: str, name: str) -> tuple[int, ...]:
    """The lines of a Python text on which a bare name, or a whole string, is called so; of `A.b`, an attribute `b`."""
    tree = parse(source)
    nodes = [] if isinstance(tree, SyntaxProblem) else [*ast.walk(tree)]
    if any(isinstance(node, ast.alias) and name in {node.name, node.asname} for node in nodes):
        return ()  # what it imports is another one
    last = name.rpartition(".")[2]
    kinds: tuple[type[ast.expr], ...] = (ast.Attribute,) if last != name else (ast.Name, ast.Constant)
    fields = ("id", "attr", "value")
    found = (node for node in nodes if isinstance(node, kinds) and last in [getattr(node, each, "") for each in fields])
    return tuple(sorted({node.end_lineno or node.lineno for node in found}))


def _still(text: str, name: str) -> list[str]:
    lines = uses_of(text, name)
    listed = ", ".join(map(str, lines))
    return [f"{name.rpartition('.')[2]} at line{'s' * (len(lines) > 1)} {listed}"] if lines else []


def _binds(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name(ctx=ast.Load()) | ast.Attribute() | ast.keyword() | ast.Constant():
            return False
        case ast.alias():
            return (node.asname or node.name).partition(".")[0] in {name, "*"}
        case _:
            values = (value for _, value in ast.iter_fields(node))
            return any(value == name or (isinstance(value, list) and name in value) for value in values)


def _use_places(tree: ast.Module, lines: list[str], name: str) -> Iterator[tuple[int, int]]:
    """Line and column of what may be the name; before Python 3.12 the columns inside of an f-string mean nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name:
            yield node.lineno, len(lines[node.lineno - 1].encode()[: node.col_offset].decode(errors="replace"))
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            listed = (each for each in ast.walk(node.value) if isinstance(each, ast.Constant) and each.value == name)
            yield from ((each.lineno, each.col_offset + 1) for each in listed)
    for number, line in enumerate(lines, start=1):
        if _EXAMPLE.match(line):
            yield from ((number, found.start()) for found in re.finditer(rf"(?<![\w.'\"]){name}(?![\w'\"])", line))


# --- What is deleted


def _without_definition(source: str, name: str) -> str | None:
    """The text without all definitions of this name; None where it has none.

    Decorators, and the comments directly above, go with a definition. A class that would be left without a body keeps
    `pass`. The rest is kept to the byte, but for the blank lines on one side of the gap.
    """
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
        newline = "\r\n" if text.lines[0].endswith("\r\n") else "\n"
        return LineEdit(first - 1, last, (f"{named.unit.indent}pass{newline}",))
    above, below = _blank(reversed(text.lines[: first - 1])), _blank(text.lines[last:])
    opens = named.home is not None and text.members(named.home)[0].first == named.unit.first
    at_end, at_start = last + below == len(text.lines), opens or first - above == 1
    if at_end or (above < below and not at_start):
        return LineEdit(first - 1 - above, last, ())
    return LineEdit(first - 1, last + below, ())


def _blank(lines: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda line: not line.strip(), lines))
