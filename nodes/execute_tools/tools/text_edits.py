r"""Exact replacement in a text, blind to the difference of "\n" and "\r\n" and to nothing else."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nodes.execute_tools.tools.text_files import dominant_newline, to_unix, with_newline


class Spot(NamedTuple):
    """A stretch of the text: offsets `start` to `end`, and the line, counted from 1, in which it begins."""

    start: int
    end: int
    line: int


def find_spots(text: str, wanted: str, *, overlapping: bool = True) -> Iterator[Spot]:
    r"""Every place where `wanted` stands in `text`, in order; both may end lines with "\n" or "\r\n".

    Overlapping occurrences count by default: an edit of one of them would be a guess. An empty `wanted` is nowhere.
    """
    plain_text, plain_wanted = to_unix(text), to_unix(wanted)
    widened = _widened_newlines(text) if len(plain_text) != len(text) else []
    line, seen = 1, 0
    at = plain_text.find(plain_wanted) if plain_wanted else -1
    while at >= 0:
        line, seen = line + plain_text.count("\n", seen, at), at
        end = at + len(plain_wanted)
        yield Spot(at + bisect_left(widened, at), end + bisect_left(widened, end), line)
        at = plain_text.find(plain_wanted, at + 1 if overlapping else end)


def replace_spots(text: str, spots: Iterable[Spot], replacement: str) -> str:
    """The text with `replacement` in place of each spot, its line ends written as those of the text.

    `spots` are in order and do not overlap. Everything outside of them is kept to the letter.
    """
    fallback = dominant_newline(text)
    pieces, kept_to = [], 0
    for spot in spots:
        replaced = text[spot.start : spot.end]
        newline = dominant_newline(replaced) if "\n" in replaced else fallback
        pieces += [text[kept_to : spot.start], with_newline(replacement, newline)]
        kept_to = spot.end
    return "".join([*pieces, text[kept_to:]])


def _widened_newlines(text: str) -> list[int]:
    r"""Where each "\r\n" of the text stands once they are all "\n": a later offset is one more for each of them."""
    found: list[int] = []
    at = text.find("\r\n")
    while at >= 0:
        found.append(at - len(found))
        at = text.find("\r\n", at + 2)
    return found
