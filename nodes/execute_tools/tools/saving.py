"""How the writing tools load a text, and put a new one in its place with everything that the run must know of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.execute_tools.tools.diffs import unified_diff
from nodes.execute_tools.tools.judged_evidence import judged_evidence
from nodes.execute_tools.tools.outline import outline
from nodes.execute_tools.tools.syntax_gate import broken_by
from nodes.execute_tools.tools.text_files import TextFile, TextForm, decode_text, encode_text, why_not_text
from nodes.records import ChangeKind, FileChange, JsonMap, ToolError, ToolErrorCode


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

    @property
    def version(self) -> "Version":
        """What it holds."""
        return Version(self.sha256, self.file.text)


class Version(NamedTuple):
    """What a file holds at one time: its hash, and its text, None where it is binary."""

    sha256: str
    text: str | None


NO_FILE: Final = Version("", None)


def load_text(context: ToolContext, path: str, done: str = "edited") -> LoadedText | ToolError:
    """The file, or why it cannot be `done`: NOT_FOUND where nothing is there, INVALID_ARGUMENT if it is no text."""
    content = context.workspace.read_file(path)
    if isinstance(content, ToolError):
        return content
    file = decode_text(content.data)
    if file is None:
        return invalid(f"{quoted(content.path)} is {why_not_text(content.data)}; only UTF-8 text can be {done}.")
    return LoadedText(content.path, content.sha256, file)


def save_text(context: ToolContext, path: str, text: str, before: LoadedText | None, **data: Any) -> ToolOutput:
    """Writes `text` in place of `before` (None: a new file), in its form, and reports `data` beside the path.

    `text` has its final line ends. The file must still be what `before` says; otherwise the workspace gives CONFLICT.
    Nothing is written where the syntax gate or the evidence refuses the text.
    """
    form = before.file.form if before else TextForm()
    target = before.path if before else path
    old_text = before.file.text if before else None
    judged = judged_syntax(context, target, old_text, text)
    if isinstance(judged, ToolError):
        return ToolOutput.failed(judged)
    contradicted = judged_evidence(context, target, old_text, text)
    if contradicted is not None:
        return ToolOutput.failed(contradicted)
    written = context.workspace.write_file(
        target, encode_text(text, form), expected_sha256=before.sha256 if before else ""
    )
    if isinstance(written, ToolError):
        return ToolOutput.failed(written)
    old = before.version if before else NO_FILE
    change = file_change(written.path, old, Version(written.sha256, text))
    return changed((change,), path=written.path, **data, **judged)


def changed(changes: Sequence[FileChange], **data: Any) -> ToolOutput:
    """A result with these fields and file effects; the thread knows what each of the files holds now."""
    known = {change.path: change.sha256_after for change in changes}
    return replace(ToolOutput.ok(**data), changes=tuple(changes), files_read=known)


def file_change(path: str, before: Version, after: Version) -> FileChange:
    """The effect on one file; `NO_FILE` stands for none. The diff is "" where a version is binary."""
    kind = ChangeKind.EDITED
    if NO_FILE in {before, after}:
        kind = ChangeKind.CREATED if before == NO_FILE else ChangeKind.DELETED
    diff = ""
    if all(each == NO_FILE or each.text is not None for each in (before, after)):
        diff = unified_diff(path, before.text, after.text or "")
    if after == NO_FILE:
        diff = diff.replace(f"\n+++ b/{path}\n", "\n+++ /dev/null\n", 1)
    return FileChange(path=path, kind=kind, sha256_before=before.sha256, sha256_after=after.sha256, diff=diff)


def judged_syntax(context: ToolContext, path: str, before: str | None, after: str) -> JsonMap | ToolError:
    """What the syntax gate adds to the result of an edit of this file, or that it refuses the edit."""
    broken = None if context.syntax_gate == "off" else broken_by(path, before, after)
    if broken is None:
        return {}
    if context.syntax_gate == "report":
        return {"syntax": broken}
    return invalid(
        f"With this edit {quoted(path)} {broken}. So nothing was changed: mend that in the edit, and make it again."
    )


def outdated(context: ToolContext, path: str, now: Version) -> ToolError | None:
    """Why a file may not be changed that this thread knows with another content, and what is in it by now."""
    if context.files_read.get(path, now.sha256) == now.sha256:
        return None
    changed_since = f"{quoted(path)} has changed since it was read"
    if now.text is None:
        return _conflict(f"{changed_since}, and is binary now, so it cannot be read again: leave it as it is.")
    remedy = "read_file it again, and base your change on what it holds now"
    return _conflict(f"{changed_since}: {remedy}. {outline(path, now.text)}")


def unread(
    context: ToolContext,
    before: LoadedText,
    remedy: str = "read_file it first, or use edit_file to change a part of it",
) -> ToolError | None:
    """Why this file may not be replaced as a whole: what it holds has to be known."""
    if before.path not in context.files_read:
        return _conflict(f"{before.name} exists, and was not read yet: {remedy}.")
    return outdated(context, before.path, before.version)


def _conflict(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.CONFLICT, message=message)


def invalid(message: str, *suggestions: str) -> ToolError:
    """An INVALID_ARGUMENT error."""
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message, suggestions=suggestions)
