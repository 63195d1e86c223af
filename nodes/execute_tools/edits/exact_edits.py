"""Exact texts in a file: where they stand, what is put in their place, and what stands there instead where they do not.

Line ends count as equal. Where a text is nowhere as it is, whole lines are looked for that may differ in blanks at
their ends, else that are indented by a constant more or less than in the file. What several places of one tier fit is
ambiguous, and a looser tier is not asked. Pure.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, islice
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.edits.look_alikes import escaped, escapes_in, look_alike, unescaped
from mendgraph.nodes.execute_tools.files.text_files import (
    BOM,
    count_lines,
    dominant_newline,
    to_unix,
    with_ends_of,
    with_newline,
)
from mendgraph.nodes.execute_tools.secrets.text_parts import first_words, masked_blocks
from mendgraph.nodes.language.text_protocol import MISSED
from mendgraph.nodes.records import JsonMap, ToolError, invalid


class Spot(NamedTuple):
    """A stretch of the text: offsets `start` to `end`, and the line, counted from 1, in which it begins."""

    start: int
    end: int
    line: int


def find_spots(text: str, wanted: str, *, overlapping: bool = True) -> Iterator[Spot]:
    r"""Every place where `wanted` stands in `text`, in order; both may end lines with "\n" or "\r\n".

    Overlapping occurrences count by default: an edit of one of them would be a guess. An empty `wanted` is nowhere.
    """
    plain_text = to_unix(text)
    plain_wanted = to_unix(wanted)
    # where each "\r\n" stands once they are all "\n": a later offset is one more for each of them
    widened = [carriage_returns.start() - number for number, carriage_returns in enumerate(re.finditer("\r\n", text))]
    line = 1
    seen = 0
    at = plain_text.find(plain_wanted) if plain_wanted else -1

    while at >= 0:
        line = line + plain_text.count("\n", seen, at)
        seen = at
        end = at + len(plain_wanted)
        yield Spot(at + bisect_left(widened, at), end + bisect_left(widened, end), line)
        at = plain_text.find(plain_wanted, at + 1 if overlapping else end)


def replace_spots(text: str, spots: Iterable[Spot], replacement: str) -> str:
    """The text with `replacement` in place of each spot, its line ends written as those of the place.

    `spots` are in order and do not overlap. Everything outside of them is kept to the letter.
    """
    pieces = []
    kept_to = 0

    for spot in spots:
        replaced = text[spot.start : spot.end]
        if "\n" in replaced:
            near = replaced
        else:
            near = text[spot.start : text.find("\n", spot.end) + 1]

        plain = with_newline(replacement, dominant_newline(near or text))
        is_mixed = 0 < near.count("\r\n") < near.count("\n")
        pieces += [text[kept_to : spot.start], with_ends_of(near, replacement) if is_mixed else plain]
        kept_to = spot.end

    return "".join([*pieces, text[kept_to:]])


MAX_REGION_LINES = 40
MAX_REGION_CHARACTERS = 2000
_COMPARED_WIDTH = 200
_LINE_SCORE = 60.0


class Region(NamedTuple):
    """Lines of a file, `first` to `last` counted from 1, as they are; those of a private key are marks.

    With a `difference`, a whole sentence, they hold what is wanted but for characters that `text` has as escapes.
    """

    first: int
    last: int
    text: str
    difference: str = ""


def nearest_region(text: str, wanted: str, source: str = "old_str") -> Region | None:
    """The lines of `text` that look most like `wanted`, told by its longest line; None if nothing is near.

    `source` is the name of `wanted` in the sentence.
    """
    if alike := look_alike(text, wanted, source):
        excerpt = escaped(shown_lines(text, alike.first - 1, alike.last))
        difference = (
            f"It looks like lines {alike.first}-{alike.last}, but {alike.differences}: copy them from the suggestion,"
            " which writes such characters as escapes; so may the edit."
        )

        return Region(alike.first, alike.last, excerpt, difference)

    from rapidfuzz import fuzz, process

    wanted_lines = to_unix(wanted).strip("\n").split("\n")[:MAX_REGION_LINES]
    compared = [line.strip()[:_COMPARED_WIDTH] for line in wanted_lines]
    offset = max(range(len(compared)), key=lambda index: len(compared[index]))
    lines = text.split("\n")
    places = [line.strip()[:_COMPARED_WIDTH] for line in lines]
    near = process.extractOne(compared[offset], places, scorer=fuzz.ratio, score_cutoff=_LINE_SCORE)

    if near is None or not compared[offset]:
        return None

    first = max(0, near[2] - offset)
    last = min(first + len(wanted_lines), len(lines))
    return Region(first + 1, last, shown_lines(text, first, last))


def shown_lines(text: str, first: int, last: int) -> str:
    """The lines `first` to `last` of a text, counted from 0, the last one excluded, as a message shows them."""
    lines = masked_blocks(text).split("\n")[first : min(last, first + MAX_REGION_LINES)]
    return first_words("\n".join(line.removesuffix("\r") for line in lines), MAX_REGION_CHARACTERS)


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


class Match(NamedTuple):
    """The places of the tightest tier that has any, in order, and the new text as it belongs in the first of them."""

    tier: Tier
    spots: tuple[Spot, ...]
    replacement: str


class Shift(NamedTuple):
    """The blanks that lines of a file have more (`added`) or less (`removed`) at their start than those of a block."""

    added: str = ""
    removed: str = ""

    def moved(self, line: str) -> str:
        """A line of the block as it belongs in the file; what has less than is to be taken away stays as it is."""
        if line.strip():
            return self.added + line.removeprefix(self.removed)
        return line


_KEYS: Final[Mapping[Tier, Callable[[str], str]]] = {
    Tier.EXACT: str,
    Tier.TRAILING_BLANKS: lambda line: line.rstrip(_BLANKS),
    Tier.INDENTATION: lambda line: line.strip(_BLANKS),
}


def line_places(lines: Sequence[str], block: Sequence[str], tier: Tier, start: int = 0) -> Iterator[tuple[int, Shift]]:
    """Where the lines of a block stand, beginning at line `start` or later, and by how much they are moved there.

    Of a file that repeats its words very often, not all places are compared by their indentation.
    """
    keyed = list(map(_KEYS[tier], lines))
    sought = "".join(f"\n{_KEYS[tier](line)}" for line in block) + "\n"
    joined = "".join(f"\n{line}" for line in keyed) + "\n"
    line = start
    seen = sum(len(keyed_line) + 1 for keyed_line in keyed[:start])
    at = joined.find(sought, seen)
    tried = 0

    while at >= 0 and (tried < _TRIED or tier is not Tier.INDENTATION):
        line = line + joined.count("\n", seen, at)
        seen = at
        tried = tried + 1

        if tier is Tier.INDENTATION:
            shift = _shift(lines[line : line + len(block)], block)
        else:
            shift = Shift()

        if shift is not None:
            yield line, shift

        at = joined.find(sought, at + 1)


def find_loosely(text: str, wanted: str, replacement: str) -> Match | None:
    """Where the lines of `wanted` stand in `text`, but for blanks; None where no tier finds them, or they are blank.

    The replacement is indented as the file is. Where the last line of the file has no line end, it gets none.
    """
    if not wanted.strip():
        return None

    wanted = to_unix(wanted)
    replacement = to_unix(replacement)
    if _BLANK_END.search(wanted):  # the blanks before a closing quote: they would indent the line that comes next
        wanted, replacement = (_BLANK_END.sub("", text_side) for text_side in (wanted, replacement))

    written = text.split("\n")
    block = wanted.removesuffix("\n").split("\n")

    for tier in (Tier.TRAILING_BLANKS, Tier.INDENTATION):
        places = list(islice(line_places(written, block, tier), _LISTED))
        if not places:
            continue

        indented = _indented(replacement, places[0][1])
        starts = [0, *accumulate(len(line) + 1 for line in written)]
        spots = tuple(_spot(written, starts, at, len(block), ended=wanted.endswith("\n")) for at, _ in places)

        if spots[0].end == len(text) and written[-1] and wanted.endswith("\n") and indented is not None:
            indented = indented.removesuffix("\n")

        indent = _first_indent(text[spots[0].start :])
        if replacement.strip() and indent == _first_indent(replacement) != _first_indent(wanted):
            return None  # two readings: indented as the file is, or deeper than the text that it replaces
        if indented is None:
            return None

        return Match(tier, spots, indented)

    return None


def _first_indent(text: str) -> str:
    return _indent(text.lstrip("\r\n").split("\n")[0])


def _spot(written: Sequence[str], starts: Sequence[int], at: int, count: int, *, ended: bool) -> Spot:
    """So many whole lines, with the last line end if `ended`."""
    last = at + count

    if ended:
        end = min(starts[last], starts[-1] - 1)
    else:
        end = starts[last - 1] + len(written[last - 1].removesuffix("\r"))

    return Spot(starts[at], end, at + 1)


def _shift(found: Sequence[str], block: Sequence[str]) -> Shift | None:
    """By how much all lines of `found` are moved against those of `block`; None where they differ in that."""
    pairs = [
        (_indent(file_line), _indent(block_line))
        for file_line, block_line in zip(found, block, strict=True)
        if block_line.strip(_BLANKS)
    ]
    file_indent, block_indent = pairs[0] if pairs else ("", "")

    if file_indent.endswith(block_indent):
        shift = Shift(file_indent.removesuffix(block_indent))
    elif block_indent.endswith(file_indent):
        shift = Shift("", block_indent.removesuffix(file_indent))
    else:
        return None

    fits = all(shift.removed + theirs == shift.added + ours for theirs, ours in pairs)
    return shift if fits else None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indented(text: str, shift: Shift) -> str | None:
    """The text with its lines moved likewise; None where one of them has less than is to be taken away."""
    lines = text.split("\n")
    if not all(line.startswith(shift.removed) for line in lines if line.strip()):
        return None

    return "\n".join(map(shift.moved, lines))


# --- An edit of a model

EQUAL: Final = "old_str and new_str are equal, so the edit would change nothing."
_LISTED_SPOTS = 10
_TELLING_CHARACTERS = 4
"""A shorter new text occurs by chance, so that finding it says nothing."""


class Replacement(NamedTuple):
    """The text after an edit: how many stretches were replaced, where the first began, and how many lines they are.

    `tier` says what was left out of account to find them.
    """

    text: str
    replacements: int
    start_line: int
    lines_changed: int
    tier: Tier = Tier.EXACT


def replace_text(text: str, name: str, old_str: str, new_str: str, *, replace_all: bool) -> Replacement | ToolError:
    """The text with `new_str` in place of `old_str`, or why that is not clear; `name` is the file's, for messages."""
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
    """What a result says of a match that is not exact."""
    if tier is Tier.EXACT:
        return {}
    return {"matched": tier.value}


def _find(text: str, name: str, old_str: str, new_str: str, *, replace_all: bool) -> Match | ToolError:
    text_wanted = old_str.removeprefix(BOM)
    if not text_wanted and not text:
        return invalid(f"{name} exists and is empty: read_file it, then write_file its text.")
    if not text_wanted:
        return invalid(f"{name} exists: old_str may be empty only to create a file. Give the text to replace.")

    new = new_str.removeprefix(BOM)

    if replace_all:
        spots = tuple(find_spots(text, text_wanted, overlapping=False))
    else:
        spots = tuple(islice(find_spots(text, text_wanted), _LISTED_SPOTS + 1))

    if len(spots) == 1 or (spots and replace_all):
        return Match(Tier.EXACT, spots, new)

    if spots:
        remedy = "add lines around it until it occurs once, or set replace_all"
        return invalid(f"old_str occurs {_occurrences(spots, name)}: {remedy}.")

    loose = find_loosely(text, text_wanted, new)
    if loose is None:
        escapes = escapes_in(text_wanted)
    else:
        escapes = frozenset[str]()

    if escapes:
        return _find(text, name, unescaped(text_wanted, escapes), unescaped(new, escapes), replace_all=replace_all)
    if loose is None:
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
        spot_of_new = next(find_spots(text, new_str), None)
        if spot_of_new:
            applied = f" new_str is already there, at line {spot_of_new.line}: this edit looks already applied."
        else:
            applied = ""

    region = nearest_region(text, old_str)
    if region is None:
        return invalid(f"{MISSED} {name}.{applied or ' Nothing in it is near: read_file it first.'}")

    near = f"The nearest lines are {region.first}-{region.last}: take old_str from the suggestion, which shows them."
    return invalid(f"{MISSED} {name}.{applied} {region.difference or near}", region.text)
