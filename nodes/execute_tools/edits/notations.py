"""Blocks that are edits in another notation, read as hunks. Pure.

A small model that is asked for the new text of a file may write aider's search and replace blocks, a unified diff or a
patch of codex. As the text of a file each of them would destroy it.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from posixpath import basename
from typing import Final

from mendgraph.nodes.execute_tools.edits.patches import (
    BEGIN,
    END,
    UPDATE,
    AddedFile,
    Hunk,
    PatchError,
    UpdatedFile,
    parse_patch,
)
from mendgraph.nodes.records import quoted
from mendgraph.nodes.workspace.files.text_files import to_unix

_SEARCH: Final = re.compile(r"<{5,9} ?SEARCH>?")
_MIDDLE: Final = re.compile(r"={5,9}")
_REPLACE: Final = re.compile(r">{5,9} ?REPLACE")
_MARKER: Final = re.compile(r"(?:<{5,9} ?SEARCH|>{5,9} ?REPLACE)\b")
_HUNK: Final = re.compile(r"@@ (?:-\d+(?:,\d+)? \+\d+(?:,\d+)?|\.\.\.) @@")
_FILE_LINE: Final = re.compile(r"(?:diff --git|index|(?:new|deleted) file mode|---|\+\+\+)(?: |\Z)")
_NO_NEWLINE: Final = "\\ No newline at end of file"
_MOST_LINES_BEFORE: Final = 2
"""Lines before the first marker that belong to an edit, such as a name; below more of them it is part of a text."""


def hunks_in(text: str, path: str) -> tuple[Hunk, ...] | PatchError | None:
    """Return the hunks of a block for the file at `path`, or their problem, or None for the text of a file."""
    if path.endswith((".diff", ".patch")):
        return None

    lines = to_unix(text).split("\n")
    if _begins_with_marker(lines):
        return _search_blocks(lines, path)

    first = next((line.strip() for line in lines if line.strip() not in {"", path}), "")
    if first == BEGIN:
        return _hunks_of_patch("\n".join(lines), path)
    if _HUNK.match(first) or (_FILE_LINE.match(first) and any(map(_HUNK.match, lines))):
        return _unified_diff(lines, path)

    return None


def _begins_with_marker(lines: Sequence[str]) -> bool:
    """Return whether a marker of aider's blocks stands below so few lines that these belong to an edit."""
    before = 0

    for line in lines:
        if _MARKER.match(line.strip()):
            return before <= _MOST_LINES_BEFORE
        if line.strip():
            before += 1

    return False


def _search_blocks(lines: Sequence[str], path: str) -> tuple[Hunk, ...] | PatchError:
    """Read aider's blocks, each of which may follow the name of the file."""
    hunks: list[Hunk] = []
    block: list[str] = []
    first = 0

    for number, line in enumerate(lines, start=1):
        mark = line.strip()
        if first and _REPLACE.fullmatch(mark):
            parts = _sides(block, first)
            if isinstance(parts, PatchError):
                return parts

            hunks.append(Hunk((), parts, ends_file=False, line=first))
            first = 0
        elif first and not _MARKER.match(mark):
            block.append(line)
        elif not first and _SEARCH.fullmatch(mark):
            first = number
            block = []
        elif mark.strip(".`") and (first or basename(mark) != basename(path)):
            return PatchError(number, "here a block begins, with '<<<<<<< SEARCH', or the edit ends.")

    if first:
        return PatchError(first, "this block has no end: it needs '=======' and then '>>>>>>> REPLACE'.")

    return tuple(hunks)


def _sides(block: Sequence[str], first: int) -> tuple[tuple[str, str], ...] | PatchError:
    """Return the lines between the markers with their signs; `first` is the number of the marker above them."""
    marks = [line.strip() for line in block]
    middles = [at for at, mark in enumerate(marks) if _MIDDLE.fullmatch(mark)]
    if marks.count("=======") == 1:
        middles = [marks.index("=======")]

    if len(middles) != 1:
        return PatchError(first, f"one line '=======' parts the old text from the new, and here are {len(middles)}.")

    [middle] = middles
    old = [("-", line) for line in block[:middle]]
    new = [("+", line) for line in block[middle + 1 :]]
    return (*old, *new)


def _unified_diff(lines: Sequence[str], path: str) -> tuple[Hunk, ...] | PatchError:
    """Read a unified diff as a patch, without its line numbers. Its lines keep their numbers in messages."""
    first = next(at for at, line in enumerate(lines) if _HUNK.match(line.strip()))

    for number, (old, new) in enumerate(pairwise(lines), start=1):
        if old.startswith("--- ") and new.startswith("+++ "):
            name = new.removeprefix("+++ ").split("\t")[0].strip()
            if number > first or basename(name) != basename(path):
                return _of_other_files(number, path)

    patch = [""] * (first - 2)
    patch += [BEGIN, f"{UPDATE} {path}"]
    for line in lines[first:]:
        if line != _NO_NEWLINE:
            patch.append("@@" if _HUNK.match(line) else line)

    return _hunks_of_patch("\n".join([*patch, END]), path)


def _hunks_of_patch(patch: str, path: str) -> tuple[Hunk, ...] | PatchError:
    files = parse_patch(patch)
    if isinstance(files, PatchError):
        return files

    file = files[0]
    if len(files) > 1 or basename(file.path) != basename(path):
        return _of_other_files(files[-1].line, path)

    if isinstance(file, AddedFile):
        added = tuple(("+", line) for line in file.text.removesuffix("\n").split("\n"))
        return (Hunk((), added, ends_file=True, line=file.line),)

    if isinstance(file, UpdatedFile) and file.hunks and not file.target:
        return file.hunks

    return _of_other_files(file.line, path)


def _of_other_files(line: int, path: str) -> PatchError:
    return PatchError(line, f"this block is for {quoted(path)} alone: give each file a block, with its name before it.")
