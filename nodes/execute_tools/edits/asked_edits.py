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
from mendgraph.nodes.language.request import Request, module_of, read_request

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
    """The renames and deletions that the request adds to the merge."""

    renames: tuple[Rename, ...] = ()
    deletions: frozenset[str] = frozenset()


class Merged(NamedTuple):
    """The new text, the names that changed in it, and the statements of the block that were ignored.

    Of the request: the `deleted` names, the number of uses that were renamed, and where a deleted or renamed name is
    `still` used.
    """

    text: str
    changed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    renamed_uses: int = 0
    still: tuple[str, ...] = ()


def asked_edits(source: PythonText, block: PythonText, task: str, path: str, there: Collection[str] = ()) -> AskedEdits:
    """The deletions and renames that the task asks for and this block, for the file at `path`, carries out.

    A definition that is moved to another file goes where it is `there`, or the block says `del`, imports it, or has all
    other definitions of the file. What the block imports anew replaces the file's definition of the same name, where
    the task names it. A task about names renames what the block gives another name, with nothing else changed, where it
    names both.
    """
    request = read_request(task)
    new_names: dict[str, str] = {}
    if request.names and not request.creates:
        new_names = _renamed_in_block(source, block, task)

    renames: list[Rename] = []
    for old, new in {**new_names, **request.renames}.items():
        rename = _rename(source, block, old, new)
        if rename is not None:
            renames.append(rename)

    names = {unit.name for unit in named_units(source)}
    deletions = set(request.deletions(names, path)).difference(rename.name for rename in renames)
    unconfirmed = _unconfirmed_moves(source, block, request, deletions)
    deletions |= names & _new_imports(source, block) & set(re.findall(r"\w+", task))
    deletions -= _redefined(source, block, deletions) | unconfirmed

    return AskedEdits(tuple(renames), frozenset(deletions | names.intersection(there)))


def _unconfirmed_moves(source: PythonText, block: PythonText, request: Request, deletions: Collection[str]) -> set[str]:
    """The moves of the request that the block does not confirm: it mentions neither them nor some other definition."""
    in_block = {unit.name for unit in named_units(block)}
    mentioned = set(del_names(block.units))
    mentioned.update(alias.name.rpartition(".")[2] for _, alias in imports_of(block))

    for unit in named_units(source):
        if "." not in unit.name and unit.name not in deletions and unit.name not in in_block:
            return {move.name for move in request.moves if mentioned.isdisjoint({move.name, module_of(move.new)})}

    return set()


def _new_imports(source: PythonText, block: PythonText) -> set[str]:
    """The names that `from` imports of the block bind and no import of the file does."""
    names = {alias.asname or alias.name for node, alias in imports_of(block) if isinstance(node, ast.ImportFrom)}
    return names.difference(alias.asname or alias.name for _, alias in imports_of(source))


def _renamed_in_block(source: PythonText, block: PythonText, task: str) -> dict[str, str]:
    """The new names of definitions that the block repeats under another name, where the task names both."""
    words = set(re.findall(r"\w+", task))
    olds = named_units(source)
    news = named_units(block)
    old_names = {old.name for old in olds}
    new_names = {new.name for new in news}
    names: dict[str, str] = {}

    for old in olds:
        if old.name in new_names or old.last not in words:
            continue

        for new in news:
            if new.name in old_names or new.last not in words:
                continue
            if re.sub(rf"\b{old.last}\b", new.last, old.unit.meaning) == new.unit.meaning:
                names[old.last] = new.last

    return names


def definition_text(text: str, name: str) -> str:
    """All definitions of a name at the top of a text, with their comments, below the imports that they use; or ""."""
    code = read_python(to_unix(text))
    if isinstance(code, SyntaxProblem):
        return ""

    units = [named.unit for named in named_units(code) if named.name == name]
    if not units:
        return ""

    used_names: set[str] = set()
    lines: list[str] = []

    for unit in units:
        lines += code.lines[code.head(unit) - 1 : code.tail(unit)]
        for statement in unit.nodes:
            used_names.update(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))

    imports: list[str] = []
    for node, alias in imports_of(code):
        if (alias.asname or alias.name.partition(".")[0]) in used_names:
            imports.append(reduced_import(node, [alias]))

    return "\n".join([*imports, "", ""]) + "".join(lines)


def block_to_merge(block: PythonText, asked: AskedEdits) -> PythonText:
    """The block without the units that only delete a name: `del NAME`, and a definition without a body."""
    deleted = {name.rpartition(".")[2] for name in asked.deletions}
    units: list[Unit] = []

    for unit in block.units:
        names = del_names([unit])
        is_deletion = (bool(names) and deleted.issuperset(names)) or (unit.key in deleted and is_stub(unit.node))
        if not is_deletion:
            units.append(unit)

    return replace(block, units=tuple(units))


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
    still: list[str] = []
    deleted: list[str] = []

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

    for name in deleted:
        still += _still(text, name)

    return Merged(text, deleted=tuple(deleted), renamed_uses=count, still=tuple(still))


def del_names(units: Iterable[Unit]) -> list[str]:
    """The names that `del` statements among them delete."""
    names: list[str] = []

    for unit in units:
        for node in unit.nodes:
            if isinstance(node, ast.Delete):
                names += [target.id for target in node.targets if isinstance(target, ast.Name)]

    return names


def _redefined(source: PythonText, block: PythonText, names: Collection[str]) -> set[str]:
    """Those of the names that the block gives a new text, also as a method outside of its class."""
    old = {(unit.name, unit.unit.meaning) for unit in named_units(source)}
    defined: set[str] = set()
    without_class: set[str] = set()

    for unit in named_units(block):
        if (unit.name, unit.unit.meaning) in old or is_stub(unit.unit.node):
            continue

        defined.add(unit.name)
        if unit.home is None:
            without_class.add(unit.name)

    return {name for name in names if name in defined or ("." in name and name.rpartition(".")[2] in without_class)}


def _rename(source: PythonText, block: PythonText, old: str, new: str) -> Rename | None:
    """The rename of a definition, of a member of the one class that has any, or else of an import, by the block."""
    olds = named_units(source)
    news = named_units(block)
    matches = [unit for unit in olds if unit.name == old]
    if not matches:
        matches = [unit for unit in olds if unit.last == old]

    homes = {unit.home.key if unit.home else "" for unit in matches}
    if any(unit.last == old for unit in news) or len(homes) > 1:
        return None
    if not matches:
        return _renamed_import(source, block, old, new)

    names = {new}
    for home in homes:
        if home:
            names.add(f"{home}.{new}")

    is_defined = any(unit.name in names for unit in news)
    if not is_defined or any(unit.name in names for unit in olds):
        return None

    places = tuple((unit.unit.node.lineno, unit.unit.node.col_offset) for unit in matches)
    return Rename(matches[0].name, new, places)


def _renamed_import(source: PythonText, block: PythonText, old: str, new: str) -> Rename | None:
    matches: list[tuple[ast.ImportFrom, ast.alias]] = []
    bound = {unit.name for unit in named_units(source)}

    for node, alias in imports_of(source):
        bound.add(alias.asname or alias.name.partition(".")[0])
        if alias.name == old and isinstance(node, ast.ImportFrom):
            matches.append((node, alias))

    if len(matches) != 1 or new in bound:
        return None

    [(node, alias)] = matches
    is_used = any(imported.name == new for _, imported in imports_of(block)) or uses_of("".join(block.lines), new)
    if not is_used or node.module in sys.stdlib_module_names:
        return None

    return Rename(old, new, ((alias.lineno, alias.col_offset),))


def imports_of(text: PythonText) -> list[tuple[ast.Import | ast.ImportFrom, ast.alias]]:
    """What a text imports at its top, with the statements."""
    imports: list[tuple[ast.Import | ast.ImportFrom, ast.alias]] = []

    for unit in text.units:
        node = unit.node
        if unit.kind is UnitKind.IMPORT and isinstance(node, ast.Import | ast.ImportFrom):
            imports += [(node, alias) for alias in node.names]

    return imports


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
    if isinstance(tree, SyntaxProblem):
        return ()

    last = name.rpartition(".")[2]
    lines: set[int] = set()

    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and name in {node.name, node.asname}:
            return ()  # what it imports is another one

        if last != name:
            is_use = isinstance(node, ast.Attribute) and node.attr == last
        else:
            is_use = (isinstance(node, ast.Name) and node.id == name) or (
                isinstance(node, ast.Constant) and node.value == name
            )

        if is_use and isinstance(node, ast.expr):
            lines.add(node.end_lineno or node.lineno)

    return tuple(sorted(lines))


def _still(text: str, name: str) -> list[str]:
    lines = uses_of(text, name)
    if not lines:
        return []

    noun = "lines" if len(lines) > 1 else "line"
    return [f"{name.rpartition('.')[2]} at {noun} {', '.join(map(str, lines))}"]


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
            for constant in ast.walk(node.value):
                if isinstance(constant, ast.Constant) and constant.value == name:
                    yield constant.lineno, constant.col_offset + 1

    for number, line in enumerate(lines, start=1):
        if _EXAMPLE.match(line):
            for match in re.finditer(rf"(?<![\w.'\"]){name}(?![\w'\"])", line):
                yield number, match.start()


# --- What is deleted


def _without_definition(source: str, name: str) -> str | None:
    """The text without all definitions of this name; None where it has none.

    Decorators, and the comments directly above, go with a definition. A class that would be left without a body keeps
    `pass`. All other text is kept to the byte, but for the blank lines on one side of the gap.
    """
    shorter: str | None = None

    while True:
        text = read_python(source)
        if isinstance(text, SyntaxProblem):
            return shorter

        match = next((unit for unit in named_units(text) if unit.name == name), None)
        if match is None:
            return shorter

        shorter = apply_edits(text.lines, [_deletion(text, match)])
        source = shorter


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
