"""The records of a change: what happens to which files, how far it has come, and who writes it down. Pure."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

UNKNOWN_SHA256 = "?"
"""In place of a hash: what the file held was not looked at."""


class RecordError(Exception):
    """What was done, or will be, could not be written down."""


class FileState(NamedTuple):
    """What is at a path: the hash of its bytes ("" where no file is) and its permission bits, None if not known."""

    sha256: str = ""
    mode: int | None = None


class FileEffect(NamedTuple):
    """What happens to one file. `path` is its real name, relative to the workspace, with "/" between the parts.

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
    """Files that change together, or not at all. `made` are directories that it makes, outermost first."""

    token: str
    call: int
    step: int
    effects: tuple[FileEffect, ...]
    made: tuple[str, ...]
    state: ChangeState


class ChangeRecorder(Protocol):
    """Where the file layer writes down what it is about to do, on behalf of one call."""

    def intend(
        self, token: str, effects: Sequence[FileEffect], backups: Mapping[str, bytes], made: Sequence[str]
    ) -> None:
        """Write down a change before it begins; it is on the disk when this returns.

        `backups` are the bytes of the files before, as far as they are known, by their hash. Raises RecordError: it
        could not be written, so the change must not begin.
        """

    def add(self, token: str, effects: Sequence[FileEffect], backups: Mapping[str, bytes], made: Sequence[str]) -> None:
        """Write down a change that has been made already, by a program. Raises RecordError: it could not be written."""

    def settle(self, token: str, state: ChangeState) -> None:
        """Write down how it ended. Where that fails nothing is lost: the next start decides by the files' hashes."""


def folders_above(path: str) -> list[str]:
    """The names of the folders that a path goes through, outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]
