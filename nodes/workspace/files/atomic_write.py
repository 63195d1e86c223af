"""The parts of an atomic change: files under temporary names, rename steps, and open folders.

A rename step replaces the file of one name, and can be undone. It identifies files, so that it undoes only its own work
and leaves alone what another program has put there meanwhile. Until all steps of a change are done, the old file is
kept under a temporary name. The functions raise OSError, as those of `os` do.
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

from mendgraph.nodes.workspace.files.change_records import FileState
from mendgraph.nodes.workspace.files.handles import closing, handle_name, open_directory, open_regular, open_root

TEMPORARY_SUFFIX = ".mendgraph-tmp"
PERMISSION_BITS: Final = 0o1777
"""The mode bits of a new file, without set-user-id and set-group-id, which the kernel clears on a write."""
_LONGEST_STEM = 200
"""Bytes of the file's own name in the temporary name, which may have 255."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of a file system without hard links, or without more of them. Source: link(2)."""


class Role(StrEnum):
    """Whether a temporary name is that of the new file or of the old one, which is kept."""

    NEW, KEPT = "n", "k"


def temporary_name(path: str, token: str, place: int, role: Role) -> str:
    """Return the hidden temporary name beside the file; the same arguments give the same name.

    `place` is the index of the file in the change, at most 9999.
    """
    stem = os.fsencode(path.rpartition("/")[2])[:_LONGEST_STEM].decode(errors="ignore")
    return f".{stem}.{token}{place:04}{role}{TEMPORARY_SUFFIX}"


def write_temporary(
    directory_fd: int, temporary: str, data: bytes, *, mode: int | None, like: tuple[int, str] | None = None
) -> os.stat_result:
    """Write `data` to a new file, sync it, and return its status.

    `mode` are the permission bits, None for the default of new files. Owner and group are those of the file `like`, an
    open directory and a name in it, as far as the system allows it.
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
    """Sync an open file or directory to the disk."""
    if sys.platform == "darwin":  # its fsync leaves data in the cache of the disk. Source: fsync(2) of macOS
        import fcntl

        with suppress(OSError):  # not every file system supports it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return

    os.fsync(descriptor)


def name_exclusively(directory_fd: int, temporary: str, name: str) -> None:
    """Rename a file in a directory to a name that must not exist.

    Raises:
        OSError: both names are unchanged; FileExistsError if the name exists.
    """
    try:
        os.link(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without hard links the check and the renaming cannot be one step.
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
"""Device, inode number, size and modification time: they identify a file with its content."""


@dataclass(frozen=True)
class RenameStep:
    """A change of the file `name` in the open directory from `before` to `after`, which are None without a file.

    Until the step the new file has the name `temporary`; the old one has the name `kept` until the end of the change.
    Both are in the same directory. A replaced file is linked or copied to `kept` before the step, a removed one is
    renamed by it; without `kept` the step cannot be undone. Errors of the step begin with "Cannot `doing` `path`".
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

    Raises:
        OSError: ESTALE if the name has another file than expected, EEXIST if it exists unexpectedly. `undo` undoes
            what was done.
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
    """Undo the step, or the part of it that was taken.

    Raises:
        OSError: it could not be undone; the old file still has the name `kept`, if there is one.
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
    """Return the identity of the file with this name, None if there is none. A link is not followed."""
    with suppress(FileNotFoundError):
        return identity(os.stat(name, dir_fd=directory_fd, follow_symlinks=False))

    return None


def _rename(directory_fd: int, old: str, new: str) -> None:
    os.rename(old, new, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)


_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP})
_NOT_SYNCED: Final = frozenset({errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of a system that cannot sync directories. Source: PostgreSQL, fsync_fname_ext in fd.c."""


class OpenFolders:
    """The open folders of a change, in a `with` statement. Folders are named by their parts below one root."""

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

    def open(self, parts: Sequence[str], *, created: list[str] | None = None) -> int:
        """Return the handle of this folder, which the caller does not close; see `handles.open_directory`."""
        key = tuple(parts)
        if key not in self._opened:
            self._opened[key] = open_directory(self.root, key, created=created) if key else self.root

        return self._opened[key]

    def deepest(self, parts: Sequence[str]) -> tuple[int, int]:
        """Return the innermost existing one of these folders, and the number of its parts."""
        for length in range(len(parts), 0, -1):
            with suppress(FileNotFoundError):
                return self.open(parts[:length]), length

        return self.open(()), 0

    def real_name(self, folder: int, *parts: str) -> str | None:
        """Return the name of an open folder, or of `parts` in it, below the root; None if the kernel has no name.

        Raises:
            OSError: ESTALE, the folder has been moved out of the root.
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
        """Sync all opened folders, and the parents of the `created` ones."""
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
        """Remove created folders, innermost first, unless they are in use by now."""
        for name in reversed(created):
            *above, last = name.split("/")
            with suppress(OSError), closing(open_directory(self.root, above)) as folder:
                os.rmdir(last, dir_fd=folder)


def sync_folder(folder: int) -> None:
    """Sync the open folder, if the system can."""
    try:
        write_through(folder)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
