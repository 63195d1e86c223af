"""What an atomic change is made of: whole files under temporary names, rename steps, and the folders they are taken in.

A rename step makes one name in a directory mean another file, and can be taken back. It knows the files by their
identity, so that it takes back what it did itself and leaves alone what another program has put there meanwhile. Until
all steps of a change are done, the old file stays reachable under a temporary name beside it. Like those of `os`, the
functions raise OSError where the system or the disk refuses.
"""

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self, TypeAlias

from mendgraph.nodes.execute_tools.files.change_records import FileState
from mendgraph.nodes.execute_tools.files.handles import closing, handle_name, open_directory, open_regular, open_root

TEMPORARY_SUFFIX = ".mendgraph-tmp"
PERMISSION_BITS: Final = 0o1777
"""The bits of a mode that a new file may get: not set-user-id and set-group-id, which the kernel drops on a write."""
_LONGEST_STEM = 200
"""Bytes of the file's own name in the temporary name, which must not pass 255."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What a file system answers that knows no hard links, or allows no more of them. Source: link(2)."""


class Role(StrEnum):
    """What a temporary name stands for: the file that comes, or the one that was there."""

    NEW, KEPT = "n", "k"


def temporary_name(path: str, token: str, place: int, role: Role) -> str:
    """Return the hidden name beside the file `path` for its part in a change; the same arguments give the same name.

    `place` is that of the file in the change, at most 9999.
    """
    stem = os.fsencode(path.rpartition("/")[2])[:_LONGEST_STEM].decode(errors="ignore")
    return f".{stem}.{token}{place:04}{role}{TEMPORARY_SUFFIX}"


def write_temporary(
    directory_fd: int, temporary: str, data: bytes, *, mode: int | None, like: tuple[int, str] | None = None
) -> os.stat_result:
    """Write `data` to a new file `temporary` and through to the disk.

    `mode` is the permission bits to give, None means those of a new file. Owner and group are those of `like`, an open
    directory and a name in it, as far as the system allows it. Returns the file's status.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600, dir_fd=directory_fd)

    try:
        with closing(descriptor):
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(descriptor, remaining) :]

            if like is not None:
                _keep_owner(descriptor, *like)

            if mode is not None:
                os.fchmod(descriptor, mode & PERMISSION_BITS)

            write_through(descriptor)
            return os.fstat(descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)

        raise


def write_through(descriptor: int) -> None:
    """Bring what was written to the open file or directory onto the disk itself."""
    if sys.platform == "darwin":  # whose fsync leaves it in the disk's own cache. Source: fsync(2) of macOS
        import fcntl

        with suppress(OSError):  # not every file system can do more
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return

    os.fsync(descriptor)


def name_exclusively(directory_fd: int, temporary: str, name: str) -> None:
    """Give the file `temporary` the name `name` in the same directory, where nothing may be yet.

    Raises OSError: both names are as they were. FileExistsError where something is.
    """
    try:
        os.link(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # What knows no hard links cannot refuse in the same step in which it names; looking first comes close.
        if identity_at(directory_fd, name) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from None

        _rename(directory_fd, temporary, name)
        return

    with suppress(OSError):
        os.unlink(temporary, dir_fd=directory_fd)


def _keep_owner(descriptor: int, directory_fd: int, name: str) -> None:
    with suppress(OSError):
        old = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        if stat.S_ISREG(old.st_mode):
            os.fchown(descriptor, old.st_uid, old.st_gid)


Identity: TypeAlias = tuple[int, int, int, int]
"""Device, inode number, bytes and time of the last write: what makes two names the same file, with the same content."""


@dataclass(frozen=True)
class RenameStep:
    """What `name` in the open directory means `before` and `after`; None means that it is no file's name.

    `temporary` is the name that the new file has until the step, `kept` the one that the old file has until the end,
    both in the same directory. A file that is replaced has `kept` as a second name from the start, unless it had to
    be copied there; without `kept` the step cannot be taken back. One that goes away gets it by the step. An error of
    the step says "Cannot `doing` `path`".
    """

    directory_fd: int
    name: str
    before: Identity | None
    after: Identity | None
    temporary: str = ""
    kept: str = ""
    doing: str = ""
    path: str = ""


def commit(step: RenameStep) -> None:
    """Take the step.

    Raises OSError: ESTALE if the name means another file than it should, EEXIST if it means one where it should not.
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


def undo(step: RenameStep) -> None:
    """Take the step back as far as it was taken, however far that is.

    Raises OSError: it could not be taken back. What the name meant before is still there as `kept`, if that was given.
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


def read_state(root_fd: int, parts: Sequence[str]) -> tuple[FileState, Identity]:
    """Read a regular file below an open directory, and return its state and identity."""
    descriptor, status = open_regular(root_fd, parts, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()

    return FileState(sha256, status.st_mode & PERMISSION_BITS), identity(status)


def identity(status: os.stat_result) -> Identity:
    """Return the identity of the file with this status."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def identity_at(directory_fd: int, name: str) -> Identity | None:
    """Return the file that the name means, None if it means nothing. A link is not followed."""
    with suppress(FileNotFoundError):
        return identity(os.stat(name, dir_fd=directory_fd, follow_symlinks=False))

    return None


def _rename(directory_fd: int, old: str, new: str) -> None:
    os.rename(old, new, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)


_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP})
_NOT_SYNCED: Final = frozenset({errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a system answers that knows no fsync of a directory. Source: PostgreSQL, fsync_fname_ext in fd.c."""


class OpenFolders:
    """The folders below one root that a change needs, in a `with` statement. Folders are named by their parts."""

    def __init__(self, root: str) -> None:
        self.root = open_root(root)
        self._opened: dict[tuple[str, ...], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in {self.root, *self._opened.values()}:
            with suppress(OSError):  # nothing was written through it
                os.close(handle)

        self._opened.clear()

    def open(self, parts: Sequence[str], *, made: list[str] | None = None) -> int:
        """Return the handle of this folder; the caller does not close it.

        With a list in `made`, missing folders are made, and it receives their names below the root, outermost first.
        Raises OSError: there is no such folder, or a part of it is none.
        """
        key = tuple(parts)
        if key not in self._opened:
            self._opened[key] = open_directory(self.root, key, made=made) if key else self.root

        return self._opened[key]

    def deepest(self, parts: Sequence[str]) -> tuple[int, int]:
        """Return the innermost of these folders that is there, and how many of the parts lead to it.

        Raises OSError: something else is where a folder should be.
        """
        for length in range(len(parts), 0, -1):
            with suppress(FileNotFoundError):
                return self.open(parts[:length]), length

        return self.open(()), 0

    def real_name(self, folder: int, *parts: str) -> str | None:
        """Return the name below the root of an open folder, or of `parts` in it; None if the kernel does not tell.

        Raises OSError: ESTALE, the folder has been moved out of the root.
        """
        top = handle_name(self.root)
        above = handle_name(folder)
        if top is None or above is None:
            return None

        name = os.path.normpath(os.path.join(os.path.relpath(above, top), *parts))
        if name == ".." or name.startswith("../"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        return name

    def sync(self, created: Sequence[str] = ()) -> None:
        """Write the names in all opened folders through to the disk, and those of the `created` folders."""
        for folder in self._opened.values():
            sync_folder(folder)

        for parts in {tuple(name.split("/")[:-1]) for name in created} - self._opened.keys():
            try:
                folder = open_directory(self.root, parts)
            except OSError as error:
                if error.errno not in _GONE:
                    raise

                continue

            with closing(folder):
                sync_folder(folder)

    def remove_created(self, created: Sequence[str]) -> None:
        """Remove folders that were created in vain, innermost first; one that is in use by now stays."""
        for name in reversed(created):
            *above, last = name.split("/")
            with suppress(OSError), closing(open_directory(self.root, above)) as folder:
                os.rmdir(last, dir_fd=folder)


def sync_folder(folder: int) -> None:
    """Write the names in the open folder through to the disk, where the system can do so."""
    try:
        write_through(folder)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
