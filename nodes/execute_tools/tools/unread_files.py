"""What a model gets that changes a file which it has not read: the file, in place of an error that it cannot mend."""

from dataclasses import replace

from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.execute_tools.tools.read_file import ReadFileArguments, read_file
from nodes.execute_tools.tools.saving import LoadedText
from nodes.records import ToolError, ToolResult


def was_read(context: ToolContext, before: LoadedText) -> bool:
    """Whether this thread has read or written the file."""
    return before.path in context.files_read


def instead_of(error: ToolError, context: ToolContext, before: LoadedText) -> ToolOutput:
    """The error, or where the file was not read in this thread, the file's first page."""
    return ToolOutput.failed(error) if was_read(context, before) else shown_unread(context, before)


def shown_unread(context: ToolContext, before: LoadedText) -> ToolOutput:
    """The fields of read_file, with `changed` false and a note; the file counts as read from now on.

    Source: a 1.5B model sent an edit with invented text that was answered by an error up to 12 times as it was.
    """
    shown: ToolOutput = read_file.run(context, ReadFileArguments(path=before.path))
    if not shown.result.ok:
        return shown
    rest = " It goes on after these lines." if shown.result.data["has_more"] else ""
    note = (
        f"Nothing was changed: {before.name} was not read yet. This is what it holds.{rest}"
        " Make the edit again, from this text."
    )
    return replace(shown, result=ToolResult(ok=True, data={**shown.result.data, "changed": False, "note": note}))
