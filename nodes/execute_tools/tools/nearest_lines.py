"""Where in a file stands what a model probably meant, when its exact text does not."""

from typing import NamedTuple

from rapidfuzz import fuzz, process

from nodes.execute_tools.secrets.shown_parts import first_words, masked_blocks
from nodes.execute_tools.tools.text_files import to_unix

MAX_REGIONS = 3
MAX_REGION_LINES = 40
MAX_REGION_CHARACTERS = 2000
_COMPARED_WIDTH = 200
_ANCHORS = 3
_CANDIDATES = 5
_LINE_SCORE = 60.0
_REGION_SCORE = 50.0


class Region(NamedTuple):
    """Lines of a file, `first` to `last` counted from 1, and how near they are, 0 to 100.

    They are as they are in the file, but for the lines of a private key, which are marks.
    """

    first: int
    last: int
    text: str
    score: float


def nearest_regions(text: str, wanted: str) -> tuple[Region, ...]:
    """The up to three regions of `text` that look most like `wanted`, best first; none if nothing is near.

    The longest lines of `wanted` are looked up among all lines of the text, which is linear in its length; only where
    one of them is found, the whole region is compared.
    """
    wanted_lines = to_unix(wanted).strip("\n").split("\n")[:MAX_REGION_LINES]
    lines = text.split("\n")
    shown = masked_blocks(text).split("\n")
    places = [_compared(line) for line in lines]
    found: dict[int, Region] = {}
    for offset in _anchors(wanted_lines):
        near = process.extract(
            _compared(wanted_lines[offset]), places, scorer=fuzz.ratio, limit=_CANDIDATES, score_cutoff=_LINE_SCORE
        )
        for _line, _score, index in near:
            first = max(0, index - offset)
            found.setdefault(first, _region(lines, shown, first, wanted_lines))
    ranked = sorted((region for region in found.values() if region.score >= _REGION_SCORE), key=_rank)
    return _apart(ranked)


def _compared(line: str) -> str:
    return line.strip()[:_COMPARED_WIDTH]


def _anchors(wanted_lines: list[str]) -> list[int]:
    """The indexes of the longest lines, which say most about the place."""
    told = [index for index, line in enumerate(wanted_lines) if line.strip()]
    return sorted(told, key=lambda index: -len(wanted_lines[index].strip()))[:_ANCHORS]


def _region(lines: list[str], shown: list[str], first: int, wanted_lines: list[str]) -> Region:
    """What stands from the line with index `first` on; `shown` are the lines as they may be shown."""
    last = first + len(wanted_lines)
    taken = lines[first:last]
    wanted = "\n".join(_compared(line) for line in wanted_lines)
    score = fuzz.ratio("\n".join(_compared(line) for line in taken), wanted)
    told = "\n".join(line.removesuffix("\r") for line in shown[first:last])
    return Region(first + 1, first + len(taken), first_words(told, MAX_REGION_CHARACTERS), score)


def _rank(region: Region) -> tuple[float, int]:
    return -region.score, region.first


def _apart(ranked: list[Region]) -> tuple[Region, ...]:
    """The best regions that do not overlap a better one."""
    kept: list[Region] = []
    for region in ranked:
        if all(region.last < other.first or other.last < region.first for other in kept):
            kept.append(region)
        if len(kept) == MAX_REGIONS:
            break
    return tuple(kept)
