"""One diff for each file of a run, however often the run has changed it. Pure: the files' bytes are handed in.

The text before the run is won back by undoing the recorded diffs, last first, on the file as it is now; hashes prove
each end. Where that does not work out (a diff that was cut, other line ends, a file changed by somebody else since),
the recorded diffs stand one after the other.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nodes.execute_tools.tools.diffs import unified_diff
from nodes.records import FileChange

_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(?P<start>\d+)(?:,\d+)? @@")
_NO_NEWLINE = "\\"
"""Begins the remark that the line before it has no line end."""


def combined_diffs(changes: Sequence[FileChange], read: Callable[[str], bytes | None]) -> list[str]:
    """A unified diff for each changed file, in the order of the first change; none for one that is as it was.

    `read` gives the bytes that a path has now, or None.
    """
    by_path: dict[str, list[FileChange]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)
    diffs = [_combined(each, read) if len(each) > 1 else each[0].diff for each in by_path.values()]
    return [diff for diff in diffs if diff]


def _combined(changes: list[FileChange], read: Callable[[str], bytes | None]) -> str:
    first, last = changes[0], changes[-1]
    if first.sha256_before == last.sha256_after:
        return ""
    now = read(last.path)
    before = _before(changes, now)
    if now is None or before is None:
        return "".join(change.diff for change in changes)
    return unified_diff(last.path, before if first.sha256_before else None, now.decode())


def _before(changes: list[FileChange], now: bytes | None) -> str | None:
    """The file's text before its first change; None where that cannot be proved."""
    if now is None or _sha256(now) != changes[-1].sha256_after:
        return None
    try:
        text: str | None = now.decode()
    except UnicodeDecodeError:
        return None
    for change in reversed(changes):
        text = None if text is None else undo(text, change.diff)
    proved = text is not None and _sha256(text.encode()) == (changes[0].sha256_before or _sha256(b""))
    return text if proved else None


def undo(text: str, diff: str) -> str | None:
    """The text from which `diff` led to `text`, or None where the diff does not fit it."""
    lines = _lines(text)
    restored: list[str] = []
    done = 0
    for hunk in _hunks(diff):
        start = hunk.start if hunk.side("+") else hunk.start + 1  # an empty range names the line before it
        if start < done or lines[start : start + len(hunk.side("+"))] != hunk.side("+"):
            return None
        restored += [*lines[done:start], *hunk.side("-")]
        done = start + len(hunk.side("+"))
    return "".join([*restored, *lines[done:]])


@dataclass
class _Hunk:
    """A hunk: its signed lines, and how many lines of the new text stand before its first one."""

    start: int
    lines: list[str] = field(default_factory=list)

    def side(self, sign: str) -> list[str]:
        """The lines of the old text ("-") or of the new one ("+")."""
        return [line[1:] for line in self.lines if line[0] in {" ", sign}]


def _hunks(diff: str) -> list[_Hunk]:
    hunks: list[_Hunk] = []
    for line in _lines(diff)[2:]:
        header = _HUNK.match(line)
        if header:
            hunks.append(_Hunk(int(header["start"]) - 1))
        elif hunks and line[0] == _NO_NEWLINE:
            hunks[-1].lines[-1] = hunks[-1].lines[-1].removesuffix("\n")
        elif hunks and line[0] in " -+":
            hunks[-1].lines.append(line)
    return hunks


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
