r"""The scripted model: the calls that read a commit's files and make its changes. Standard library only.

Its texts are those that `read_file` shows: without a BOM, and with "\n" in place of CRLF.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from benchmarks.commits.history import BOM, Delta, Hunk

EDIT: Final = "edit_file"
PATCH: Final = "apply_patch"
WRITE: Final = "write_file"
FORMS: Final = (EDIT, PATCH, WRITE)

_CONTEXT: Final = 3
"""The minimum of context lines around a change in a hunk."""

READ_LINES: Final = 100
"""The number of lines that a call reads. Source: the default of deepagents' `read_file`."""

MOST_CHARACTERS: Final = 900_000
"""The maximum of one step. Commits with a longer step, such as a new lock file, are counted separately."""

_MOST_EDITS: Final = 20
"""The maximum of edits in one file. A file with more changes is written completely."""


@dataclass(frozen=True)
class Step:
    """One tool call: `act` is its kind.

    An edit replaces `text` by `new`, and a move renames `path` to `new`. `text` is also the content of a new file or a
    patch. A read begins at `line`.
    """

    act: str
    path: str = ""
    text: str = ""
    new: str = ""
    line: int = 1


@dataclass(frozen=True)
class Script:
    """The steps of each reply, and the edits of each file in place of a complete write.

    A file with a secret cannot be written completely, because the model sees a placeholder in place of the secret.
    """

    replies: list[list[Step]]
    edits: dict[str, list[Step]]

    @classmethod
    def of(cls, deltas: Sequence[Delta], form: str) -> "Script":
        """Return the script that makes these changes in this form."""
        edits = {}
        if form == WRITE:
            for delta in deltas:
                before, after = map(normalize, delta.texts)
                edits[delta.path] = list(_edits(delta.path, before, after, delta.hunks))
        return cls(plan_replies(deltas, form), edits)

    @property
    def is_oversized(self) -> bool:
        """Whether a step exceeds the maximum."""
        steps = [step for reply in self.replies for step in reply]
        return any(len(step.text) + len(step.new) > MOST_CHARACTERS for step in steps)


def plan_replies(deltas: Sequence[Delta], form: str) -> list[list[Step]]:
    """Return the steps of each reply: all files are read first, and no reply changes a file twice."""
    reads = [Step("read", delta.source, line=_first_line(delta)) for delta in deltas if delta.before]
    deletions = [delta for delta in deltas if delta.after is None]
    changes = [delta for delta in deltas if delta.after is not None]
    replies = [reads]

    if form == PATCH:
        patchable = [delta for delta in changes if _is_patchable(delta)]
        changes = [delta for delta in changes if delta not in patchable]
        sections = [_section(delta) for delta in [*deletions, *patchable]]
        if sections:
            patch = "".join(["*** Begin Patch\n", *sections, "*** End Patch\n"])
            replies.append([Step("patch", text=patch)])
    else:
        replies.append([Step("delete", delta.path) for delta in deletions])

    steps_of_files = [list(_steps(delta, form)) for delta in changes]
    for steps in zip_longest(*steps_of_files):
        replies.append([step for step in steps if step])
    return [reply for reply in replies if reply]


def _first_line(delta: Delta) -> int:
    """Return the line at which the model reads the file: some lines above the first change."""
    if not delta.hunks:
        return 1
    return max(1, delta.hunks[0].start - _CONTEXT)


def _steps(delta: Delta, form: str) -> Iterator[Step]:
    """Yield the steps that change one file, in order."""
    before, after = map(normalize, delta.texts)

    if delta.before is None:
        yield Step("write", delta.path, delta.texts[1])
        return
    if delta.source != delta.path:
        yield Step("move", delta.source, new=delta.path)
    if delta.before == delta.after:
        return

    if not _keeps_form(delta):
        yield Step("delete", delta.path)
        yield Step("write", delta.path, delta.texts[1])
    elif form == EDIT and before.strip() and len(delta.hunks) <= _MOST_EDITS:
        yield from _edits(delta.path, before, after, delta.hunks)
    else:
        yield Step("write", delta.path, after)


def normalize(text: str) -> str:
    """Return a text as `read_file` shows it."""
    return text.removeprefix(BOM).replace("\r\n", "\n")


def _keeps_form(delta: Delta) -> bool:
    """Whether the change keeps the BOM and the line ends, as the tools do."""
    old, new = delta.texts
    return old.startswith(BOM) == new.startswith(BOM) and _line_ends(old) == _line_ends(new)


def _line_ends(text: str) -> set[str]:
    """Return the line ends of a text: CRLF, LF or both. A single line counts as LF."""
    crlf = text.count("\r\n")
    lf = text.count("\n") - crlf

    ends = set()
    if crlf:
        ends.add("CRLF")
    if lf or not crlf:
        ends.add("LF")
    return ends


def _split(text: str) -> list[str]:
    """Return the lines of a text with their ends, as git counts them."""
    *lines, last = text.split("\n")
    result = [f"{line}\n" for line in lines]
    if last:
        result.append(last)
    return result


def _edits(path: str, before: str, after: str, hunks: Sequence[Hunk]) -> Iterator[Step]:
    """Yield an edit for each hunk, from the last to the first, with enough context to occur once.

    When an edit is applied, the text above its hunk is still the old one, and the text below is already the new one.
    """
    old = _split(before)
    new = _split(after)

    for hunk in reversed(hunks):
        current = "".join([*old[: hunk.end], *new[hunk.new_end :]])
        start = hunk.start
        lookahead = 0

        while True:
            below = new[hunk.new_end : hunk.new_end + lookahead]
            text = "".join([*old[start : hunk.end], *below])
            has_whole_file = start == 0 and hunk.new_end + lookahead >= len(new)
            if text and (has_whole_file or _occurs_once(current, text)):
                break
            start = max(0, start - 1)
            lookahead += 1

        replacement = "".join([*old[start : hunk.start], *new[hunk.new_start : hunk.new_end], *below])
        yield Step("edit", path, text, replacement)


def _occurs_once(text: str, part: str) -> bool:
    first = text.find(part)
    return text.find(part, first + 1) < 0


def _is_patchable(delta: Delta) -> bool:
    """Whether the patch format can express a change: a new file ends with a line end, an old file keeps its end."""
    old, new = map(normalize, delta.texts)

    if delta.before is None:
        return new.endswith("\n") and delta.texts[1] == new
    if delta.after is None or delta.before == delta.after:
        return True
    has_same_end = old.endswith("\n") == new.endswith("\n")
    return bool(old.strip() and new.strip()) and has_same_end and _keeps_form(delta)


def _section(delta: Delta) -> str:
    """Return the section of a patch for one file."""
    if delta.after is None:
        return f"*** Delete File: {delta.path}\n"
    if delta.before is None:
        lines = [f"+{line}" for line in _split(delta.texts[1])]
        return f"*** Add File: {delta.path}\n" + "".join(lines)

    head = f"*** Update File: {delta.source}\n"
    if delta.path != delta.source:
        head += f"*** Move to: {delta.path}\n"
    old, new = (_split(normalize(text)) for text in delta.texts)
    return head + "".join(_patch_hunks(old, new, delta.hunks))


def _patch_hunks(old: list[str], new: list[str], hunks: Sequence[Hunk]) -> Iterator[str]:
    """Yield the hunks of a patch, each with enough context to occur once; overlapping hunks are merged."""
    text = f"\n{_join(old)}"
    groups: list[tuple[int, int, list[Hunk]]] = []

    for hunk in hunks:
        start = max(0, hunk.start - _CONTEXT)
        end = min(len(old), hunk.end + _CONTEXT)
        while (start, end) != (0, len(old)) and not _occurs_once(text, f"\n{_join(old[start:end])}"):
            start = max(0, start - 1)
            end = min(len(old), end + 1)

        members = [hunk]
        while groups and start <= groups[-1][1]:
            group_start, group_end, group_members = groups.pop()
            start = min(start, group_start)
            end = max(end, group_end)
            members = [*group_members, *members]
        groups.append((start, end, members))

    for start, end, members in groups:
        yield "@@\n" + "".join(_hunk_lines(old, new, start, end, members))


def _join(lines: Sequence[str]) -> str:
    """Join lines, each with a line end."""
    return "".join(_with_line_end(line) for line in lines)


def _with_line_end(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n"


def _hunk_lines(old: list[str], new: list[str], start: int, end: int, hunks: Sequence[Hunk]) -> Iterator[str]:
    """Yield the lines of a hunk with their prefixes."""
    position = start
    for hunk in hunks:
        for line in old[position : hunk.start]:
            yield f" {_with_line_end(line)}"
        for line in old[hunk.start : hunk.end]:
            yield f"-{_with_line_end(line)}"
        for line in new[hunk.new_start : hunk.new_end]:
            yield f"+{_with_line_end(line)}"
        position = hunk.end

    for line in old[position:end]:
        yield f" {_with_line_end(line)}"
