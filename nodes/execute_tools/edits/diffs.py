"""Unified diffs of texts and changes, limited in length and time, and changes with only some hunks of their diffs."""

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from posixpath import commonprefix
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.secrets.text_parts import masked_blocks
from mendgraph.nodes.records import ChangeKind, FileChange
from mendgraph.nodes.workspace.files.text_files import decode_text, encode_text, to_unix, why_not_text
from mendgraph.nodes.workspace.files.workspace import DryChange

MAX_DIFF_LINES = 200
MAX_DIFF_CHARACTERS = 20_000
_CONTEXT = 3
_MAX_COMPARED_LINES = 4000
_FIRST: Final = re.compile(r"(?<=[-+])\d+")
_RANGES: Final = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@$", re.MULTILINE)
_LINE_ENDS: Final = re.compile(r"(?<=\n)")


class Version(NamedTuple):
    """The hash and the text of a file; the text of a binary file is None."""

    sha256: str
    text: str | None


NO_FILE: Final = Version("", None)


def file_change(path: str, before: Version, after: Version) -> FileChange:
    """Return the change of one file; `NO_FILE` is a file that does not exist. The diff of a binary file is ""."""
    kind = ChangeKind.EDITED
    if before == NO_FILE:
        kind = ChangeKind.CREATED
    elif after == NO_FILE:
        kind = ChangeKind.DELETED

    diff = ""
    if all(version == NO_FILE or version.text is not None for version in (before, after)):
        diff = unified_diff(path, before.text, after.text)

    return FileChange(path=path, kind=kind, sha256_before=before.sha256, sha256_after=after.sha256, diff=diff)


def unified_diff(path: str, before: str | None, after: str | None, *, complete: bool = False) -> str:
    """Return a unified diff of at most 200 lines and 20,000 characters unless it is `complete`; None is no file.

    A longer one ends with a line that says how much was left out. Line ends are not compared. The lines of a private
    key are marks, also if only one of the texts has its first line.
    """
    old = _lines(before or "")
    new = _lines(after or "")
    start = len(commonprefix([old, new]))

    if start == len(old) == len(new):
        return ""

    tail = len(commonprefix([old[start:][::-1], new[start:][::-1]]))
    first = max(0, start - _CONTEXT)
    last = max(0, tail - _CONTEXT)
    body = list(_hunks(old[first : len(old) - last], new[first : len(new) - last], first))
    hidden = _hidden(before or "") | _hidden(after or "")

    if hidden:
        body = [line[:1] + hidden.get(line[1:], line[1:]) for line in body]

    return _bounded([*header(path, before, after), *body], complete=complete)


def header(path: str, before: object, after: object) -> tuple[str, str]:
    """Return the first two lines of a diff, also of a path with line ends; None is no file."""
    name = path.replace("\n", "\\n")
    old = "/dev/null" if before is None else f"a/{name}"
    new = "/dev/null" if after is None else f"b/{name}"
    return f"--- {old}\n", f"+++ {new}\n"


def _lines(text: str) -> list[str]:
    *lines, last = to_unix(text).split("\n")
    ended = [f"{line}\n" for line in lines]
    if last:
        ended.append(last)

    return ended


def _hidden(text: str) -> dict[str, str]:
    lines = _lines(text)
    masked = masked_blocks(to_unix(text))
    return {line: masked_line for line, masked_line in zip(lines, _lines(masked), strict=True) if masked_line != line}


def _hunks(old: list[str], new: list[str], offset: int) -> Iterator[str]:
    """Yield the hunks of lines that begin after `offset` others; very many are shown as replaced as a whole."""
    if len(old) + len(new) > _MAX_COMPARED_LINES:
        yield f"@@ -{_range(old, offset)} +{_range(new, offset)} @@\n"
        yield from (f"-{line}" for line in old)
        yield from (f"+{line}" for line in new)
        return

    for line in islice(difflib.unified_diff(old, new, n=_CONTEXT), 2, None):
        if line.startswith("@@"):
            yield _FIRST.sub(lambda match: str(int(match[0]) + offset), line)
        else:
            yield line


def _range(lines: list[str], offset: int) -> str:
    start = offset + 1 if lines else offset
    return f"{start},{len(lines)}"


def _bounded(lines: list[str], *, complete: bool) -> str:
    parts: list[str] = []
    characters = 0

    for line in lines:
        if not line.endswith("\n"):
            line += "\n\\ No newline at end of file\n"  # noqa: PLW2901 - as diff writes it

        characters += len(line)
        if not complete and (len(parts) == MAX_DIFF_LINES or characters > MAX_DIFF_CHARACTERS):
            return "".join(parts) + f"[... {len(lines) - len(parts)} more lines of this diff]\n"

        parts.append(line)

    return "".join(parts)


# --- Changes that were not made


def change_diff(change: DryChange, *, complete: bool = False) -> str:
    """Return the unified diff of a change, with its move; for binary data a line that says so."""
    moved = ""
    if change.target:
        moved = f"rename from {change.name}\nrename to {change.target}\n"

    if change.before == change.after:
        return moved

    texts = [None if data is None else decode_text(data) for data in (change.before, change.after)]
    if any(text is None and data is not None for text, data in zip(texts, (change.before, change.after), strict=True)):
        gone = ", and would be gone" if change.after is None else ""
        return f"{moved}{change.target or change.name} is {why_not_text(change.before or change.after or b'')}{gone}\n"

    old, new = (text.text if text else None for text in texts)
    diff = unified_diff(change.target or change.name, old, new, complete=complete)
    return moved + (diff or "".join(header(change.name, old, new)))


def count_hunks(changes: Sequence[DryChange]) -> int:
    """Return the number of hunks of all changes; 0 if one is a move, or has no hunks, as one of binary data."""
    counts = [0 if change.target else len(_hunks_of(change)) for change in changes]
    return sum(counts) if all(counts) else 0


def with_hunks(changes: Sequence[DryChange], numbers: Collection[int]) -> list[DryChange | None]:
    """Return the changes with only these hunks, counted from 1 over all changes; None for one without any of them."""
    parts: list[DryChange | None] = []
    last = 0

    for change in changes:
        hunks = _hunks_of(change)
        chosen = [hunk for number, hunk in enumerate(hunks, last + 1) if number in numbers]
        last += len(hunks)

        if not chosen:
            parts.append(None)
        elif chosen == hunks:
            parts.append(change)
        else:
            parts.append(change._replace(after=_replaced(change, chosen)))

    return parts


class _Hunk(NamedTuple):
    """The lines of a hunk in the old and in the new text."""

    old: slice
    new: slice


def _hunks_of(change: DryChange) -> list[_Hunk]:
    hunks: list[_Hunk] = []

    for ranges in _RANGES.findall(change_diff(change, complete=True)):
        old, new = (_slice(*ranges[at : at + 2]) for at in (0, 2))
        hunks.append(_Hunk(old, new))

    return hunks


def _slice(first: str, count: str) -> slice:
    length = int(count or 1)
    start = int(first) - (length > 0)  # without lines, it is the line before
    return slice(start, start + length)


def _replaced(change: DryChange, hunks: Sequence[_Hunk]) -> bytes | None:
    """Return the old data with the new lines of these hunks."""
    old, new = (decode_text(data or b"") for data in (change.before, change.after))
    if old is None or new is None:
        return change.after

    old_lines, new_lines = (_LINE_ENDS.split(file.text) for file in (old, new))
    for hunk in reversed(hunks):
        old_lines[hunk.old] = new_lines[hunk.new]

    return encode_text("".join(old_lines), old.form)
