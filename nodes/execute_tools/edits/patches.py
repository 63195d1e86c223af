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
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.edits.exact_edits import nearest_regions
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.files.text_files import dominant_newline, to_unix

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


LISTED_PLACES: Final = 10
"""Places of an ambiguous hunk that a message names."""


class Patched(NamedTuple):
    """The text after all hunks, and how many of them were found only by leaving spaces out of account."""

    text: str
    inexact: int


def apply_hunks(text: str, hunks: Sequence[Hunk], path: str) -> Patched | PatchError:
    """The text with the hunks applied, in order; `path` is for messages.

    Lines that a hunk only names stay to the letter. New ones get the line ends of the text, and the last line has a
    line end or none as before.
    """
    file = _File(text)
    pieces: list[str] = []
    done = inexact = 0
    for hunk in hunks:
        found = _place(file, hunk, done, path)
        if isinstance(found, PatchError):
            return found
        inexact += found.key is not _exact
        pieces += [*file.ended[done : found.start], *_replaced(file, hunk, found)]
        done = found.start + len(hunk.old)
    pieces += file.ended[done:]
    return Patched(_text_of(pieces, file), inexact)


class _File:
    """The lines of a text: `lines` without and `ended` with their line ends."""

    def __init__(self, text: str) -> None:
        self.newline = dominant_newline(text)
        self.has_last_newline = text.endswith("\n") or not text
        self.ended = text.split("\n")
        self.ended = [f"{line}\n" for line in self.ended[:-1]] + self.ended[-1:] * bool(self.ended[-1])
        self.lines = [line.removesuffix("\n").removesuffix("\r") for line in self.ended]
        self._joined: dict[_Key, tuple[str, list[int]]] = {}

    def joined(self, key: "_Key") -> tuple[str, list[int]]:
        """All lines in the form that `key` gives them, each after a line break, and where each of these stands."""
        if key not in self._joined:
            lines = [key(line) for line in self.lines]
            text = "".join(f"\n{line}" for line in lines) + "\n"
            self._joined[key] = text, [0, *accumulate(len(line) + 1 for line in lines)]
        return self._joined[key]


class _Found(NamedTuple):
    start: int
    key: "_Key"


def _exact(line: str) -> str:
    return line


_Key: TypeAlias = Callable[[str], str]
_KEYS: Final[tuple[_Key, ...]] = (_exact, str.rstrip, str.strip)


# --- Finding the place


def _place(file: _File, hunk: Hunk, done: int, path: str) -> _Found | PatchError:
    """The one place where the hunk fits, in the lines from `done` on."""
    scopes = _scopes(file, hunk.headers)
    if isinstance(scopes, str):
        return PatchError(hunk.line, f"the line {scopes!r} after '@@' does not occur in {quoted(path)}.")
    if not hunk.old:
        return _place_of_addition(file, hunk, scopes, done, path)
    last = len(file.lines) - len(hunk.old)
    if hunk.ends_file and last >= done:
        for key in _KEYS:
            if [key(line) for line in file.lines[last:]] == [key(line) for line in hunk.old]:
                return _Found(last, key)
    blocks = [(max(start, done), end) for start, end in _united(scopes)]
    below = [(max(min(start for start, _ in scopes), done), len(file.lines))]
    for within in (blocks, below):
        for key in _KEYS:
            places = list(islice(_places_of(file, hunk.old, within, key), LISTED_PLACES + 1))
            if len(places) == 1:
                return _Found(places[0], key)
            if places:
                return _ambiguous(hunk, places, path)
    return _miss(file, hunk, done, path)


def _united(scopes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The scopes, which come in the order of their starts, without overlaps: each line is looked at once."""
    united: list[tuple[int, int]] = []
    for start, end in scopes:
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        else:
            united.append((start, end))
    return united


def _scopes(file: _File, headers: Sequence[str]) -> list[tuple[int, int]] | str:
    """The stretches of lines that the headers lead to, each from the last header's line on; without any, the file.

    Returns the header that is nowhere, where one is. Two hunks may have the same header.
    """
    scopes = [(0, len(file.lines))]
    ends = _block_ends(file.lines) if headers else []
    within, done = scopes, ("", scopes[:0])
    for header in headers:
        if (header, within) == done:
            continue
        done = header, within
        for fits in _HEADER_FITS:
            found = [at for start, end in within for at in range(start, end) if fits(file.lines[at], header)]
            if found:
                break
        else:
            return header
        scopes = [(at, ends[at]) for at in found]
        within = _united(scopes)
    return scopes


_HEADER_FITS: Final[tuple[Callable[[str, str], bool], ...]] = (
    lambda line, header: line.rstrip() == header.rstrip(),
    lambda line, header: line.strip() == header.strip(),
    lambda line, header: line.strip().startswith(header.strip()),
)


def _block_ends(lines: Sequence[str]) -> list[int]:
    """For each line, where the block ends that it opens: at the next one that is not indented deeper.

    Empty lines end nothing, and neither do closing brackets that stand as deep as the line.
    """
    ends = [len(lines)] * len(lines)
    open_blocks: list[tuple[int, int]] = []
    for at, line in enumerate(lines):
        bare = line.lstrip()
        if not bare:
            continue
        depth = len(line) - len(bare)
        while open_blocks and (open_blocks[-1][1] > depth or (open_blocks[-1][1] == depth and bare[0] not in ")]}")):
            ends[open_blocks.pop()[0]] = at
        if bare[0] not in ")]}":
            open_blocks.append((at, depth))
    return ends


def _place_of_addition(
    file: _File, hunk: Hunk, scopes: Sequence[tuple[int, int]], done: int, path: str
) -> _Found | PatchError:
    """Where to add lines that have no others around them: below the header, or at the end that the patch names."""
    if hunk.ends_file or not file.lines:
        return _Found(len(file.lines), _exact)
    starts = [start + 1 for start, _ in scopes if start + 1 >= done] if hunk.headers else []
    if len(starts) == 1:
        return _Found(starts[0], _exact)
    if starts:
        return _ambiguous(hunk, starts[: LISTED_PLACES + 1], path)
    message = f"this hunk only adds lines to {quoted(path)}, and nothing says where: add the lines around them."
    return PatchError(hunk.line, message)


def _places_of(file: _File, old: Sequence[str], scopes: Iterable[tuple[int, int]], key: _Key) -> Iterator[int]:
    """Where the old lines stand, in order, beginning inside one of the scopes, which are in order and apart."""
    text, starts = file.joined(key)
    wanted = "".join(f"\n{key(line)}" for line in old) + "\n"
    for start, end in scopes:
        if start >= end:
            continue
        last = starts[min(end + len(old) - 1, len(file.lines))] + 1
        at = text.find(wanted, starts[start], last)
        while at >= 0:
            yield bisect_left(starts, at)
            at = text.find(wanted, at + 1, last)


def _ambiguous(hunk: Hunk, places: Sequence[int], path: str) -> PatchError:
    more = " and more" if len(places) > LISTED_PLACES else ""
    shown = ", ".join(str(place + 1) for place in places[:LISTED_PLACES])
    message = (
        f"this hunk fits in several places of {quoted(path)}, at lines {shown}{more}: add lines around it, or '@@' with"
        " the function or class above it, until it fits in one."
    )
    return PatchError(hunk.line, message)


def _miss(file: _File, hunk: Hunk, done: int, path: str) -> PatchError:
    regions = nearest_regions("\n".join(file.lines), "\n".join(hunk.old))
    ranges = ", ".join(f"{region.first}-{region.last}" for region in regions)
    near = f"The nearest lines are {ranges}: the suggestions show them as they are."
    where = f" from line {done + 1} on, after the hunk before" if done else ""
    message = f"the lines of this hunk do not occur in {quoted(path)}{where}. "
    message += near if regions else "Nothing in it is near: read_file it first."
    return PatchError(hunk.line, message, tuple(region.text for region in regions))


# --- The lines that come there


def _replaced(file: _File, hunk: Hunk, found: _Found) -> Iterator[str]:
    old, new = _indents(file, hunk, found)
    at = found.start
    for sign, text in hunk.lines:
        if sign == "+":
            yield (new + text.removeprefix(old) if text.startswith(old) and text else text) + file.newline
            continue
        if sign == " ":
            yield file.ended[at]
        at += 1


def _indents(file: _File, hunk: Hunk, found: _Found) -> tuple[str, str]:
    """The indent of the hunk's first line that says something, and the one that it has in the file."""
    if found.key is not str.strip:
        return "", ""
    # Such a line there is: without any, the hunk would have been found before, by the ends of its lines.
    offset = next(at for at, line in enumerate(hunk.old) if line.strip())
    return _indent(hunk.old[offset]), _indent(file.lines[found.start + offset])


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _text_of(pieces: Sequence[str], file: _File) -> str:
    """The text of the lines: all but the last have line ends, and the last one as it was in the file."""
    if not pieces:
        return ""
    ended = [piece if piece.endswith("\n") else piece + file.newline for piece in pieces]
    if not file.has_last_newline:
        ended[-1] = _without_newline(pieces[-1])
    return "".join(ended)


def _without_newline(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
