"""Patches in the V4A format, read. Pure: no file is looked at. Source: OpenAI's apply_patch (codex, GPT-4.1 guide).

    *** Begin Patch
    *** Add File: new.py            each line of the file with a "+" before it
    *** Delete File: old.py
    *** Update File: a.py           then perhaps "*** Move to: b.py", then hunks
    @@ def f():                     a line above the hunk, or nothing; several of them lead further in
     context
    -removed
    +added
    *** End of File                 the lines before end the file
    *** End Patch

As there, spaces around markers, a missing first "@@", empty lines for empty context lines and a wrapper of a heredoc or
a code fence are accepted; and beyond it, hunk headers with line numbers as `diff` writes them, which are ignored.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from nodes.execute_tools.tools.text_files import to_unix

BEGIN: Final = "*** Begin Patch"
END: Final = "*** End Patch"
END_OF_FILE: Final = "*** End of File"
ADD: Final = "*** Add File:"
DELETE: Final = "*** Delete File:"
UPDATE: Final = "*** Update File:"
MOVE: Final = "*** Move to:"

_SHOWN = 80
"""Characters of a line that a message repeats."""
_FENCE = re.compile(r"```\w*$")
_HEREDOC = re.compile(r"(?:apply_patch\s+)?<<-?\s*(?P<quote>['\"]?)(?P<word>\w+)(?P=quote)$")
_UNIFIED = re.compile(r"-\d+(?:,\d+)? \+\d+(?:,\d+)? @@\s?(?P<rest>.*)")


class PatchLine(NamedTuple):
    """A line of a hunk: its sign (" ", "-" or "+") and its text."""

    sign: str
    text: str


class Hunk(NamedTuple):
    """Lines that belong together. `headers` are the "@@" lines that lead there, `line` is where it begins."""

    headers: tuple[str, ...]
    lines: tuple[PatchLine, ...]
    ends_file: bool
    line: int

    @property
    def old(self) -> tuple[str, ...]:
        """The lines that must stand in the file."""
        return tuple(each.text for each in self.lines if each.sign != "+")


class AddedFile(NamedTuple):
    """A file that is to be made. `line` is that of its header in the patch, counted from 1."""

    path: str
    text: str
    line: int


class DeletedFile(NamedTuple):
    """A file that is to go."""

    path: str
    line: int


class UpdatedFile(NamedTuple):
    """A file that is to get its hunks, in order, and with a `target` another name."""

    path: str
    target: str
    hunks: tuple[Hunk, ...]
    line: int


FilePatch: TypeAlias = AddedFile | DeletedFile | UpdatedFile


class PatchError(NamedTuple):
    """What is wrong with a patch, and in which of its lines, counted from 1. `suggestions` show what was meant."""

    line: int
    message: str
    suggestions: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The whole message."""
        return f"Line {self.line} of the patch: {self.message}"


def parse_patch(patch: str) -> tuple[FilePatch, ...] | PatchError:
    """The files of a patch, in order, or the first thing that is wrong."""
    try:
        files = _Reader(_unwrapped(patch)).files()
    except _MalformedError as error:
        return error.error
    seen: set[str] = set()
    for file in files:
        for path in _paths(file):
            if path in seen:
                return PatchError(file.line, f"{path!r} occurs twice: put all that concerns a file into one section.")
            seen.add(path)
    return files


def patched_paths(patch: str) -> list[str]:
    """Every path that the patch names, targets of moves too, as they are spelled; [] for what is no patch."""
    files = parse_patch(patch)
    return [] if isinstance(files, PatchError) else [path for file in files for path in _paths(file)]


def _paths(file: FilePatch) -> tuple[str, ...]:
    return (file.path, file.target) if isinstance(file, UpdatedFile) and file.target else (file.path,)


class _MalformedError(Exception):
    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.error = PatchError(line, message)


class _Numbered(NamedTuple):
    number: int
    text: str

    @property
    def marker(self) -> str:
        return self.text.strip()


def _unwrapped(patch: str) -> list[_Numbered]:
    """The lines between the first and the last marker, without heredoc and code fence."""
    lines = [_Numbered(number, text) for number, text in enumerate(to_unix(patch).split("\n"), start=1)]
    lines = _trimmed(lines)
    while len(lines) >= 2 and _is_wrapped(lines[0].marker, lines[-1].marker):
        lines = _trimmed(lines[1:-1])
    if not lines or lines[0].marker != BEGIN:
        found = f", not with {_shown(lines[0].text)}" if lines else ", and it is empty"
        raise _MalformedError(lines[0].number if lines else 1, f"a patch begins with {BEGIN!r}{found}.")
    if len(lines) < 2 or lines[-1].marker != END:
        raise _MalformedError(lines[-1].number, f"a patch ends with {END!r}, not with {_shown(lines[-1].text)}.")
    return lines[1:-1]


def _trimmed(lines: list[_Numbered]) -> list[_Numbered]:
    told = [index for index, line in enumerate(lines) if line.marker]
    return lines[told[0] : told[-1] + 1] if told else []


def _is_wrapped(first: str, last: str) -> bool:
    heredoc = _HEREDOC.fullmatch(first)
    return last == heredoc["word"] if heredoc else bool(_FENCE.fullmatch(first)) and last == "```"


class _Reader:
    """Reads line by line; `_at` is the next one."""

    def __init__(self, lines: Sequence[_Numbered]) -> None:
        self._lines = lines
        self._gaps = _gaps(lines)
        self._at = 0

    def files(self) -> tuple[FilePatch, ...]:
        found: list[FilePatch] = []
        while (line := self._next()) is not None:
            self._at += 1
            if line.marker:
                found.append(self._file(line))
        if not found:
            number = self._lines[0].number if self._lines else 1
            raise _MalformedError(number, "the patch is empty: it names no file to add, update or delete.")
        return tuple(found)

    def _next(self) -> _Numbered | None:
        return self._lines[self._at] if self._at < len(self._lines) else None

    def _file(self, header: _Numbered) -> FilePatch:
        if header.marker.startswith(ADD):
            return AddedFile(_path(header, ADD), self._added(), header.number)
        if header.marker.startswith(DELETE):
            return DeletedFile(_path(header, DELETE), header.number)
        if header.marker.startswith(UPDATE):
            return self._updated(header)
        if header.marker == END:
            raise _MalformedError(header.number, f"nothing may follow {END!r}: put all files into one patch.")
        raise _MalformedError(
            header.number,
            f"here a file begins, with {ADD!r}, {UPDATE!r} or {DELETE!r} and its path, not {_shown(header.text)}.",
        )

    def _added(self) -> str:
        text: list[str] = []
        while (line := self._next()) is not None and not line.marker.startswith("***"):
            if line.text.startswith("+"):
                text.append(line.text[1:] + "\n")
            elif not self._is_gap():
                raise _MalformedError(
                    line.number, f"each line of an added file begins with '+', and this one is {_shown(line.text)}."
                )
            self._at += 1
        return "".join(text)

    def _updated(self, header: _Numbered) -> UpdatedFile:
        path, target = _path(header, UPDATE), ""
        line = self._next()
        if line is not None and line.marker.startswith(MOVE):
            target = _path(line, MOVE)
            self._at += 1
        hunks: list[Hunk] = []
        while (line := self._next()) is not None and not line.text.startswith("***"):
            if self._is_gap():
                self._at += 1
            else:
                hunks.append(self._hunk(line, first=not hunks))
        if not hunks and not target:
            raise _MalformedError(header.number, f"the update of {path!r} has no hunks: say what changes.")
        return UpdatedFile(path, target, tuple(hunks), header.number)

    def _hunk(self, start: _Numbered, *, first: bool) -> Hunk:
        headers = self._headers()
        if not headers and not first:
            raise _MalformedError(
                start.number,
                f"a line of a hunk begins with ' ', '-' or '+', and a hunk with '@@', not {_shown(start.text)}.",
            )
        lines: list[PatchLine] = []
        while (line := self._next()) is not None and line.text[:1] in {"", " ", "-", "+"} and not self._is_gap():
            lines.append(PatchLine(line.text[:1] or " ", line.text[1:]))
            self._at += 1
        if not lines:
            shown = f", and here is {_shown(line.text)}" if line is not None else ""
            message = f"this hunk has no lines: each begins with ' ', '-' or '+'{shown}."
            raise _MalformedError(start.number, message)
        ends_file = self._ends_file()
        return Hunk(tuple(each for each in headers if each.strip()), tuple(lines), ends_file, start.number)

    def _ends_file(self) -> bool:
        while (line := self._next()) is not None and self._is_gap():
            self._at += 1
        if line is None or line.marker != END_OF_FILE:
            return False
        self._at += 1
        return True

    def _headers(self) -> list[str]:
        found: list[str] = []
        while (line := self._next()) is not None and line.text.startswith("@@"):
            text = line.text[2:].removeprefix(" ")
            unified = _UNIFIED.fullmatch(text)
            found.append(unified["rest"] if unified else text)
            self._at += 1
        return found

    def _is_gap(self) -> bool:
        """Whether only empty lines stand from here to the next section, hunk or the end."""
        return self._gaps[self._at]


def _gaps(lines: Sequence[_Numbered]) -> list[bool]:
    """For each line whether it is empty and none but empty ones follow up to the next section, hunk or the end."""
    found: list[bool] = []
    before_marker = True
    for line in reversed(lines):
        before_marker = before_marker and not line.text
        found.append(before_marker)
        before_marker = before_marker or line.text.startswith(("***", "@@"))
    return found[::-1]


def _path(line: _Numbered, marker: str) -> str:
    path = line.marker.removeprefix(marker).strip()
    if not path:
        raise _MalformedError(line.number, f"{marker!r} needs the path of a file after it.")
    return path


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
