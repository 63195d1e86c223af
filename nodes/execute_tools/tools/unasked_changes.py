"""What a block changes beside what the request names: definitions that are left as they are in the file.

A small model that is asked for a docstring of one function gives the whole file, with another function rewritten. Where
the request names what it wants changed, only that changes, and what hangs together with it: what it uses or did use,
what uses it, and what a changed constant or signature forces to follow. In doubt a change stays.
"""

import ast
import posixpath
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from nodes.execute_tools.tools.asked_edits import AskedEdits
from nodes.execute_tools.tools.named_definitions import (
    asks_for_several,
    possibly_named,
    surely_named,
    what_may_change,
)
from nodes.execute_tools.tools.python_units import Function, PythonText, Unit, UnitKind
from nodes.execute_tools.tools.unit_pairs import adds_nothing

NOT_NAMED: Final = "not named in the request"

_STATE = frozenset({"self", "cls"})


class _Place(NamedTuple):
    """The class of a definition, "" at the top, and its key there."""

    home: str
    key: str

    @property
    def label(self) -> str:
        """As results call it."""
        return f"{self.home}.{self.key}" if self.home else self.key

    @property
    def last(self) -> str:
        """The name alone, without what sets the parts of a property apart."""
        return self.key.partition(".")[0]


@dataclass(frozen=True)
class _Text:
    """A module by its definitions: functions, methods, and of classes what is no method."""

    text: PythonText
    functions: dict[_Place, list[Unit]]
    classes: dict[str, Unit]
    values: dict[_Place, str]

    def words(self, place: _Place) -> set[str]:
        return {word for unit in self.functions.get(place, ()) for node in unit.nodes for word in _words(node)}

    def state(self, place: _Place) -> set[str]:
        """The attributes of its own object that it speaks of."""
        return {word for unit in self.functions.get(place, ()) for node in unit.nodes for word in _state(node)}

    def signatures(self, place: _Place) -> list[str]:
        found = (unit.node for unit in self.functions.get(place, ()))
        return [ast.dump(node.args) for node in found if isinstance(node, Function)]


def unasked_changes(
    source: PythonText, block: PythonText, task: str, path: str = "", asked: AskedEdits | None = None
) -> frozenset[str]:
    """The labels (`flatten`, `Cart.total`) of definitions whose new form in the block is not to be taken.

    That of a class stands for its class line and docstring; its methods have their own, its values are always taken.
    Empty where the request does not surely name a definition that the block changes, or speaks of several. `asked` are
    the deletions and renames of the request; `source` has the new names already.
    """
    words = what_may_change(task)
    if not words.strip() or asks_for_several(words):
        return frozenset()
    old, new = _read(source), _read(block)
    new = _with_lone_methods(old, new)
    return _Scope(old, new, words, path, asked or AskedEdits()).left_aside()


class _Scope:
    """What belongs to the request, of the changes of one block."""

    def __init__(self, old: _Text, new: _Text, task: str, path: str, asked: AskedEdits) -> None:
        self.old, self.new, self.task = old, new, task
        self.module = posixpath.basename(path).partition(".")[0]
        self.gone = {name.rpartition(".")[2] for name in asked.deletions} | {each.new for each in asked.renames}
        self.places = {*old.functions, *new.functions}
        self.words = {place: old.words(place) | new.words(place) for place in self.places}
        self.changed = {place for place in old.functions if self._changes(place)}
        self.values = {place for place in old.values if self._changes_value(place)}
        self.classes = {name for name in old.classes if name in new.classes and self._changes_class(name)}

    def left_aside(self) -> frozenset[str]:
        if not self._names_a_change():
            return frozenset()
        kept = self._kept()
        aside = {place.label for place in self.changed - kept}
        for name in self.classes:
            own = {place for place in self.places if place.home == name}
            if not (possibly_named(self.task, name) or own & kept or self._is_used(name, kept)):
                aside.add(name)
        return frozenset(aside)

    def _changes(self, place: _Place) -> bool:
        olds, news = self.old.functions[place], self.new.functions.get(place, [])
        return any(not any(adds_nothing((self.old.text, old), (self.new.text, new)) for old in olds) for new in news)

    def _changes_class(self, name: str) -> bool:
        return not adds_nothing((self.old.text, self.old.classes[name]), (self.new.text, self.new.classes[name]))

    def _names_a_change(self) -> bool:
        """Whether the request surely names something that the block changes, deletes or renames."""
        return (
            bool(self.gone)
            or any(surely_named(self.task, place.last, place.home, self.module) for place in self.changed | self.values)
            or any(surely_named(self.task, name, self.module) for name in self.classes)
        )

    def _named(self) -> set[_Place]:
        """What the request may name; of a class that it names all methods, unless it names some of them."""
        found = {place for place in self.places if possibly_named(self.task, place.last) or place.last in self.gone}
        for name in {place.home for place in self.places if place.home and possibly_named(self.task, place.home)}:
            own = {place for place in self.places if place.home == name}
            if not any(
                surely_named(self.task, place.last, name, self.module) for place in own & set(self.old.functions)
            ):
                found |= own
        return found

    def _kept(self) -> set[_Place]:
        """The named ones, what they use at any remove, and what has to follow them."""
        named = self._named()
        kept = self._used_by(named)
        forced = {place.last for place in self.values} | self.gone
        grown = True
        while grown:
            followed = named | kept & self.changed
            more = {place for place in self.changed - kept if self._follows(place, followed, kept, forced)}
            kept |= more
            grown = bool(more)
        return kept

    def _used_by(self, places: set[_Place]) -> set[_Place]:
        """These, and all that they use in their old or new form, directly or not."""
        found = set(places)
        waiting = list(places)
        while waiting:
            words = self.words[waiting.pop()]
            used = {each for each in self.places - found if each.last in words or each.home in words - {""}}
            found |= used
            waiting += used
        return found

    def _follows(self, place: _Place, followed: set[_Place], kept: set[_Place], forced: set[str]) -> bool:
        """Whether it uses what is followed or forced, is called otherwise by what is kept, or shares its new state."""
        words = self.words[place]
        classes = {each.home for each in followed if each.key == "__init__"}
        if words & (forced | classes | {each.last for each in followed}):
            return True
        if self.old.signatures(place) != self.new.signatures(place) and self._is_used(place.last, kept):
            return True
        return bool(place.home and self._moved_state(place) & self._state_of(place.home, kept))

    def _is_used(self, name: str, kept: Collection[_Place]) -> bool:
        """Whether what is kept or new speaks of it."""
        return any(name in self.words[each] for each in {*kept, *(self.places - set(self.old.functions))})

    def _moved_state(self, place: _Place) -> set[str]:
        """The attributes that only the old or only the new form speaks of."""
        return self.old.state(place) ^ self.new.state(place) if place in self.new.functions else set()

    def _state_of(self, home: str, kept: Collection[_Place]) -> set[str]:
        return {word for each in kept if each.home == home for word in self._moved_state(each)}

    def _changes_value(self, place: _Place) -> bool:
        return place in self.new.values and self.new.values[place] != self.old.values[place]


def _read(text: PythonText) -> _Text:
    functions: dict[_Place, list[Unit]] = {}
    values: dict[_Place, str] = {}
    for place, unit in _places(text):
        if unit.kind is UnitKind.FUNCTION:
            functions.setdefault(place, []).append(unit)
        else:
            values[place] = unit.meaning
    return _Text(text, functions, {unit.key: unit for unit in text.units if unit.kind is UnitKind.CLASS}, values)


def _places(text: PythonText) -> Iterator[tuple[_Place, Unit]]:
    """The functions, methods and named values."""
    taken = {UnitKind.FUNCTION, UnitKind.STATEMENT}
    for unit in text.units:
        if unit.kind in taken:
            yield _Place("", unit.key), unit
        for member in text.members(unit):
            if member.kind in taken:
                yield _Place(unit.key, member.key), member


def _with_lone_methods(old: _Text, new: _Text) -> _Text:
    """The block with those of its functions that may be meant for a class under the name that they have there."""
    functions = dict(new.functions)
    for place, units in new.functions.items():
        homes = [each for each in old.functions if each.home and each.key == place.key]
        if not place.home and homes:
            functions.update({each: units for each in homes if each not in functions})
            if place not in old.functions:
                functions.pop(place)
    return _Text(new.text, functions, new.classes, new.values)


def _words(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            yield each.id
        elif isinstance(each, ast.Attribute):
            yield each.attr


def _state(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id in _STATE:
            yield each.attr
