"""A block that is a diff: lines with `-` and `+` at their start, as a model writes them that was asked for new text."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_HEADER: Final = re.compile(r"(?:@@|diff --git |index [0-9a-f]+\.\.|--- |\+\+\+ |\\ No newline)")
_MARKS: Final = ("+", "-")


class TextHunk(NamedTuple):
    """The lines that a hunk takes away, and those that it puts there, both with the lines around them."""

    old: str
    new: str


def read_diff(block: str, *, has_header: bool) -> tuple[TextHunk, ...]:
    """The hunks of a diff; none where the block is none. With `has_header` it needs a line `@@` or `---` and `+++`.

    A list in Markdown or YAML has such lines too: only where a text cannot be meant as it is, is a header not needed.
    """
    lines = block.replace("\r\n", "\n").removesuffix("\n").split("\n")
    headed = any(line.startswith("@@") for line in lines) or (
        any(line.startswith("--- ") for line in lines) and any(line.startswith("+++ ") for line in lines)
    )
    told = [line for line in lines if not _HEADER.match(line)]
    if (has_header and not headed) or not any(line.startswith(_MARKS) for line in told):
        return ()
    around = [line for line in told if line.strip() and not line.startswith(_MARKS)]
    marked = all(line.startswith(" ") for line in around)
    groups: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("@@"):
            groups.append([])
        elif not _HEADER.match(line):
            groups[-1].append(line)
    return tuple(_hunk(group, marked=marked) for group in groups if any(line.startswith(_MARKS) for line in group))


def _hunk(lines: Sequence[str], *, marked: bool) -> TextHunk:
    """`marked` says that the lines around have a space at their start that is not theirs."""
    old, new = [], []
    for line in _without_blank_edges(lines):
        plain = line[1:] if line.startswith(_MARKS) or (marked and line) else line
        if not line.startswith("+"):
            old.append(plain)
        if not line.startswith("-"):
            new.append(plain)
    return TextHunk(*("".join(f"{each}\n" for each in part) for part in (old, new)))


def _without_blank_edges(lines: Sequence[str]) -> Sequence[str]:
    told = [index for index, line in enumerate(lines) if line.strip()]
    return lines[told[0] : told[-1] + 1]
