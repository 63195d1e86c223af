"""What may be asked of several files at once, and where in the workspace that takes place."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from nodes.execute_tools.environment.current_files import conflict, in_the_way
from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.handles import beginning, closing, open_root
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.sandbox import PathAccess, Place
from nodes.records import CONTENT_BYTES, ToolError, ToolErrorCode

MOST_CHANGES: Final = 200
"""Changes in one request: each may hold two open directories, and a process has 1024 handles. Source: getrlimit(2)."""


@dataclass(frozen=True)
class WriteFile:
    """Put `data` at the path. `expected_sha256` is the hash of what is there now, "" where nothing may be yet.

    `mode` is the permission bits to give; None leaves a file those that it has, and a new one gets those of a new file.
    A file that nobody may write is refused, unless `even_read_only`.
    """

    path: str
    data: bytes
    expected_sha256: str = ""
    mode: int | None = None
    even_read_only: bool = False


@dataclass(frozen=True)
class DeleteFile:
    """Take the file away, if it still holds what the hash says.

    A file that nobody may write is refused, unless `even_read_only`.
    """

    path: str
    expected_sha256: str
    even_read_only: bool = False


@dataclass(frozen=True)
class MoveFile:
    """Give the file another name, where nothing may be yet; with `data`, that is its new content."""

    path: str
    target: str
    expected_sha256: str
    data: bytes | None = None


Change: TypeAlias = WriteFile | DeleteFile | MoveFile


@dataclass(frozen=True)
class PlacedChange:
    """A change with the place of its path, and of its target where it is a move."""

    change: Change
    place: Place
    target: Place | None = None

    @property
    def doing(self) -> str:
        """The verb for errors."""
        return _DOING[type(self.change)]

    @property
    def places(self) -> tuple[Place, ...]:
        """The places that this change concerns."""
        return (self.place,) if self.target is None else (self.place, self.target)

    @property
    def names(self) -> tuple[str, ...]:
        """Their real names."""
        return tuple(place.real for place in self.places)


_DOING: Final[dict[type[Change], str]] = {WriteFile: "write", DeleteFile: "delete", MoveFile: "move"}


_MOST_LISTED: Final = 3


def listed(paths: Sequence[str]) -> str:
    """The first of these paths, each once, for a sentence; and how many more there are."""
    names = list(dict.fromkeys(paths))
    shown, more = names[:_MOST_LISTED], len(names) - _MOST_LISTED
    return ", ".join(map(quoted, shown)) + (f" and {more} more" if more > 0 else "")


def placed_changes(paths: JudgedPaths, changes: Sequence[Change]) -> list[PlacedChange] | ToolError:
    """Each change in its place, or why one of them cannot be made, or not together with another one.

    Nothing is changed, and no file is opened for its content.
    """
    if len(changes) > MOST_CHANGES:
        return _invalid(f"{len(changes)} files are too many for one change: {MOST_CHANGES} are allowed.")
    found: list[PlacedChange] = []
    for change in changes:
        placed = _write(paths, change) if isinstance(change, WriteFile) else _leave(paths, change)
        if isinstance(placed, ToolError):
            return placed
        found.append(placed)
    return _overlap(found) or found


def _write(paths: JudgedPaths, change: WriteFile) -> PlacedChange | ToolError:
    place = paths.place(change.path, PathAccess.WRITE_FILE)
    if isinstance(place, ToolError):
        return place
    denial = paths.held_denial(place.real, lambda: change.data[:CONTENT_BYTES])
    if denial is not None:
        return denial
    if change.expected_sha256:
        gone = conflict(place, "write", "it is gone") if place.missing else None
        return gone or PlacedChange(change, place)
    if place.missing:
        return PlacedChange(change, place)
    try:
        return in_the_way(paths, place)
    except OSError as error:
        return os_failure(error, "write", place.requested)


def _leave(paths: JudgedPaths, change: DeleteFile | MoveFile) -> PlacedChange | ToolError:
    source = paths.existing(change.path, PathAccess.WRITE_FILE)
    if isinstance(source, ToolError):
        return source
    link = _link(paths, change.path, source, _DOING[type(change)])
    if link is not None:
        return link
    if isinstance(change, DeleteFile):
        return PlacedChange(change, source)
    target = paths.place(change.target, PathAccess.WRITE_FILE)
    if isinstance(target, ToolError):
        return target
    if not target.missing:
        return conflict(target, "move to", "it exists already")
    link = _link(paths, change.target, target, "move to")
    return link or _held(paths, change, source, target) or PlacedChange(change, source, target)


def _held(paths: JudgedPaths, change: MoveFile, source: Place, target: Place) -> ToolError | None:
    """Why what the file holds may not stand under its new name, or None."""

    def read() -> bytes:
        if change.data is not None:
            return change.data[:CONTENT_BYTES]
        with closing(open_root(paths.root)) as root:
            return beginning(root, source.parts)

    return paths.held_denial(target.real, read)


def _link(paths: JudgedPaths, path: str, place: Place, doing: str) -> ToolError | None:
    """The error where the last part of the path is a symbolic link: its file is not what would go away or come."""
    above, name = os.path.split(os.path.normpath(path))
    folder = paths.place(above or ".", PathAccess.LIST_DIR)
    if isinstance(folder, ToolError):
        return folder
    if not place.parts or place.parts == (*folder.parts, name):
        return None
    message = f"Cannot {doing} {quoted(place.requested)}: it is a symbolic link to {quoted(place.real)}."
    return _invalid(f"{message} Name the file itself.", place.real)


def _overlap(changes: Sequence[PlacedChange]) -> ToolError | None:
    """The error where two changes concern one file, or where one needs a new file of another to be a directory."""
    taken: set[str] = set()
    for name in (name for change in changes for name in change.names):
        if name in taken:
            return _invalid(f"Two of these changes concern {quoted(name)}: make one of them.")
        taken.add(name)
    new = {place.real for change in changes for place in change.places if place.missing}
    for name in sorted(new):
        parts = name.split("/")
        above = ("/".join(parts[:length]) for length in range(1, len(parts)))
        file = next((each for each in above if each in new), None)
        if file is not None:
            return _invalid(f"{quoted(file)} cannot be a file here, because {quoted(name)} needs it as a directory.")
    return None


def _invalid(message: str, *suggestions: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message, suggestions=suggestions)
