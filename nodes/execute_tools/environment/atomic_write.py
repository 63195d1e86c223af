"""A file becomes its new self in one step, or stays as it was."""

import errno
import os
import secrets
import stat
from contextlib import suppress

TEMPORARY_SUFFIX = ".mendgraph-tmp"
_LONGEST_STEM = 200
"""Bytes of the file's own name in the temporary name, which must not pass 255."""


def replace_by_handle(directory_fd: int, name: str, data: bytes, *, mode: int | None, exclusive: bool = False) -> None:
    """Put `data` at `name` in the open directory, so that readers see the old bytes or the new ones.

    `mode` is the permission bits to give (set-user-id bits are dropped, as the kernel does on a write), None means
    those of a new file. With `exclusive` nothing may be there yet. Owner and group stay where the system allows it.
    A hard link to the old file keeps the old bytes.

    Raises:
        OSError: the file is as it was and no temporary file is left. FileExistsError where `exclusive` does not hold.
    """
    temporary = _temporary_name(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600, dir_fd=directory_fd)
    try:
        try:
            _fill(descriptor, data)
            if mode is not None:
                _keep_owner(descriptor, directory_fd, name)
                os.fchmod(descriptor, mode & 0o1777)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _move(temporary, name, directory_fd, exclusive=exclusive)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise
    # The file is the new one now, whatever the disk says: an error here must not be told as "nothing happened".
    with suppress(OSError):
        os.fsync(directory_fd)


def _temporary_name(name: str) -> str:
    stem = name.encode()[:_LONGEST_STEM].decode(errors="ignore")
    return f".{stem}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"


def _fill(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _keep_owner(descriptor: int, directory_fd: int, name: str) -> None:
    with suppress(OSError):
        old = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
        if stat.S_ISREG(old.st_mode):
            os.fchown(descriptor, old.st_uid, old.st_gid)


def _move(temporary: str, name: str, directory_fd: int, *, exclusive: bool) -> None:
    if not exclusive:
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        return
    try:
        os.link(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
            raise
        _move_without_links(temporary, name, directory_fd)
        return
    with suppress(OSError):
        os.unlink(temporary, dir_fd=directory_fd)


def _move_without_links(temporary: str, name: str, directory_fd: int) -> None:
    """File systems without hard links cannot refuse in the same step in which they name; looking first comes close."""
    try:
        os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
