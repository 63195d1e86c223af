"""The tool that reads a page of a text file: as a stream, in constant memory, with the hash of the whole."""

import codecs
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import orjson
from pydantic import Field

from mendgraph.nodes.execute_tools.argument_schema import FilePath, ToolArguments
from mendgraph.nodes.execute_tools.files.failures import invalid, os_failure, quoted
from mendgraph.nodes.execute_tools.files.text_files import SNIFFED_BYTES
from mendgraph.nodes.execute_tools.files.workspace import OpenedFile
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.secrets.shown_parts import MaskedStream, next_piece
from mendgraph.nodes.language.names import is_reference, unknown_reference
from mendgraph.nodes.records import Effect, JsonMap, ToolError

MAX_LINE_CHARACTERS = 2000
AROUND = 8_192
"""Characters of a line that are looked at on both sides of what is shown of it: no secret that redaction knows is
longer."""
MAX_PAGE_BYTES = 48_000
"""Bytes of JSON after which a page ends, so that the result is not clipped in its middle later."""
CHUNK_BYTES = 1 << 20


class TextPage(NamedTuple):
    r"""Lines `start_line` onwards, ended by "\n" as they were in the file.

    `sha256` is that of the whole file; `long_lines_cut` counts the lines of the page that were cut at 2000 characters,
    or at the last place before where a word ends, and say where they go on. Lines of a private key are marks, wherever
    the page begins. `first_line_length` is that of the whole line at `start_line`, in characters.
    """

    content: str
    start_line: int
    lines_shown: int
    total_lines: int
    long_lines_cut: int
    first_line_length: int
    sha256: str

    @property
    def lines_remaining(self) -> int:
        """How many lines of the file stand after this page."""
        return max(0, self.total_lines - self.start_line + 1 - self.lines_shown)

    @property
    def has_more(self) -> bool:
        """Whether anything stands after this page, be it the rest of a line."""
        return self.lines_remaining > 0 or self.long_lines_cut > 0

    @property
    def next_start_line(self) -> int:
        """Where the next page starts; 0 where this one is the last."""
        return self.start_line + self.lines_shown if self.lines_remaining else 0


def read_page(read: Callable[[int], bytes], start_line: int, limit: int, start_column: int = 1) -> TextPage | None:
    """Reads all bytes that `read(size)` gives, and keeps `limit` lines from `start_line` (counted from 1).

    The first of them begins at its character `start_column` (counted from 1). A page ends early once it holds 48,000
    bytes of JSON. None means a binary file: NUL in its first 8 kB, or not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    digest = hashlib.sha256()
    page = _Page(start_line, limit, start_column)
    masked = MaskedStream()
    first = True
    while chunk := read(CHUNK_BYTES):
        if first and b"\x00" in chunk[:SNIFFED_BYTES]:
            return None
        digest.update(chunk)
        try:
            text = decoder.decode(chunk)
        except UnicodeDecodeError:
            return None
        page.feed(masked.feed(text))
        first = False
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return None
    page.feed(masked.close())
    return page.finish(digest.hexdigest())


class _Page:
    """Collects the lines of one page from pieces of text, and counts all the others."""

    def __init__(self, start_line: int, limit: int, start_column: int) -> None:
        self._start = start_line
        self._limit = limit
        self._at = start_column - 1
        self._first_length = 0
        self._line = 1
        self._lines: list[str] = []
        self._bytes = 0
        self._cut = 0
        self._open = ""
        self._open_length = 0
        self._open_end = ""
        self._unfinished = False

    def feed(self, text: str) -> None:
        if not text:
            return
        self._unfinished = text[-1] != "\n"
        at = self._skip(text) if self._line < self._start else 0
        while at < len(text) and self._wants_more():
            end = text.find("\n", at)
            self._take(text, at, len(text) if end < 0 else end)
            if end < 0:
                return
            self._close("\n")
            at = end + 1
        self._line += text.count("\n", at)

    def finish(self, sha256: str) -> TextPage:
        if self._unfinished and self._line >= self._start and self._wants_more():
            self._close("")
            self._line -= 1
        total = self._line if self._unfinished else self._line - 1
        content = "".join(self._lines)
        return TextPage(content, self._start, len(self._lines), total, self._cut, self._first_length, sha256)

    def _skip(self, text: str) -> int:
        """Passes over the lines before the page; returns where in `text` the page begins, or its length."""
        missing = self._start - self._line
        if text.count("\n") < missing:
            self._line += text.count("\n")
            return len(text)
        at = 0
        for _ in range(missing):
            at = text.index("\n", at) + 1
        self._line = self._start
        return at

    def _wants_more(self) -> bool:
        return len(self._lines) < self._limit and self._bytes < MAX_PAGE_BYTES

    def _take(self, text: str, start: int, end: int) -> None:
        """Adds to the open line, of which is kept what can be shown, and what tells whether it is a secret."""
        first = max(start, start + self._at - AROUND - self._open_length)
        room = min(self._at, AROUND) + MAX_LINE_CHARACTERS + AROUND - len(self._open)
        self._open += text[first : min(end, first + room)]
        self._open_length += end - start
        self._open_end = text[end - 1] if end > start else self._open_end

    def _close(self, line_end: str) -> None:
        begin = min(self._at, AROUND)
        length = self._open_length - (line_end != "" and self._open_end == "\r")
        line = self._open[: max(0, length - self._at + begin)]
        if not self._lines:
            self._first_length = length
        if self._at or length > MAX_LINE_CHARACTERS:
            line, end = next_piece(line, begin, begin + MAX_LINE_CHARACTERS)
            column = self._at - begin + end
            if column < length:
                line += f" [... {length - column} more characters: start_line {self._line}, start_column {column + 1}]"
                self._cut += 1
        self._lines.append(line + line_end)
        self._bytes += len(orjson.dumps(line + line_end))
        self._open, self._open_length, self._open_end, self._at = "", 0, "", 0
        self._line += 1


class ReadFileArguments(ToolArguments):
    """Which lines of which file."""

    path: FilePath
    start_line: int = Field(default=1, ge=1)
    limit: int = Field(default=0, ge=0, description="Lines to read.")
    start_column: int = Field(default=1, ge=1)


@tool(effect=Effect.READ, path_fields=("path",))
def read_file(context: ToolContext, arguments: ReadFileArguments) -> ToolAnswer:
    """Read a text file, a page of lines at a time.

    A page has `limit` lines, and `context.max_lines` at most. The whole file is streamed once, for its hash and its
    number of lines, in constant memory.
    """
    kept = is_reference(arguments.path)
    opened = _open_kept(context, arguments.path) if kept else context.workspace.open_file(arguments.path)
    if isinstance(opened, ToolError):
        return opened
    with opened:
        try:
            limit = min(arguments.limit or context.max_lines, context.max_lines)
            page = read_page(opened.stream.read, arguments.start_line, limit, arguments.start_column)
        except OSError as error:
            return os_failure(error, "read", opened.path)
    name = quoted(opened.path)
    if page is None:
        return invalid(f"{name} is a binary file of {opened.size} bytes; only UTF-8 text can be read.")
    if arguments.start_line > max(1, page.total_lines):
        message = f"{name} has {page.total_lines} lines, so there is nothing at start_line {arguments.start_line}."
        return invalid(message)
    if arguments.start_column > max(1, page.first_line_length):
        where = f"Line {page.start_line} of {name} has {page.first_line_length} characters"
        return invalid(f"{where}, so there is nothing at start_column {arguments.start_column}.")
    output = ToolOutput.ok(**_shown(opened.path, page))
    return output if kept else replace(output, files_read={opened.path: page.sha256})


def _open_kept(context: ToolContext, reference: str) -> OpenedFile | ToolError:
    """A result that was kept because it was too large to show; it is no file of the workspace."""
    return context.kept.open(reference) if context.kept else unknown_reference(reference, ())


def _shown(path: str, page: TextPage) -> JsonMap:
    """The page with spec 3's pagination metadata."""
    cut = {"long_lines_cut": page.long_lines_cut} if page.long_lines_cut else {}
    return {
        "path": path,
        "content": page.content,
        "start_line": page.start_line,
        "lines_shown": page.lines_shown,
        "lines_remaining": page.lines_remaining,
        "has_more": page.has_more,
        "next_start_line": page.next_start_line or None,
        **cut,
    }
