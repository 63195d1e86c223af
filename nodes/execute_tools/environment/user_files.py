"""Files that belong to no workspace: ours beside the spending book, and the user's own configuration."""

import errno
import os
import stat
from typing import Final

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing
from nodes.execute_tools.environment.run_folder import spending_folder
from nodes.records import ToolError, ToolErrorCode

MOST_BYTES: Final = 1_000_000
"""No file that a person writes by hand is larger."""

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


def read_user_file(path: str) -> str | ToolError:
    """The text of a small file that the user wrote: UTF-8, `MOST_BYTES` at most."""
    try:
        with closing(os.open(os.path.expanduser(path), _READ)) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                message = f"Cannot read {quoted(path)}: it is not a regular file."
                return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
            with os.fdopen(os.dup(descriptor), "rb") as file:
                data = file.read(MOST_BYTES + 1)
    except OSError as error:
        return os_failure(error, "read", path)
    if len(data) > MOST_BYTES:
        message = f"Cannot read {quoted(path)}: it has more than {MOST_BYTES:,} bytes."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"Cannot read {quoted(path)}: it is no UTF-8 text (byte {error.start})."
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
