"""The only door of the tools to files."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import islice
from posixpath import basename
from typing import Self

from mendgraph.nodes.execute_tools.files.change_plan import Change, ChangedFile, DeleteFile, MoveFile, WriteFile
from mendgraph.nodes.execute_tools.files.change_records import ChangeRecorder
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.file_changes import change_files
from mendgraph.nodes.execute_tools.files.file_reads import FileContent, OpenedFile, open_file, read_whole
from mendgraph.nodes.execute_tools.files.judged_paths import ContentJudge, JudgedPaths, PathJudge
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, Place
from mendgraph.nodes.execute_tools.files.tree_walk import LARGEST_IGNORE_FILE, Entry, judged_entries, walk
from mendgraph.nodes.records import JsonMap, ToolError, ToolErrorCode

__all__ = [
    "Change",
    "ChangedFile",
    "DeleteFile",
    "Entry",
    "FileContent",
    "MoveFile",
    "OpenedFile",
    "PathJudge",
    "Workspace",
    "WriteFile",
]

MOST_LOOKED_AT = 5_000
"""Entries among which a file is looked for that is called like one that is not there."""

_NOT_CHANGEABLE = ToolError(
    code=ToolErrorCode.PERMISSION_DENIED,
    message="A tool that was registered with an effect of none, read or network may change no file.",
)


class Workspace:
    """Reads, writes and lists below one root.

    Paths are those of a model: relative to the root, or absolute inside it. Results carry real names relative to the
    root, with "/" between parts. Every failure is a ToolError. The judge is asked about the name as it was asked for,
    before it is known whether something is there, and about the real name of what was opened; a file with several names
    (hard links) is denied under all of them if it is under one. `observe` receives each refusal of the sandbox as a
    map. `allowed_extensions` are those of the files that may be used, in lower case with the dot; empty allows all.
    `contents` judges what the files hold, and what is to be written to them.
    """

    def __init__(
        self,
        root: str,
        judge: PathJudge,
        *,
        observe: Callable[[JsonMap], None] | None = None,
        allowed_extensions: frozenset[str] = frozenset(),
        contents: ContentJudge = lambda _: None,
    ) -> None:
        self._paths = JudgedPaths(root, judge, observe, allowed_extensions, contents, self._namesakes)
        self._scope = CancellationScope()
        self._changeable = True
        self.recorder: ChangeRecorder | None = None
        self.root = self._paths.root

    def in_scope(self, scope: CancellationScope) -> Self:
        """The same workspace for one call: after `scope` is revoked it takes no change any more."""
        view = copy(self)
        view._scope = scope  # noqa: SLF001 - its own kind
        return view

    def recorded(self, recorder: ChangeRecorder | None) -> Self:
        """The same workspace for one call: each change is written down by `recorder` before it begins.

        A file of more than 10 MB can then be neither replaced, deleted nor moved (IO_ERROR).
        """
        view = copy(self)
        view.recorder = recorder
        return view

    def unchangeable(self) -> Self:
        """The same workspace for a call that said that it changes nothing: PERMISSION_DENIED for each change."""
        view = copy(self)
        view._changeable = False  # noqa: SLF001 - its own kind
        return view

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
        done = self.change_files((WriteFile(path, data, expected_sha256),))
        return done if isinstance(done, ToolError) else FileContent(done[0].path, data, done[0].sha256)

    def change_files(self, changes: Sequence[Change]) -> tuple[ChangedFile, ...] | ToolError:
        """Make all changes, and give for each of them what it came to; on a failure everything is as it was.

        At most 200 changes, each of another file; INVALID_ARGUMENT for more, and where two of them concern one file
        (through links too). CONFLICT where a file is not what its hash says, or something is where nothing may be.
        Missing directories above new names are made; none are removed. A file that is written through a link is the
        real one; a link itself is neither deleted nor moved. A moved file keeps mode and owner.
        """
        if not self._changeable:
            return _NOT_CHANGEABLE
        with self._scope.effect():
            return change_files(self._paths, changes, self.recorder)

    def list_directory(self, path: str) -> tuple[Entry, ...] | ToolError:
        """What is in the directory itself, directories first, then by name; `.git` is left out."""
        place = self._paths.existing(path, PathAccess.LIST_DIR)
        if isinstance(place, ToolError):
            return place
        try:
            entries = judged_entries(self._paths, place)
        except NotADirectoryError:
            message = f"{quoted(place.requested)} is a file, not a directory: read it instead."
            return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
        except OSError as error:
            return os_failure(error, "list", place.requested)
        if isinstance(entries, ToolError):
            return entries
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

    def leads_to(self, path: str, *, for_write: bool = False) -> str | ToolError:
        """The real name of where a path leads, whether or not something is there, or PERMISSION_DENIED outside of here.

        The refusal suggests the path that may be meant. Whether the file may be used is not judged.
        """
        return self._paths.leads_to(path, PathAccess.WRITE_FILE if for_write else PathAccess.LIST_DIR)

    def suggest(self, path: str) -> tuple[str, ...]:
        """Up to three closest existing names that may be read, best first."""
        return self._paths.suggest(path)

    def denied(self, path: str, *, for_write: bool = False) -> ToolError | None:
        """Why this file may not be used, whether or not something is there, or None."""
        return self._paths.denied_file(path, for_write=for_write)

    def _namesakes(self, name: str) -> tuple[str, ...]:
        """Up to three files of this name in any folder, whatever their letters' case, that may be read."""
        files = (entry.path for entry in islice(self.walk(), MOST_LOOKED_AT) if entry.kind == "file")
        same = (path for path in files if basename(path).casefold() == name.casefold() and self.denied(path) is None)
        return tuple(islice(same, 3))

    def _ignore_file(self, path: str) -> bytes:
        if not self.exists(path):
            return b""
        opened = open_file(self._paths.of_any_extension(), path)
        content = opened if isinstance(opened, ToolError) else read_whole(opened, LARGEST_IGNORE_FILE)
        return content.data if isinstance(content, FileContent) else b""
