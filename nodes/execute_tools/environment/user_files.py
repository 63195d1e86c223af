"""Files that belong to no workspace: ours beside the spending book, and the user's own configuration."""

import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, Final

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing
from nodes.execute_tools.environment.run_folder import spending_folder
from nodes.records import ToolError, ToolErrorCode

MOST_BYTES: Final = 1_000_000
"""No file that a person writes by hand is larger."""

LONGEST_LINE: Final = 64_000_000
"""Bytes of a line of a file that has one record on each: a task, or a result with its whole answer."""

_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def spending_file(name: str, base: str | None = None) -> str | ToolError:
    """The absolute path of our file of this name, which is there, empty if it is new, and which only its owner may use.

    It lies in `spending/` of `base`, of what `MENDGRAPH_DATA_DIR` names, or of the user's data folder. One that is
    there is not opened: to close it again would end the locks that other connections of this process have on it.
    Source: SQLite, "How To Corrupt An SQLite Database File", section 2.2.
    """
    folder = spending_folder(base)
    if isinstance(folder, ToolError):
        return folder
    path = os.path.join(folder, name)
    try:
        with closing(os.open(path, _NEW_FILE, 0o600)):
            return path
    except FileExistsError:
        if os.path.isdir(path):
            return os_failure(IsADirectoryError(errno.EISDIR, ""), "open", path)
        if os.access(path, os.R_OK | os.W_OK):
            return path
        return os_failure(PermissionError(errno.EACCES, ""), "open", path)
    except OSError as error:
        return os_failure(error, "open", path)


def configuration_file(name: str) -> str | ToolError:
    """Where the user's configuration file of this name is, or would be; NOT_FOUND for a user without a home."""
    from platformdirs import user_config_dir

    try:
        return os.path.join(user_config_dir("mendgraph", appauthor=False), name)
    except RuntimeError:
        message = f"There is no home folder in which {name} could be."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)


def absolute_name(path: str) -> str:
    """The absolute name of what the user named, `~` included."""
    return os.path.abspath(os.path.expanduser(path))


def open_regular(path: str) -> BinaryIO:
    """The file, open for reading. Nothing is waited for.

    Raises:
        OSError: it cannot be opened, or is a directory (EISDIR), a pipe, a socket or a device (ENXIO).
    """
    descriptor = os.open(path, _READ)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO, "")


def lines_of(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines of a file, each with its end; an error calls the file `name`.

    Raises:
        OSError: it cannot be read, or a line has more than `LONGEST_LINE` bytes.
    """
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise OSError(0, f"a line of {name} has more than {LONGEST_LINE:,} bytes")
        yield line


def read_bytes(path: str, most: int = MOST_BYTES, name: str = "") -> bytes | ToolError:
    """All of a regular file that has `most` bytes at most; an error calls it `name`, by default its path."""
    name = name or path
    try:
        with open_regular(path) as file:
            data = file.read(most + 1)
    except OSError as error:
        return os_failure(error, "read", name)
    if len(data) > most:
        message = f"Cannot read {quoted(name)}: it has more than {most:,} bytes."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    return data


def read_user_file(path: str) -> str | ToolError:
    """The text of a small file that the user wrote: UTF-8, `MOST_BYTES` at most."""
    data = read_bytes(os.path.expanduser(path))
    if isinstance(data, ToolError):
        return data
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"Cannot read {quoted(path)}: it is no UTF-8 text (byte {error.start})."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
