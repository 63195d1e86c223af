"""Where the hunks of a patch belong in a text, and the text after them.

The lines of a hunk are looked for as they are; if they stand nowhere, without spaces at their ends, then without those
at their starts. Source: OpenAI's apply_patch. Unlike there, a hunk that fits in several places is refused: its first
place would be a guess. What "@@" lines lead to is the block below them, which is indented deeper.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple, TypeAlias

from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.tools.nearest_lines import nearest_regions
from nodes.execute_tools.tools.text_files import dominant_newline
from nodes.execute_tools.tools.v4a_patch import Hunk, PatchError

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
    return Patched(_joined(pieces, file), inexact)


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
    """The first line of a hunk's place, counted from 0, and the form in which it was found there."""

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
            if _starts_at(file.lines, hunk.old, last, key):
                return _Found(last, key)
    blocks = [(max(start, done), end) for start, end in _united(scopes)]
    below = [(max(min(start for start, _ in scopes), done), len(file.lines))]
    for within in (blocks, below):
        for key in _KEYS:
            places = list(islice(_places(file, hunk.old, within, key), LISTED_PLACES + 1))
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
        for fits in (_equals, _equals_stripped, _begins_with):
            found = [at for start, end in within for at in range(start, end) if fits(file.lines[at], header)]
            if found:
                break
        else:
            return header
        scopes = [(at, ends[at]) for at in found]
        within = _united(scopes)
    return scopes


def _equals(line: str, header: str) -> bool:
    return line.rstrip() == header.rstrip()


def _equals_stripped(line: str, header: str) -> bool:
    return line.strip() == header.strip()


def _begins_with(line: str, header: str) -> bool:
    return line.strip().startswith(header.strip())


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


def _places(file: _File, old: Sequence[str], scopes: Iterable[tuple[int, int]], key: _Key) -> Iterator[int]:
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


def _starts_at(lines: Sequence[str], old: Sequence[str], start: int, key: Callable[[str], str]) -> bool:
    return [key(line) for line in lines[start : start + len(old)]] == [key(line) for line in old]


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
    message = f"the lines of this hunk do not occur in {quoted(path)}{_from(done)}. "
    message += near if regions else "Nothing in it is near: read_file it first."
    return PatchError(hunk.line, message, tuple(region.text for region in regions))


def _from(done: int) -> str:
    return f" from line {done + 1} on, after the hunk before" if done else ""


# --- The lines that come there


def _replaced(file: _File, hunk: Hunk, found: _Found) -> Iterator[str]:
    """The lines of the place after the hunk, with their line ends."""
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


def _joined(pieces: Sequence[str], file: _File) -> str:
    """The text of the lines: all but the last have line ends, and the last one as it was in the file."""
    if not pieces:
        return ""
    ended = [piece if piece.endswith("\n") else piece + file.newline for piece in pieces]
    if not file.has_last_newline:
        ended[-1] = _without_newline(pieces[-1])
    return "".join(ended)


def _without_newline(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line
