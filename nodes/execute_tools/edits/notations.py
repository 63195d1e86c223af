"""Blocks of the block form that are edits in another harness's notation, read as hunks. Pure.

A small model that was asked for the new text of a file writes aider's search and replace blocks, a unified diff or a
patch of codex. As the text of a file each of them would destroy it.
"""

import re
from collections.abc import Sequence
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
from mendgraph.nodes.execute_tools.files.text_files import to_unix
from mendgraph.nodes.records import quoted

_SEARCH: Final = re.compile(r"<{5,9} ?SEARCH>?")
_MIDDLE: Final = re.compile(r"={5,9}")
_REPLACE: Final = re.compile(r">{5,9} ?REPLACE")
_MARKER: Final = re.compile(r"(?:<{5,9} ?SEARCH|>{5,9} ?REPLACE)\b")
_LINE_HINT: Final = re.compile(r":(?:start|end)_line: ?\d+")
"""What Roo writes below the first marker. Line numbers say nothing, and never belong to the new text."""
_HUNK: Final = re.compile(r"@@ (?:-\d+(?:,\d+)? \+\d+(?:,\d+)?|\.\.\.) @@")
_FILE_LINE: Final = re.compile(r"(?:diff --git|index|(?:new|deleted) file mode|---|\+\+\+)(?: |\Z)")
_NO_NEWLINE: Final = "\\ No newline at end of file"
_MOST_LINES_BEFORE: Final = 2
"""Lines before the first marker that belong to an edit, such as a name; below more of them it is part of a text."""


def hunks_in(text: str, path: str) -> tuple[Hunk, ...] | PatchError | None:
    """The hunks of a block for the file at `path`, or what is wrong with them; None for the text of a file."""
    if path.endswith((".diff", ".patch")):
        return None

    lines = to_unix(text).split("\n")
    if _begins_with_marker(lines):
        return _searched(lines, path)

    start = next((at for at, line in enumerate(lines) if line.strip() not in {"", path}), len(lines))
    first = "".join(lines[start : start + 1]).strip()
    if first == BEGIN:
        return _patched("\n".join(lines), path)
    if _HUNK.match(first) or (_FILE_LINE.match(first) and any(map(_HUNK.match, lines))):
        return _unified(lines, start, path)

    return None


def _begins_with_marker(lines: Sequence[str]) -> bool:
    """Whether a marker of aider's blocks stands below so few lines that these belong to an edit."""
    before = 0

    for line in lines:
        if _MARKER.match(line.strip()):
            return before <= _MOST_LINES_BEFORE
        if line.strip():
            before += 1

    return False


def _searched(lines: Sequence[str], path: str) -> tuple[Hunk, ...] | PatchError:
    """Aider's blocks, one behind the other, perhaps with the name of the file before each."""
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
    """The lines between the markers, signed; `first` is the number of the marker above them."""
    hints = 0
    while hints < len(block) and _LINE_HINT.fullmatch(block[hints].strip()):
        hints += 1

    if hints and hints < len(block) and block[hints].strip() == "-------":
        hints += 1

    lines = block[hints:]

    marks = [line.strip() for line in lines]
    middles = [at for at, mark in enumerate(marks) if _MIDDLE.fullmatch(mark)]
    if marks.count("=======") == 1:
        middles = [marks.index("=======")]

    if len(middles) != 1:
        return PatchError(first, f"one line '=======' parts the old text from the new, and here are {len(middles)}.")

    for at, line in enumerate(lines, start=first + hints + 1):
        if _LINE_HINT.fullmatch(line.strip()):
            return PatchError(at, "line numbers belong directly below '<<<<<<< SEARCH'.")

    [middle] = middles
    old = [("-", line) for line in lines[:middle]]
    new = [("+", line) for line in lines[middle + 1 :]]
    return (*old, *new)


def _unified(lines: Sequence[str], start: int, path: str) -> tuple[Hunk, ...] | PatchError:
    """A unified diff, whose line numbers say nothing; lines of it keep their numbers."""
    first = next(at for at, line in enumerate(lines) if _HUNK.match(line.strip()))

    for at in range(first, len(lines)):
        if _begins_file(lines[at : at + 2]):
            return _of_other_files(at + 1, path)

    for line in lines[start:first]:
        if line.startswith("+++ ") and basename(line[4:].split("\t")[0].strip()) != basename(path):
            return _of_other_files(start + 1, path)

    patch = [""] * max(0, first - len((BEGIN, UPDATE)))
    patch += [BEGIN, f"{UPDATE} {path}"]
    for line in lines[first:]:
        if line != _NO_NEWLINE:
            patch.append("@@" if _HUNK.match(line) else line)

    return _patched("\n".join([*patch, END]), path)


def _begins_file(lines: Sequence[str]) -> bool:
    return lines[0].startswith("diff --git ") or [line[:4] for line in lines] == ["--- ", "+++ "]


def _patched(patch: str, path: str) -> tuple[Hunk, ...] | PatchError:
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
