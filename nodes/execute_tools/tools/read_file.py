"""The tool that reads a page of a text file."""

from dataclasses import replace

from pydantic import Field

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.workspace import OpenedFile
from nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from nodes.execute_tools.tools.arguments import FilePath, ToolArguments
from nodes.execute_tools.tools.saving import invalid
from nodes.execute_tools.tools.text_pages import TextPage, read_page
from nodes.language.names import is_reference, unknown_reference
from nodes.records import Effect, JsonMap, ToolError


class ReadFileArguments(ToolArguments):
    """Which lines of which file."""

    path: FilePath
    start_line: int = Field(default=1, ge=1)
    limit: int = Field(default=0, ge=0, description="Lines to read.")
    start_column: int = Field(default=1, ge=1)


@tool(effect=Effect.READ, path_fields=("path",))
def read_file(context: ToolContext, arguments: ReadFileArguments) -> ToolOutput:
    """Read a text file, a page of lines at a time.

    A page has `limit` lines, and `context.max_lines` at most. The whole file is streamed once, for its hash and its
    number of lines, in constant memory.
    """
    kept = is_reference(arguments.path)
    opened = _open_kept(context, arguments.path) if kept else context.workspace.open_file(arguments.path)
    if isinstance(opened, ToolError):
        return ToolOutput.failed(opened)
    with opened:
        try:
            limit = min(arguments.limit or context.max_lines, context.max_lines)
            page = read_page(opened.stream.read, arguments.start_line, limit, arguments.start_column)
        except OSError as error:
            return ToolOutput.failed(os_failure(error, "read", opened.path))
    name = quoted(opened.path)
    if page is None:
        return ToolOutput.failed(
            invalid(f"{name} is a binary file of {opened.size} bytes; only UTF-8 text can be read.")
        )
    if arguments.start_line > max(1, page.total_lines):
        message = f"{name} has {page.total_lines} lines, so there is nothing at start_line {arguments.start_line}."
        return ToolOutput.failed(invalid(message))
    if arguments.start_column > max(1, page.first_line_length):
        where = f"Line {page.start_line} of {name} has {page.first_line_length} characters"
        return ToolOutput.failed(invalid(f"{where}, so there is nothing at start_column {arguments.start_column}."))
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
