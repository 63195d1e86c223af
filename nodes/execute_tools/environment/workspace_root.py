"""Which folders an agent may work in."""

import os
from typing import Final

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing, open_root
from nodes.execute_tools.environment.path_shape import malformed
from nodes.records import ToolError, ToolErrorCode

SYSTEM_DIRECTORIES: Final = (
    *("/etc", "/usr", "/bin", "/sbin", "/var", "/System", "/Library"),  # Source: spec 1 section 3
    *("/boot", "/dev", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sys"),
)
OPEN_DIRECTORIES: Final = ("/var/folders", "/var/tmp", "/usr/src", "/usr/local/src")  # noqa: S108 - only compared
"""Below system directories, but made for people's own files."""


def check_workspace(path: str) -> str | ToolError:
    """The real, absolute name of a folder that an agent may work in, or why it may not."""
    no_path = malformed(path)
    if no_path is not None:
        return no_path
    try:
        real = os.path.realpath(path, strict=True)
        with closing(open_root(real)) as root, os.scandir(root):
            pass
    except FileNotFoundError:
        message = f"The workspace {quoted(path)} does not exist: make the folder, or name another one."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    except OSError as error:
        return os_failure(error, "use as workspace", path)
    if not is_system_directory(real):
        return malformed(real) or real
    message = f"The workspace {quoted(path)} is a system directory: choose a project folder."
    return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)


def is_system_directory(real: str) -> bool:
    """Whether this real name is the system's own."""
    name = real.removeprefix("/private")  # macOS keeps /etc, /tmp and /var there
    if any(_is_below(name, each) for each in OPEN_DIRECTORIES):
        return False
    return real == "/" or any(_is_below(name, each) for each in SYSTEM_DIRECTORIES)


def _is_below(name: str, directory: str) -> bool:
    return name == directory or name.startswith(f"{directory}/")
