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
_HUNK: Final = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
_FILE_LINE: Final = re.compile(r"(?:diff --git|index|(?:new|deleted) file mode|---|\+\+\+)(?: |\Z)")
_NEXT_FILE: Final = ("diff --git ", "--- a/")
_NO_NEWLINE: Final = "\\ No newline at end of file"


def hunks_in(text: str, path: str) -> tuple[Hunk, ...] | PatchError | None:
    """The hunks of a block for the file at `path`, or what is wrong with them; None for the text of a file."""
    if path.endswith((".diff", ".patch")):
        return None
    lines = to_unix(text).split("\n")
    start = next((at for at, line in enumerate(lines) if line.strip() and line.strip() != path), len(lines))
    first = lines[start].strip() if start < len(lines) else ""
    if _SEARCH.fullmatch(first):
        return _searched(lines, start)
    if first == BEGIN:
        return _patched("\n".join(lines), path)
    if _HUNK.match(first) or (_FILE_LINE.match(first) and any(map(_HUNK.match, lines))):
        return _unified(lines, start, path)
    return None


def _searched(lines: Sequence[str], start: int) -> tuple[Hunk, ...] | PatchError:
    """Aider's blocks, one behind the other."""
    hunks: list[Hunk] = []
    parts: list[tuple[str, str]] = []
    sign, first = "", start
    for number, line in enumerate(lines[start:], start=start + 1):
        mark = line.strip()
        if not sign and _SEARCH.fullmatch(mark):
            sign, first, parts = "-", number, []
        elif sign == "-" and _MIDDLE.fullmatch(mark):
            sign = "+"
        elif sign == "+" and _REPLACE.fullmatch(mark):
            hunks.append(Hunk((), tuple(parts), ends_file=False, line=first))
            sign = ""
        elif sign:
            parts.append((sign, line))
        elif mark:
            return PatchError(number, "here a block begins, with '<<<<<<< SEARCH', or the edit ends.")
    if sign:
        return PatchError(first, "this block has no end: it needs '=======' and then '>>>>>>> REPLACE'.")
    return tuple(hunks)


def _unified(lines: Sequence[str], start: int, path: str) -> tuple[Hunk, ...] | PatchError:
    """A unified diff, whose line numbers say nothing; lines of it keep their numbers."""
    first = next(at for at, line in enumerate(lines) if _HUNK.match(line.strip()))
    named = [line.split("\t")[0].strip() for line in lines[start:first] if line.startswith("+++ ")]
    later = [at for at in range(first, len(lines)) if lines[at].startswith(_NEXT_FILE)]
    if later or any(basename(name) != basename(path) for name in named):
        return _of_other_files(later[0] + 1 if later else start + 1, path)
    hunks = ("@@" if _HUNK.match(line) else line for line in lines[first:] if line != _NO_NEWLINE)
    head = [*[""] * max(0, first - len((BEGIN, UPDATE))), BEGIN, f"{UPDATE} {path}"]
    return _patched("\n".join([*head, *hunks, END]), path)


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
