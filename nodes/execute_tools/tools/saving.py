"""How the writing tools load a text, and put a new one in its place with everything that the run must know of it."""

from dataclasses import dataclass, replace
from typing import Any

from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.workspace import FileContent
from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.execute_tools.tools.diffs import unified_diff
from nodes.execute_tools.tools.text_files import TextFile, TextForm, decode_text, encode_text
from nodes.records import ChangeKind, FileChange, ToolError, ToolErrorCode


@dataclass(frozen=True)
class LoadedText:
    """A text file as it is on disk now; `path` is its real name, relative to the workspace."""

    path: str
    sha256: str
    file: TextFile

    @property
    def name(self) -> str:
        """The path as messages show it."""
        return quoted(self.path)

    def is_fresh(self, context: ToolContext) -> bool:
        """Whether this thread read or wrote exactly this content last."""
        return context.files_read.get(self.path) == self.sha256

    def is_stale(self, context: ToolContext) -> bool:
        """Whether this thread knows the file with another content."""
        return context.files_read.get(self.path, self.sha256) != self.sha256


def load_text(context: ToolContext, path: str) -> LoadedText | ToolError:
    """The file, or why it cannot be edited as text: NOT_FOUND where nothing is there, INVALID_ARGUMENT if binary."""
    content = context.workspace.read_file(path)
    if isinstance(content, ToolError):
        return content
    file = decode_text(content.data)
    if file is None:
        return invalid(
            f"{quoted(content.path)} is a binary file of {len(content.data)} bytes; only UTF-8 text can be edited."
        )
    return LoadedText(content.path, content.sha256, file)


def save_text(context: ToolContext, path: str, text: str, before: LoadedText | None, **data: Any) -> ToolOutput:
    """Writes `text` in place of `before` (None: a new file), in its form, and reports `data` beside the path.

    `text` has its final line ends. The file must still be what `before` says; otherwise the workspace gives CONFLICT.
    """
    form = before.file.form if before else TextForm()
    target = before.path if before else path
    written = context.workspace.write_file(
        target, encode_text(text, form), expected_sha256=before.sha256 if before else ""
    )
    if isinstance(written, ToolError):
        return ToolOutput.failed(written)
    return replace(
        ToolOutput.ok(path=written.path, **data),
        changes=(_change(before, written, text),),
        files_read={written.path: written.sha256},
    )


def unread(context: ToolContext, before: LoadedText) -> ToolError | None:
    """Why this file may not be replaced as a whole: what it holds has to be known."""
    if before.is_fresh(context):
        return None
    reason = "has changed since it was read" if before.is_stale(context) else "exists, and was not read yet"
    message = f"{before.name} {reason}: read_file it first, or use edit_file to change a part of it."
    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


def invalid(message: str, *suggestions: str) -> ToolError:
    """An INVALID_ARGUMENT error."""
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message, suggestions=suggestions)


def _change(before: LoadedText | None, written: FileContent, text: str) -> FileChange:
    return FileChange(
        path=written.path,
        kind=ChangeKind.EDITED if before else ChangeKind.CREATED,
        sha256_before=before.sha256 if before else "",
        sha256_after=written.sha256,
        diff=unified_diff(written.path, before.file.text if before else None, text),
    )
