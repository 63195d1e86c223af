"""A change of the past as the run tells it: what the journal knows of it, with the diff that can still be made."""

from collections.abc import Callable

from nodes.execute_tools.environment.change_records import FileEffect, FileState
from nodes.execute_tools.environment.workspace import FileContent, Workspace
from nodes.execute_tools.tools.saving import Version, file_change
from nodes.execute_tools.tools.text_files import decode_text
from nodes.records import FileChange

Backup = Callable[[str], bytes | None]
"""The bytes of a file before it was changed, by their hash."""


def describe_effect(workspace: Workspace, backup: Backup, effect: FileEffect) -> FileChange:
    """The effect on one file. The diff is "" where a version is binary, or is not at hand any more."""
    return file_change(effect.path, _before(effect.before, backup), _after(workspace, effect.path, effect.after))


def _before(state: FileState, backup: Backup) -> Version:
    data = backup(state.sha256) if state.sha256 else None
    return Version(state.sha256, None if data is None else _text(data))


def _after(workspace: Workspace, path: str, state: FileState) -> Version:
    content = workspace.read_file(path) if state.sha256 else None
    current = isinstance(content, FileContent) and content.sha256 == state.sha256
    return Version(state.sha256, _text(content.data) if current and isinstance(content, FileContent) else None)


def _text(data: bytes) -> str | None:
    file = decode_text(data)
    return None if file is None else file.text
