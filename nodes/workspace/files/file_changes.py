"""Changes several files: all changes are made, or none, also if the process is killed meanwhile.

A `_Plan` checks every file and lists the effects, without changing anything. A `Transaction` records the effects and
carries them out.
"""

import errno
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import CONTENT_BYTES, ToolError, ToolErrorCode, invalid, quoted
from mendgraph.nodes.workspace.files.atomic_write import PERMISSION_BITS, Identity, OpenFolders, identity
from mendgraph.nodes.workspace.files.bare_repositories import repository_refusal
from mendgraph.nodes.workspace.files.change_records import ChangeRecorder, FileEffect, FileState, folders_above
from mendgraph.nodes.workspace.files.handles import closing, open_regular, open_root, read_beginning
from mendgraph.nodes.workspace.files.sandbox import JudgedPaths, PathAccess, Place
from mendgraph.nodes.workspace.files.transaction import PlannedEffect, Transaction

MOST_CHANGES: Final = 200
"""Changes in one request: each may hold two open directories, and a process has 1024 handles. Source: getrlimit(2)."""
LARGEST_BACKUP: Final = 10_000_000
"""Bytes of a file whose old content is recorded before it changes: as many as the tools read at once."""


@dataclass(frozen=True)
class WriteFile:
    """Write `data` to the path. `expected_sha256` is the hash of the present file, "" if none may exist.

    `mode` are the new permission bits, None to keep them. A read-only file is refused, unless `even_read_only`.
    """

    path: str
    data: bytes
    expected_sha256: str = ""
    mode: int | None = None
    even_read_only: bool = False


@dataclass(frozen=True)
class DeleteFile:
    """Delete the file, if it has this hash. A read-only file is refused, unless `even_read_only`."""

    path: str
    expected_sha256: str
    even_read_only: bool = False


@dataclass(frozen=True)
class MoveFile:
    """Rename the file to a name that must not exist; `data` is its new content, None to keep it."""

    path: str
    target: str
    expected_sha256: str
    data: bytes | None = None


Change: TypeAlias = WriteFile | DeleteFile | MoveFile

_DOING: Final[dict[type[Change], str]] = {WriteFile: "write", DeleteFile: "delete", MoveFile: "move"}


@dataclass(frozen=True)
class ChangedFile:
    """The result of a change: the file's real name, its new name after a move, and its hash, "" if it was deleted."""

    path: str
    target: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class PlacedChange:
    """A change with the places of its path and, for a move, of its target."""

    change: Change
    place: Place
    target: Place | None = None


def change_files(
    paths: JudgedPaths, changes: Sequence[Change], recorder: ChangeRecorder | None = None
) -> tuple[ChangedFile, ...] | ToolError:
    """See `Workspace.change_files`."""
    placed = placed_changes(paths, changes)
    if isinstance(placed, ToolError):
        return placed

    try:
        folders = OpenFolders(paths.root)
    except OSError as error:
        return os_failure(error, "write", ".")

    with folders:
        plan = _Plan(paths, folders, backups=recorder is not None)
        refusal = plan.add_all(placed)
        if refusal is not None:
            return refusal
        if not plan.effects:
            return ()

        failure = Transaction(folders, plan.effects, plan.backups, plan.folders, recorder).run()
        return failure or tuple(plan.done)


# --- Places


def placed_changes(paths: JudgedPaths, changes: Sequence[Change]) -> list[PlacedChange] | ToolError:
    """Return the changes with their places, or the error if they cannot be made together; nothing is changed."""
    if len(changes) > MOST_CHANGES:
        return invalid(f"{len(changes)} files are too many for one change: {MOST_CHANGES} are allowed.")

    placed: list[PlacedChange] = []

    for change in changes:
        one = _placed_write(paths, change) if isinstance(change, WriteFile) else _placed_removal(paths, change)
        if isinstance(one, ToolError):
            return one

        placed.append(one)

    places = _places(placed)
    names: set[str] = set()

    for place in places:
        if place.real in names:
            return invalid(f"Two of these changes concern {quoted(place.real)}: make one of them.")

        names.add(place.real)

    try:
        with closing(open_root(paths.root)) as root:
            new = [place.real for place in places if place.missing]
            refusal = repository_refusal(root, [place.real for place in places], new)
    except OSError as error:
        return os_failure(error, "write", ".")

    return refusal or placed


def _places(placed: Sequence[PlacedChange]) -> list[Place]:
    places: list[Place] = []
    for change in placed:
        places.append(change.place)
        if change.target is not None:
            places.append(change.target)

    return places


def _placed_write(paths: JudgedPaths, change: WriteFile) -> PlacedChange | ToolError:
    place = paths.place(change.path, PathAccess.WRITE_FILE)
    if isinstance(place, ToolError):
        return place

    denial = paths.content_denial(place.real, lambda: change.data[:CONTENT_BYTES])
    if denial is not None:
        return denial

    if change.expected_sha256 and place.missing:
        return _conflict(place, "write", "it is gone")
    if not change.expected_sha256 and not place.missing:
        return _conflict(place, "write", "it exists already; read it first, then replace it")

    return PlacedChange(change, place)


def _placed_removal(paths: JudgedPaths, change: DeleteFile | MoveFile) -> PlacedChange | ToolError:
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
        return _conflict(target, "move to", "it exists already")

    refusal = _link(paths, change.target, target, "move to") or _content_denial(paths, change, source, target)
    return refusal or PlacedChange(change, source, target)


def _content_denial(paths: JudgedPaths, change: MoveFile, source: Place, target: Place) -> ToolError | None:
    def read() -> bytes:
        if change.data is not None:
            return change.data[:CONTENT_BYTES]
        with closing(open_root(paths.root)) as root:
            return read_beginning(root, source.parts)

    return paths.content_denial(target.real, read)


def _link(paths: JudgedPaths, path: str, place: Place, doing: str) -> ToolError | None:
    """Return the error if the last part of the path is a symbolic link, as its target would be changed."""
    above, name = os.path.split(os.path.normpath(path))
    folder = paths.place(above or ".", PathAccess.LIST_DIR)
    if isinstance(folder, ToolError):
        return folder
    if not place.parts or place.parts == (*folder.parts, name):
        return None

    message = f"Cannot {doing} {quoted(place.requested)}: it is a symbolic link to {quoted(place.real)}."
    return invalid(f"{message} Name the file itself.", place.real)


def _conflict(place: Place, doing: str, reason: str) -> ToolError:
    return ToolError(code=ToolErrorCode.CONFLICT, message=f"Cannot {doing} {quoted(place.requested)}: {reason}.")


# --- The plan

_NO_FILE: Final = FileState()


class _Plan:
    """The effects of a change, checked against the files on the disk.

    `done` are the results, `folders` the directories to create, outermost first. With `backups` the former bytes of the
    files are stored by their hash, and a file that is too large is refused.
    """

    def __init__(self, paths: JudgedPaths, folders: OpenFolders, *, backups: bool) -> None:
        self._paths = paths
        self._open_folders = folders
        self._keeps_backups = backups
        self.effects: list[PlannedEffect] = []
        self.done: list[ChangedFile] = []
        self.folders: list[str] = []
        self.backups: dict[str, bytes] = {}

    def add_all(self, placed: Sequence[PlacedChange]) -> ToolError | None:
        for placed_change in placed:
            doing = _DOING[type(placed_change.change)]
            try:
                done = self._add(placed_change, doing)
            except OSError as error:
                return os_failure(error, doing, placed_change.place.requested)

            if isinstance(done, ToolError):
                return done

            self.done.append(done)

        return None

    def _add(self, placed: PlacedChange, doing: str) -> ChangedFile | ToolError:
        change = placed.change
        place = placed.place
        if isinstance(change, WriteFile) and not change.expected_sha256:
            after = FileState(_sha256(change.data), _bits(change.mode))
            name = self._create(place, after, "write", change.data)
            if isinstance(name, ToolError):
                return name
            return ChangedFile(name, sha256=after.sha256)

        current = self._current(change, place, doing)
        if isinstance(current, ToolError):
            return current

        real, status = current
        before = FileState(change.expected_sha256, _bits(status.st_mode))
        original = identity(status)
        data = None
        target = ""
        after = _NO_FILE

        if isinstance(change, WriteFile):
            data = change.data
            mode = before.mode if change.mode is None else _bits(change.mode)
            after = FileState(_sha256(data), mode)

        effect = PlannedEffect(FileEffect(real, before, after), doing, place, data, place, original)

        if isinstance(change, MoveFile) and placed.target is not None:
            # The target is created before the old name is removed: there is no moment without the file.
            after = before if change.data is None else FileState(_sha256(change.data), before.mode)
            name = self._create(placed.target, after, "move to", change.data, place, original)
            if isinstance(name, ToolError):
                return name

            target = name

        self.effects.append(effect)
        return ChangedFile(real, target, after.sha256)

    def _current(self, change: Change, place: Place, doing: str) -> tuple[str, os.stat_result] | ToolError:
        """Return the real name and the status of the file, if it may be changed and has the expected hash."""
        if isinstance(change, MoveFile):
            read_only = change.data is None
        else:
            read_only = change.even_read_only

        folder = self._open_folders.open(place.parts[:-1])
        flags = os.O_RDONLY if read_only else os.O_RDWR
        try:
            descriptor, status = open_regular(folder, place.parts[-1:], flags)
        except FileNotFoundError:
            return _conflict(place, doing, "it is gone")

        with os.fdopen(descriptor, "rb") as stream:
            name = self._paths.opened_name(descriptor, self._open_folders.root, place, for_write=True)
            if isinstance(name, ToolError):
                return name
            if not read_only and not status.st_mode & 0o222:  # root could write it nevertheless
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

            if not self._keeps_backups:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            elif status.st_size > LARGEST_BACKUP:
                return _too_large(place, doing, status.st_size)
            else:
                data = stream.read(LARGEST_BACKUP + 1)
                sha256 = _sha256(data)
                self.backups[sha256] = data

        if sha256 != change.expected_sha256:
            return _conflict(place, doing, "it has changed since it was read; read it again")

        return name, status

    def _create(
        self,
        place: Place,
        after: FileState,
        doing: str,
        data: bytes | None,
        source: Place | None = None,
        original: Identity | None = None,
    ) -> str | ToolError:
        """Plan a new file and the directories above it; returns its real name."""
        parts = place.parts
        folder, length = self._open_folders.deepest(parts[:-1])
        # The directory may have been moved to a denied place meanwhile.
        name = self._open_folders.real_name(folder, *parts[length:])
        if name is not None:
            denial = self._paths.denial(name, for_write=True)
            if denial is not None:
                return denial

        name = name or place.real
        above = folders_above(name)
        for missing in above[len(above) - (len(parts) - 1 - length) :]:
            if missing not in self.folders:
                self.folders.append(missing)

        self.effects.append(PlannedEffect(FileEffect(name, _NO_FILE, after), doing, place, data, source, original))
        return name


def _too_large(place: Place, doing: str, size: int) -> ToolError:
    message = (
        f"Cannot {doing} {quoted(place.requested)}: it has {size} bytes, and what a file of more than {LARGEST_BACKUP}"
        " held cannot be kept, so it could not be restored. Go on without it."
    )
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bits(mode: int | None) -> int | None:
    return None if mode is None else mode & PERMISSION_BITS
