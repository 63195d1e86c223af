"""What a search in files found: lines by file, from ripgrep's JSON or by our own eyes, cut to what may be shown."""

import base64
import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from posixpath import dirname
from typing import NamedTuple

from pydantic import Field

from mendgraph.nodes.execute_tools.argument_schema import FolderPath, ToolArguments
from mendgraph.nodes.execute_tools.files.deadline import monotonic_ms
from mendgraph.nodes.execute_tools.files.failures import invalid
from mendgraph.nodes.execute_tools.files.path_globs import MORE_MATCHES, NO_MATCHES, PathGlob, parse_glob, relative_glob
from mendgraph.nodes.execute_tools.files.text_files import decode_text, unstorable
from mendgraph.nodes.execute_tools.files.workspace import OpenedFile
from mendgraph.nodes.execute_tools.processes.processes import (
    ProcessResult,
    handle_path,
    ripgrep_path,
    run_process,
    search_handles,
)
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.secrets.shown_parts import masked_lines, whole_words
from mendgraph.nodes.language.names import is_reference, only_read
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode

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


MAX_SECONDS = 10.0
MAX_RESULTS = 100
MAX_FILE_BYTES = 10_000_000
MAX_OUTPUT_BYTES = 8_000_000
FIRST_NAMES_BYTES = 50_000
"""Names of files after which the walk is stopped at first: as a rule there are matches enough in these."""
MAX_HANDLES = 100
"""Files that are open at once; macOS gives a process 256 handles."""
MAX_SCANNED_BYTES = 100_000_000
"""What a search without ripgrep looks at: about a second of work."""

_PLAIN_NAME = re.compile(r"[\w.*?-]+|[\w.*?-]*\{[\w.*?,-]+\}")
_REGEX_SIGNS = re.compile(r"[\\^$.|?*+()\[\]{}]")


class SearchFilesArguments(ToolArguments):
    """What to look for, and where."""

    pattern: str = Field(min_length=1, max_length=1000, description="Regular expression, for one line.")
    path: FolderPath = "."
    glob: str = Field(default="", description="Only in files such as *.py.")
    literal: bool = Field(default=False, description="The pattern is plain text.")
    ignore_case: bool = Field(default=False)
    context_lines: int = Field(default=0, ge=0, le=3)
    max_results: int = Field(default=50, ge=1, le=MAX_RESULTS)


class _Found(NamedTuple):
    files: list[FileMatches]
    cut: bool = False


Wanted = Callable[[str], bool]
"""Whether a file of this name is to be searched."""


@tool(effect=Effect.READ, path_fields=("path",))
def search_files(context: ToolContext, arguments: SearchFilesArguments) -> ToolAnswer:
    """Search the text of a file, or of those below a directory but for what .gitignore names."""
    names = relative_glob(context.workspace, arguments.glob or "**")
    if isinstance(names, ToolError):
        return names
    glob = parse_glob(names)
    problem = _problem(arguments, glob)
    if problem or glob is None:
        return invalid(problem)
    if is_reference(arguments.path):
        return invalid(only_read(arguments.path))
    target = _target(context, arguments.path)
    if isinstance(target, ToolError):
        return target
    fits = partial(_fits, glob, target)
    found = _find(context, arguments, target, fits)
    if isinstance(found, ToolError):
        return found
    selection = select(found.files, fits, context_lines=arguments.context_lines, limit=arguments.max_results)
    has_more = selection.has_more or found.cut
    guidance = MORE_MATCHES if has_more else "" if selection.matches else NO_MATCHES
    hint = {"guidance": guidance} if guidance else {}
    return ToolOutput.ok(matches=selection.matches, has_more=has_more, **hint)


def _problem(arguments: SearchFilesArguments, glob: PathGlob | None) -> str:
    if "\n" in arguments.pattern:
        return "The pattern spans several lines, and a search sees one line at a time: look for one of them."
    if glob is None:
        return "The glob is too long or has too many alternatives."
    return unstorable(arguments.pattern, "pattern")


def _target(context: ToolContext, path: str) -> str | ToolError:
    """The real name of the directory or file to search, if it may be read; "" for an empty directory."""
    listed = context.workspace.list_directory(path)
    if not isinstance(listed, ToolError):
        return (dirname(listed[0].path) or ".") if listed else ""
    opened = context.workspace.open_file(path)
    if isinstance(opened, ToolError):
        return opened if listed.code is ToolErrorCode.INVALID_ARGUMENT else listed  # a file that may not be read
    with opened:
        return opened.path


def _fits(glob: PathGlob, target: str, path: str) -> bool:
    """Whether the name fits, below the target or below the workspace: models write both."""
    return glob.matches(path) or glob.matches(path.removeprefix(f"{target}/"))


def _find(context: ToolContext, arguments: SearchFilesArguments, target: str, wanted: Wanted) -> _Found | ToolError:
    program = ripgrep_path()
    if not target:
        return _Found([])
    if not program:
        return _by_hand(context, arguments, target, wanted)
    seconds = min(MAX_SECONDS, context.timeout_s)
    search = _Search(context, arguments, program, wanted, monotonic_ms() + int(seconds * 1_000))
    found = search.run(target)
    if not isinstance(found, ToolError) or found.code is not ToolErrorCode.TIMEOUT:
        return found
    message = f"The search took longer than {seconds:g} s: narrow it with path or glob."
    return ToolError(code=ToolErrorCode.TIMEOUT, message=message)


@dataclass
class _Search:
    """One search with ripgrep, until `deadline` (in `monotonic_ms`)."""

    context: ToolContext
    arguments: SearchFilesArguments
    program: str
    wanted: Wanted
    deadline: int
    files: list[FileMatches] = field(default_factory=list)
    bytes_left: int = field(default_factory=lambda: MAX_OUTPUT_BYTES)

    def run(self, target: str) -> _Found | ToolError:
        """What is found; walks the tree again where the names of its first part were not enough."""
        seen: set[str] = set()
        for most in (FIRST_NAMES_BYTES, MAX_OUTPUT_BYTES):
            listed = self._list(target, most)
            if isinstance(listed, ToolError):
                return listed
            names = [name for name in _names(listed.stdout) if name not in seen and self.wanted(name)]
            seen.update(names)
            failed = self._search(names)
            if failed is not None:
                return failed
            if self._enough() or not listed.truncated:
                return _Found(self.files, cut=self.bytes_left <= 0)
        return _Found(self.files, cut=True)

    def _list(self, target: str, most: int) -> ProcessResult | ToolError:
        """The names of the files with a match, each with a NUL behind it."""
        result = run_process(
            [
                self.program,
                *_walk_options(self.context, self.arguments, target),
                "--",
                "./" if target == "." else f"./{target}",
            ],
            cwd=self.context.workspace.root,
            timeout_s=self._seconds_left(),
            max_output_bytes=most,
        )
        return result if isinstance(result, ToolError) else _refused(result) or result

    def _search(self, names: Sequence[str]) -> ToolError | None:
        """Look for matches in these files, in this order, until there are enough; those that may not be read are not.

        Each name stood for a match a moment ago, so that no more files are opened than matches are wanted.
        """
        rest = iter(names)
        while not self._enough() and self.bytes_left > 0:
            with ExitStack() as handles:
                files = self._opened(rest, self.arguments.max_results + 1 - self._count(), handles)
                failed = self._look_into(files) if files else None
            if self._seconds_left() <= 0:
                return ToolError(code=ToolErrorCode.TIMEOUT, message="The time of the search is over.")
            if failed is not None or not files:
                return failed
        return None

    def _opened(self, names: Iterator[str], most: int, handles: ExitStack) -> list[OpenedFile]:
        files: list[OpenedFile] = []
        for name in names:
            opened = self.context.workspace.open_file(name)
            if isinstance(opened, OpenedFile) and handles.enter_context(opened).size <= MAX_FILE_BYTES:
                files.append(opened)
            if len(files) == min(most, MAX_HANDLES) or self._seconds_left() <= 0:
                break
        return files

    def _look_into(self, files: Sequence[OpenedFile]) -> ToolError | None:
        argv = [self.program, *_reading_options(self.arguments), "--"]
        result = search_handles(argv, files, timeout_s=self._seconds_left(), max_output_bytes=max(1, self.bytes_left))
        if isinstance(result, ToolError):
            return result
        self.bytes_left -= MAX_OUTPUT_BYTES if result.truncated else len(result.stdout)
        masks = {file.path: _masks(file) for file in files}
        names = {handle_path(file): file.path for file in files if masks[file.path] is not None}
        self.files += read_ripgrep(result.stdout, names, {path: lines for path, lines in masks.items() if lines})
        return None

    def _count(self) -> int:
        return sum(len(file.matches) for file in self.files if self.wanted(file.path))

    def _enough(self) -> bool:
        return self._count() > self.arguments.max_results

    def _seconds_left(self) -> float:
        return max(0, self.deadline - monotonic_ms()) / 1_000


def _masks(file: OpenedFile) -> dict[int, str] | None:
    """The lines of the file that a private key takes something of, or None where that cannot be found out."""
    try:
        file.stream.seek(0)
        data = file.stream.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    return file_masks(data) if len(data) <= MAX_FILE_BYTES else None


def _names(listed: bytes) -> Iterator[str]:
    """The names that are complete and text."""
    for name in listed.split(b"\0")[:-1]:
        with suppress(UnicodeDecodeError):
            yield name.decode().removeprefix("./")


def _walk_options(context: ToolContext, arguments: SearchFilesArguments, target: str) -> Iterator[str]:
    """The same rules for everyone: no configuration, no links followed, and of ignore files only .gitignore."""
    yield from ("--files-with-matches", "--null", "--no-config", "--no-messages", "--no-follow", "--sort=path")
    yield from ("--hidden", "--iglob=!.git")
    yield from ("--no-require-git", "--no-ignore-parent", "--no-ignore-global", "--no-ignore-dot")
    if target != "." and context.workspace.exists(".gitignore"):
        yield "--ignore-file=.gitignore"
    name = arguments.glob.rpartition("/")[2]
    if _PLAIN_NAME.fullmatch(name) and "**" not in name:  # a --glob would bring back what .gitignore leaves out
        yield from (f"--type-add=wanted:{name}", "--type=wanted")
    yield f"--max-filesize={MAX_FILE_BYTES}"
    yield from _pattern_options(arguments)


def _reading_options(arguments: SearchFilesArguments) -> Iterator[str]:
    """In the order in which the files are given; not mapped into memory, as they may shrink meanwhile."""
    yield from ("--json", "--no-config", "--no-messages", "--no-mmap", "--threads=1")
    yield f"--max-count={arguments.max_results + 1}"
    yield f"--context={arguments.context_lines}"
    yield from _pattern_options(arguments)


def _pattern_options(arguments: SearchFilesArguments) -> Iterator[str]:
    if arguments.literal:
        yield "--fixed-strings"
    if arguments.ignore_case:
        yield "--ignore-case"
    yield f"--regexp={arguments.pattern}"


def _refused(result: ProcessResult) -> ToolError | None:
    """What ripgrep has against the pattern; files that it could not read are no reason to fail."""
    said = result.stderr.decode(errors="replace").strip()
    if result.truncated or result.exit_code in {0, 1} or not said:
        return None
    reason = said.splitlines()[-1].removeprefix("error: ").removeprefix("rg: ")
    return invalid(
        f"The pattern is not a valid regular expression ({reason}). Set literal to true to search for it as plain text."
    )


def _by_hand(context: ToolContext, arguments: SearchFilesArguments, target: str, wanted: Wanted) -> _Found | ToolError:
    """A plain search, file by file. Python's own expressions can run for ever, so only plain text is looked for."""
    if not arguments.literal and _REGEX_SIGNS.search(arguments.pattern):
        return invalid("Regular expressions need ripgrep, which is not installed: set literal to true.")
    files: list[FileMatches] = []
    left = MAX_SCANNED_BYTES
    for path in filter(wanted, _paths(context, target)):
        content = context.workspace.read_file(path, MAX_FILE_BYTES)
        file = None if isinstance(content, ToolError) else decode_text(content.data)
        if isinstance(content, ToolError) or file is None:
            continue
        left -= len(content.data)
        if left < 0:
            return _Found(files, cut=True)
        files.append(
            find_text(
                content.path,
                file.text,
                arguments.pattern,
                ignore_case=arguments.ignore_case,
                context_lines=arguments.context_lines,
            )
        )
    return _Found(files)


def _paths(context: ToolContext, target: str) -> Iterator[str]:
    below = [entry.path for entry in context.workspace.walk(target) if entry.kind == "file"]
    yield from below or [target]
