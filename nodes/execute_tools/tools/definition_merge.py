"""Which definition of a block goes where in a file: the rules of the block form."""

import ast
import re
from collections.abc import Collection, Sequence

from nodes.execute_tools.tools.elisions import elision_in, is_placeholder, is_stub
from nodes.execute_tools.tools.imports import missing_imports, place_of_imports
from nodes.execute_tools.tools.merge_draft import Body, MergeDraft
from nodes.execute_tools.tools.python_units import DOCSTRING, MAIN_GUARD, PythonText, Unit, UnitKind, statements_in
from nodes.execute_tools.tools.unit_pairs import adds_nothing, beyond, is_method, pair_units

_DEFINITIONS = frozenset({UnitKind.FUNCTION, UnitKind.CLASS})
_SHOWN_CHARACTERS = 60
_SHOWN_NAMES = 3


def merge_module(draft: MergeDraft, *, methods: bool) -> None:
    """Merge all units of the block; with `methods`, its functions are methods wherever a class has their name."""
    if not draft.source.units:
        draft.fill()
        return
    _merge_imports(draft)
    known = {unit.key: unit for unit in draft.source.units if unit.kind in _DEFINITIONS}
    conditional = _conditional_names(draft.source)
    attributes = methods or all(_is_assignment(unit) for unit in draft.block.units)
    shown_only = _demonstrations(draft)
    shown = frozenset(shown_only)
    own = []
    for unit in draft.block.units:
        namesake = known.get(unit.key)
        if unit in shown or (attributes and _merge_lone_attribute(draft, unit)):
            continue
        if unit.kind in _DEFINITIONS and namesake is None and unit.key in conditional:
            draft.refusals.append(
                f"{unit.key} is defined inside an `if` or `try` of {draft.name}; use edit_file for it."
            )
        elif not _is_lone_method(unit, namesake, methods=methods) or not _merge_lone_method(draft, unit, namesake):
            own.append(unit)
    draft.ignored += [_aside(draft, unit) for unit in shown_only]
    _merge_body(draft, Body(draft.source.units), own)


def _merge_imports(draft: MergeDraft) -> None:
    found = missing_imports(draft.source, draft.block)
    for from_future in (True, False):
        codes = [each.code for each in found if each.from_future is from_future]
        if codes:
            place = place_of_imports(draft.source, from_future=from_future)
            lines = "\n".join(codes).split("\n")
            draft.insert(place.line, [""] * place.blank_before + lines + [""] * place.blank_after)
            draft.changed += [code.partition("\n")[0] for code in codes]


def _is_lone_method(unit: Unit, namesake: Unit | None, *, methods: bool) -> bool:
    """Whether a function may be meant for a class: a top-level namesake is the better place, if they are alike."""
    if unit.kind is not UnitKind.FUNCTION or not (methods or is_method(unit.node)):
        return False
    return namesake is None or (is_method(unit.node) and not is_method(namesake.node))


def _merge_lone_attribute(draft: MergeDraft, unit: Unit) -> bool:
    """Replace the attribute of a class that stands outside of it; False where it is an assignment of the module."""
    if not _is_assignment(unit) or unit.key in draft.source.names:
        return False
    found = [home for home, _times in draft.source.holders.get(unit.key, ())]
    if len(found) == 1:
        members = draft.source.members(found[0])
        _merge_body(draft, Body(members, members[0].indent, f"{found[0].key}."), [unit])
    elif found:
        names = ", ".join(home.key for home in found[:_SHOWN_NAMES])
        draft.refusals.append(f"{len(found)} classes have an attribute {unit.key} ({names}); give the class line too.")
    return bool(found)


def _demonstrations(draft: MergeDraft) -> list[Unit]:
    """New assignments of the block that only its loose statements use, such as a call with an example's values."""
    units, known = draft.block.units, {unit.key for unit in draft.source.units}
    loose = [unit for unit in units if unit.kind is UnitKind.OTHER]
    if not loose or _is_complete(draft, Body(draft.source.units), units):
        return []
    users_of: dict[str, list[Unit]] = {}
    for unit in units:
        for name in _names_in(unit):
            users_of.setdefault(name, []).append(unit)
    shown: dict[Unit, None] = {}
    aside = set(loose)
    for unit in reversed(units):
        users = [each for each in users_of.get(unit.key, ()) if each is not unit]
        if _is_assignment(unit) and unit.key not in known and users and aside.issuperset(users):
            shown[unit] = None
            aside.add(unit)
    return list(shown)[::-1]


def _merge_lone_method(draft: MergeDraft, unit: Unit, namesake: Unit | None) -> bool:
    """Replace a method that stands outside of its class; False where it is not a method after all."""
    homes = [home for home, times in draft.source.holders.get(unit.key, ()) if times == 1]
    if len(homes) == 1:
        members = draft.source.members(homes[0])
        _merge_body(draft, Body(members, members[0].indent, f"{homes[0].key}."), [unit])
    elif homes:
        names = ", ".join(home.key for home in homes[:_SHOWN_NAMES])
        draft.refusals.append(f"{len(homes)} classes have a method {unit.key} ({names}); give the class line too.")
    elif is_method(unit.node) and namesake is None and (meant := _meant_class(draft)):
        members = draft.source.members(meant)
        _merge_body(draft, Body(members, members[0].indent, f"{meant.key}."), [unit])
    elif is_method(unit.node) and namesake is None:
        draft.refusals.append(f"No class of {draft.name} has a method {unit.key}; put it inside its class.")
    else:
        return False
    return True


def _meant_class(draft: MergeDraft) -> Unit | None:
    """The class to which a new method belongs: the only one of the file, or the only one that the request names."""
    homes = [unit for unit in draft.source.units if unit.kind is UnitKind.CLASS and draft.source.members(unit)]
    named = [unit for unit in homes if re.search(rf"\b{re.escape(unit.key)}\b", draft.task)]
    for found in (homes, named):
        if len(found) == 1:
            return found[0]
    return None


def _merge_body(draft: MergeDraft, body: Body, units: Sequence[Unit]) -> None:
    """Replace the namesakes in a body, and add the rest after its neighbour in the block, or else before it."""
    pairing = pair_units(body.units, units)
    for key in pairing.ambiguous:
        draft.refusals.append(
            f"{draft.name} and the block define {body.prefix}{key} differently often; use edit_file for it."
        )
    groups: list[tuple[Unit | None, list[Unit]]] = [(None, [])]
    for new, old in pairing.pairs:
        if old is not None:
            _replace(draft, body, old, new)
            groups.append((old, []))
        elif new.key == DOCSTRING:
            draft.add(body, None, body.units[0], [new])
        else:
            groups[-1][1].append(new)
    following = groups[1][0] if len(groups) > 1 else None
    for anchor, added in groups:
        draft.add(body, anchor, following, added)
    _merge_other_statements(draft, body, units)


def _merge_other_statements(draft: MergeDraft, body: Body, units: Sequence[Unit]) -> None:
    """Replace statements without a name in order, if the block repeats all names of the file and as many of them."""
    olds = [unit for unit in body.units if unit.kind is UnitKind.OTHER]
    news = [unit for unit in units if unit.kind is UnitKind.OTHER and not all(map(is_placeholder, unit.nodes))]
    added, lost = beyond(news, olds), beyond(olds, news)
    complete = _is_complete(draft, body, units)
    if complete and not body.prefix:
        using = [unit for unit in lost if _uses_any(unit, draft.gone)][: max(0, len(lost) - len(added))]
        for unit in using:
            draft.remove(unit)
        lost = [unit for unit in lost if unit not in using]
    if complete and not body.prefix and len(added) == len(lost):
        for old, new in zip(lost, added, strict=True):
            _replace(draft, body, old, new)
        return
    draft.ignored += [_aside(draft, unit) for unit in added]


def _is_complete(draft: MergeDraft, body: Body, units: Sequence[Unit]) -> bool:
    """Whether a body is repeated as a whole, but for what is deleted."""
    return {unit.key for unit in body.units} <= {unit.key for unit in units} | {"", DOCSTRING} | draft.gone


def _aside(draft: MergeDraft, unit: Unit) -> str:
    return f"line {unit.first} `{draft.block.lines[unit.first - 1].strip()[:_SHOWN_CHARACTERS]}`"


def _replace(draft: MergeDraft, body: Body, old: Unit, new: Unit) -> None:
    label = body.prefix + new.key if new.key else f"line {old.first}"
    if adds_nothing((draft.source, old), (draft.block, new)):
        return
    if (old.kind is UnitKind.CLASS) is not (new.kind is UnitKind.CLASS):
        draft.refusals.append(
            f"{label} is a {old.kind} in {draft.name} and a {new.kind} in the block; use edit_file for it."
        )
    elif old.kind is UnitKind.CLASS:
        _replace_class(draft, old, new, label)
    elif elision := elision_in((draft.source, old), (draft.block, new)):
        draft.refusals.append(f"The block leaves out part of {label}: {elision}. Send {label} with its whole body.")
    else:
        draft.exchange(old, new, label)


def _replace_class(draft: MergeDraft, old: Unit, new: Unit, label: str) -> None:
    """Merge the members of two classes. Bases and decorators may be added; fewer of them count as left out."""
    olds, news = draft.source.members(old), draft.block.members(new)
    before, after = _header(old), _header(new)
    if not (after <= before or after > before):
        draft.refusals.append(
            f"The block gives {label} another base class or decorator; use edit_file for its class line."
        )
    elif after >= before and is_stub(old.node) and (news or after > before) and _documented(olds) <= _documented(news):
        draft.exchange(old, new, label)
    elif olds and news:
        if after > before:
            draft.exchange_headers(old, new, label)
        _merge_body(draft, Body(olds, olds[0].indent, f"{label}."), news)
    elif after > before or not is_stub(new.node):
        draft.refusals.append(f"Write the class {label} over several lines, as it is in {draft.name}.")


def _header(unit: Unit) -> frozenset[str]:
    fields = ("bases", "keywords", "decorator_list")
    return frozenset(ast.dump(part) for field in fields for part in getattr(unit.node, field, []))


def _is_assignment(unit: Unit) -> bool:
    return unit.kind is UnitKind.STATEMENT and unit.key not in {DOCSTRING, MAIN_GUARD}


def _uses_any(unit: Unit, names: Collection[str]) -> bool:
    return not _names_in(unit).isdisjoint(names)


def _names_in(unit: Unit) -> set[str]:
    inner = (each for node in unit.nodes for each in ast.walk(node))
    return {each.id for each in inner if isinstance(each, ast.Name)}


def _documented(members: Sequence[Unit]) -> bool:
    return any(member.key == DOCSTRING for member in members)


def _conditional_names(text: PythonText) -> set[str]:
    """The names of functions and classes that are defined in the branches of top-level statements."""
    inner = statements_in(node for unit in text.units if unit.kind is UnitKind.OTHER for node in unit.nodes)
    return {getattr(node, "name", "") for node in inner}
