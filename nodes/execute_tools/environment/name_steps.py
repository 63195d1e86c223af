"""One name in a directory passes from one file to another in one step, which can be taken back.

A step knows the files by their identity, so that it takes back what it did itself and leaves alone what another program
has put there meanwhile. Until all steps of a change are done, the old file stays reachable under a temporary name
beside it.
"""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from nodes.execute_tools.environment.atomic_write import name_exclusively

Identity: TypeAlias = tuple[int, int, int, int]
"""Device, inode number, bytes and time of the last write: what makes two names the same file, with the same content."""


@dataclass(frozen=True)
class NameStep:
    """What `name` in the open directory means `before` and `after`; None means that it is no file's name.

    `temporary` is the name that the new file has until the step, `kept` the one that the old file has until the end,
    both in the same directory. A file that is replaced has `kept` as a second name from the start, unless it had to
    be copied there; without `kept` the step cannot be taken back. One that goes away gets it by the step.
    """

    directory_fd: int
    name: str
    before: Identity | None
    after: Identity | None
    temporary: str = ""
    kept: str = ""

    @property
    def replaces(self) -> bool:
        """Whether the name means a file before and after."""
        return self.before is not None and self.after is not None


def commit(step: NameStep) -> None:
    """Take the step.

    Raises:
        OSError: ESTALE if the name means another file than it should, EEXIST if it means one where it should not.
            What was done is taken back by `undo`.
    """
    if step.before is not None and identity_at(step.directory_fd, step.name) != step.before:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    if step.after is None:
        _rename(step.directory_fd, step.name, step.kept)
        if identity_at(step.directory_fd, step.kept) != step.before:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    elif step.before is None:
        name_exclusively(step.directory_fd, step.temporary, step.name)
    else:
        _rename(step.directory_fd, step.temporary, step.name)


def undo(step: NameStep) -> None:
    """Take the step back as far as it was taken, however far that is.

    Raises:
        OSError: it could not be taken back. What the name meant before is still there as `kept`, if that was given.
    """
    if step.after is None:
        if identity_at(step.directory_fd, step.kept) is not None:
            name_exclusively(step.directory_fd, step.kept, step.name)
    elif identity_at(step.directory_fd, step.name) != step.after:
        return
    elif step.before is None:
        os.unlink(step.name, dir_fd=step.directory_fd)
    else:
        _rename(step.directory_fd, step.kept, step.name)


def identity(status: os.stat_result) -> Identity:
    """The file that a status is of."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def identity_at(directory_fd: int, name: str) -> Identity | None:
    """The file that the name means, None where it means nothing. A link is not followed."""
    with suppress(FileNotFoundError):
        return identity(os.stat(name, dir_fd=directory_fd, follow_symlinks=False))
    return None


def _rename(directory_fd: int, old: str, new: str) -> None:
    os.rename(old, new, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
