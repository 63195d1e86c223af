"""Unified diffs of two texts, limited in length and time."""

import difflib
import re
from collections.abc import Iterator
from itertools import islice
from posixpath import commonprefix
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.secrets.text_parts import masked_blocks
from mendgraph.nodes.records import ChangeKind, FileChange
from mendgraph.nodes.workspace.files.text_files import to_unix

MAX_DIFF_LINES = 200
MAX_DIFF_CHARACTERS = 20_000
_CONTEXT = 3
_MAX_COMPARED_LINES = 4000
_FIRST: Final = re.compile(r"(?<=[-+])\d+")


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
    """Return the first two lines of a diff; None is no file."""
    old = "/dev/null" if before is None else f"a/{path}"
    new = "/dev/null" if after is None else f"b/{path}"
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
