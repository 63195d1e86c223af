"""Opens files below a directory by handles, without following links.

A checked name can be replaced by a link before it is used; a handle cannot. Each part is opened in the directory of the
part before it, with O_NOFOLLOW and without a slash, as O_NOFOLLOW does not apply to names that end with one. Source:
measured; CVE-2026-39822.

The functions raise OSError, as those of `os` do; ESTALE: a part was replaced by a link.
"""

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from mendgraph.nodes.records import CONTENT_BYTES

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags for a directory on the way, which with O_PATH need not be readable."""
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_F_GETPATH = 50
"""The request of fcntl(2) for the name of a handle on macOS. Source: <sys/fcntl.h>."""
_DELETED = " (deleted)"
"""The suffix of the name of a deleted file on Linux."""

_LOCK_POLL_S = 0.01


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Close the handle at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_root(root: str) -> int:
    """Open the workspace itself; the only place where an absolute name is opened."""
    return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_beneath(root_fd: int, parts: Sequence[str], flags: int) -> int:
    """Open the file or directory that `parts` name below `root_fd`; without parts, `root_fd` again."""
    if not parts:
        return os.open(".", _DIRECTORY, dir_fd=root_fd)
    return _walked(root_fd, parts, flags | _FILE)


def open_directory(root_fd: int, parts: Sequence[str], *, created: list[str] | None = None) -> int:
    """Open the directory that `parts` name.

    With a list in `created`, missing directories are created, and the list receives their names, outermost first.
    """
    return _walked(root_fd, parts, _DIRECTORY, created=created)


def status_beneath(root_fd: int, parts: Sequence[str]) -> os.stat_result:
    """Return the status of what `parts` name, without opening it or following a link."""
    if not parts:
        return os.fstat(root_fd)

    with closing(_walked(root_fd, parts[:-1], _STEP)) as parent:
        return os.stat(_one_part(parts[-1]), dir_fd=parent, follow_symlinks=False)


def open_regular(root_fd: int, parts: Sequence[str], flags: int) -> tuple[int, os.stat_result]:
    """Open an existing regular file without waiting; EISDIR for a directory, ENXIO for a pipe, socket or device."""
    if not parts:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    with closing(_walked(root_fd, parts[:-1], _STEP)) as parent:
        _require_regular(os.stat(_one_part(parts[-1]), dir_fd=parent, follow_symlinks=False))
        descriptor = _open_part(parts[-1], flags | _FILE, parent)

    try:
        status = os.fstat(descriptor)
        _require_regular(status)
    except BaseException:
        os.close(descriptor)
        raise

    return descriptor, status


def read_beginning(root_fd: int, parts: Sequence[str]) -> bytes:
    """Return the first `CONTENT_BYTES` of an existing regular file."""
    with closing(open_regular(root_fd, parts, os.O_RDONLY)[0]) as descriptor:
        return os.pread(descriptor, CONTENT_BYTES, 0)


def list_names(root_fd: int, *parts: str) -> list[str]:
    """Return the sorted names in the directory that `parts` name; none if it cannot be read."""
    with suppress(OSError), closing(open_directory(root_fd, parts)) as folder:
        return sorted(os.listdir(folder))

    return []


def beginning_if_readable(root_fd: int, *parts: str) -> bytes:
    """Return `read_beginning`, or b"" if the file cannot be read."""
    with suppress(OSError):
        return read_beginning(root_fd, parts)

    return b""


def lock_folder(descriptor: int, operation: int, deadline: float) -> bool:
    """Lock an open folder (`LOCK_SH` or `LOCK_EX` of flock(2)); True also on a file system without locks.

    False if it is still locked at `deadline` (of the monotonic clock): whoever can open a folder can lock it.
    """
    while True:
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False

            time.sleep(_LOCK_POLL_S)
        except OSError:
            return True
        else:
            return True


def handle_name(descriptor: int) -> str | None:
    """Return the kernel's absolute name of an open handle, or None."""
    try:
        if sys.platform == "darwin":
            return os.fsdecode(fcntl.fcntl(descriptor, _F_GETPATH, bytes(1024)).rstrip(b"\0"))

        name = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None

    return None if name.endswith(_DELETED) else name


def _walked(root_fd: int, parts: Sequence[str], flags: int, *, created: list[str] | None = None) -> int:
    """Open what the parts name, the last one with `flags`; see `open_directory` for `created`."""
    names = [_one_part(part) for part in parts]
    folder_fd = os.open(".", _STEP if names else flags, dir_fd=root_fd)

    for depth, part in enumerate(names, start=1):
        with closing(folder_fd) as parent:
            if created is not None:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=parent)
                    created.append("/".join(names[:depth]))

            folder_fd = _open_part(part, _STEP if depth < len(names) else flags, parent)

    return folder_fd


def _open_part(name: str, flags: int, directory_fd: int) -> int:
    try:
        return os.open(name, flags, dir_fd=directory_fd)
    except OSError as error:
        if _is_link(name, directory_fd):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from error
        raise


def _one_part(name: str) -> str:
    if name in {"", ".", ".."} or "/" in name:
        raise ValueError(f"{name!r} is not one part of a path.")
    return name


def _is_link(name: str, directory_fd: int) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_mode)

    return False


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
