"""What a command changed, as the run tells of it."""

from nodes.execute_tools.environment.change_records import FileState
from nodes.execute_tools.environment.command_changes import CommandChange, CommandChanges
from nodes.execute_tools.environment.deadline import monotonic_s
from nodes.execute_tools.tools.saving import Version, file_change
from nodes.execute_tools.tools.text_files import decode_text
from nodes.records import FileChange

MOST_CHANGES = 200
"""Changed files of one command that the run tells of; the journal has all of them."""
MOST_DIFF_CHARACTERS = 100_000
"""Of all diffs of one command together: they stay in the run's state."""
_DIFFS_S = 0.3
"""How long diffs are made: a formatter may have rewritten hundreds of files."""


def file_changes(changes: CommandChanges) -> tuple[FileChange, ...]:
    """The first 200 changes, by name, with diffs as long as there is room and time."""
    until, room = monotonic_s() + _DIFFS_S, MOST_DIFF_CHARACTERS
    told: list[FileChange] = []
    for change in changes.files[:MOST_CHANGES]:
        one = _change(change, diff=monotonic_s() < until and room > 0)
        if len(one.diff) > room:
            one = _change(change, diff=False)
        room -= len(one.diff)
        told.append(one)
    return tuple(told)


def _change(change: CommandChange, *, diff: bool) -> FileChange:
    before, after = change.before, change.after
    return file_change(
        shown(change.path),
        _version(before, change.before_data if diff else None),
        _version(after, change.after_data if diff else None),
    )


def _version(state: FileState, data: bytes | None) -> Version:
    file = None if data is None else decode_text(data)
    return Version(state.sha256, None if file is None else file.text)


def shown(name: str) -> str:
    """A name as text, whatever its bytes are."""
    return name.encode(errors="backslashreplace").decode()
