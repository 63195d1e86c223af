"""Which of all workspaces in a shared store is this one: a name in its folder of records, which moves with it."""

import os
import re
import secrets
from contextlib import suppress
from typing import Final

from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing
from nodes.records import ToolError, ToolErrorCode

FILE_NAME: Final = "shared_name"

LONGEST_NAME: Final = 200
"""Characters. Each row of the shared store has it."""

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@+=/-]{{0,{LONGEST_NAME - 1}}}")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def shared_name(folder: str) -> str:
    """The name of the workspace whose folder of records this is; a random one is given where it has none.

    Raises:
        StoreError: it cannot be read or written, or is no name.
    """
    given = _given(folder, secrets.token_hex(16))
    if isinstance(given, ToolError):
        raise StoreError(given.message)
    return given


def known_shared_name(folder: str) -> str | None:
    """The name of the workspace; None where none was given yet, or it cannot be read. Nothing is made."""
    found = _read(folder)
    return None if isinstance(found, ToolError) else found


def give_shared_name(folder: str, name: str) -> ToolError | None:
    """Give the workspace whose folder of records this is a name of one's own, such as "<user>/<project>".

    The same name once more is no error. CONFLICT says that it has another one, under which its runs are kept;
    INVALID_ARGUMENT, which signs a name is made of.
    """
    if not _NAME.fullmatch(name):
        message = (
            f"A workspace cannot be called {quoted(name)} in a shared store: give up to {LONGEST_NAME} letters, digits"
            " and signs out of '._@+=/-', the first of them a letter or digit."
        )
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    found = _given(folder, name)
    if isinstance(found, ToolError):
        return found
    if found != name:
        message = (
            f"The workspace is called {quoted(found)} in the shared store and cannot be called {quoted(name)} as well:"
            " its runs are kept under the first name."
        )
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)
    return None


def _given(folder: str, name: str) -> str | ToolError:
    """The name that the workspace has, which is `name` where it had none."""
    found = _read(folder)
    if found is None:
        refused = _write(folder, name)
        found = _read(folder) if refused is None else refused
    return name if found is None else found


def _read(folder: str) -> str | ToolError | None:
    path = os.path.join(folder, FILE_NAME)
    try:
        with closing(os.open(path, _READ)) as descriptor:
            name = os.read(descriptor, 4 * LONGEST_NAME).decode("ascii", "replace").removesuffix("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        return os_failure(error, "read", path)
    if _NAME.fullmatch(name):
        return name
    message = f"The file {quoted(path)} holds no name of a workspace: put back what it held, or remove it."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def _write(folder: str, name: str) -> ToolError | None:
    """Make the file, whole and on the disk, unless somebody was faster."""
    new = f".{FILE_NAME}.{secrets.token_hex(8)}"
    try:
        with closing(os.open(folder, _DIRECTORY)) as handle:
            try:
                with closing(os.open(new, _WRITE, 0o600, dir_fd=handle)) as descriptor:
                    os.write(descriptor, f"{name}\n".encode("ascii"))
                    os.fsync(descriptor)
                with suppress(FileExistsError):
                    os.link(new, FILE_NAME, src_dir_fd=handle, dst_dir_fd=handle)
                os.fsync(handle)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(new, dir_fd=handle)
    except OSError as error:
        return os_failure(error, "name the workspace in", folder)
    return None
