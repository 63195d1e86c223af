"""Parsing of patches in the V4A format, and applying hunks to texts. Pure. Source: OpenAI's apply_patch (codex).

    *** Begin Patch
    *** Add File: new.py            each line of the file with a "+" before it
    *** Delete File: old.py
    *** Update File: a.py           then perhaps "*** Move to: b.py", then hunks
    @@ def f():                     a line above the hunk, or nothing; several lines narrow the place down
     context
    -removed
    +added
    *** End of File                 the lines above are the last of the file
    *** End Patch

As in codex, spaces around markers, a missing first "@@" and empty lines for empty context lines are accepted; so are
hunk headers with line numbers as `diff` writes them, which are ignored.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from difflib import unified_diff
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.edits.exact_edits import Shift, Tier, line_places, nearest_region
from mendgraph.nodes.execute_tools.edits.look_alikes import TYPOGRAPHY, escapes_in, unescaped
from mendgraph.nodes.records import quoted
from mendgraph.nodes.workspace.files.text_files import dominant_newline, to_unix

BEGIN: Final = "*** Begin Patch"
END: Final = "*** End Patch"
END_OF_FILE: Final = "*** End of File"
ADD: Final = "*** Add File:"
DELETE: Final = "*** Delete File:"
UPDATE: Final = "*** Update File:"
MOVE: Final = "*** Move to:"

MOST_HEADERS: Final = 10
_LONGEST_EXCERPT = 80
"""Characters of a line that a message repeats."""
_HEREDOC: Final = re.compile(r"(?:apply_?patch\s+)?<<-?(?P<quote>['\"]?)(?P<word>\w+)(?P=quote)")
_UNIFIED = re.compile(r"-\d+(?:,\d+)? \+\d+(?:,\d+)? @@\s?(?P<rest>.*)")


class Hunk(NamedTuple):
    """Lines of a change, each a sign (" ", "-" or "+") and its text, below the `headers` of its "@@" lines.

    `line` is the number of its first line in the patch.
    """

    headers: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]
    ends_file: bool
    line: int

    @property
    def old(self) -> tuple[str, ...]:
        """The lines that the file must have."""
        return tuple(text for sign, text in self.lines if sign != "+")


class AddedFile(NamedTuple):
    """A file to create. `line` is the line of its header in the patch, counted from 1."""

    path: str
    text: str
    line: int


class DeletedFile(NamedTuple):
    """A file to delete."""

    path: str
    line: int


class UpdatedFile(NamedTuple):
    """A file to change by hunks, in order, and to move if it has a `target`."""

    path: str
    target: str
    hunks: tuple[Hunk, ...]
    line: int


FilePatch: TypeAlias = AddedFile | DeletedFile | UpdatedFile


class PatchError(NamedTuple):
    """A problem of a patch, and its line, counted from 1. `suggestions` show text of the file."""

    line: int
    message: str
    suggestions: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The message with the line."""
        return f"Line {self.line} of the patch: {self.message}"


def parse_patch(patch: str) -> tuple[FilePatch, ...] | PatchError:
    """Return the files of a patch, in order, or its first problem."""
    try:
        files = tuple(_file(header, lines) for header, *lines in _sections(_between_markers(patch)))
    except _MalformedError as error:
        return PatchError(*error.args)

    seen: set[str] = set()

    for file in files:
        for path in _paths(file):
            if path in seen:
                return PatchError(file.line, f"{path!r} occurs twice: put all that concerns a file into one section.")

            seen.add(path)

    return files


def patched_paths(patch: str) -> list[str]:
    """Return every path in a patch as it is written, with targets of moves; [] if it cannot be parsed."""
    files = parse_patch(patch)
    if isinstance(files, PatchError):
        return []

    paths: list[str] = []
    for file in files:
        paths += _paths(file)

    return paths


def _paths(file: FilePatch) -> tuple[str, ...]:
    if isinstance(file, UpdatedFile) and file.target:
        return (file.path, file.target)
    return (file.path,)


class _MalformedError(Exception):
    """A problem; the arguments are those of `PatchError`."""


class _Numbered(NamedTuple):
    number: int
    text: str

    @property
    def marker(self) -> str:
        return self.text.strip()


def _between_markers(patch: str) -> list[_Numbered]:
    lines = [_Numbered(number, text) for number, text in enumerate(to_unix(patch).split("\n"), start=1)]
    while lines and not lines[-1].marker:
        lines.pop()
    while lines and not lines[0].marker:
        del lines[0]

    if not lines:
        raise _MalformedError(1, f"a patch begins with {BEGIN!r}, and it is empty.")

    wrapper = _HEREDOC.fullmatch(lines[0].marker)
    if wrapper and lines[-1].marker == wrapper["word"]:
        lines = lines[1:-1]
        if not lines:
            raise _MalformedError(1, f"a patch begins with {BEGIN!r}, and it is empty.")

    first = lines[0]
    last = lines[-1]
    if first.marker != BEGIN:
        raise _MalformedError(first.number, f"a patch begins with {BEGIN!r}, not with {_excerpt(first.text)}.")
    if len(lines) < 2 or last.marker != END:
        raise _MalformedError(last.number, f"a patch ends with {END!r}, not with {_excerpt(last.text)}.")

    return lines[1:-1]


def _sections(lines: Sequence[_Numbered]) -> Iterator[list[_Numbered]]:
    """Yield the lines of each file, without empty ones at the end. A marker behind a space is a line of a file."""
    section: list[_Numbered] = []

    for line in lines:
        if section and line.text.startswith("***") and not line.marker.startswith((MOVE, END_OF_FILE)):
            yield _without_gap(section)
            section = []

        if section or line.marker:
            section.append(line)

    if not section:
        raise _MalformedError(lines[0].number if lines else 1, "the patch is empty: it names no file to change.")

    yield _without_gap(section)


def _without_gap(lines: list[_Numbered]) -> list[_Numbered]:
    end = len(lines)
    while end and not lines[end - 1].text:
        end -= 1

    return lines[:end]


def _file(header: _Numbered, lines: list[_Numbered]) -> FilePatch:
    if header.marker.startswith(ADD):
        for line in lines:
            if not line.text.startswith("+"):
                message = f"each line of an added file begins with '+', and this one is {_excerpt(line.text)}."
                raise _MalformedError(line.number, message)

        return AddedFile(_path(header, ADD), "".join(f"{line.text[1:]}\n" for line in lines), header.number)

    if header.marker.startswith(UPDATE):
        path = _path(header, UPDATE)
        target = ""
        if lines and lines[0].marker.startswith(MOVE):
            target = _path(lines[0], MOVE)
            lines = lines[1:]

        hunks = tuple(_hunks(lines))
        if not hunks and not target:
            raise _MalformedError(header.number, f"the update of {path!r} has no hunks: say what changes.")

        return UpdatedFile(path, target, hunks, header.number)

    wrong = header

    if header.marker.startswith(DELETE):
        if not lines:
            return DeletedFile(_path(header, DELETE), header.number)

        wrong = lines[0]

    if wrong.marker == END:
        raise _MalformedError(wrong.number, f"nothing may follow {END!r}: put all files into one patch.")

    message = f"here a file begins, with {ADD!r}, {UPDATE!r} or {DELETE!r} and its path, not {_excerpt(wrong.text)}."
    raise _MalformedError(wrong.number, message)


def _hunks(lines: list[_Numbered]) -> Iterator[Hunk]:
    """Yield the hunks of a file. "@@" after other lines begins the next one, and "*** End of File" ends one."""
    at = 0
    while at < len(lines):
        start = lines[at]
        headers = list[str]()

        while at < len(lines) and lines[at].text.startswith("@@"):
            text = lines[at].text[2:].removeprefix(" ")
            unified = _UNIFIED.fullmatch(text)
            headers.append(unified["rest"] if unified else text)
            at += 1

        if len(headers) > MOST_HEADERS:
            raise _MalformedError(start.number, f"a hunk may have {MOST_HEADERS} '@@' lines, and this has more.")

        first = at
        while at < len(lines) and lines[at].text[:1] in {"", " ", "-", "+"}:
            at += 1

        context_lines = _without_gap(lines[first:at])
        ends_file = at < len(lines) and lines[at].marker == END_OF_FILE
        if not context_lines and not headers and at < len(lines) and lines[at].text.startswith("@@"):
            continue  # empty lines before the first hunk

        if not context_lines or (at < len(lines) and not ends_file and not lines[at].text.startswith("@@")):
            wrong = lines[at] if context_lines else start
            next_text = ""
            if at < len(lines):
                next_text = f", not {_excerpt(lines[at].text)}"

            message = f"a hunk is made of lines that begin with ' ', '-' or '+', after '@@'{next_text}."
            raise _MalformedError(wrong.number, message)

        at += ends_file
        parts = tuple((line.text[:1] or " ", line.text[1:]) for line in context_lines)
        yield Hunk(tuple(header for header in headers if header.strip()), parts, ends_file, start.number)


def _path(line: _Numbered, marker: str) -> str:
    path = line.marker.removeprefix(marker).strip()
    if not path:
        raise _MalformedError(line.number, f"{marker!r} needs the path of a file after it.")
    return path


def _excerpt(text: str) -> str:
    if len(text) <= _LONGEST_EXCERPT:
        return repr(text)
    return repr(f"{text[:_LONGEST_EXCERPT]}...")


LISTED_PLACES: Final = 10
"""The most places of an ambiguous hunk that a message names."""
_MOST_SCOPES: Final = 50

_HEADER_FITS: Final[tuple[Callable[[str, str], bool], ...]] = (
    lambda line, header: line.rstrip() == header.rstrip(),
    lambda line, header: line.strip() == header.strip(),
    lambda line, header: line.strip().startswith(header.strip()),
)


class Patched(NamedTuple):
    """The text after all hunks, and the number of hunks that fit only if spaces are ignored."""

    text: str
    inexact: int


def apply_hunks(text: str, hunks: Sequence[Hunk], path: str) -> Patched | PatchError:
    """Return the text with the hunks applied, in order; `path` is for messages.

    Context lines stay as they are. A new line gets the line end of the line above it, or of the text. The last line has
    a line end if it had one before.
    """
    file = _File(text, path)
    newline = dominant_newline(text)
    lines: list[tuple[str, str]] = []
    done = 0
    inexact = 0

    for hunk in hunks:
        position = file.place(hunk, done)
        if isinstance(position, PatchError):
            return position

        if position.tier is not Tier.EXACT:
            inexact += 1

        lines += file.ended[done : position.at]
        done = position.at
        ending = newline
        if done:
            ending = file.ended[done - 1][1] or newline

        for sign, line in position.lines or hunk.lines:
            if sign == "+":
                lines.append((position.shift.moved(line), ending))
                continue

            ending = file.ended[done][1] or newline
            if sign == " ":
                lines.append(file.ended[done])

            done += 1

    lines += file.ended[done:]
    last = newline if text.endswith("\n") or not text else ""
    return Patched(_joined(lines, newline, last), inexact)


def _joined(lines: Sequence[tuple[str, str]], newline: str, last: str) -> str:
    """Return the text of lines and their ends. A line without end gets `newline`, the last line gets `last`."""
    if not lines:
        return ""

    *before, (last_line, last_end) = lines
    text = "".join(line + (end or newline) for line, end in before)
    if last:
        return text + last_line + (last_end or last)

    return text + last_line


def hunks_between(before: str, after: str) -> list[Hunk]:
    """Return the hunks that turn one text into the other; the `line` of each is its line in `before`."""
    hunks: list[Hunk] = []
    old = _File(before, "").lines
    new = _File(after, "").lines

    for line in islice(unified_diff(old, new, lineterm=""), 2, None):
        if line.startswith("@@"):
            hunks.append(Hunk((), (), ends_file=False, line=int(re.findall(r"\d+", line)[0])))
        else:
            hunks[-1] = hunks[-1]._replace(lines=(*hunks[-1].lines, (line[0], line[1:])))

    return hunks


class _Position(NamedTuple):
    """Where a hunk fits, which differences are ignored, and the lines in place of its own if they are not empty."""

    at: int
    tier: Tier = Tier.EXACT
    shift: Shift = Shift()
    lines: tuple[tuple[str, str], ...] = ()


class _File:
    """The lines of a text, without (`lines`) and with (`ended`) their ends."""

    def __init__(self, text: str, path: str) -> None:
        *lines, last = text.split("\n")
        self.path = path
        self.ended: list[tuple[str, str]] = []
        for line in lines:
            bare = line.removesuffix("\r")
            self.ended.append((bare, "\n" if bare == line else "\r\n"))

        if last:
            self.ended.append((last, ""))

        self.lines = [line for line, _ in self.ended]

    def place(self, hunk: Hunk, done: int) -> _Position | PatchError:
        """Return the only place where the hunk fits, in the lines from `done` on: in its headers' blocks, or below."""
        scopes = self._scopes(hunk)
        if isinstance(scopes, PatchError):
            return scopes
        if not hunk.old:
            return self._place_of_addition(hunk, scopes, done)

        last = len(self.lines) - len(hunk.old)
        if hunk.ends_file and last >= done:
            for tier in Tier:
                for at, shift in line_places(self.lines, hunk.old, tier, last):
                    return _Position(at, tier, shift)

        for within in (scopes, [(scopes[0][0], len(self.lines))]):
            for tier in Tier:
                places = self._places_within(hunk, within, tier, done)
                if len(places) > 1:
                    return self._ambiguous(hunk, [at for at, _ in places])
                if places:
                    at, shift = places[0]
                    return _Position(at, tier, shift)

        return self._alike(hunk, done) or self._unescaped(hunk, done) or self._miss(hunk, done)

    def _places_within(
        self, hunk: Hunk, scopes: Sequence[tuple[int, int]], tier: Tier, done: int
    ) -> list[tuple[int, Shift]]:
        """Return the places of the hunk in these ranges of lines, at most one more than a message names."""
        places: list[tuple[int, Shift]] = []

        for at, shift in line_places(self.lines, hunk.old, tier, max(done, scopes[0][0])):
            if any(start <= at < end for start, end in scopes):
                places.append((at, shift))
            if len(places) > LISTED_PLACES:
                break

        return places

    def _alike(self, hunk: Hunk, done: int) -> _Position | None:
        """Return the only place that a hunk fits without an empty last line, or except for typographic characters."""
        lines = hunk.lines
        if lines[-1] == (" ", ""):
            lines = lines[:-1]

        old = [text for sign, text in lines if sign != "+"]
        if not old:
            return None

        plain_lines = [line.translate(TYPOGRAPHY) for line in self.lines]
        plain_old = [line.translate(TYPOGRAPHY) for line in old]
        places = list(islice(line_places(plain_lines, plain_old, Tier.EXACT, done), 2))
        if len(places) != 1:
            return None

        at = places[0][0]
        exact = self.lines[at : at + len(old)] == old
        return _Position(at, Tier.EXACT if exact else Tier.TRAILING_BLANKS, lines=lines)

    def _unescaped(self, hunk: Hunk, done: int) -> _Position | PatchError | None:
        """Return the place that a hunk fits if its escapes stand for characters, or None if it has no escapes."""
        escapes = escapes_in("\n".join(hunk.old))
        if not escapes:
            return None

        lines = tuple((sign, unescaped(text, escapes)) for sign, text in hunk.lines)
        position = self.place(hunk._replace(lines=lines), done)
        if isinstance(position, PatchError):
            return position

        return position._replace(lines=position.lines or lines)

    def _scopes(self, hunk: Hunk) -> list[tuple[int, int]] | PatchError:
        """Return the ranges of lines that the headers lead to, each from the last header on."""
        scopes = [(0, len(self.lines))]

        for header in hunk.headers:
            candidates = self._lines_of_header(header, scopes)
            if not candidates or len(candidates) > _MOST_SCOPES:
                problem = f"occurs more than {_MOST_SCOPES} times" if candidates else "does not occur"
                return PatchError(hunk.line, f"the line {header!r} after '@@' {problem} in {quoted(self.path)}.")

            scopes = [(at, self._block_end(at)) for at in candidates]

        return scopes

    def _lines_of_header(self, header: str, scopes: Sequence[tuple[int, int]]) -> list[int]:
        inside: set[int] = set()
        for start, end in scopes:
            inside.update(range(start, end))

        for fits in _HEADER_FITS:
            candidates = [at for at in sorted(inside) if fits(self.lines[at], header)]
            if candidates:
                return candidates

        return []

    def _block_end(self, start: int) -> int:
        """Return the end of the block that a line opens: the next line that is not deeper and no closing bracket."""
        depth = len(_indent(self.lines[start]))

        for at, line in enumerate(self.lines[start + 1 :], start=start + 1):
            indent = len(_indent(line))
            if line.strip() and (indent < depth or (indent == depth and line.strip()[0] not in ")]}")):
                return at

        return len(self.lines)

    def _place_of_addition(self, hunk: Hunk, scopes: Sequence[tuple[int, int]], done: int) -> _Position | PatchError:
        """Return where to add lines without context: below the header, or at the end of the file."""
        if hunk.ends_file or not self.lines:
            return _Position(len(self.lines))

        starts = [start + 1 for start, _ in scopes if start + 1 >= done]
        if not hunk.headers or not starts:
            message = (
                f"this hunk only adds lines to {quoted(self.path)}, and nothing says where: add lines around them."
            )
            return PatchError(hunk.line, message)

        if len(starts) > 1:
            return self._ambiguous(hunk, starts)

        return _Position(starts[0])

    def _ambiguous(self, hunk: Hunk, places: Sequence[int]) -> PatchError:
        more = " and more" if len(places) > LISTED_PLACES else ""
        numbers = ", ".join(str(place + 1) for place in places[:LISTED_PLACES])
        message = (
            f"this hunk fits in several places of {quoted(self.path)}, at lines {numbers}{more}: add lines around it,"
            " or '@@' with the function or class above it, until it fits in one."
        )

        return PatchError(hunk.line, message)

    def _miss(self, hunk: Hunk, done: int) -> PatchError:
        region = nearest_region("\n".join(self.lines), "\n".join(hunk.old))
        where = ""
        if done:
            where = f" from line {done + 1} on, after the hunk before"

        message = f"the lines of this hunk do not occur in {quoted(self.path)}{where}. "
        if region is None:
            return PatchError(hunk.line, f"{message}Nothing in it is near: read_file it first.")

        near = region.sentence("the suggestion shows them as they are")
        return PatchError(hunk.line, message + near, (region.text,))


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
