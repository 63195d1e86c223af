r"""Where a text stands in a file that differs from it in blanks only: the tiers of an edit that never guess.

An exact text is found by `text_edits`. Where there is none, line ends and the blanks before them are left out of
account; where that finds nothing either, a block of whole lines may be indented by a constant more or less than in the
file. What several places of one tier fit is told as such, and a looser tier is not asked.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from enum import StrEnum
from itertools import accumulate, islice
from typing import Final, NamedTuple

from nodes.execute_tools.tools.text_edits import Spot
from nodes.execute_tools.tools.text_files import to_unix

_BLANKS: Final = " \t\r"
_BLANK_END: Final = re.compile(r"(?<=\n)[ \t]++\Z")
_LISTED: Final = 11
"""Places of one tier that are found: two are too many already, the rest is for the message."""
_TRIED: Final = 200
"""Places with the words of a block whose indentation is compared: a file that repeats them more often is ambiguous."""


class Tier(StrEnum):
    """What a match leaves out of account."""

    EXACT = "exact"
    TRAILING_BLANKS = "trailing_blanks"
    INDENTATION = "indentation"


class LooseMatch(NamedTuple):
    """The places of the tightest tier that has any, in order, and the new text as it belongs in the first of them."""

    tier: Tier
    spots: tuple[Spot, ...]
    replacement: str


class _Shift(NamedTuple):
    """The blanks that lines of a file have more (`added`) or less (`removed`) at their start than those of a block."""

    added: str
    removed: str


def find_loosely(text: str, wanted: str, replacement: str) -> LooseMatch | None:
    """Where `wanted` stands in `text`, but for blanks; None where no tier finds it, or it has nothing but blanks.

    The replacement is indented as the file is. Where the last line of the file has no line end, it gets none.
    """
    if not wanted.strip():
        return None
    lines, wanted, replacement = _Lines(text), to_unix(wanted), to_unix(replacement)
    if _BLANK_END.search(wanted):  # the blanks before a closing quote: they would indent the line that comes next
        wanted, replacement = (_BLANK_END.sub("", each) for each in (wanted, replacement))
    spots = tuple(islice(_without_trailing_blanks(lines, wanted), _LISTED))
    if spots:
        return LooseMatch(Tier.TRAILING_BLANKS, spots, _ended(lines, spots[0], wanted, replacement))
    moved = list(islice(_moved(lines, wanted), _LISTED))
    if not moved:
        return None
    places = tuple(spot for spot, _shift in moved)
    indented = _indented(replacement, moved[0][1])
    if indented is None:
        return None
    return LooseMatch(Tier.INDENTATION, places, _ended(lines, places[0], wanted, indented))


class _Lines:
    """The lines of a text without line ends and trailing blanks (`bare`), and where each of them begins."""

    def __init__(self, text: str) -> None:
        self.written = text.split("\n")
        self.bare = [line.rstrip(_BLANKS) for line in self.written]
        self.starts = [0, *accumulate(len(line) + 1 for line in self.written)]
        self.size = len(text)

    def spot(self, first: int, column: int, last: int, end_column: int | None) -> Spot:
        """From a column of the line with index `first` to one of `last`; None is the end of that line's blanks."""
        whole = self.written[last].removesuffix("\r") if last < len(self.written) else ""
        end = self.starts[last] + (len(whole) if end_column is None else end_column)
        return Spot(self.starts[first] + column, min(end, self.size), first + 1)


def _without_trailing_blanks(lines: _Lines, wanted: str) -> Iterator[Spot]:
    """The places of `wanted`, which may begin and end inside of a line."""
    wanted_lines = wanted.split("\n")
    sought = "\n".join(line.rstrip(_BLANKS) for line in wanted_lines)
    ends_line = wanted_lines[-1] != wanted_lines[-1].rstrip(_BLANKS)
    plain = "\n".join(lines.bare)
    if ends_line or not plain.endswith("\n"):
        plain += "\n"
    needle = f"{sought}\n" if ends_line else sought
    starts = [0, *accumulate(len(line) + 1 for line in lines.bare)]
    at = plain.find(needle)
    while at >= 0:
        first, last = (bisect_right(starts, place) - 1 for place in (at, at + len(sought)))
        end_column = at + len(sought) - starts[last]
        yield lines.spot(first, at - starts[first], last, None if ends_line else end_column)
        at = plain.find(needle, at + 1)


def _moved(lines: _Lines, wanted: str) -> Iterator[tuple[Spot, _Shift]]:
    """The places of a block of whole lines that stands there deeper or less deep; the first line tells by how much."""
    block = [line.rstrip(_BLANKS) for line in wanted.removesuffix("\n").split("\n")]
    ended = wanted.endswith("\n")
    words = [line.lstrip(" \t") for line in block]
    all_words = [line.lstrip(" \t") for line in lines.bare]
    for start in islice(_places(all_words, words), _TRIED):
        shift = _shift(lines.bare[start : start + len(block)], block)
        if shift is not None:
            last = start + len(block)
            yield lines.spot(start, 0, last, 0) if ended else lines.spot(start, 0, last - 1, None), shift


def _places(lines: list[str], block: list[str]) -> Iterator[int]:
    """The indexes at which `block` stands among `lines`."""
    joined, sought = "\n" + "\n".join(lines) + "\n", "\n" + "\n".join(block) + "\n"
    line, seen = 0, 0
    at = joined.find(sought)
    while at >= 0:
        line, seen = line + joined.count("\n", seen, at), at
        yield line
        at = joined.find(sought, at + 1)


def _shift(found: list[str], block: list[str]) -> _Shift | None:
    """By how much all lines of `found` are moved against those of `block`; None where they differ in that."""
    pairs = [(_indent(there), _indent(here)) for there, here in zip(found, block, strict=True) if here]
    there, here = pairs[0]
    if there.endswith(here):
        shift = _Shift(there.removesuffix(here), "")
    elif here.endswith(there):
        shift = _Shift("", here.removesuffix(there))
    else:
        return None
    fits = all(shift.removed + theirs == shift.added + ours for theirs, ours in pairs)
    return shift if fits else None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indented(text: str, shift: _Shift) -> str | None:
    """The text with its lines moved likewise; None where one of them has less than is to be taken away."""
    lines = text.split("\n")
    told = [line for line in lines if line.strip()]
    if not all(line.startswith(shift.removed) for line in told):
        return None
    return "\n".join(shift.added + line.removeprefix(shift.removed) if line.strip() else line for line in lines)


def _ended(lines: _Lines, spot: Spot, wanted: str, replacement: str) -> str:
    """The replacement without its last line end where the file has none that it could stand for."""
    open_end = spot.end == lines.size and lines.written[-1] != "" and wanted.endswith("\n")
    return replacement.removesuffix("\n") if open_end else replacement
