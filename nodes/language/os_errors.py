"""Errors of the operating system as tool errors that a model and a person can act on."""

import errno
from typing import Final

from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted

_FAILURES: Final[dict[int, tuple[ToolErrorCode, str]]] = {
    errno.ENOENT: (ToolErrorCode.NOT_FOUND, "there is no such file or directory"),
    errno.EACCES: (ToolErrorCode.PERMISSION_DENIED, "the file permissions do not allow it"),
    errno.EPERM: (ToolErrorCode.PERMISSION_DENIED, "the operating system does not allow it"),
    errno.EROFS: (ToolErrorCode.PERMISSION_DENIED, "the file system is read-only"),
    errno.EISDIR: (ToolErrorCode.INVALID_ARGUMENT, "it is a directory, and a file is needed"),
    errno.ENOTDIR: (ToolErrorCode.INVALID_ARGUMENT, "a part of it is a file where a directory is needed"),
    errno.ENXIO: (ToolErrorCode.INVALID_ARGUMENT, "it is not a regular file (a pipe, socket or device)"),
    errno.ENAMETOOLONG: (ToolErrorCode.INVALID_ARGUMENT, "the name is too long"),
    errno.ELOOP: (ToolErrorCode.INVALID_ARGUMENT, "its symbolic links lead in a circle"),
    errno.EEXIST: (ToolErrorCode.CONFLICT, "it exists already"),
    errno.ESTALE: (ToolErrorCode.CONFLICT, "it changed while it was being opened; try again"),
    errno.ENOSPC: (ToolErrorCode.IO_ERROR, "the disk is full"),
    errno.EDQUOT: (ToolErrorCode.IO_ERROR, "the disk quota is used up"),
    errno.EIO: (ToolErrorCode.IO_ERROR, "the disk reports an error"),
}

_FATAL_FOR_CHANGES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
"""Errors that every further change would have."""

_CHANGING: Final = frozenset({"write", "delete", "move", "move to"})


def os_reason(error: OSError) -> tuple[ToolErrorCode, str]:
    """Return the code and the reason of an error of the operating system, without its path."""
    return _FAILURES.get(error.errno or 0, (ToolErrorCode.IO_ERROR, error.strerror or type(error).__name__))


def os_failure(error: OSError, doing: str, path: str) -> ToolError:
    """Return the error of `doing` (a verb, such as "read") at `path`, which names the path and the reason."""
    code, reason = os_reason(error)
    fatal = doing in _CHANGING and error.errno in _FATAL_FOR_CHANGES
    return ToolError(code=code, message=f"Cannot {doing} {quoted(path)}: {reason}.", fatal=fatal)


def is_disk_full(error: ToolError) -> bool:
    """Return whether `os_failure` made this error of a full disk, so that it can be tried again with more space."""
    full = tuple(f": {_FAILURES[number][1]}." for number in (errno.ENOSPC, errno.EDQUOT))
    return error.message.endswith(full)
