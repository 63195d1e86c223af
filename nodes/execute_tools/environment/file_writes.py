"""A file is made where there was none, or replaced where it is still the one that was read."""

import errno
import hashlib
import os
import stat
from contextlib import suppress

from nodes.execute_tools.environment.atomic_write import replace_by_handle
from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.file_reads import FileContent
from nodes.execute_tools.environment.handles import closing, open_directory, open_regular, open_root
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


def _replace(paths: JudgedPaths, place: Place, data: bytes, expected_sha256: str) -> FileContent | ToolError:
    if place.missing:
        return _conflict(place, "it is gone")
    with closing(open_root(paths.root)) as root, closing(open_directory(root, place.parts[:-1])) as directory:
        try:
            descriptor, status = open_regular(directory, place.parts[-1:], os.O_RDWR)
        except FileNotFoundError:
            return _conflict(place, "it is gone")
        with os.fdopen(descriptor, "rb") as current:
            name = paths.opened_name(descriptor, root, place, for_write=True)
            if isinstance(name, ToolError):
                return name
            if not status.st_mode & 0o222:  # the permission bits do not bind root, but they say what is meant
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if hashlib.file_digest(current, "sha256").hexdigest() != expected_sha256:
                return _conflict(place, "it has changed since it was read; read it again")
        replace_by_handle(directory, place.parts[-1], data, mode=stat.S_IMODE(status.st_mode))
    return FileContent.of(name, data)


def _create(paths: JudgedPaths, place: Place, data: bytes) -> FileContent | ToolError:
    if not place.missing:
        return _in_the_way(paths, place)
    made: list[str] = []
    with closing(open_root(paths.root)) as root:
        try:
            with closing(open_directory(root, place.parts[:-1], made=made)) as directory:
                replace_by_handle(directory, place.parts[-1], data, mode=None, exclusive=True)
        except BaseException:
            _remove_directories(root, made)
            raise
    return FileContent.of(place.real, data)


def _in_the_way(paths: JudgedPaths, place: Place) -> ToolError:
    with closing(open_root(paths.root)) as root:
        os.close(open_regular(root, place.parts, os.O_RDONLY)[0])  # says it better where it is no file
    return _conflict(place, "it exists already; read it first, then replace it")


def _conflict(place: Place, reason: str) -> ToolError:
    return ToolError(code=ToolErrorCode.CONFLICT, message=f"Cannot write {quoted(place.requested)}: {reason}.")


def _remove_directories(root_fd: int, made: list[str]) -> None:
    """Take away the directories that were made for nothing, innermost first; one that is in use by now stays."""
    for name in reversed(made):
        *above, last = name.split("/")
        with suppress(OSError), closing(open_directory(root_fd, above)) as directory:
            os.rmdir(last, dir_fd=directory)
