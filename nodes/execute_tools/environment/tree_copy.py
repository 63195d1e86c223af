"""A copy of a folder: by handle, without following a link, with modes and times, and without what is no file.

A link is copied as it is, wherever it leads; what it leads to is not. Sockets, pipes and devices are left out, as are
folders that the caller names. Blocks are shared where the file system can do so.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Collection
from contextlib import suppress
from typing import Final, NamedTuple

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing, open_directory, open_regular
from nodes.execute_tools.environment.run_folder import Identity
from nodes.records import ToolError, ToolErrorCode

ATTEMPTS: Final = 3
"""How often a file is copied that somebody writes at the same time."""

_FICLONE: Final = 0x40049409
"""Linux: share the blocks of another file. Source: ioctl_ficlone(2)."""
_CHUNK: Final = 16_777_216
_NOT_HERE: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF})
"""What the system answers where it cannot copy by itself. Source: copy_file_range(2)."""
_GONE: Final = frozenset({errno.ENOENT, errno.ESTALE})


class TreeCopied(NamedTuple):
    """What was copied, and the names of special files that were `left_out`, some of them if there are many."""

    files: int
    bytes: int
    left_out: tuple[str, ...] = ()


class _ChangingError(Exception):
    """A file was written all the time; the message is its name."""


def copy_tree(source_fd: int, target_fd: int, without: Collection[Identity] = ()) -> TreeCopied | ToolError:
    """Copy all that the open folder `source_fd` holds into the empty folder `target_fd`, but for the folders `without`.

    What goes away meanwhile is left out. CONFLICT names a file that changes all the time.
    """
    copying = _Copying(source_fd, target_fd, frozenset(without))
    try:
        return copying.run()
    except OSError as error:
        return os_failure(error, "copy", copying.at)
    except _ChangingError as error:
        message = f"{quoted(str(error))} is being written all the time, so it cannot be copied: try again later."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)


class _Copying:
    def __init__(self, source_fd: int, target_fd: int, without: frozenset[Identity]) -> None:
        self.at = "."
        self._source, self._target, self._without = source_fd, target_fd, without
        self._files, self._bytes = 0, 0
        self._left_out: list[str] = []
        self._pending: list[tuple[str, ...]] = [()]
        self._folders: list[tuple[tuple[str, ...], os.stat_result]] = []

    def run(self) -> TreeCopied:
        while self._pending:
            self._copy_folder(self._pending.pop())
        for parts, status in reversed(self._folders):  # a folder that nobody may write gets its mode last
            with closing(open_directory(self._target, parts)) as folder:
                os.fchmod(folder, stat.S_IMODE(status.st_mode) & 0o777)
                os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))
        return TreeCopied(self._files, self._bytes, tuple(self._left_out))

    def _copy_folder(self, parts: tuple[str, ...]) -> None:
        self.at = "/".join(parts) or "."
        try:
            here = open_directory(self._source, parts)
        except OSError as error:
            if parts and error.errno in _GONE:
                return
            raise
        with closing(here), closing(open_directory(self._target, parts)) as there:
            self._folders.append((parts, os.fstat(here)))
            with os.scandir(here) as entries:
                names = sorted(entry.name for entry in entries)
            for name in names:
                self.at = "/".join((*parts, name))
                with suppress(FileNotFoundError):  # it was there a moment ago
                    self._copy(here, there, name, parts)

    def _copy(self, here: int, there: int, name: str, parts: tuple[str, ...]) -> None:
        status = os.stat(name, dir_fd=here, follow_symlinks=False)
        if (status.st_dev, status.st_ino) in self._without:
            return
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
        elif stat.S_ISDIR(status.st_mode):
            os.mkdir(name, 0o700, dir_fd=there)
            self._pending.append((*parts, name))
        elif stat.S_ISREG(status.st_mode):
            self._copy_file(here, there, name)
        elif len(self._left_out) < _MOST_NAMED:
            self._left_out.append(self.at)

    def _copy_file(self, here: int, there: int, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        for _ in range(ATTEMPTS):
            source, before = open_regular(here, (name,), os.O_RDONLY)
            with closing(source), closing(os.open(name, flags, 0o600, dir_fd=there)) as target:
                copy_bytes(source, target)
                os.fchmod(target, stat.S_IMODE(before.st_mode) & 0o777)
                os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
                after = os.fstat(source)
                if _content(before) == _content(after):
                    self._files, self._bytes = self._files + 1, self._bytes + before.st_size
                    return
        raise _ChangingError(self.at)


_MOST_NAMED: Final = 20


def _content(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def copy_bytes(source: int, target: int) -> None:
    """Give the empty open file `target` the bytes of the open file `source`, from its beginning.

    Raises:
        OSError: one of them cannot be used any more.
    """
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        pass
    else:
        return
    try:
        while os.copy_file_range(source, target, _CHUNK):
            pass
    except (OSError, AttributeError) as error:  # a system without this call
        if isinstance(error, OSError) and error.errno not in _NOT_HERE:
            raise
    else:
        return
    while chunk := os.read(source, _CHUNK):
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(target, rest) :]
