"""The tools that show what is in a directory, and find files by name."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from posixpath import dirname

from pydantic import Field

from mendgraph.nodes.execute_tools.files import tree_walk
from mendgraph.nodes.execute_tools.files.workspace import Entry, relative_glob
from mendgraph.nodes.execute_tools.registry import FolderPath, ToolAnswer, ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.language.names import is_reference, only_read
from mendgraph.nodes.records import Effect, ToolError, invalid

MAX_ENTRIES = 500


class ListFilesArguments(ToolArguments):
    """Which directory."""

    path: FolderPath = "."


@tool(effect=Effect.READ, path_fields=("path",))
def list_files(context: ToolContext, arguments: ListFilesArguments) -> ToolAnswer:
    """List a directory."""
    if is_reference(arguments.path):
        return invalid(only_read(arguments.path))
    if isinstance(entries := context.workspace.list_directory(arguments.path), ToolError):
        return entries
    counts = Counter(entry.kind for entry in entries)
    return ToolOutput.ok(
        entries=[entry.path + "/" * (entry.kind == "directory") for entry in entries[:MAX_ENTRIES]],
        directories=counts["directory"],
        files=len(entries) - counts["directory"],
        has_more=len(entries) > MAX_ENTRIES,
    )


MAX_PATHS = 200
MAX_VISITED = 200_000  # entries that one search looks at, which takes a few seconds


class GlobFilesArguments(ToolArguments):
    """Which names, and below which directory."""

    pattern: str = Field(min_length=1, description="Such as *.py or src/**/test_*.py.")
    path: FolderPath = "."


@tool(effect=Effect.READ, path_fields=("path",))
def glob_files(context: ToolContext, arguments: GlobFilesArguments) -> ToolAnswer:
    """Find files below a directory by name, but for what .gitignore names."""
    if isinstance(pattern := relative_glob(context.workspace, arguments.pattern), ToolError):
        return pattern
    if (glob := tree_walk.parse_glob(pattern)) is None:
        most = tree_walk.MAX_PATTERN_CHARACTERS
        return invalid(f"The pattern is too long or has too many alternatives; at most {most} characters.")
    if is_reference(arguments.path):
        return invalid(only_read(arguments.path))
    if isinstance(listed := context.workspace.list_directory(arguments.path), ToolError):
        return listed
    walk = context.workspace.walk(arguments.path)
    base = dirname(listed[0].path) if listed else ""
    found = sorted(islice(_matches(context, islice(walk, MAX_VISITED), base, glob), MAX_PATHS + 1))
    has_more = len(found) > MAX_PATHS or next(walk, None) is not None
    guidance = tree_walk.MORE_MATCHES if has_more else "" if found else tree_walk.NO_MATCHES
    return ToolOutput.ok(paths=found[:MAX_PATHS], has_more=has_more, **({"guidance": guidance} if guidance else {}))


def _matches(context: ToolContext, entries: Iterable[Entry], base: str, glob: tree_walk.PathGlob) -> Iterator[str]:
    """The readable files that fit, by their names below `base` or below the workspace: models write both."""
    for entry in entries:
        names = {entry.path, entry.path.removeprefix(f"{base}/")}
        if entry.kind != "directory" and any(map(glob.matches, names)) and context.workspace.denied(entry.path) is None:
            yield entry.path
