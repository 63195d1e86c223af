"""Texts that are slow for a regular expression, and its time on them.

Such a text repeats what a part of the pattern matches, and ends with what makes the match fail. The parts are those of
the standard library's own parser.
"""

import re
import time
from collections.abc import Iterator, Sequence
from re import _compiler, _constants as c, _parser  # type: ignore[attr-defined]
from typing import Any, Final

SIGNS: Final = "a1A _-.,:;/\\\"'`()[]{}<>=@#%*+|~$&?!\n\t\u2026\x00"
"""One of these stands for each set of characters that has one of them."""
ENDS: Final = ("", "\x00", ".;!\n)x")
"""What stands after the repeated text, so that a match that has come so far fails."""

Tree = Sequence[tuple[Any, Any]]


class _Parts:
    """Short texts that the parts of a pattern match, alone and with what stands before them, in `found`."""

    def __init__(self, parsed: Any) -> None:
        self._state = parsed.state
        self.found: dict[str, None] = {}
        self._text(parsed)

    def _text(self, tree: Tree) -> str:
        text = ""
        for name, value in tree:
            text += self._one(name, value)
            self.found[text] = None
        return text

    def _one(self, name: Any, value: Any) -> str:
        if name is c.LITERAL:
            return chr(value)
        if name in {c.NOT_LITERAL, c.IN, c.ANY}:
            single = _compiler.compile(_parser.SubPattern(self._state, [(name, value)]))
            fitting = [sign for sign in SIGNS if single.match(sign)]
            self.found |= dict.fromkeys(fitting[:4])
            return fitting[0] if fitting else "a"
        if name is c.BRANCH:
            return next(iter([self._text(item) for item in value[1]]))
        if name is c.SUBPATTERN:
            return self._text(value[3])
        if name is c.ATOMIC_GROUP:
            return self._text(value)
        if name in {c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT}:
            return self._text(value[2]) * min(int(value[0]), 2)
        if name is c.ASSERT and value[0] > 0:
            self._text(value[1])
        return ""


def hostile_units(pattern: str, flags: int, most: int = 8) -> list[str]:
    """What hostile texts repeat; of those that follow from the pattern at most so many."""
    specific = [unit[:12] for unit in _Parts(_parser.parse(pattern, flags)).found if unit.strip("\x00")]
    spread = specific[:: max(1, len(specific) // most)]
    common = ("a", "1", " ", "\n", "a ", "a.", "a,", "a/", "a_", "a-")
    return list(dict.fromkeys([*spread, *(f"{unit} " for unit in spread), *common]))


def slow_unit(
    pattern: str, flags: int = 0, *, anchored: bool, longest: int = 32_000, most_seconds: float = 0.1
) -> str | None:
    """What a text repeats on which the pattern takes longer than it may; None where there is no such text.

    A linear search of 32,000 characters takes a few milliseconds, or a tenth of a second where it compares each place
    with two hundred behind it; a quadratic search makes half a billion steps.

    Short texts grow by two characters, so that an exponential search is seen before it takes minutes.
    """
    if not _is_endless(_parser.parse(pattern, flags)):
        return None
    compiled = re.compile(pattern, flags)
    for unit in hostile_units(pattern, flags):
        for size in _sizes(longest):
            for end in ENDS:
                text = unit * (size // len(unit) + 1) + end
                if _seconds(compiled, text, anchored=anchored) > most_seconds:
                    return unit
    return None


def _seconds(compiled: "re.Pattern[str]", text: str, *, anchored: bool) -> float:
    begin = time.thread_time()
    if anchored:
        compiled.match(text)
    else:
        compiled.sub("", text)
    return time.thread_time() - begin


def _sizes(longest: int) -> Iterator[int]:
    size = 8
    while size < longest:
        yield size
        size += 2 if size < 64 else size
    yield longest


def _is_endless(node: Any) -> bool:
    """Whether anything in the tree is repeated without a bound: nothing else can take longer on a longer text."""
    if isinstance(node, tuple) and len(node) == 3 and node[1] is c.MAXREPEAT:
        return True
    return isinstance(node, list | tuple | _parser.SubPattern) and any(map(_is_endless, node))
