"""Finding a text in a file, replacing it, and showing the nearest lines if it does not occur. Pure.

Line ends count as equal. If a text does not occur exactly, lines match that differ in trailing blanks, else lines that
are indented by a constant more or less. A text that matches several places of one tier is ambiguous; looser tiers are
not tried then.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, islice
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.look_alikes import escaped, escapes_in, similar_lines, unescaped
from mendgraph.nodes.execute_tools.secrets.text_parts import first_words, masked_blocks
from mendgraph.nodes.language.text_protocol import MISSED
from mendgraph.nodes.records import JsonMap, ToolError, invalid
from mendgraph.nodes.workspace.files.text_files import (
    BOM,
    count_lines,
    dominant_newline,
    to_unix,
    with_ends_of,
    with_newline,
)


class Spot(NamedTuple):
    """A part of a text: offsets `start` to `end`, and the line, counted from 1, in which it begins."""

    start: int
    end: int
    line: int


def find_spots(text: str, old: str, *, overlapping: bool = True) -> Iterator[Spot]:
    r"""Yield every occurrence of `old` in `text`, in order; both may end lines with "\n" or "\r\n".

    Overlapping occurrences count by default: an edit of one of them would be a guess. An empty `old` does not occur.
    """
    plain_text = to_unix(text)
    plain_old = to_unix(old)
    if not plain_old:
        return

    # Offsets of each "\r\n" in the plain text: an offset in `text` is larger by the number of them before it.
    crlf = [match.start() - number for number, match in enumerate(re.finditer("\r\n", text))]
    line = 1
    counted = 0
    at = plain_text.find(plain_old)

    while at >= 0:
        line += plain_text.count("\n", counted, at)
        counted = at
        end = at + len(plain_old)
        yield Spot(at + bisect_left(crlf, at), end + bisect_left(crlf, end), line)
        at = plain_text.find(plain_old, at + 1 if overlapping else end)


def replace_spots(text: str, spots: Iterable[Spot], replacement: str) -> str:
    """Return the text with `replacement` in place of each spot, with the line ends of that place.

    `spots` are in order and do not overlap. The text outside of them stays the same.
    """
    pieces: list[str] = []
    end = 0

    for spot in spots:
        near = text[spot.start : spot.end]
        if "\n" not in near:
            near = text[spot.start : text.find("\n", spot.end) + 1]

        pieces.append(text[end : spot.start])
        end = spot.end

        if 0 < near.count("\r\n") < near.count("\n"):  # its line ends are mixed
            pieces.append(with_ends_of(near, replacement))
        else:
            pieces.append(with_newline(replacement, dominant_newline(near or text)))

    return "".join([*pieces, text[end:]])


MAX_REGION_LINES = 40
MAX_REGION_CHARACTERS = 2000
_COMPARED_WIDTH = 200
_LINE_SCORE = 60.0


class Region(NamedTuple):
    """Lines of a file, `first` to `last` counted from 1, as a message shows them.

    If `is_escaped`, they hold the text that was looked for, except for characters that are shown as escapes.
    """

    first: int
    last: int
    text: str
    is_escaped: bool = False

    def sentence(self, remedy: str) -> str:
        """Return what the lines are; `remedy` says what to do with lines that are only near."""
        if not self.is_escaped:
            return f"The nearest lines are {self.first}-{self.last}: {remedy}."

        return (
            f"It looks like lines {self.first}-{self.last}, but for characters that are invisible or look like others:"
            " copy them from the suggestion, which writes such characters as escapes; so may the edit."
        )


def nearest_region(text: str, old: str) -> Region | None:
    """Return the lines of `text` that look most like `old`, by its longest line, or None if nothing is near."""
    similar = similar_lines(text, old)
    if similar is not None:
        first, last = similar
        return Region(first, last, escaped(shown_lines(text, first - 1, last)), is_escaped=True)

    from rapidfuzz import fuzz, process

    old_lines = to_unix(old).strip("\n").split("\n")[:MAX_REGION_LINES]
    compared = [line.strip()[:_COMPARED_WIDTH] for line in old_lines]
    offset = max(range(len(compared)), key=lambda index: len(compared[index]))
    lines = text.split("\n")
    places = [line.strip()[:_COMPARED_WIDTH] for line in lines]
    near = process.extractOne(compared[offset], places, scorer=fuzz.ratio, score_cutoff=_LINE_SCORE)

    if near is None or not compared[offset]:
        return None

    first = max(0, near[2] - offset)
    last = min(first + len(old_lines), len(lines))
    return Region(first + 1, last, shown_lines(text, first, last))


def shown_lines(text: str, first: int, last: int) -> str:
    """Return the lines `first` to `last` of a text, counted from 0 and without the last, as a message shows them."""
    lines = masked_blocks(text).split("\n")[first : min(last, first + MAX_REGION_LINES)]
    return first_words("\n".join(line.removesuffix("\r") for line in lines), MAX_REGION_CHARACTERS)


_BLANKS: Final = " \t\r"
_BLANK_END: Final = re.compile(r"(?<=\n)[ \t]++\Z")
_LISTED: Final = 11
"""The most places of one tier that are looked for; a message names them."""
_TRIED: Final = 200
"""The most places whose indentation is compared with that of a block."""


class Tier(StrEnum):
    """The differences that a match ignores."""

    EXACT = "exact"
    TRAILING_BLANKS = "trailing_blanks"
    INDENTATION = "indentation"


class Match(NamedTuple):
    """The places of the tightest matching tier, in order, and the new text as it is written at the first of them."""

    tier: Tier
    spots: tuple[Spot, ...]
    replacement: str


class Shift(NamedTuple):
    """The indentation that lines of a file have in addition (`added`) or lack (`removed`), compared with a block."""

    added: str = ""
    removed: str = ""

    def moved(self, line: str) -> str:
        """Return a line of the block as it is indented in the file."""
        if line.strip():
            return self.added + line.removeprefix(self.removed)
        return line


_KEYS: Final[Mapping[Tier, Callable[[str], str]]] = {
    Tier.EXACT: str,
    Tier.TRAILING_BLANKS: lambda line: line.rstrip(_BLANKS),
    Tier.INDENTATION: lambda line: line.strip(_BLANKS),
}


def line_places(lines: Sequence[str], block: Sequence[str], tier: Tier, start: int = 0) -> Iterator[tuple[int, Shift]]:
    """Yield the lines of a file at which a block begins, from line `start` on, and how it is indented there.

    By indentation, a limited number of places is compared.
    """
    keys = list(map(_KEYS[tier], lines))
    old = "\n".join(["", *map(_KEYS[tier], block), ""])
    text = "\n".join(["", *keys, ""])
    line = start
    counted = sum(map(len, keys[:start])) + start
    at = text.find(old, counted)
    tries = 0

    while at >= 0 and (tries < _TRIED or tier is not Tier.INDENTATION):
        line += text.count("\n", counted, at)
        counted = at
        tries += 1
        shift: Shift | None = Shift()
        if tier is Tier.INDENTATION:
            shift = _shift(lines[line : line + len(block)], block)

        if shift is not None:
            yield line, shift

        at = text.find(old, at + 1)


def find_loosely(text: str, old: str, replacement: str) -> Match | None:
    """Return the places of `text` that match the lines of `old` except for blanks, or None.

    The replacement is indented as the file is, and has no line end at the end of a file without one.
    """
    if not old.strip():
        return None

    old = to_unix(old)
    replacement = to_unix(replacement)
    if _BLANK_END.search(old):  # the blanks before a closing quote, which would indent the next line
        old = _BLANK_END.sub("", old)
        replacement = _BLANK_END.sub("", replacement)

    lines = text.split("\n")
    block = old.removesuffix("\n").split("\n")

    for tier in (Tier.TRAILING_BLANKS, Tier.INDENTATION):
        places = list(islice(line_places(lines, block, tier), _LISTED))
        if places:
            return _match(text, old, replacement, tier, places)

    return None


def _match(text: str, old: str, replacement: str, tier: Tier, places: Sequence[tuple[int, Shift]]) -> Match | None:
    lines = text.split("\n")
    count = len(old.removesuffix("\n").split("\n"))
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    spots = tuple(_spot(lines, starts, at, count, ended=old.endswith("\n")) for at, _ in places)
    first = spots[0]
    indent = _first_indent(text[first.start :])
    if replacement.strip() and indent == _first_indent(replacement) != _first_indent(old):
        return None  # two readings: indented as the file is, or deeper than the text that it replaces

    indented = _indented(replacement, places[0][1])
    if indented is None:
        return None
    if first.end == len(text) and lines[-1] and old.endswith("\n"):
        indented = indented.removesuffix("\n")

    return Match(tier, spots, indented)


def _first_indent(text: str) -> str:
    return _indent(text.lstrip("\r\n").split("\n")[0])


def _spot(lines: Sequence[str], starts: Sequence[int], at: int, count: int, *, ended: bool) -> Spot:
    """Return the `count` lines from `at` on, with the last line end if `ended`."""
    last = at + count

    if ended:
        end = min(starts[last], starts[-1] - 1)
    else:
        end = starts[last - 1] + len(lines[last - 1].removesuffix("\r"))

    return Spot(starts[at], end, at + 1)


def _shift(lines: Sequence[str], block: Sequence[str]) -> Shift | None:
    """Return the difference in indentation between lines of a file and of a block, or None if it is not constant."""
    pairs: list[tuple[str, str]] = []
    for file_line, block_line in zip(lines, block, strict=True):
        if block_line.strip(_BLANKS):
            pairs.append((_indent(file_line), _indent(block_line)))

    file_indent, block_indent = pairs[0] if pairs else ("", "")
    if file_indent.endswith(block_indent):
        shift = Shift(file_indent.removesuffix(block_indent))
    elif block_indent.endswith(file_indent):
        shift = Shift("", block_indent.removesuffix(file_indent))
    else:
        return None

    if all(shift.removed + theirs == shift.added + ours for theirs, ours in pairs):
        return shift

    return None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indented(text: str, shift: Shift) -> str | None:
    """Return the text with this indentation, or None if one of its lines has too little."""
    lines = text.split("\n")
    if not all(line.startswith(shift.removed) for line in lines if line.strip()):
        return None

    return "\n".join(map(shift.moved, lines))


# --- An edit of a model

EQUAL: Final = "old_str and new_str are equal, so the edit would change nothing."
_LISTED_SPOTS = 10
_TELLING_CHARACTERS = 4
"""A shorter new text may occur by chance."""


class Replacement(NamedTuple):
    """The text after an edit, the number of replacements, the line of the first, and the number of changed lines.

    `tier` says which differences were ignored.
    """

    text: str
    replacements: int
    start_line: int
    lines_changed: int
    tier: Tier = Tier.EXACT


def replace_text(text: str, name: str, old_str: str, new_str: str, *, replace_all: bool) -> Replacement | ToolError:
    """Return the text with `new_str` in place of `old_str`, or the problem; `name` is how messages call the file."""
    if old_str == new_str:
        return invalid(EQUAL)

    spot = _find(text, name, old_str, new_str, replace_all=replace_all)
    if isinstance(spot, ToolError):
        return spot

    new = replace_spots(text, spot.spots, spot.replacement)
    if new == text and spot.tier is Tier.EXACT:
        return invalid(f"old_str and new_str differ only in their line ends, which {name} keeps: nothing would change.")
    if new == text:
        return invalid(f"new_str is already there, at line {spot.spots[0].line} of {name}: nothing would change.")

    changed = len(spot.spots) * max(count_lines(old_str), count_lines(new_str))
    return Replacement(new, len(spot.spots), spot.spots[0].line, changed, spot.tier)


def tier_data(tier: Tier) -> JsonMap:
    """Return the field of a result that names a tier which is not exact."""
    if tier is Tier.EXACT:
        return {}
    return {"matched": tier.value}


def _find(text: str, name: str, old_str: str, new_str: str, *, replace_all: bool) -> Match | ToolError:
    old = old_str.removeprefix(BOM)
    if not old and not text:
        return invalid(f"{name} exists and is empty: read_file it, then write_file its text.")
    if not old:
        return invalid(f"{name} exists: old_str may be empty only to create a file. Give the text to replace.")

    new = new_str.removeprefix(BOM)

    if replace_all:
        spots = tuple(find_spots(text, old, overlapping=False))
    else:
        spots = tuple(islice(find_spots(text, old), _LISTED_SPOTS + 1))

    if len(spots) == 1 or (spots and replace_all):
        return Match(Tier.EXACT, spots, new)

    if spots:
        remedy = "add lines around it until it occurs once, or set replace_all"
        return invalid(f"old_str occurs {_occurrences(spots, name)}: {remedy}.")

    loose = find_loosely(text, old, new)
    if loose is None:
        escapes = escapes_in(old)
        if escapes:
            return _find(text, name, unescaped(old, escapes), unescaped(new, escapes), replace_all=replace_all)
        return _miss(text, name, old_str, new_str)
    if len(loose.spots) == 1:
        return loose

    remedy = "take it as one of them stands there, with lines around it until it occurs once"
    return invalid(f"But for blanks, old_str occurs {_occurrences(loose.spots, name)}: {remedy}.")


def _occurrences(spots: Sequence[Spot], name: str) -> str:
    if len(spots) <= _LISTED_SPOTS:
        times = str(len(spots))
    else:
        times = f"more than {_LISTED_SPOTS}"

    lines = ", ".join(str(spot.line) for spot in spots[:_LISTED_SPOTS])
    return f"{times} times in {name}, at lines {lines}"


def _miss(text: str, name: str, old_str: str, new_str: str) -> ToolError:
    applied = ""
    if len(new_str.strip()) >= _TELLING_CHARACTERS:
        spot = next(find_spots(text, new_str), None)
        if spot is not None:
            applied = f" new_str is already there, at line {spot.line}: this edit looks already applied."

    region = nearest_region(text, old_str)
    if region is None:
        return invalid(f"{MISSED} {name}.{applied or ' Nothing in it is near: read_file it first.'}")

    near = region.sentence("take old_str from the suggestion, which shows them")
    return invalid(f"{MISSED} {name}.{applied} {near}", region.text)
