r"""The model that makes no mistake: the calls that read a commit's files and make its changes. Standard library only.

It sees files as `read_file` shows them: without BOM, and with "\n" where lines end with CRLF.
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
"""Lines around a change that a hunk has at least."""

READ_LINES: Final = 100
"""Lines of a file that a call reads. Source: the default of deepagents' `read_file`."""

MOST_CHARACTERS: Final = 900_000
"""Of one step. A longer one is counted apart: no model writes a whole lock file, and no tool takes it."""

_MOST_EDITS: Final = 20
"""Edits of one file; with more places to change it is written whole."""


@dataclass(frozen=True)
class Step:
    """One act. `text` is what stands in the file, or the whole text of a file or a patch; `new` takes its place.

    `new` is for a move the other name. `line` is where to read from.
    """

    act: str
    path: str = ""
    text: str = ""
    new: str = ""
    line: int = 1


@dataclass(frozen=True)
class Script:
    """The steps of each reply, and edits of single files for a model that may not write them whole.

    Such a file has a secret, which the model is not shown: what it wrote in its place would be lost.
    """

    replies: list[list[Step]]
    edits: dict[str, list[Step]]

    @classmethod
    def of(cls, deltas: Sequence[Delta], form: str) -> "Script":
        """The script that makes these changes in a form."""
        edits = {}
        for each in deltas if form == WRITE else ():
            before, after = (shown(text) for text in each.texts)
            edits[each.path] = list(_edits(each.path, before, after, each.hunks))
        return cls(rounds(deltas, form), edits)

    @property
    def is_oversized(self) -> bool:
        """Whether a step is longer than a reply may be."""
        return any(len(step.text) + len(step.new) > MOST_CHARACTERS for reply in self.replies for step in reply)


def rounds(deltas: Sequence[Delta], form: str) -> list[list[Step]]:
    """The steps of each reply: all files are read first, and no reply changes a file twice."""
    reads = [Step("read", delta.source, line=_first_line(delta)) for delta in deltas if delta.before]
    gone = [each for each in deltas if each.after is None]
    left = [each for each in deltas if each.after is not None]
    replies = [reads]

    if form == PATCH:
        rest = [each for each in left if not _is_patchable(each)]
        sections = [_section(each) for each in [*gone, *left] if each not in rest]
        whole = "".join(["*** Begin Patch\n", *sections, "*** End Patch\n"])
        replies += [[Step("patch", text=whole)] if sections else []]
        left = rest
    else:
        replies += [[Step("delete", each.path) for each in gone]]
    acts = [list(_acts(each, form)) for each in left]
    replies += [[step for step in steps if step] for steps in zip_longest(*acts)]
    return [reply for reply in replies if reply]


def _first_line(delta: Delta) -> int:
    """The line from which a page shows the first change."""
    return max(1, delta.hunks[0].start - _CONTEXT) if delta.hunks else 1


def _acts(delta: Delta, form: str) -> Iterator[Step]:
    """The steps that change one file, in order."""
    before, after = shown(delta.texts[0]), shown(delta.texts[1])

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


def shown(text: str) -> str:
    """A text as a model sees it."""
    return text.removeprefix(BOM).replace("\r\n", "\n")


def _keeps_form(delta: Delta) -> bool:
    """Whether BOM and line ends are afterwards what they were: a tool that keeps them makes the change."""
    old, new = delta.texts
    return old.startswith(BOM) == new.startswith(BOM) and _ends(old) == _ends(new)


def _ends(text: str) -> set[bool]:
    """Whether lines end with CRLF, with LF alone, or some with either; a text in one line has LF."""
    crlf = text.count("\r\n")
    return {kind for kind, count in ((True, crlf), (False, text.count("\n") - crlf or not crlf)) if count}


def _split(text: str) -> list[str]:
    """The lines of a text with their ends, as git counts them."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + [rest] * bool(rest)


def _edits(path: str, before: str, after: str, hunks: Sequence[Hunk]) -> Iterator[Step]:
    """An edit for each hunk, from the last to the first, with as many lines around it as make it the only place.

    The lines above a hunk are those of the old text when its turn comes, and those below it are of the new one.
    """
    old, new = _split(before), _split(after)

    for hunk in reversed(hunks):
        now = "".join([*old[: hunk.end], *new[hunk.new_end :]])
        start, ahead = hunk.start, 0
        while True:
            following = new[hunk.new_end : hunk.new_end + ahead]
            text = "".join([*old[start : hunk.end], *following])
            if text and (_occurs_once(now, text) or (start == 0 and hunk.new_end + ahead >= len(new))):
                break
            start, ahead = max(0, start - 1), ahead + 1
        replacement = "".join([*old[start : hunk.start], *new[hunk.new_start : hunk.new_end], *following])
        yield Step("edit", path, text, replacement)


def _occurs_once(text: str, part: str) -> bool:
    first = text.find(part)
    return text.find(part, first + 1) < 0


def _is_patchable(delta: Delta) -> bool:
    """Whether the patch form can say this change: it ends a new file's last line, and keeps how an old one ends."""
    old, new = (shown(text) for text in delta.texts)

    if delta.before is None:
        return new.endswith("\n") and delta.texts[1] == new
    if delta.after is None or delta.before == delta.after:
        return True
    ends_alike = old.endswith("\n") == new.endswith("\n")
    return bool(old.strip() and new.strip()) and ends_alike and _keeps_form(delta)


def _section(delta: Delta) -> str:
    """The section of a patch for one file."""
    if delta.after is None:
        return f"*** Delete File: {delta.path}\n"
    if delta.before is None:
        return f"*** Add File: {delta.path}\n" + "".join(f"+{line}" for line in _split(delta.texts[1]))

    move = f"*** Move to: {delta.path}\n" if delta.path != delta.source else ""
    old, new = (_split(shown(text)) for text in delta.texts)
    return f"*** Update File: {delta.source}\n{move}{''.join(_hunks(old, new, delta.hunks))}"


def _hunks(old: list[str], new: list[str], hunks: Sequence[Hunk]) -> Iterator[str]:
    """The hunks as text, each with enough lines around it to fit in one place; those that touch are one."""
    whole = f"\n{_ended(old)}"
    groups: list[tuple[int, int, list[Hunk]]] = []

    for hunk in hunks:
        start, end = max(0, hunk.start - _CONTEXT), min(len(old), hunk.end + _CONTEXT)
        while (start, end) != (0, len(old)) and not _occurs_once(whole, f"\n{_ended(old[start:end])}"):
            start, end = max(0, start - 1), min(len(old), end + 1)

        members = [hunk]
        while groups and start <= groups[-1][1]:
            first, last, earlier = groups.pop()
            start, end, members = min(start, first), max(end, last), [*earlier, *members]
        groups.append((start, end, members))

    for start, end, members in groups:
        yield "@@\n" + "".join(_hunk_lines(old, new, start, end, members))


def _ended(lines: Sequence[str]) -> str:
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _hunk_lines(old: list[str], new: list[str], start: int, end: int, hunks: Sequence[Hunk]) -> Iterator[str]:
    at = start
    for hunk in hunks:
        yield from (f" {_ended([line])}" for line in old[at : hunk.start])
        yield from (f"-{_ended([line])}" for line in old[hunk.start : hunk.end])
        yield from (f"+{_ended([line])}" for line in new[hunk.new_start : hunk.new_end])
        at = hunk.end
    yield from (f" {_ended([line])}" for line in old[at:end])
