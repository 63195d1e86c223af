"""The records of a change: its effects on files, its state, and the protocol of what records it. Pure."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

UNKNOWN_SHA256 = "?"
"""In place of a hash: the file was not read."""


class RecordError(Exception):
    """A change could not be recorded."""


class FileState(NamedTuple):
    """The file at a path: the hash of its bytes ("" where no file is) and its permission bits, None if not known."""

    sha256: str = ""
    mode: int | None = None


class FileEffect(NamedTuple):
    """The effect of a change on one file. `path` is its real name relative to the workspace, with "/" between parts.

    A file that is moved is two effects: it comes to its new name first, and leaves the old one then.
    """

    path: str
    before: FileState
    after: FileState


class ChangeState(StrEnum):
    """How far a change has come.

    An intended one may be anything on the disk. One that is undone never happened, or was taken back at once; one that
    is reverted was restored later, by a person. A foreign one met a file that somebody else has changed meanwhile.
    """

    INTENDED, DONE, UNDONE = "intended", "done", "undone"
    REVERTED, FOREIGN = "reverted", "foreign"


class RecordedChange(NamedTuple):
    """Files that change together, or not at all. `folders` are the directories that it creates, outermost first."""

    token: str
    call: int
    step: int
    effects: tuple[FileEffect, ...]
    folders: tuple[str, ...]
    state: ChangeState


class ChangeRecorder(Protocol):
    """Records the changes of files of one call."""

    def intend(
        self, token: str, effects: Sequence[FileEffect], backups: Mapping[str, bytes], folders: Sequence[str]
    ) -> None:
        """Record a change before it begins; the record is on the disk when this returns.

        `backups` are the bytes of the files before, as far as they are known, by their hash; `folders` the directories
        that the change creates. Raises RecordError: it could not be recorded, so the change must not begin.
        """

    def add(
        self, token: str, effects: Sequence[FileEffect], backups: Mapping[str, bytes], folders: Sequence[str]
    ) -> None:
        """Record a change that a program has made already. Raises RecordError: it could not be recorded."""

    def settle(self, token: str, state: ChangeState) -> None:
        """Record how it ended. Where that fails nothing is lost: the next start decides by the files' hashes."""


def folders_above(path: str) -> list[str]:
    """The names of the folders that a path goes through, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
