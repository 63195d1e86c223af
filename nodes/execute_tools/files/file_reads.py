"""A file's bytes, whole or piece by piece, through a handle that never followed a link."""

import hashlib
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO, Self

from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_regular, open_root
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, Place
from mendgraph.nodes.records import CONTENT_BYTES, ToolError, ToolErrorCode


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

    def __exit__(self, *_: object) -> None:
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


class BeneathReader:
    """Reads files below an open root by their real names, in a `with` statement.

    What it reads is judged by name, by what it holds and as what was opened: the directory once, a file with other
    names (hard links) itself as well. No link is followed.
    """

    def __init__(self, paths: JudgedPaths, root_fd: int) -> None:
        self._paths, self._root_fd = paths, root_fd
        self._folder: str | None = None
        self._handle: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, name: str, most: int) -> bytes | None:
        """The bytes of a regular file; None where it is denied, larger than `most`, not there or not readable."""
        if self._paths.denial(name, for_write=False) is not None:
            return None
        folder, _, last = name.rpartition("/")
        try:
            if folder != self._folder:
                self._enter(folder)
            return None if self._handle is None else self._read(self._handle, name, last, most)
        except OSError:
            return None

    def _read(self, folder_fd: int, name: str, last: str, most: int) -> bytes | None:
        descriptor, status = open_regular(folder_fd, (last,), os.O_RDONLY)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            if status.st_nlink > 1 and not self._is(name, descriptor):
                return None
            if self._paths.held_denial(name, lambda: os.pread(descriptor, CONTENT_BYTES, 0)) is not None:
                return None
            data = bytearray()
            while len(data) <= most and (piece := stream.read(most + 1 - len(data))):
                data += piece
        return bytes(data) if len(data) <= most else None

    def _enter(self, folder: str) -> None:
        self._close()
        self._folder = folder
        self._handle = open_directory(self._root_fd, folder.split("/") if folder else [])
        if not self._is(folder or ".", self._handle):
            self._close()
            self._folder = folder

    def _is(self, name: str, descriptor: int) -> bool:
        """Whether what is open has this name, and may be read under all of its names."""
        return self._paths.opened_name(descriptor, self._root_fd, Place(name, name), for_write=False) == name

    def _close(self) -> None:
        handle, self._handle, self._folder = self._handle, None, None
        if handle is not None:
            os.close(handle)
