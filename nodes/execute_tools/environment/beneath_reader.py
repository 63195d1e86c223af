"""Whole files of a workspace, many of them one after the other: a directory that several are in is opened once."""

import os
from types import TracebackType
from typing import Self

from nodes.execute_tools.environment.handles import open_directory, open_regular
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.sandbox import Place
from nodes.records import CONTENT_BYTES


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
