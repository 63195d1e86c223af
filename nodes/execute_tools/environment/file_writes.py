"""A file is made where there was none, or replaced where it is still the one that was read."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from nodes.execute_tools.environment.atomic_write import replace_by_handle
from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.file_reads import FileContent
from nodes.execute_tools.environment.handles import closing, handle_name, open_directory, open_regular, open_root
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.sandbox import PathAccess, Place
from nodes.records import ToolError, ToolErrorCode


def write_file(paths: JudgedPaths, path: str, data: bytes, expected_sha256: str) -> FileContent | ToolError:
    """Put `data` there in one step; on a failure everything is as it was. See `Workspace.write_file`."""
    place = paths.place(path, PathAccess.WRITE_FILE)
    if isinstance(place, ToolError):
        return place
    try:
        if expected_sha256:
            return _replace(paths, place, data, expected_sha256)
        return _create(paths, place, data)
    except OSError as error:
        return os_failure(error, "write", place.requested)


@dataclass(frozen=True)
class CurrentFile:
    """An open file under its real name. The stream stands at the start."""

    name: str
    status: os.stat_result
    stream: BinaryIO


@contextmanager
def current_file(
    paths: JudgedPaths, root: int, directory: int, place: Place, *, doing: str, expected_sha256: str, changes: bool
) -> Iterator[CurrentFile | ToolError]:
    """The file at the place in the open directory, if it may be used and still holds what is expected.

    `doing` is the verb for errors; `changes` says that the file will hold something else, or be gone.
    """
    try:
        descriptor, status = open_regular(directory, place.parts[-1:], os.O_RDWR if changes else os.O_RDONLY)
    except FileNotFoundError:
        yield conflict(place, doing, "it is gone")
        return
    with os.fdopen(descriptor, "rb") as stream:
        name = paths.opened_name(descriptor, root, place, for_write=True)
        if isinstance(name, ToolError):
            yield name
            return
        if changes and not status.st_mode & 0o222:  # the bits do not bind root, but they say what is meant
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if hashlib.file_digest(stream, "sha256").hexdigest() != expected_sha256:
            yield conflict(place, doing, "it has changed since it was read; read it again")
            return
        stream.seek(0)
        yield CurrentFile(name, status, stream)


def _replace(paths: JudgedPaths, place: Place, data: bytes, expected_sha256: str) -> FileContent | ToolError:
    if place.missing:
        return conflict(place, "write", "it is gone")
    with closing(open_root(paths.root)) as root, closing(open_directory(root, place.parts[:-1])) as directory:
        with current_file(
            paths, root, directory, place, doing="write", expected_sha256=expected_sha256, changes=True
        ) as current:
            if isinstance(current, ToolError):
                return current
        replace_by_handle(directory, place.parts[-1], data, mode=stat.S_IMODE(current.status.st_mode))
    return FileContent.of(current.name, data)


def _create(paths: JudgedPaths, place: Place, data: bytes) -> FileContent | ToolError:
    if not place.missing:
        return in_the_way(paths, place)
    made: list[str] = []
    with closing(open_root(paths.root)) as root:
        try:
            with closing(open_directory(root, place.parts[:-1], made=made)) as directory:
                name = new_name(paths, root, directory, place)
                if isinstance(name, str):
                    replace_by_handle(directory, place.parts[-1], data, mode=None, exclusive=True)
        except BaseException:
            remove_directories(root, made)
            raise
        if isinstance(name, ToolError):
            remove_directories(root, made)
            return name
    return FileContent.of(name, data)


def new_name(paths: JudgedPaths, root: int, directory: int, place: Place) -> str | ToolError:
    """The real name that a new file gets in the open directory, judged; `place.real` where the kernel knows none.

    A directory can be moved to where nothing may be written, between the decision and its opening.
    """
    top, above = handle_name(root), handle_name(directory)
    if top is None or above is None:
        return place.real
    name = os.path.normpath(os.path.join(os.path.relpath(above, top), place.parts[-1]))
    if name.startswith("../"):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return paths.denial(name, for_write=True) or name


def in_the_way(paths: JudgedPaths, place: Place) -> ToolError:
    """Why nothing new can be made where something is."""
    with closing(open_root(paths.root)) as root:
        os.close(open_regular(root, place.parts, os.O_RDONLY)[0])  # says it better where it is no file
    return conflict(place, "write", "it exists already; read it first, then replace it")


def conflict(place: Place, doing: str, reason: str) -> ToolError:
    """The error for a file that is not what it was taken for."""
    return ToolError(code=ToolErrorCode.CONFLICT, message=f"Cannot {doing} {quoted(place.requested)}: {reason}.")


def remove_directories(root_fd: int, made: list[str]) -> None:
    """Take away the directories that were made for nothing, innermost first; one that is in use by now stays."""
    for name in reversed(made):
        *above, last = name.split("/")
        with suppress(OSError), closing(open_directory(root_fd, above)) as directory:
            os.rmdir(last, dir_fd=directory)
