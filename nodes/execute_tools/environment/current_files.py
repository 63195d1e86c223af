"""What is there now, before it is changed: the file that is expected, or nothing."""

import errno
import hashlib
import os
from dataclasses import dataclass
from typing import Final

from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.handles import closing, open_regular, open_root
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.open_folders import OpenFolders
from nodes.execute_tools.environment.sandbox import Place
from nodes.records import ToolError, ToolErrorCode

LARGEST_BACKUP: Final = 10_000_000
"""Bytes of a file whose old content is recorded before it changes: as many as the tools read at once."""


@dataclass(frozen=True)
class CurrentFile:
    """A file under its real name; `data` is its bytes, None where they were not asked for."""

    name: str
    status: os.stat_result
    data: bytes | None


@dataclass(frozen=True)
class Expected:
    """What a file has to be so that it may be used.

    `doing` is the verb for errors; `writable` says that it must not be read-only, `whole` that its bytes are wanted.
    """

    doing: str
    sha256: str
    writable: bool
    whole: bool


def current_file(paths: JudgedPaths, folders: OpenFolders, place: Place, expected: Expected) -> CurrentFile | ToolError:
    """The file at the place, if it may be used and still holds what is expected.

    IO_ERROR where its bytes are wanted and are more than `LARGEST_BACKUP`.

    Raises:
        OSError: there is no such folder, or it is no file, or is read-only.
    """
    folder = folders.open(place.parts[:-1])
    try:
        flags = os.O_RDWR if expected.writable else os.O_RDONLY
        descriptor, status = open_regular(folder, place.parts[-1:], flags)
    except FileNotFoundError:
        return conflict(place, expected.doing, "it is gone")
    with os.fdopen(descriptor, "rb") as stream:
        name = paths.opened_name(descriptor, folders.root, place, for_write=True)
        if isinstance(name, ToolError):
            return name
        if expected.writable and not status.st_mode & 0o222:  # the bits do not bind root, but they say what is meant
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not expected.whole:
            data, sha256 = None, hashlib.file_digest(stream, "sha256").hexdigest()
        else:
            if status.st_size > LARGEST_BACKUP:
                return _too_large(place, expected.doing, status.st_size)
            data = stream.read(LARGEST_BACKUP + 1)
            sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != expected.sha256:
        return conflict(place, expected.doing, "it has changed since it was read; read it again")
    return CurrentFile(name, status, data)


def new_name(
    paths: JudgedPaths, folders: OpenFolders, folder: int, rest: tuple[str, ...], place: Place
) -> str | ToolError:
    """The real name that `rest` gets in the open folder, judged; `place.real` where the kernel knows none.

    A directory can be moved to where nothing may be written, between the decision and its opening.

    Raises:
        OSError: ESTALE, the folder has been moved out of the workspace.
    """
    name = folders.real_name(folder, *rest)
    return place.real if name is None else paths.denial(name, for_write=True) or name


def in_the_way(paths: JudgedPaths, place: Place) -> ToolError:
    """Why nothing new can be made where something is."""
    with closing(open_root(paths.root)) as root:
        os.close(open_regular(root, place.parts, os.O_RDONLY)[0])  # says it better where it is no file
    return conflict(place, "write", "it exists already; read it first, then replace it")


def conflict(place: Place, doing: str, reason: str) -> ToolError:
    """The error for a file that is not what it was taken for."""
    return ToolError(code=ToolErrorCode.CONFLICT, message=f"Cannot {doing} {quoted(place.requested)}: {reason}.")


def _too_large(place: Place, doing: str, size: int) -> ToolError:
    message = (
        f"Cannot {doing} {quoted(place.requested)}: it has {size} bytes, and what a file of more than {LARGEST_BACKUP}"
        " held cannot be kept, so it could not be restored. Go on without it."
    )
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)
