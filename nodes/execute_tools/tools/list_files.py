"""The tool that shows what is in a directory."""

from collections import Counter

from mendgraph.nodes.execute_tools.files.failures import invalid
from mendgraph.nodes.execute_tools.files.workspace import Entry
from mendgraph.nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from mendgraph.nodes.execute_tools.tools.arguments import FolderPath, ToolArguments
from mendgraph.nodes.language.names import is_reference, only_read
from mendgraph.nodes.records import Effect, ToolError

MAX_ENTRIES = 500


class ListFilesArguments(ToolArguments):
    """Which directory."""

    path: FolderPath = "."


@tool(effect=Effect.READ, path_fields=("path",))
def list_files(context: ToolContext, arguments: ListFilesArguments) -> ToolOutput:
    """List a directory."""
    if is_reference(arguments.path):
        return ToolOutput.failed(invalid(only_read(arguments.path)))
    entries = context.workspace.list_directory(arguments.path)
    if isinstance(entries, ToolError):
        return ToolOutput.failed(entries)
    counts = Counter(entry.kind for entry in entries)
    return ToolOutput.ok(
        entries=[_shown(entry) for entry in entries[:MAX_ENTRIES]],
        directories=counts["directory"],
        files=len(entries) - counts["directory"],
        has_more=len(entries) > MAX_ENTRIES,
    )


def _shown(entry: Entry) -> str:
    return entry.path + ("/" if entry.kind == "directory" else "")
