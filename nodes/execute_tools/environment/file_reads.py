"""A file's bytes, whole or piece by piece, through a handle that never followed a link."""

import hashlib
import os
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import closing, open_regular, open_root
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.sandbox import PathAccess
from nodes.records import ToolError, ToolErrorCode


@dataclass(frozen=True)
class FileContent:
    """A whole file. `path` is its real name relative to the workspace, `sha256` the hash of `data` in hex."""

    path: str
    data: bytes
    sha256: str

    @classmethod
    def of(cls, path: str, data: bytes) -> "FileContent":
        """The content with its hash."""
        return cls(path, data, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class OpenedFile:
    """A file to read piece by piece, in a `with` statement. `size` is in bytes, as of opening."""

    path: str
    size: int
    stream: BinaryIO

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()


def open_file(paths: JudgedPaths, path: str) -> OpenedFile | ToolError:
    """The file, opened for reading. Pipes, sockets and devices are refused and never waited for."""
    place = paths.existing(path, PathAccess.READ_FILE)
    if isinstance(place, ToolError):
        return place
    try:
        with closing(open_root(paths.root)) as root, ExitStack() as refused:
            descriptor, status = open_regular(root, place.parts, os.O_RDONLY)
            stream = refused.enter_context(os.fdopen(descriptor, "rb"))
            name = paths.opened_name(descriptor, root, place, for_write=False)
            if isinstance(name, ToolError):
                return name
            refused.pop_all()  # the caller closes it
            return OpenedFile(name, status.st_size, stream)
    except OSError as error:
        return os_failure(error, "read", place.requested)


def read_whole(opened: OpenedFile, max_bytes: int) -> FileContent | ToolError:
    """All of an opened file, which is closed; IO_ERROR with its size where it is larger than `max_bytes`."""
    with opened:
        try:
            data = opened.stream.read(max_bytes + 1) if opened.size <= max_bytes else b""
        except OSError as error:
            return os_failure(error, "read", opened.path)
    size = max(opened.size, len(data))
    if size <= max_bytes:
        return FileContent.of(opened.path, data)
    message = f"{quoted(opened.path)} is too large to read at once: {size} bytes, and {max_bytes} are allowed."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)
