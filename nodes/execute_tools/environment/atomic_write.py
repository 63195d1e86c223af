"""What an atomic write is made of: a whole new file under a temporary name, and a name that it gets in one step."""

import errno
import os
import stat
import sys
from contextlib import suppress
from enum import StrEnum
from typing import Final

from nodes.execute_tools.environment.handles import closing, open_regular

TEMPORARY_SUFFIX = ".mendgraph-tmp"
PERMISSION_BITS: Final = 0o1777
"""The bits of a mode that a new file may get: not set-user-id and set-group-id, which the kernel drops on a write."""
_LONGEST_STEM = 200
"""Bytes of the file's own name in the temporary name, which must not pass 255."""
_OF_THE_OLD_BYTES: Final = frozenset({"security.capability", "security.ima", "security.evm"})
"""Attributes that speak of the content: the kernel drops or renews them on a write. Source: capabilities(7)."""
_ACCESS_LIST: Final = "system.posix_acl_access"
"""A new file inherits one from its directory. Source: acl(5)."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What a file system answers that knows no hard links, or allows no more of them. Source: link(2)."""


class Role(StrEnum):
    """What a temporary name stands for: the file that comes, or the one that was there."""

    NEW, KEPT = "n", "k"


def temporary_name(path: str, token: str, place: int, role: Role) -> str:
    """The hidden name beside the file `path` for its part in a change; the same arguments give the same name.

    `place` is that of the file in the change, at most 9999.
    """
    stem = os.fsencode(path.rpartition("/")[2])[:_LONGEST_STEM].decode(errors="ignore")
    return f".{stem}.{token}{place:04}{role}{TEMPORARY_SUFFIX}"


def write_temporary(
    directory_fd: int, temporary: str, data: bytes, *, mode: int | None, like: tuple[int, str] | None = None
) -> os.stat_result:
    """Write `data` to a new file `temporary` and through to the disk.

    `mode` is the permission bits to give, None means those of a new file. Owner, group and extended attributes are
    those of `like`, an open directory and a name in it, as far as the system allows it. Returns the file's status.

    Raises:
        OSError: there is no such file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600, dir_fd=directory_fd)
    try:
        try:
            _fill(descriptor, data)
            if like is not None:
                _keep_owner(descriptor, like)
                _keep_attributes(descriptor, like)
            if mode is not None:  # after an access list, which carries a mode of its own
                os.fchmod(descriptor, mode & PERMISSION_BITS)
            write_through(descriptor)
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise


def write_through(descriptor: int) -> None:
    """Bring what was written to the open file or directory onto the disk itself.

    Raises:
        OSError: the disk does not confirm it.
    """
    if sys.platform == "darwin":  # whose fsync leaves it in the disk's own cache. Source: fsync(2) of macOS
        import fcntl

        with suppress(OSError):  # not every file system can do more
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def name_exclusively(directory_fd: int, temporary: str, name: str) -> None:
    """Give the file `temporary` the name `name` in the same directory, where nothing may be yet.

    Raises:
        OSError: both names are as they were. FileExistsError where something is.
    """
    try:
        os.link(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _name_without_links(directory_fd, temporary, name)
        return
    with suppress(OSError):
        os.unlink(temporary, dir_fd=directory_fd)


def _name_without_links(directory_fd: int, temporary: str, name: str) -> None:
    """File systems without hard links cannot refuse in the same step in which they name; looking first comes close."""
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def _fill(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _keep_owner(descriptor: int, like: tuple[int, str]) -> None:
    directory_fd, name = like
    with suppress(OSError):
        old = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        if stat.S_ISREG(old.st_mode):
            os.fchown(descriptor, old.st_uid, old.st_gid)


def _keep_attributes(descriptor: int, like: tuple[int, str]) -> None:
    """Linux: labels, access lists and users' own attributes. One that cannot be kept is left out."""
    if sys.platform != "linux":
        return
    directory_fd, name = like
    with suppress(OSError), closing(open_regular(directory_fd, (name,), os.O_RDONLY)[0]) as old:
        kept = set(os.listxattr(old)) - _OF_THE_OLD_BYTES
        if _ACCESS_LIST not in kept:
            with suppress(OSError):
                os.removexattr(descriptor, _ACCESS_LIST)
        for attribute in sorted(kept):
            with suppress(OSError):
                os.setxattr(descriptor, attribute, os.getxattr(old, attribute))
