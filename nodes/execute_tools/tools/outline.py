"""What a text holds, in a few lines: enough to see what is new in it, and where."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from nodes.execute_tools.secrets.shown_parts import first_words, masked_blocks
from nodes.execute_tools.tools.text_files import count_lines, to_unix

MAX_OUTLINE_LINES: Final = 20
MAX_OUTLINE_CHARACTERS: Final = 100
"""Characters of one line."""


class _Landmarks(NamedTuple):
    """What the lines are called that say what is in a text of some kind, and how they are told."""

    name: str
    pattern: re.Pattern[str]


_DEFINITIONS = _Landmarks("definitions", re.compile(r"[ \t]*(?:async[ \t]+def|def|class)[ \t]+\w+[ \t]*[\[(:]"))
_HEADINGS = _Landmarks("headings", re.compile(r"#{1,6}[ \t]+\S"))
_TABLES = _Landmarks("sections", re.compile(r"\[.+\][ \t]*(?:#.*)?$"))
_FENCES = ("```", "~~~")
_KINDS: Final[Mapping[str, _Landmarks]] = {
    **dict.fromkeys(("py", "pyi"), _DEFINITIONS),
    **dict.fromkeys(("md", "markdown"), _HEADINGS),
    **dict.fromkeys(("toml", "ini", "cfg"), _TABLES),
}


def outline(path: str, text: str) -> str:
    r"""`It has 6 lines now, with these definitions:\n1: def add(a, b):\n5: def sub(a, b):`.

    Python shows definitions, also where it does not parse, Markdown headings, TOML and INI sections; where there are
    none, and in other texts, the first lines that say something stand for them. At most 20 lines of 100 characters;
    where there are more definitions than these, only those at the left edge. Private keys are marks.
    """
    if not text.strip():
        return "It is empty now."
    lines = to_unix(text).split("\n")
    kind = _KINDS.get(path.rpartition(".")[2].lower())
    landmarks = _landmarks(lines, kind) if kind else []
    shown = landmarks or [number for number, line in enumerate(lines, start=1) if line.strip()]
    masked = masked_blocks("\n".join(lines)).split("\n")
    numbered = [f"{number}: {_short(masked[number - 1])}" for number in shown[:MAX_OUTLINE_LINES]]
    left_out = max(0, len(landmarks) - MAX_OUTLINE_LINES)
    told = f"with these {kind.name}" if kind and landmarks else "beginning with"
    count = count_lines(text)
    head = f"It has {count} line{'s' * (count != 1)} now, {told}:"
    return "\n".join([head, *numbered, *[f"and {left_out} more"] * bool(left_out)])


def _landmarks(lines: Sequence[str], kind: _Landmarks) -> list[int]:
    """The numbers of the lines, from 1."""
    found = [number for number, line in _outside_fences(lines, kind) if kind.pattern.match(line)]
    if len(found) <= MAX_OUTLINE_LINES:
        return found
    return [number for number in found if not lines[number - 1][0].isspace()] or found


def _outside_fences(lines: Sequence[str], kind: _Landmarks) -> Iterator[tuple[int, str]]:
    """The numbered lines; of Markdown those that stand in no fenced block, where a comment looks like a heading."""
    fenced = False
    for number, line in enumerate(lines, start=1):
        if kind is _HEADINGS and line.lstrip().startswith(_FENCES):
            fenced = not fenced
        if not fenced:
            yield number, line


def _short(line: str) -> str:
    words = first_words(line.rstrip(), MAX_OUTLINE_CHARACTERS)
    return words if words == line.rstrip() else f"{words} [...]"
