"""What may be asked of several files at once, where that takes place, and what it will do, name by name.

Nothing on the disk changes here; the plan is written down before the change begins.
"""

import errno
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.files.atomic_write import PERMISSION_BITS, Identity, OpenFolders, identity
from mendgraph.nodes.execute_tools.files.change_records import FileEffect, FileState, folders_above
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import beginning, closing, open_regular, open_root
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.execute_tools.files.sandbox import PathAccess, Place
from mendgraph.nodes.records import CONTENT_BYTES, ToolError, ToolErrorCode

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


_DOING: Final[dict[type[Change], str]] = {WriteFile: "write", DeleteFile: "delete", MoveFile: "move"}


def listed(paths: Sequence[str]) -> str:
    """The first of these paths, each once, for a sentence; and how many more there are."""
    names = list(dict.fromkeys(paths))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(quoted, names[:3])) + more


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
        gone = _conflict(place, "write", "it is gone") if place.missing else None
        return gone or PlacedChange(change, place)
    if place.missing:
        return PlacedChange(change, place)
    try:
        with closing(open_root(paths.root)) as root:
            os.close(open_regular(root, place.parts, os.O_RDONLY)[0])  # says it better where it is no file
    except OSError as error:
        return os_failure(error, "write", place.requested)
    return _conflict(place, "write", "it exists already; read it first, then replace it")


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
        return _conflict(target, "move to", "it exists already")
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
    for name in (place.real for change in changes for place in change.places):
        if name in taken:
            return _invalid(f"Two of these changes concern {quoted(name)}: make one of them.")
        taken.add(name)
    new = {place.real for change in changes for place in change.places if place.missing}
    for name in sorted(new):
        file = next((each for each in folders_above(name) if each in new), None)
        if file is not None:
            return _invalid(f"{quoted(file)} cannot be a file here, because {quoted(name)} needs it as a directory.")
    return None


def _invalid(message: str, *suggestions: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message, suggestions=suggestions)


LARGEST_BACKUP: Final = 10_000_000
"""Bytes of a file whose old content is recorded before it changes: as many as the tools read at once."""


def _conflict(place: Place, doing: str, reason: str) -> ToolError:
    """The error for a file that is not what it was taken for."""
    return ToolError(code=ToolErrorCode.CONFLICT, message=f"Cannot {doing} {quoted(place.requested)}: {reason}.")


_NO_FILE: Final = FileState()


@dataclass(frozen=True)
class ChangedFile:
    """What a change came to: the file's real name, after a move its new one too, and the hash of what it holds now.

    `target` is "" where nothing was moved, `sha256` where the file was deleted.
    """

    path: str
    target: str = ""
    sha256: str = ""


class Original(NamedTuple):
    """The file that is replaced, goes away or is moved: where it stands, and which one it has to be still."""

    place: Place
    identity: Identity


@dataclass(frozen=True)
class PlannedEffect:
    """One name that will mean another file: a file comes, is replaced, or goes away, as `effect` says.

    `data` is what the new file holds; None where none comes, or where it is the `original` itself, which is moved. A
    file that is made out of nothing has no original. `doing` and `place` are for errors: "Cannot `doing` `place`".
    """

    effect: FileEffect
    doing: str
    place: Place
    data: bytes | None = None
    original: Original | None = None

    @property
    def comes(self) -> bool:
        """Whether nothing is there before."""
        return not self.effect.before.sha256

    @property
    def goes(self) -> bool:
        """Whether nothing is there afterwards."""
        return not self.effect.after.sha256


@dataclass
class Plan:
    """All of a change: its effects in order, what it will come to, and what has to be known to take it back.

    `made` are the directories that have to be made, outermost first; `backups` the bytes of the files before, by their
    hash, where they were asked for.
    """

    effects: list[PlannedEffect] = field(default_factory=list)
    done: list[ChangedFile] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    backups: dict[str, bytes] = field(default_factory=dict)


def plan_changes(
    paths: JudgedPaths, folders: OpenFolders, placed: Sequence[PlacedChange], *, backups: bool
) -> Plan | ToolError:
    """Check all changes against what is there now. With `backups` a file that is too large for one is refused."""
    planner = _Planner(paths, folders, backups)
    for each in placed:
        try:
            done = planner.add(each)
        except OSError as error:
            return os_failure(error, each.doing, each.place.requested)
        if isinstance(done, ToolError):
            return done
        planner.plan.done.append(done)
    return planner.plan


class _Planner:
    """Adds one change after the other to a plan."""

    def __init__(self, paths: JudgedPaths, folders: OpenFolders, backups: bool) -> None:
        self._paths, self._folders, self._backups = paths, folders, backups
        self.plan = Plan()

    def add(self, placed: PlacedChange) -> ChangedFile | ToolError:
        """Check the change and plan its effects.

        Raises:
            OSError: it cannot be made.
        """
        change, place = placed.change, placed.place
        if isinstance(change, WriteFile) and not change.expected_sha256:
            new = FileState(_sha256(change.data), _bits(change.mode))
            name = self._come(place, new, "write", change.data)
            return name if isinstance(name, ToolError) else ChangedFile(name, sha256=new.sha256)
        current = self._current(placed)
        if isinstance(current, ToolError):
            return current
        real, status = current
        before = FileState(change.expected_sha256, _bits(status.st_mode))
        original = Original(place, identity(status))
        if isinstance(change, WriteFile):
            after = FileState(_sha256(change.data), before.mode if change.mode is None else _bits(change.mode))
            effect = FileEffect(real, before, after)
            self.plan.effects.append(PlannedEffect(effect, placed.doing, place, change.data, original))
            return ChangedFile(real, sha256=after.sha256)
        target = ""
        if isinstance(change, MoveFile) and placed.target is not None:
            # It comes to the target first and leaves its old name then: there is no moment without it.
            new = before if change.data is None else FileState(_sha256(change.data), before.mode)
            name = self._come(placed.target, new, "move to", change.data, original)
            if isinstance(name, ToolError):
                return name
            target = name
        effect = FileEffect(real, before, _NO_FILE)
        self.plan.effects.append(PlannedEffect(effect, placed.doing, place, None, original))
        return ChangedFile(real, target, new.sha256 if target else "")

    def _current(self, placed: PlacedChange) -> tuple[str, os.stat_result] | ToolError:
        """The real name and the status of the file, if it may be used and still holds what is expected.

        With backups its bytes are kept, and IO_ERROR says that there are more than `LARGEST_BACKUP`.
        """
        change, place = placed.change, placed.place
        keeps = change.data is None if isinstance(change, MoveFile) else change.even_read_only
        folder = self._folders.open(place.parts[:-1])
        try:
            descriptor, status = open_regular(folder, place.parts[-1:], os.O_RDONLY if keeps else os.O_RDWR)
        except FileNotFoundError:
            return _conflict(place, placed.doing, "it is gone")
        with os.fdopen(descriptor, "rb") as stream:
            name = self._paths.opened_name(descriptor, self._folders.root, place, for_write=True)
            if isinstance(name, ToolError):
                return name
            if not keeps and not status.st_mode & 0o222:  # the bits do not bind root, but they say what is meant
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if not self._backups:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            elif status.st_size > LARGEST_BACKUP:
                message = (
                    f"Cannot {placed.doing} {quoted(place.requested)}: it has {status.st_size} bytes, and what a file"
                    f" of more than {LARGEST_BACKUP} held cannot be kept, so it could not be restored. Go on"
                    " without it."
                )
                return ToolError(code=ToolErrorCode.IO_ERROR, message=message)
            else:
                data = stream.read(LARGEST_BACKUP + 1)
                sha256 = _sha256(data)
                self.plan.backups[sha256] = data
        if sha256 != change.expected_sha256:
            return _conflict(place, placed.doing, "it has changed since it was read; read it again")
        return name, status

    def _come(
        self, place: Place, after: FileState, doing: str, data: bytes | None, original: Original | None = None
    ) -> str | ToolError:
        """Plan a new file, and the directories that it needs. Gives its real name."""
        parts = place.parts
        folder, length = self._folders.deepest(parts[:-1])
        # A directory can be moved to where nothing may be written, between the decision and its opening.
        name = self._folders.real_name(folder, *parts[length:])
        denial = None if name is None else self._paths.denial(name, for_write=True)
        if denial is not None:
            return denial
        name = name or place.real
        above = name.split("/")[:-1]
        missing = len(parts) - 1 - length
        made = ("/".join(above[:depth]) for depth in range(len(above) - missing + 1, len(above) + 1))
        self.plan.made.extend(each for each in made if each not in self.plan.made)
        self.plan.effects.append(PlannedEffect(FileEffect(name, _NO_FILE, after), doing, place, data, original))
        return name


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bits(mode: int | None) -> int | None:
    return None if mode is None else mode & PERMISSION_BITS
