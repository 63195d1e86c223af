"""The only door of the tools to files."""

from collections.abc import Callable, Iterator

from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.file_reads import FileContent, OpenedFile, open_file, read_whole
from nodes.execute_tools.environment.file_writes import write_file
from nodes.execute_tools.environment.judged_paths import JudgedPaths, PathJudge
from nodes.execute_tools.environment.listing import Entry, entries_of
from nodes.execute_tools.environment.sandbox import PathAccess, Place
from nodes.execute_tools.environment.tree_walk import walk
from nodes.records import JsonMap, ToolError, ToolErrorCode

__all__ = ["Entry", "FileContent", "OpenedFile", "PathJudge", "Workspace"]

LARGEST_IGNORE_FILE = 1_000_000
"""Bytes of a `.gitignore` that is read."""


class Workspace:
    """Reads, writes and lists below one root.

    Paths are those of a model: relative to the root, or absolute inside it. Results carry real names relative to the
    root, with "/" between parts. Every failure is a ToolError. The judge is asked about the name as it was asked for,
    before it is known whether something is there, and about the real name of what was opened. `observe` receives
    each refusal of the sandbox as a map.

    A hard link is a name like any other: a file with a harmless name and the content of a denied one is readable, as
    nobody but who can read the denied file can make one.
    """

    def __init__(self, root: str, judge: PathJudge, *, observe: Callable[[JsonMap], None] | None = None) -> None:
        self._paths = JudgedPaths(root, judge, observe)
        self.root = self._paths.root

    def read_file(self, path: str, max_bytes: int = 10_000_000) -> FileContent | ToolError:
        """The whole file, or IO_ERROR with its size where it is larger than `max_bytes`."""
        opened = self.open_file(path)
        return opened if isinstance(opened, ToolError) else read_whole(opened, max_bytes)

    def open_file(self, path: str) -> OpenedFile | ToolError:
        """The file, opened for reading in a `with` statement: `.path`, `.size` and `.stream`."""
        return open_file(self._paths, path)

    def write_file(self, path: str, data: bytes, *, expected_sha256: str) -> FileContent | ToolError:
        """Put `data` there in one step; on a failure everything is as it was.

        `expected_sha256` is the hash of what must be there now, "" where nothing may be there yet; otherwise CONFLICT.
        Missing directories above a new file are made. A link is followed to its real file inside the workspace.
        """
        return write_file(self._paths, path, data, expected_sha256)

    def list_directory(self, path: str) -> tuple[Entry, ...] | ToolError:
        """What is in the directory itself, directories first, then by name; `.git` is left out."""
        place = self._paths.existing(path, PathAccess.LIST_DIR)
        if isinstance(place, ToolError):
            return place
        try:
            entries = entries_of(self.root, place)
        except NotADirectoryError:
            message = f"{quoted(place.requested)} is a file, not a directory: read it instead."
            return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
        except OSError as error:
            return os_failure(error, "list", place.requested)
        return tuple(sorted(entries, key=lambda entry: (entry.kind != "directory", entry.path)))

    def walk(self, path: str = ".") -> Iterator[Entry]:
        """All below the directory, by name, each directory before what is in it.

        Links are named but not followed; `.git` and what `.gitignore` files name is left out, unless `path` itself is
        ignored. Yields nothing for what is no directory here, and passes over directories that cannot be read.
        """
        place = self._paths.existing(path, PathAccess.LIST_DIR)
        if isinstance(place, Place):
            yield from walk(self._paths, place, self._ignore_file)

    def exists(self, path: str) -> bool:
        """Whether the path leads to something inside the workspace that may be read."""
        place = self._paths.place(path, PathAccess.LIST_DIR)
        return isinstance(place, Place) and not place.missing

    def suggest(self, path: str) -> tuple[str, ...]:
        """Up to three closest existing names that may be read, best first."""
        return self._paths.suggest(path)

    def denied(self, path: str, *, for_write: bool = False) -> ToolError | None:
        """Why this path may not be used, whether or not something is there, or None."""
        place = self._paths.place(path, PathAccess.WRITE_FILE if for_write else PathAccess.LIST_DIR)
        return place if isinstance(place, ToolError) else None

    def _ignore_file(self, path: str) -> bytes:
        content = self.read_file(path, LARGEST_IGNORE_FILE) if self.exists(path) else None
        return content.data if isinstance(content, FileContent) else b""
