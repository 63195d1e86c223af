"""Counts what a backtracking search for a regular expression does, and makes texts that are hard for it.

The counter walks the tree of the standard library's own parser as its matcher does. Bounds are scaled down with the
texts: `{0,200}` counts as `{0,4}`, so that it is as small beside a text of a hundred characters as it is beside a long
one.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from math import inf
from re import _constants as c, _parser  # type: ignore[attr-defined]
from typing import Any, Final

MOST: Final = 4
"""A larger bound of a repetition counts as this one."""
LEAST: Final = 2
ENDLESS: Final = 30_000
"""Steps after which the count ends: many times what a linear search takes here."""

_DOTALL, _IGNORECASE, _MULTILINE = int(re.DOTALL), int(re.IGNORECASE), int(re.MULTILINE)

_SINGLE = frozenset({c.LITERAL, c.NOT_LITERAL, c.IN, c.ANY})

Tree = Sequence[tuple[Any, Any]]
Next = Callable[[int], int]
"""(position) -> where the whole match ends, or -1."""


class TooManyStepsError(Exception):
    """The count has reached `ENDLESS`."""


class Counter:
    """Searches `text` for all matches, and counts the steps."""

    def __init__(self, pattern: str, flags: int) -> None:
        parsed = _parser.parse(pattern, flags)
        self.tree: Tree = list(parsed)
        self.flags = int(parsed.state.flags | flags)  # re.RegexFlag is slow
        self._known: dict[tuple[int, int, str], bool] = {}
        self.steps, self.text = 0, ""
        self.groups: dict[int, tuple[int, int]] = {}

    def steps_of(self, text: str, *, anchored: bool) -> int:
        """The steps of a search through the text, or of one match at its beginning."""
        self.text, self.steps, at = text, 0, 0
        try:
            while at <= len(text):
                self.groups = {}
                end = self._sequence(self.tree, 0, at, lambda position: position)
                if anchored:
                    break
                at = max(end, at + 1)
        except (TooManyStepsError, RecursionError):
            return ENDLESS
        return self.steps

    def _sequence(self, tree: Tree, index: int, at: int, then: Next) -> int:
        for index in range(index, len(tree)):  # noqa: B020, PLR1704 - single characters need no frame of their own
            self.steps += 1
            if self.steps > ENDLESS:
                raise TooManyStepsError
            name, value = tree[index]
            if name not in _SINGLE:
                break
            if at >= len(self.text) or not self._fits(name, value, self.text[at]):
                return -1
            at += 1
        else:
            return then(at)

        def rest(position: int) -> int:
            return self._sequence(tree, index + 1, position, then)

        return self._node(name, value, at, rest)

    def _node(self, name: Any, value: Any, at: int, rest: Next) -> int:
        if name is c.AT:
            return rest(at) if self._is_at(value, at) else -1
        if name is c.BRANCH:
            return next((end for each in value[1] if (end := self._sequence(each, 0, at, rest)) >= 0), -1)
        if name is c.SUBPATTERN:
            number, added, removed, inner = value
            before, self.flags = self.flags, (self.flags | added) & ~removed

            def closed(position: int) -> int:
                kept, self.groups = self.groups, {**self.groups, number: (at, position)}
                inside, self.flags = self.flags, before
                end = rest(position)
                self.flags = inside
                if end < 0:
                    self.groups = kept
                return end

            end = self._sequence(inner, 0, at, closed)
            self.flags = before
            return end
        if name is c.ATOMIC_GROUP:
            end = self._sequence(value, 0, at, lambda position: position)
            return rest(end) if end >= 0 else -1
        if name in {c.ASSERT, c.ASSERT_NOT}:
            return rest(at) if self._looks(value, at) is (name is c.ASSERT) else -1
        if name is c.GROUPREF:
            begin, end = self.groups.get(value, (0, -1))
            told = self.text[begin : max(begin, end)]
            return rest(at + len(told)) if end >= 0 and self.text.startswith(told, at) else -1
        least, most, inner = value
        least, most = min(int(least), LEAST), most if most is c.MAXREPEAT else min(int(most), MOST)
        if name is c.POSSESSIVE_REPEAT:
            return self._possessive(inner, least, most, at, rest)
        return self._repeat(inner, least, most, 0, at, rest, greedy=name is c.MAX_REPEAT)

    def _possessive(self, inner: Tree, least: int, most: Any, at: int, rest: Next) -> int:
        count = 0
        while most is c.MAXREPEAT or count < most:
            end = self._sequence(inner, 0, at, lambda position: position)
            if end < 0 or end == at:
                count = max(count, least) if end == at else count
                break
            at, count = end, count + 1
        return rest(at) if count >= least else -1

    def _repeat(self, inner: Tree, least: int, most: Any, count: int, at: int, rest: Next, *, greedy: bool) -> int:
        self.steps += 1
        if len(inner) == 1 and inner[0][0] in _SINGLE:
            return self._simple(inner[0], least, most, at, rest, greedy=greedy)

        def more() -> int:
            if most is not c.MAXREPEAT and count >= most:
                return -1

            def again(position: int) -> int:
                if position == at and count >= least:
                    return -1
                return self._repeat(inner, least, most, count + 1, position, rest, greedy=greedy)

            return self._sequence(inner, 0, at, again)

        if count < least:
            return more()
        ways = (more, lambda: rest(at)) if greedy else (lambda: rest(at), more)
        return next((end for way in ways if (end := way()) >= 0), -1)

    def _simple(self, node: tuple[Any, Any], least: int, most: Any, at: int, rest: Next, *, greedy: bool) -> int:
        """A repetition of single characters, without a frame for each of them."""
        top = len(self.text) if most is c.MAXREPEAT else min(len(self.text), at + most)
        end = at
        while end < top and self._fits(*node, self.text[end]):
            end += 1
            self.steps += 1
        ends = range(end, at + least - 1, -1) if greedy else range(at + least, end + 1)
        return next((found for each in ends if (found := rest(each)) >= 0), -1)

    def _looks(self, value: Any, at: int) -> bool:
        direction, inner = value
        if direction > 0:
            return self._sequence(inner, 0, at, lambda position: position) >= 0
        width = inner.getwidth()[0]
        return at >= width and self._sequence(inner, 0, at - width, lambda end: end if end == at else -1) >= 0

    def _is_at(self, where: Any, at: int) -> bool:
        text, lines = self.text, bool(self.flags & _MULTILINE)
        if where in {c.AT_BEGINNING, c.AT_BEGINNING_STRING}:
            return at == 0 or (lines and where is c.AT_BEGINNING and text[at - 1] == "\n")
        if where is c.AT_END_STRING:
            return at == len(text)
        if where is c.AT_END:
            return at == len(text) or (text[at] == "\n" and (lines or at == len(text) - 1))
        sides = [0 <= each < len(text) and (text[each].isalnum() or text[each] == "_") for each in (at - 1, at)]
        return bool(sides[0] != sides[1]) is bool(where is c.AT_BOUNDARY)

    def _fits(self, name: Any, value: Any, sign: str) -> bool:
        if name is c.ANY:
            return sign != "\n" or bool(self.flags & _DOTALL)
        key = (value if name is c.LITERAL else -1 - id(value), self.flags, sign)
        if key not in self._known:
            self._known[key] = self._fits_one(name, value, sign)
        return self._known[key]

    def _fits_one(self, name: Any, value: Any, sign: str) -> bool:
        if name is c.IN:
            return self._in_set(value, sign)
        return any(ord(each) == value for each in _both(sign, self.flags)) is (name is c.LITERAL)

    def _in_set(self, items: Sequence[tuple[Any, Any]], sign: str) -> bool:
        negated = items[0][0] is c.NEGATE
        found = any(_is_item(item, each) for each in _both(sign, self.flags) for item in items[negated:])
        return found is not negated


def _both(sign: str, flags: int) -> set[str]:
    return {sign, sign.lower()[:1] or sign, sign.upper()[:1]} if flags & _IGNORECASE else {sign}


def _is_item(item: tuple[Any, Any], sign: str) -> bool:
    name, value = item
    if name is c.LITERAL:
        return bool(ord(sign) == value)
    if name is c.RANGE:
        return bool(value[0] <= ord(sign) <= value[1])
    return {
        c.CATEGORY_DIGIT: sign.isdigit(),
        c.CATEGORY_NOT_DIGIT: not sign.isdigit(),
        c.CATEGORY_SPACE: sign.isspace(),
        c.CATEGORY_NOT_SPACE: not sign.isspace(),
        c.CATEGORY_WORD: sign.isalnum() or sign == "_",
        c.CATEGORY_NOT_WORD: not (sign.isalnum() or sign == "_"),
    }[value]


SIGNS: Final = "a1A _-.,:;/\\\"'`()[]{}<>=@#%*+|~$&?!\n\t\u2026\x00"
"""One of these stands for each set of characters that has one of them."""

ENDS: Final = ("", "\x00", ".;!\n)x")
"""What stands after the repeated text, so that a match that has come so far fails."""


class Units:
    """What a hostile text repeats: what each part of the pattern matches, alone and with what stands before it."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self.found: dict[str, None] = {}

    def of(self, tree: Tree) -> str:
        """A short text that the tree matches; every text on the way is noted."""
        text = ""
        for name, value in tree:
            text += self._one(name, value)
            self.found[text] = None
        return text

    def _one(self, name: Any, value: Any) -> str:
        if name in _SINGLE:
            if name is c.LITERAL:
                return chr(value)
            return next((each for each in SIGNS if self._counter._fits(name, value, each)), "a")
        if name is c.BRANCH:
            first, *_ = [self.of(each) for each in value[1]]
            return first
        if name is c.SUBPATTERN:
            return self.of(value[3])
        if name is c.ATOMIC_GROUP:
            return self.of(value)
        if name in {c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT}:
            once = self.of(value[2])
            return once * min(int(value[0]), LEAST)
        if name is c.ASSERT and value[0] > 0:
            self.of(value[1])
        return ""


def _told_apart(counter: Counter) -> list[str]:
    """One sign for each way in which the parts of the pattern tell signs apart, with and without regard to case."""
    parts, flags, known = [*_singles(counter.tree)], counter.flags, dict[tuple[bool, ...], str]()
    for sign in SIGNS:
        found = [sign.isalnum() or sign == "_", sign == "\n"]
        for counter.flags in (flags & ~_IGNORECASE, flags | _IGNORECASE):
            found += [counter._fits_one(name, value, sign) for name, value in parts]
        known.setdefault(tuple(found), sign)
    counter.flags = flags
    return list(known.values())


def _singles(node: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of a tree that match one character."""
    if isinstance(node, tuple) and len(node) == 2 and node[0] in _SINGLE:
        if node[0] is not c.ANY:
            yield node
    elif isinstance(node, list | tuple | _parser.SubPattern):
        for each in node:
            yield from _singles(each)


def hostile_units(counter: Counter, most: int) -> list[str]:
    """Texts to repeat, at most so many, those that follow from the pattern first."""
    units = Units(counter)
    units.of(counter.tree)
    own = [unit[:12] for unit in units.found if unit.strip("\x00")]
    spread = own[:: max(1, len(own) // most)]
    return list(
        dict.fromkeys(
            [*spread, *(f"{unit} " for unit in spread), *_told_apart(counter), "a ", "a.", "a,", "a/", "a_", "a-"]
        )
    )


def growth(pattern: str, flags: int, *, anchored: bool, size: int = 16, most: int = 4) -> tuple[float, str]:
    """How many times the steps four times a text costs, at its worst, and which text that is."""
    counter = Counter(pattern, flags)
    worst = (0.0, "")
    if not _is_endless(counter.tree):
        return worst
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        for unit, end in _texts(counter, most):
            few, many = max(2, size // len(unit)), 4 * max(2, size // len(unit))
            steps = counter.steps_of(unit * many + end, anchored=anchored)
            if steps > 8 * (len(unit) * many):  # most are far below, so that one look tells
                few_steps = counter.steps_of(unit * few + end, anchored=anchored)
                ratio = steps / few_steps if steps < ENDLESS else inf
                worst = max(worst, (ratio, unit))
    finally:
        sys.setrecursionlimit(limit)
    return worst


def _is_endless(node: Any) -> bool:
    """Whether anything in the tree is repeated without a bound: nothing else can take longer on a longer text."""
    if isinstance(node, tuple) and len(node) == 3 and node[1] is c.MAXREPEAT:
        return True
    return isinstance(node, list | tuple | _parser.SubPattern) and any(map(_is_endless, node))


def _texts(counter: Counter, most: int) -> Iterator[tuple[str, str]]:
    for unit in hostile_units(counter, most):
        for end in ENDS:
            yield unit, end
