"""The tool that searches in files, with ripgrep where there is one."""

import re
from collections.abc import Iterator
from posixpath import dirname
from typing import NamedTuple

from pydantic import Field

from nodes.execute_tools.environment.processes import ProcessResult, ripgrep_path, run_process
from nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from nodes.execute_tools.tools.arguments import FolderPath, ToolArguments
from nodes.execute_tools.tools.path_globs import PathGlob, parse_glob
from nodes.execute_tools.tools.saving import invalid
from nodes.execute_tools.tools.search_matches import (
    MORE_MATCHES,
    NO_MATCHES,
    FileMatches,
    find_text,
    read_ripgrep,
    select,
)
from nodes.execute_tools.tools.text_files import decode_text, unstorable
from nodes.records import Effect, ToolError, ToolErrorCode

MAX_SECONDS = 10.0
MAX_RESULTS = 100
MAX_FILE_BYTES = 10_000_000
MAX_OUTPUT_BYTES = 8_000_000
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
    ignore_case: bool = Field(default=False, description="Upper and lower case are the same.")
    context_lines: int = Field(default=0, ge=0, le=3, description="Lines to show around each match.")
    max_results: int = Field(default=50, ge=1, le=MAX_RESULTS, description="Number of matches.")


class _Found(NamedTuple):
    files: list[FileMatches]
    cut: bool = False


@tool(effect=Effect.READ, path_fields=("path",))
def search_files(context: ToolContext, arguments: SearchFilesArguments) -> ToolOutput:
    """Search the text of files; what .gitignore names is left out."""
    glob = parse_glob(arguments.glob or "**")
    problem = _problem(arguments, glob)
    if problem or glob is None:
        return ToolOutput.failed(invalid(problem))
    target = _target(context, arguments.path)
    if isinstance(target, ToolError):
        return ToolOutput.failed(target)
    found = _find(context, arguments, target)
    if isinstance(found, ToolError):
        return ToolOutput.failed(found)

    def may_show(path: str) -> bool:
        return _fits(glob, path, target) and context.workspace.denied(path) is None

    selection = select(found.files, may_show, context_lines=arguments.context_lines, limit=arguments.max_results)
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
        return listed
    with opened:
        return opened.path


def _fits(glob: PathGlob, path: str, target: str) -> bool:
    """Whether the name fits, below the target or below the workspace: models write both."""
    return glob.matches(path) or glob.matches(path.removeprefix(f"{target}/"))


def _find(context: ToolContext, arguments: SearchFilesArguments, target: str) -> _Found | ToolError:
    program = ripgrep_path()
    if not target:
        return _Found([])
    return _by_program(context, arguments, program, target) if program else _by_hand(context, arguments, target)


def _by_program(context: ToolContext, arguments: SearchFilesArguments, program: str, target: str) -> _Found | ToolError:
    seconds = min(MAX_SECONDS, context.timeout_s)
    result = run_process(
        [program, *_options(context, arguments, target), "--", "./" if target == "." else f"./{target}"],
        cwd=context.workspace.root,
        timeout_s=seconds,
        max_output_bytes=MAX_OUTPUT_BYTES,
    )
    if isinstance(result, ProcessResult):
        return _refused(result) or _Found(read_ripgrep(result.stdout), result.truncated)
    if result.code is not ToolErrorCode.TIMEOUT:
        return result
    message = f"The search took longer than {seconds:g} s: narrow it with path or glob."
    return ToolError(code=ToolErrorCode.TIMEOUT, message=message)


def _options(context: ToolContext, arguments: SearchFilesArguments, target: str) -> Iterator[str]:
    """The same rules for everyone: no configuration, no links followed, and of ignore files only .gitignore."""
    yield from ("--json", "--no-config", "--no-messages", "--no-follow", "--sort=path", "--hidden", "--iglob=!.git")
    yield from ("--no-require-git", "--no-ignore-parent", "--no-ignore-global", "--no-ignore-dot")
    if target != "." and context.workspace.exists(".gitignore"):
        yield "--ignore-file=.gitignore"
    name = arguments.glob.rpartition("/")[2]
    if _PLAIN_NAME.fullmatch(name) and "**" not in name:  # a --glob would bring back what .gitignore leaves out
        yield from (f"--type-add=wanted:{name}", "--type=wanted")
    yield f"--max-filesize={MAX_FILE_BYTES}"
    yield f"--max-count={arguments.max_results + 1}"
    yield f"--context={arguments.context_lines}"
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


def _by_hand(context: ToolContext, arguments: SearchFilesArguments, target: str) -> _Found | ToolError:
    """A plain search, file by file. Python's own expressions can run for ever, so only plain text is looked for."""
    if not arguments.literal and _REGEX_SIGNS.search(arguments.pattern):
        return invalid("Regular expressions need ripgrep, which is not installed: set literal to true.")
    files: list[FileMatches] = []
    left = MAX_SCANNED_BYTES
    for path in _paths(context, target):
        content = context.workspace.read_file(path, MAX_FILE_BYTES)
        file = None if isinstance(content, ToolError) else decode_text(content.data)
        if isinstance(content, ToolError) or file is None:
            continue
        left -= len(content.data)
        if left < 0:
            return _Found(files, cut=True)
        files.append(
            find_text(
                path,
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
