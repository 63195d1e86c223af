"""Edits of whole lines, collected in any order and applied at once."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple


class LineEdit(NamedTuple):
    """`lines` in place of the lines `start` up to, and without, `end`, counted from 0; an equal `end` inserts."""

    start: int
    end: int
    lines: tuple[str, ...]


def apply_edits(lines: Sequence[str], edits: Iterable[LineEdit]) -> str:
    """The text after all edits, which may touch but not overlap; at one place, insertions come first and in order."""
    pieces: list[str] = []
    kept_to = 0
    for edit in sorted(edits, key=lambda edit: edit[:2]):
        pieces += [*lines[kept_to : edit.start], *edit.lines]
        kept_to = edit.end
    return "".join([*pieces, *lines[kept_to:]])


def moved(lines: Sequence[str], numbers: Iterable[int], indents: tuple[str, str], frozen: Collection[int]) -> list[str]:
    """The lines with these numbers, counted from 1, moved from the first indent to the second, without their line ends.

    Frozen and blank lines stay as they are, and so does a line that is indented less than the first of them.
    """
    old, new = indents
    bare = [(number, lines[number - 1].rstrip("\r\n")) for number in numbers]
    return [
        new + line.removeprefix(old) if number not in frozen and line.strip() and line.startswith(old) else line
        for number, line in bare
    ]


def dedented(text: str) -> str:
    """The text without the indent of its first line, wherever that indent stands; the number of lines stays."""
    lines = text.split("\n")
    first = next((line for line in lines if line.strip()), "")
    indent = first[: len(first) - len(first.lstrip())]
    return "\n".join(line.removeprefix(indent) for line in lines)
