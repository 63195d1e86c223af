"""What a search in files found: lines by file, from ripgrep's JSON or by our own eyes, cut to what may be shown."""

import base64
import codecs
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from nodes.execute_tools.secrets.shown_parts import masked_lines, whole_words
from nodes.records import JsonMap

NO_MATCHES = "no matches found; try list_files, check alternate naming, or broaden the filters"
"""Source: spec 3, zero-result feedback."""
MORE_MATCHES = "there are more matches; narrow the pattern or the path"

MAX_SHOWN_BYTES = 40_000
LINE_CHARACTERS = 300
_LEAD = 100
"""Characters shown before the match in a line that is cut."""
_BLOCK = 65_536
"""Bytes that ripgrep looks at together; where it finds a NUL, the block and all after it are binary.

Source: grep-searcher's DEFAULT_BUFFER_CAPACITY, and what `rg` does with files that it finds by itself.
"""


@dataclass
class FileMatches:
    """The lines of one file that matched, by number from 1, and those around them."""

    path: str
    matches: dict[int, str] = field(default_factory=dict)
    context: dict[int, str] = field(default_factory=dict)
    offsets: dict[int, int] = field(default_factory=dict, compare=False, repr=False)
    """Where the lines start in the file, in bytes, as far as that is known."""


class Selection(NamedTuple):
    """The matches to show, as JSON values, and whether there are more."""

    matches: list[JsonMap]
    has_more: bool


MaskedLines = Mapping[str, Mapping[int, str]]
"""By the real name of a file, the lines that are not shown as they are, by number from 1."""


def read_ripgrep(output: bytes, names: Mapping[str, str], masked: MaskedLines | None = None) -> list[FileMatches]:
    """The files in `rg --json` output, in its order, but for a line that was cut off.

    `names` are the real names of the files that the program was given, by those under which it was given them; what
    has none here is left out. `masked` lines are shown as they are there. What is binary is left out as well: ripgrep
    searches it in files that it is handed.
    """
    files: dict[str, FileMatches] = {}
    for line in output.split(b"\n"):
        event = _event(line)
        data = event.get("data", {})
        name = names.get(data.get("path", {}).get("text", ""))
        if name is None:
            continue
        found = files.setdefault(name, FileMatches(name))
        if event["type"] == "end":
            _leave_out_binary(found, data.get("binary_offset"))
        if event["type"] not in {"match", "context"}:
            continue
        text = _line(data["lines"])
        number = data["line_number"]
        found.offsets[number] = data["absolute_offset"]
        hidden = (masked or {}).get(name, {}).get(number)
        if event["type"] == "context":
            found.context[number] = clip(hidden or text)
            continue
        start = data["submatches"][0]["start"] if data["submatches"] else 0
        at = len(text.encode()[:start].decode(errors="ignore"))
        found.matches[number] = clip(hidden or text, at)
    return [file for file in files.values() if file.matches]


def file_masks(data: bytes) -> dict[int, str]:
    """The lines of a file that a private key takes something of, with marks in its place, by number from 1.

    The bytes are read as ripgrep reads them: as UTF-16 where they say so, otherwise as UTF-8, as far as they are that.
    """
    encoding = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    if encoding != "utf-16" and b"-----BEGIN" not in data:
        return {}
    return masked_lines(data.decode(encoding, errors="replace"))


def find_text(path: str, text: str, wanted: str, *, ignore_case: bool, context_lines: int) -> FileMatches:
    """The lines of `text` in which `wanted` occurs, to the letter or in any case; those of a private key as marks."""
    masked = masked_lines(text)
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    needle = wanted.casefold() if ignore_case else wanted
    found = FileMatches(path)
    for index, line in enumerate(lines):
        at = (line.casefold() if ignore_case else line).find(needle)
        if at >= 0:
            found.matches[index + 1] = clip(masked.get(index + 1, line), at)
            around = range(max(0, index - context_lines), min(len(lines), index + context_lines + 1))
            found.context.update({near + 1: clip(masked.get(near + 1, lines[near])) for near in around})
    return found


def select(
    files: Iterable[FileMatches], may_show: Callable[[str], bool], *, context_lines: int, limit: int
) -> Selection:
    """The first `limit` matches, and at most 40,000 bytes of JSON, of the files that may be shown."""
    shown: list[JsonMap] = []
    size = 0
    for match in _flat(files, may_show, context_lines):
        size += len(json.dumps(match, ensure_ascii=False).encode())
        if len(shown) == limit or (shown and size > MAX_SHOWN_BYTES):
            return Selection(shown, has_more=True)
        shown.append(match)
    return Selection(shown, has_more=False)


def clip(line: str, at: int = 0) -> str:
    """About 300 characters of a line, without its line end, so that what stands at `at` is among them.

    A longer line is cut between words, and its secrets are marks: the rest of one might not be known for what it is.
    """
    bare = line.rstrip("\r\n")
    if len(bare) <= LINE_CHARACTERS:
        return bare
    start = max(0, min(at - _LEAD, len(bare) - LINE_CHARACTERS))
    piece, start, end = whole_words(bare, start, start + LINE_CHARACTERS)
    return ("[...]" if start else "") + piece + ("[...]" if end < len(bare) else "")


def _flat(files: Iterable[FileMatches], may_show: Callable[[str], bool], context_lines: int) -> Iterator[JsonMap]:
    for file in files:
        if not may_show(file.path):
            continue
        lines = file.context | file.matches
        for number, text in file.matches.items():
            match: JsonMap = {"path": file.path, "line": number, "text": text}
            if context_lines:
                match["before"] = [lines[near] for near in range(number - context_lines, number) if near in lines]
                match["after"] = [
                    lines[near] for near in range(number + 1, number + context_lines + 1) if near in lines
                ]
            yield match


def _leave_out_binary(file: FileMatches, first_nul: int | None) -> None:
    if first_nul is None:
        return
    text_ends = first_nul - first_nul % _BLOCK
    for number in [number for number, offset in file.offsets.items() if offset >= text_ends]:
        file.matches.pop(number, None)
        file.context.pop(number, None)


def _event(line: bytes) -> JsonMap:
    try:
        event: JsonMap = json.loads(line)
    except ValueError:
        return {}
    return event


def _line(value: JsonMap) -> str:
    """A line as text; ripgrep gives one that is not UTF-8 as base64."""
    return value["text"] if "text" in value else base64.b64decode(value["bytes"]).decode(errors="replace")
