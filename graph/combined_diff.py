"""One diff for each file of a run, however often the run has changed it. Pure: the files' bytes are handed in.

The text before the run is won back by undoing the recorded diffs, last first, on the file as it is now; hashes prove
each end. Where that does not work out (a diff that was cut, line ends of both kinds, a file changed by somebody else
since), the recorded diffs stand one after the other.

Diffs do not compare line ends. What happened to those of a file that has or had the ones of Windows is a remark below
its diff.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nodes.execute_tools.tools.diffs import unified_diff
from nodes.execute_tools.tools.text_files import to_unix, with_newline
from nodes.records import FileChange

_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+(?P<start>\d+)(?:,\d+)? @@")
_NO_NEWLINE = "\\"
"""Begins the remark that the line before it has no line end."""


def combined_diffs(changes: Sequence[FileChange], read: Callable[[str], bytes | None]) -> list[str]:
    """A unified diff for each changed file, in the order of the first change; none for one that is as it was.

    `read` gives the bytes that a path has now, or None. Where only line ends have changed, the remark stands alone.
    """
    by_path: dict[str, list[FileChange]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)
    diffs = [_combined(each, _text(each[-1], read)) for each in by_path.values()]
    return [diff for diff in diffs if diff]


def _combined(changes: list[FileChange], now: str | None) -> str:
    first, last = changes[0], changes[-1]
    if first.sha256_before == last.sha256_after:
        return ""
    before = None if now is None else _before(changes, now)
    recorded = "".join(change.diff for change in changes)
    if now is None or before is None:
        return recorded + _remark(last.path, recorded, "", _line_ends(now or ""))
    old = before if first.sha256_before else None
    diff = unified_diff(last.path, old, now) if len(changes) > 1 else recorded
    return diff + _remark(last.path, diff, _line_ends(before), _line_ends(now))


def _text(last: FileChange, read: Callable[[str], bytes | None]) -> str | None:
    """The file's text, if it is what the last change has left."""
    now = read(last.path)
    if now is None or _sha256(now) != last.sha256_after:
        return None
    try:
        return now.decode()
    except UnicodeDecodeError:
        return None


def _before(changes: list[FileChange], now: str) -> str | None:
    """The file's text before its first change, line ends included; None where that cannot be proved."""
    wanted = changes[0].sha256_before or _sha256(b"")
    for text in dict.fromkeys((now, to_unix(now))):
        before: str | None = text
        for change in reversed(changes):
            before = None if before is None else undo(before, change.diff)
        for form in () if before is None else (before, with_newline(before, "\r\n")):
            if _sha256(form.encode()) == wanted:
                return form
    return None


def _line_ends(text: str) -> str:
    """What its lines end with, in the words of editors; "" where it has none."""
    windows = text.count("\r\n")
    unix = text.count("\n") - windows
    return "CRLF and LF" if windows and unix else "CRLF" if windows else "LF" if unix else ""


def _remark(path: str, diff: str, before: str, now: str) -> str:
    """What has become of the line ends; nothing where Windows has no part in it."""
    if "CRLF" not in before + now:
        return ""
    if before and now and before != now:
        return f"[{'' if diff else path + ': '}line ends changed from {before} to {now}]\n"
    return f"[line ends: {now}, kept]\n" if before == now else f"[line ends: {now}]\n" if now and diff else ""


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
