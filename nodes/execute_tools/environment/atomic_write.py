"""A file becomes its new self in one step, or stays as it was."""

import errno
import os
import secrets
import stat
import sys
from contextlib import suppress
from typing import Final

from nodes.execute_tools.environment.handles import closing, open_regular

TEMPORARY_SUFFIX = ".mendgraph-tmp"
_LONGEST_STEM = 200
"""Bytes of the file's own name in the temporary name, which must not pass 255."""
_OF_THE_OLD_BYTES: Final = frozenset({"security.capability", "security.ima", "security.evm"})
"""Attributes that speak of the content: the kernel drops or renews them on a write. Source: capabilities(7)."""
_ACCESS_LIST: Final = "system.posix_acl_access"
"""A new file inherits one from its directory. Source: acl(5)."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What a file system answers that knows no hard links, or allows no more of them. Source: link(2)."""


def replace_by_handle(directory_fd: int, name: str, data: bytes, *, mode: int | None, exclusive: bool = False) -> None:
    """Put `data` at `name` in the open directory, so that readers see the old bytes or the new ones.

    `mode` is the permission bits to give (set-user-id bits are dropped, as the kernel does on a write), None means
    those of a new file. With `exclusive` nothing may be there yet. Owner, group and extended attributes stay where the
    system allows it. A hard link to the old file keeps the old bytes.

    Raises:
        OSError: the file is as it was and no temporary file is left. FileExistsError where `exclusive` does not hold.
    """
    temporary = temporary_name(name)
    write_temporary(directory_fd, temporary, data, mode=mode, like=(directory_fd, name))
    try:
        if exclusive:
            name_exclusively(directory_fd, temporary, name)
        else:
            os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise
    # The file is the new one now, whatever the disk says: an error here must not be told as "nothing happened".
    with suppress(OSError):
        os.fsync(directory_fd)


def temporary_name(name: str) -> str:
    """A fresh hidden name beside `name`, recognisable by its suffix."""
    stem = name.encode()[:_LONGEST_STEM].decode(errors="ignore")
    return f".{stem}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"


def write_temporary(
    directory_fd: int, temporary: str, data: bytes, *, mode: int | None, like: tuple[int, str]
) -> os.stat_result:
    """Write `data` to a new file `temporary` and through to the disk.

    With a `mode` (None: that of a new file) owner, group and extended attributes are those of `like`, an open
    directory and a name in it, as far as the system allows it. Returns the status of the file.

    Raises:
        OSError: there is no such file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600, dir_fd=directory_fd)
    try:
        try:
            _fill(descriptor, data)
            if mode is not None:
                _keep_owner(descriptor, like)
                os.fchmod(descriptor, mode & 0o1777)
                _keep_attributes(descriptor, like)
            os.fsync(descriptor)
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise


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
