"""The record of a change of files, and the protocol of its recorder. Pure."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from mendgraph.nodes.records import ChangeKind

UNKNOWN_SHA256 = "?"
"""In place of a hash: the file was not read."""


class RecordError(Exception):
    """A change could not be recorded."""


class FileState(NamedTuple):
    """The file at a path: the hash of its bytes ("" without a file) and its permission bits, None if unknown."""

    sha256: str = ""
    mode: int | None = None


class FileEffect(NamedTuple):
    """The effect of one or more changes on a file. `path` is its real name relative to the workspace.

    A move has two effects: the file is created under its new name, then deleted under the old one. `has_gap`: somebody
    else changed the file between two of the changes.
    """

    path: str
    before: FileState
    after: FileState
    has_gap: bool = False

    @property
    def kind(self) -> ChangeKind:
        """Whether the file is created, deleted or edited."""
        if not self.before.sha256:
            return ChangeKind.CREATED
        if not self.after.sha256:
            return ChangeKind.DELETED

        return ChangeKind.EDITED

    def reversed(self) -> "FileEffect":
        """Return the effect that takes this one back."""
        return FileEffect(self.path, self.after, self.before, self.has_gap)


class ChangeState(StrEnum):
    """The progress of a change.

    INTENDED: it is recorded, and any part of it may be on the disk. UNDONE: it failed, and the files are as before.
    REVERTED: a person has restored the files since. FOREIGN: recovery met a file that somebody else has changed.
    """

    INTENDED, DONE, UNDONE = "intended", "done", "undone"
    REVERTED, FOREIGN = "reverted", "foreign"


class RecordedChange(NamedTuple):
    """Files that change together. `folders` are the directories that the change creates, outermost first.

    `beside_jobs`: it was found while jobs of the run were at work, and may be theirs, a command's or a person's.
    """

    token: str
    call: int
    step: int
    effects: tuple[FileEffect, ...]
    folders: tuple[str, ...]
    state: ChangeState
    beside_jobs: bool = False


class ChangeRecorder(Protocol):
    """Records the file changes of one call."""

    def intend(
        self,
        token: str,
        effects: Sequence[FileEffect],
        backups: Mapping[str, bytes],
        folders: Sequence[str],
        state: ChangeState = ChangeState.INTENDED,
    ) -> None:
        """Record a change; the record is on the disk when this returns.

        A change of a file tool is recorded before it begins, that of a program afterwards, as DONE. `backups` are the
        former bytes of the files by their hash, `folders` the directories that the change creates.

        Raises:
            RecordError: it could not be recorded, so the change must not begin.
        """

    def settle(self, token: str, state: ChangeState) -> None:
        """Record how the change ended; after a failure recovery decides that by the files' hashes."""

    def beside_jobs(self) -> "ChangeRecorder":
        """Return the recorder for what has changed beside the jobs of the same run."""


def folders_above(path: str) -> list[str]:
    """Return the names of the directories above a relative path, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
