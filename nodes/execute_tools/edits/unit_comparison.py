"""Units of Python text compared: which stand for each other, and in what they differ. Pure."""

import ast
import copy
from collections import Counter, defaultdict
from collections.abc import Sequence

from mendgraph.nodes.execute_tools.edits.losses import is_stub
from mendgraph.nodes.execute_tools.edits.python_text import (
    DEFINITIONS,
    DOCSTRING,
    MAIN_GUARD,
    Function,
    PythonText,
    Unit,
    UnitKind,
    WithoutStrings,
)


def pair_units(olds: Sequence[Unit], news: Sequence[Unit]) -> tuple[list[tuple[Unit, Unit | None]], list[str]]:
    """Each unit of the block with its namesake in the file, in the block's order, and the names that are ambiguous.

    Namesakes are paired in order, if both sides have equally many. Of a unit that a block repeats as it is beside its
    new form, the new form counts.
    """
    pairs: list[tuple[Unit, Unit | None]] = []
    ambiguous: list[str] = []
    old_by_name = _by_name(olds)

    for key, new in _by_name(news).items():
        old = old_by_name.get(key, [])
        if not key:
            continue
        if not old:
            pairs += [(unit, None) for unit in new]
            continue

        if len(old) != len(new):
            old_meanings = {unit.meaning for unit in old}
            new = [unit for unit in new if unit.meaning not in old_meanings]  # noqa: PLW2901 - those that differ
            most = 1 if len(old) == 1 else 0
            if len(new) > most:
                ambiguous.append(key)
                continue

        pairs += zip(new, old, strict=False)

    return sorted(pairs, key=lambda pair: pair[0].first), ambiguous


def _by_name(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    named: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        named[unit.key].append(unit)

    return named


def units_beyond(units: Sequence[Unit], others: Sequence[Unit]) -> list[Unit]:
    """The units with a meaning that they have more often than the others."""
    counts = Counter(unit.meaning for unit in others)
    counts.subtract(unit.meaning for unit in units)
    return [unit for unit in units if counts[unit.meaning] < 0]


def classes_by_member(source: PythonText) -> dict[str, list[Unit]]:
    """The classes at the top, by the names of their members."""
    by_key: dict[str, list[Unit]] = defaultdict(list)
    for home in source.units:
        for key in {member.key for member in source.members(home)}:
            by_key[key].append(home)

    return by_key


def is_method(node: ast.stmt) -> bool:
    """Whether a function is a method, by its first parameter or its decorators."""
    if not isinstance(node, Function):
        return False

    parameters = [*node.args.posonlyargs, *node.args.args]
    if parameters and parameters[0].arg in {"self", "cls"}:
        return True

    decorators = {getattr(decorator, "id", "") for decorator in node.decorator_list}
    return not decorators.isdisjoint({"staticmethod", "classmethod"})


def is_assignment(unit: Unit) -> bool:
    """Whether the unit assigns to one name."""
    return unit.kind is UnitKind.STATEMENT and unit.key not in {DOCSTRING, MAIN_GUARD}


def is_undecorated(unit: Unit) -> bool:
    """Whether the unit is a function without decorators."""
    return isinstance(unit.node, Function) and not unit.node.decorator_list


def meaning(unit: Unit, like: Unit, *, texts: bool = True) -> str:
    """Equal for equal code, without decorators where `like` has none, and without documentation if not `texts`."""
    without_decorators = is_undecorated(like) and isinstance(unit.node, Function)
    if texts and not without_decorators:
        return unit.meaning

    node = copy.copy(unit.node) if texts else copy.deepcopy(unit.node)
    if without_decorators and isinstance(node, Function):
        node.decorator_list = []

    if texts:
        return ast.dump(node)

    return ast.dump(WithoutStrings().visit(ast.Module([node], [])))


def unused_parameters(old: Unit, new: Unit) -> list[str]:
    """The parameters that a function gets, and that its body does not use; none of what may ask for fixtures."""
    before = old.node
    after = new.node
    if not (isinstance(before, Function) and isinstance(after, Function)) or is_stub(after):
        return []

    used_names: set[str] = set()
    for statement in after.body:
        used_names.update(node.id for node in ast.walk(statement) if isinstance(node, ast.Name))

    is_fixture = any("fixture" in ast.dump(decorator) for decorator in after.decorator_list)
    if "locals" in used_names or after.name.startswith("test") or is_fixture:
        return []

    return sorted(_parameters(after) - _parameters(before) - used_names)


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {parameter.arg for parameter in ast.walk(function.args) if isinstance(parameter, ast.arg)}


def comments_of(text: PythonText, unit: Unit) -> set[str]:
    """The comments on the lines of a unit."""
    return {text.comments[line] for line in range(unit.first, unit.last + 1) if line in text.comments}


def class_header(unit: Unit) -> frozenset[str]:
    """The bases, keywords and decorators of a class."""
    parts: list[ast.AST] = []
    for field in ("bases", "keywords", "decorator_list"):
        parts += getattr(unit.node, field, [])

    return frozenset(map(ast.dump, parts))


def class_header_end(text: PythonText, unit: Unit) -> int:
    """The last line of a class's header: what stands between it and the first member is layout."""
    line = text.members(unit)[0].first - 1
    while line > unit.first and text.lines[line - 1].strip()[:1] in {"", "#"}:
        line -= 1

    return line


def aliases_of(node: ast.Import | ast.ImportFrom) -> list[tuple[object, ...]]:
    """What an import binds, each with its origin: equal for equal imports."""
    origin = getattr(node, "module", None), getattr(node, "level", -1)
    return [(*origin, alias.name, alias.asname) for alias in node.names]


def is_shortened(new: str, old: str) -> bool:
    """Whether `new` is `old` with lines left out; a line may break off, or be `...` for others."""
    new_lines = _stripped_lines(new)
    old_lines = _stripped_lines(old)
    if len(new_lines) >= len(old_lines):
        return False

    for line in new_lines:
        start = line.rstrip(".\u2026 ")
        if not any(old_line.startswith(start) for old_line in old_lines):
            return False

    return True


def _stripped_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def blank_lines_between(upper: Unit, lower: Unit, *, in_class: bool) -> int:
    """How many blank lines go between two units of a module or a class. Source: PEP 8."""
    if DEFINITIONS & {upper.kind, lower.kind} or MAIN_GUARD in {upper.key, lower.key}:
        return 1 if in_class else 2
    if upper.kind is not lower.kind or upper.key == DOCSTRING:
        return 1

    return 0
