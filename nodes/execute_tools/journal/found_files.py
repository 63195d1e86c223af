"""What is at a path of the workspace now, whatever it is: reached by handle, and never through a link."""

import errno
import hashlib
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.files.change_records import FileState
from mendgraph.nodes.execute_tools.files.failures import os_failure
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_regular, status_beneath

MOST_ENTRIES: Final = 10_000
"""Of a directory in the place of a file, which is looked through to tell whether it would be empty."""

NO_FILE: Final = FileState()


class FoundDirectory(NamedTuple):
    """A directory is at the path; all that lies below it, by the names in the workspace."""

    files: frozenset[str]
    directories: frozenset[str]


class FoundAbove(NamedTuple):
    """Nothing can be at the path, because a part of it is a file."""

    file: str


class Unusable(NamedTuple):
    """Something else is there, or it cannot be looked at."""

    why: str


Found: TypeAlias = FileState | FoundDirectory | FoundAbove | Unusable
"""What is at a path now; a `FileState` is a file, or that nothing is there."""


def found_at(root_fd: int, path: str) -> Found:
    """The file at the path, or what is there instead. `path` is a real name relative to the root."""
    parts = path.split("/")
    try:
        descriptor, status = open_regular(root_fd, parts, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            return FileState(hashlib.file_digest(stream, "sha256").hexdigest(), stat.S_IMODE(status.st_mode))
    except FileNotFoundError:
        return NO_FILE
    except NotADirectoryError:
        return _above(root_fd, parts)
    except IsADirectoryError:
        return _below(root_fd, path)
    except OSError as error:
        return _unusable(error, path)


def bytes_at(root_fd: int, path: str) -> bytes | None:
    """All that the file at the path holds; None where it cannot be read."""
    with suppress(OSError):
        descriptor, _ = open_regular(root_fd, path.split("/"), os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read()
    return None


def size_at(root_fd: int, path: str) -> int:
    """How many bytes the file at the path has; 0 where it cannot be told."""
    with suppress(OSError):
        return status_beneath(root_fd, path.split("/")).st_size
    return 0


def _above(root_fd: int, parts: Sequence[str]) -> Found:
    for length in range(1, len(parts)):
        with suppress(OSError):
            if not stat.S_ISDIR(status_beneath(root_fd, parts[:length]).st_mode):
                return FoundAbove("/".join(parts[:length]))
    return Unusable("its directories are being changed at this moment")


def _below(root_fd: int, path: str) -> Found:
    files: set[str] = set()
    directories: set[str] = set()
    try:
        with closing(open_directory(root_fd, path.split("/"))) as here:
            for folder, inner, names, _ in os.fwalk(dir_fd=here, onerror=_raise):
                place = os.path.normpath(os.path.join(path, folder))
                directories.update(f"{place}/{name}" for name in inner)
                files.update(f"{place}/{name}" for name in names)
                if len(files) + len(directories) > MOST_ENTRIES:
                    return Unusable("it is a directory now, which holds very much")
    except OSError as error:
        return _unusable(error, path)
    return FoundDirectory(frozenset(files), frozenset(directories))


def _raise(error: OSError) -> None:
    raise error


def _unusable(error: OSError, path: str) -> Unusable:
    if error.errno == errno.ESTALE:
        return Unusable("it is a symbolic link now, or reached through one")
    return Unusable(os_failure(error, "read", path).message)
