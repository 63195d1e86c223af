"""Renames and deletions of Python definitions that a request asks for beside the merge of a block. Pure."""

import ast
import builtins
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import libcst as cst

from mendgraph.nodes.execute_tools.edits.imports import ImportedName, imported_names, imports_of, reduced_import
from mendgraph.nodes.execute_tools.edits.losses import is_stub
from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem, parse
from mendgraph.nodes.execute_tools.edits.units import (
    NamedUnit,
    PythonSource,
    Statement,
    Unit,
    UnitKind,
    code_of,
    exchange,
    name_node,
    read_units,
    remove_unit,
)
from mendgraph.nodes.language.request import Request, module_of, read_request
from mendgraph.nodes.workspace.files.text_files import to_unix

_BUILTINS: Final = frozenset(dir(builtins))
_EXAMPLE: Final = re.compile(r"\s*(?:>>>|\.\.\.)[ \t]")


class Rename(NamedTuple):
    """A new last name for a definition or an imported name; `name` is the full old one."""

    name: str
    new: str
    units: tuple[NamedUnit, ...] = ()
    imported: ImportedName | None = None

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
    """The renames and deletions that the request adds to a merge."""

    renames: tuple[Rename, ...] = ()
    deletions: frozenset[str] = frozenset()


class Merged(NamedTuple):
    """The new text, the names that changed in it, and the statements of the block that were ignored.

    `deleted` are the names that were deleted because the request says so.
    """

    text: str
    changed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()


def asked_edits(
    source: PythonSource, block: PythonSource, task: str, path: str, there: Collection[str] = ()
) -> AskedEdits:
    """Return the deletions and renames that the task asks for and that this block for the file at `path` carries out.

    A definition that is moved to another file is deleted if it is `there`, or if the block deletes or imports it or
    holds all other definitions of the file. A new import of the block replaces the definition of the same name if the
    task names it. A definition that the block repeats under another name is renamed if the task names both.
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

    names = source.names
    deletions = set(request.deletions(names, path)).difference(rename.name for rename in renames)
    unconfirmed = _unconfirmed_moves(source, block, request, deletions)
    deletions |= names & _new_imports(source, block) & set(re.findall(r"\w+", task))
    deletions -= _redefined(source, block, deletions) | unconfirmed

    return AskedEdits(tuple(renames), frozenset(deletions | names.intersection(there)))


def _unconfirmed_moves(
    source: PythonSource, block: PythonSource, request: Request, deletions: Collection[str]
) -> set[str]:
    """Return the moves that the block does not mention, unless it holds all definitions that stay."""
    mentioned = set(del_names(block.units))
    mentioned.update(imported.alias.name.rpartition(".")[2] for imported in imports_of(block.units))

    for name in source.names - block.names:
        if "." not in name and name not in deletions:
            return {move.name for move in request.moves if mentioned.isdisjoint({move.name, module_of(move.new)})}

    return set()


def _new_imports(source: PythonSource, block: PythonSource) -> set[str]:
    """Return the names that `from` imports of the block bind and no import of the file binds."""
    names: set[str] = set()
    for imported in imports_of(block.units):
        if isinstance(imported.node, ast.ImportFrom):
            names.add(imported.bound)

    return names - imported_names(source.units)


def _renamed_in_block(source: PythonSource, block: PythonSource, task: str) -> dict[str, str]:
    """Return the new names of definitions that the block repeats under another name, if the task names both."""
    words = set(re.findall(r"\w+", task))
    names: dict[str, str] = {}

    for old in source.named:
        if old.name in block.names or old.last not in words:
            continue

        for new in block.named:
            if new.name in source.names or new.last not in words:
                continue
            if re.sub(rf"\b{old.last}\b", new.last, old.unit.meaning) == new.unit.meaning:
                names[old.last] = new.last

    return names


def _redefined(source: PythonSource, block: PythonSource, names: Collection[str]) -> set[str]:
    """Return those of the names that the block gives a new text, also as a method outside of its class."""
    old = {(named.name, named.unit.meaning) for named in source.named if named.last in _lasts(names)}
    redefined: set[str] = set()

    for named in block.named:
        if (named.name, named.unit.meaning) in old or is_stub(named.unit.tree):
            continue

        for name in names:
            if name == named.name or (named.home is None and name.endswith(f".{named.name}")):
                redefined.add(name)

    return redefined


def _lasts(names: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in names}


def _rename(source: PythonSource, block: PythonSource, old: str, new: str) -> Rename | None:
    """Return the rename of a definition, of a member of the only class that has it, or of an import."""
    matches = [named for named in source.named if named.name == old]
    if not matches:
        matches = [named for named in source.named if named.last == old]

    prefixes = {named.name.removesuffix(named.last) for named in matches}
    if old in _lasts(block.names) or len(prefixes) > 1:
        return None
    if not matches:
        return _renamed_import(source, block, old, new)

    names = {new, *(prefix + new for prefix in prefixes)}
    if names.isdisjoint(block.names) or not names.isdisjoint(source.names):
        return None

    return Rename(matches[0].name, new, tuple(matches))


def _renamed_import(source: PythonSource, block: PythonSource, old: str, new: str) -> Rename | None:
    matches = [imported for imported in imports_of(source.units) if imported.alias.name == old]
    if len(matches) != 1 or new in source.names | imported_names(source.units):
        return None

    [imported] = matches
    if not isinstance(imported.node, ast.ImportFrom) or imported.node.module in sys.stdlib_module_names:
        return None

    is_imported = any(other.alias.name == new for other in imports_of(block.units))
    if not is_imported and not re.search(rf"\b{new}\b", "\n".join(block.lines)):
        return None

    return Rename(old, new, imported=imported)


def rename_definitions(source: PythonSource, renames: Iterable[Rename]) -> None:
    """Give the definitions and imports, though not yet their uses, their new names."""
    for rename in renames:
        name = cst.Name(rename.new)

        for named in rename.units:
            old_name = name_node(named.unit.node)
            if old_name is not None:
                key = named.unit.key.replace(rename.old, rename.new, 1)
                node = named.unit.node.deep_replace(old_name, name)
                exchange(named.siblings, named.unit, _with_node(named.unit, node, key))

        if rename.imported is not None:
            units = (named.unit for named in imports_of(source.units) if named.alias.name == rename.old)
            unit = next(units)  # an earlier rename may have replaced the one of `imported`
            for alias in unit.node.body[0].names:
                if alias.evaluated_name == rename.old:
                    exchange(source.units, unit, _with_node(unit, unit.node.deep_replace(alias.name, name), ""))


def _with_node(unit: Unit, node: Statement, key: str) -> Unit:
    return replace(unit, key=key, node=node, trees=ast.parse(code_of(node)).body)


def units_to_merge(block: PythonSource, asked: AskedEdits) -> list[Unit]:
    """Return the units of the block without those that only delete a name: `del NAME`, and an empty definition."""
    deleted = _lasts(asked.deletions)
    units: list[Unit] = []

    for unit in block.units:
        names = del_names([unit])
        is_deletion = (bool(names) and deleted.issuperset(names)) or (unit.key in deleted and is_stub(unit.tree))
        if not is_deletion:
            units.append(unit)

    return units


def carry_out(source: PythonSource, asked: AskedEdits) -> Merged:
    """Delete the definitions from the merged file and rename the uses in its text."""
    deleted: list[str] = []
    for name in sorted(asked.deletions):
        while named := next((named for named in source.named if named.name == name), None):
            remove_unit(named.siblings, named.unit, named.home)
            if name not in deleted:
                deleted.append(name)

    text = source.code
    for rename in asked.renames:
        if "." not in rename.name:
            text = rename_uses(text, rename.old, rename.new)

    return Merged(text, deleted=tuple(deleted))


def del_names(units: Iterable[Unit]) -> list[str]:
    """Return the names that `del` statements among the units delete."""
    names: list[str] = []

    for unit in units:
        if unit.kind is UnitKind.OTHER and isinstance(unit.tree, ast.Delete):
            names += [target.id for target in unit.tree.targets if isinstance(target, ast.Name)]

    return names


def definition_text(text: str, name: str) -> str:
    """Return all definitions of a top-level name with their comments, below the imports that they use, or ""."""
    source = read_units(to_unix(text))
    if isinstance(source, SyntaxProblem):
        return ""

    units = [named.unit for named in source.named if named.name == name]
    if not units:
        return ""

    used_names: set[str] = set()
    for unit in units:
        used_names.update(node.id for node in ast.walk(unit.tree) if isinstance(node, ast.Name))

    imports: list[str] = []
    for imported in imports_of(source.units):
        if imported.bound in used_names:
            imports.append(reduced_import(imported.node, [imported.alias]))

    code = "".join(code_of(unit.node).lstrip("\n") for unit in units)
    return "\n".join([*imports, "", ""]) + code


# --- Uses of a name


def rename_uses(source: str, old: str, new: str) -> str:
    """Rename the uses of a definition that was renamed from `old` to `new` before.

    Uses are certain if nothing in the file binds `old` any more, and `new` is bound once: then the bare name, the entry
    in `__all__` and the examples in docstrings are renamed. Other strings and attributes may mean something else.
    """
    tree = parse(source)
    if isinstance(tree, SyntaxProblem) or old in _BUILTINS:
        return source

    nodes = list(ast.walk(tree))
    if any(_binds(node, old) for node in nodes) or sum(_binds(node, new) for node in nodes) != 1:
        return source

    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source)  # as the parser counts them
    places = {(line, at) for line, at in _use_places(nodes, lines, old) if lines[line - 1].startswith(old, at)}
    for line, start in sorted(places, reverse=True):
        text = lines[line - 1]
        lines[line - 1] = text[:start] + new + text[start + len(old) :]

    return "".join(lines)


def _use_places(nodes: Iterable[ast.AST], lines: list[str], name: str) -> Iterator[tuple[int, int]]:
    """Yield line and column of possible uses; before Python 3.12 the columns in f-strings are wrong."""
    for node in nodes:
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


def _binds(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name(ctx=ast.Load()) | ast.Attribute() | ast.keyword() | ast.Constant():
            return False
        case ast.alias():
            return (node.asname or node.name).partition(".")[0] in {name, "*"}
        case _:
            values = (value for _, value in ast.iter_fields(node))
            return any(value == name or (isinstance(value, list) and name in value) for value in values)
