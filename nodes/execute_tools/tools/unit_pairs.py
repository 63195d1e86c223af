"""Which unit of a block stands for which unit of a file."""

import ast
import copy
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from nodes.execute_tools.tools.merge_draft import undecorated
from nodes.execute_tools.tools.python_units import Function, PythonText, Unit


class UnitPair(NamedTuple):
    """A unit of the block, and its namesake in the file; None where the file has none."""

    new: Unit
    old: Unit | None


class Pairing(NamedTuple):
    """The pairs in the block's order, and the names that stand for several units of which none could be told."""

    pairs: tuple[UnitPair, ...]
    ambiguous: tuple[str, ...]


def pair_units(olds: Sequence[Unit], news: Sequence[Unit]) -> Pairing:
    """Pairs units by name. Namesakes within one side are paired in order, if both sides have equally many.

    Where a block repeats a unit as it is beside its new form, the new form counts; where it repeats one of several
    namesakes as it is, nothing changes.
    """
    pairs: list[UnitPair] = []
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
        pairs += [UnitPair(unit, old[index] if old else None) for index, unit in enumerate(new)]
    return Pairing(tuple(sorted(pairs, key=lambda pair: pair.new.first)), tuple(ambiguous))


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
    return not _comments(*new) - _comments(*old) and _code(old[1], like=new[1]) == _code(new[1], like=new[1])


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


def _code(unit: Unit, like: Unit) -> str:
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
