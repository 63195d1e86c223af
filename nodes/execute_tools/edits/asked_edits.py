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
    request = read_request(task)
    news = imports_of(block)
    pairs = {**(_given_names(source, block, task) if request.names and not request.creates else {}), **request.renames}
    renames = tuple(rename for old, new in pairs.items() if (rename := _rename(source, block, old, new)))
    names = {unit.name for unit in named_units(source)}
    names_to_delete = request.deletions(names, path) - {rename.name for rename in renames}
    mentioned = {*del_names(block.units), *(alias.name.rpartition(".")[2] for _, alias in news)}
    others = {name for name in names - names_to_delete if "." not in name} - {unit.name for unit in named_units(block)}
    unsaid = {move.name for move in request.moves if others and mentioned.isdisjoint({move.name, module_of(move.new)})}
    imported = {alias.asname or alias.name for node, alias in news if isinstance(node, ast.ImportFrom)}
    imported -= {alias.asname or alias.name for _, alias in imports_of(source)}
    names_to_delete |= names & imported & {*re.findall(r"\w+", task)}

    return AskedEdits(
        renames, frozenset(names_to_delete - _held(source, block, names_to_delete) - unsaid | names.intersection(there))
    )


def _given_names(source: PythonText, block: PythonText, task: str) -> dict[str, str]:
    olds = named_units(source)
    news = named_units(block)
    words = {*re.findall(r"\w+", task)}
    old_names = {old.name for old in olds}
    new_names = {new.name for new in news}
    lost = [old for old in olds if old.name not in new_names and old.last in words]
    added = [new for new in news if new.name not in old_names and new.last in words]

    return {
        unit.last: new.last
        for unit in lost
        for new in added
        if re.sub(rf"\b{unit.last}\b", new.last, unit.unit.meaning) == new.unit.meaning
    }


def definition_text(text: str, name: str) -> str:
    """All definitions of a name at the top of a text, with their comments, below the imports that they use; or ""."""
    code = read_python(to_unix(text))
    if isinstance(code, SyntaxProblem):
        units = []
    else:
        units = [unit.unit for unit in named_units(code) if unit.name == name]

    if isinstance(code, SyntaxProblem) or not units:
        return ""

    name_ids = {
        node.id
        for unit in units
        for unit_node in unit.nodes
        for node in ast.walk(unit_node)
        if isinstance(node, ast.Name)
    }
    needed_imports = (
        (node, alias) for node, alias in imports_of(code) if (alias.asname or alias.name.partition(".")[0]) in name_ids
    )
    lines = (line for unit in units for line in code.lines[code.head(unit) - 1 : code.tail(unit)])

    return "\n".join([*(reduced_import(node, [alias]) for node, alias in needed_imports), "", ""]) + "".join(lines)


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
            head = line[:column].decode()
            tail = line[column:].decode()
            lines[number - 1] = head + re.sub(rf"\b{re.escape(rename.old)}\b", rename.new, tail, count=1)

    renamed = read_python("".join(lines))
    if isinstance(renamed, SyntaxProblem):
        return source

    return renamed


def carry_out(text: str, asked: AskedEdits) -> Merged:
    """Rename the uses and delete the definitions in the merged text."""
    count = 0
    still = []
    deleted = []

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

    still += (remaining_use for name in deleted for remaining_use in _still(text, name))
    return Merged(text, deleted=tuple(deleted), renamed_uses=count, still=tuple(still))


def del_names(units: Iterable[Unit]) -> list[str]:
    """The names that `del` statements among them delete."""
    nodes = (node for unit in units for node in unit.nodes if isinstance(node, ast.Delete))
    return [target.id for node in nodes for target in node.targets if isinstance(target, ast.Name)]


def _held(source: PythonText, block: PythonText, asked: Collection[str]) -> set[str]:
    """Those of the names that the block gives a new text, be it as a method outside of its class."""
    old = {(unit.name, unit.unit.meaning) for unit in named_units(source)}
    new_units = (unit for unit in named_units(block) if (unit.name, unit.unit.meaning) not in old)
    units = [named for named in new_units if not is_stub(named.unit.node)]
    full = {unit.name for unit in units}
    alone = {unit.name for unit in units if unit.home is None}

    return {name for name in asked if name in full or ("." in name and name.rpartition(".")[2] in alone)}


def _rename(source: PythonText, block: PythonText, old: str, new: str) -> Rename | None:
    """A definition, a member of the one class that has any, or else an import, which the block calls anew."""
    olds = named_units(source)
    news = named_units(block)
    matches = [unit for unit in olds if unit.name == old] or [candidate for candidate in olds if candidate.last == old]
    homes = {unit.home.key if unit.home else "" for unit in matches}

    if any(unit.last == old for unit in news) or len(homes) > 1:
        return None
    if not matches:
        return _renamed_import(source, block, old, new)

    names = {f"{home}.{new}" for home in homes if home} | {new}
    is_defined = any(unit.name in names for unit in news)
    if not is_defined or any(unit.name in names for unit in olds):
        return None

    return Rename(matches[0].name, new, tuple((unit.unit.node.lineno, unit.unit.node.col_offset) for unit in matches))


def _renamed_import(source: PythonText, block: PythonText, old: str, new: str) -> Rename | None:
    imports = imports_of(source)
    matches = [(node, alias) for node, alias in imports if alias.name == old and isinstance(node, ast.ImportFrom)]
    bound = {alias.asname or alias.name.partition(".")[0] for _, alias in imports}

    if len(matches) != 1 or new in bound | {unit.name for unit in named_units(source)}:
        return None

    [(node, alias)] = matches
    is_given = any(alias.name == new for _, alias in imports_of(block)) or uses_of("".join(block.lines), new)
    if not is_given or getattr(node, "module", "") in sys.stdlib_module_names:
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
    tree = parse(source)
    lines = lines_of(source)
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
    matches = (
        node for node in nodes if isinstance(node, kinds) and last in [getattr(node, field, "") for field in fields]
    )

    return tuple(sorted({node.end_lineno or node.lineno for node in matches}))


def _still(text: str, name: str) -> list[str]:
    lines = uses_of(text, name)
    listed = ", ".join(map(str, lines))
    if lines:
        return [f"{name.rpartition('.')[2]} at line{'s' * (len(lines) > 1)} {listed}"]

    return []


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
            listed = (
                constant
                for constant in ast.walk(node.value)
                if isinstance(constant, ast.Constant) and constant.value == name
            )
            yield from ((constant.lineno, constant.col_offset + 1) for constant in listed)

    for number, line in enumerate(lines, start=1):
        if _EXAMPLE.match(line):
            yield from ((number, match.start()) for match in re.finditer(rf"(?<![\w.'\"]){name}(?![\w'\"])", line))


# --- What is deleted


def _without_definition(source: str, name: str) -> str | None:
    """The text without all definitions of this name; None where it has none.

    Decorators, and the comments directly above, go with a definition. A class that would be left without a body keeps
    `pass`. The rest is kept to the byte, but for the blank lines on one side of the gap.
    """
    shorter: str | None = None

    while True:
        text = read_python(source)
        if isinstance(text, SyntaxProblem):
            matches = []
        else:
            matches = [unit for unit in named_units(text) if unit.name == name]

        if isinstance(text, SyntaxProblem) or not matches:
            return shorter

        source = shorter = apply_edits(text.lines, [_deletion(text, matches[0])])


def _deletion(text: PythonText, named: NamedUnit) -> LineEdit:
    """The lines of a definition, and the smaller of the gaps around it."""
    first = text.head(named.unit)
    last = text.tail(named.unit)
    if named.home is not None and len(text.members(named.home)) == 1:
        newline = "\r\n" if text.lines[0].endswith("\r\n") else "\n"
        return LineEdit(first - 1, last, (f"{named.unit.indent}pass{newline}",))

    above = _blank(reversed(text.lines[: first - 1]))
    below = _blank(text.lines[last:])
    opens = named.home is not None and text.members(named.home)[0].first == named.unit.first
    at_end = last + below == len(text.lines)
    at_start = opens or first - above == 1

    if at_end or (above < below and not at_start):
        return LineEdit(first - 1 - above, last, ())

    return LineEdit(first - 1, last + below, ())


def _blank(lines: Iterable[str]) -> int:
    return sum(1 for _ in takewhile(lambda line: not line.strip(), lines))
