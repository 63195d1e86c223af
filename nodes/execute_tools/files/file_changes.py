"""Several files are written, deleted and moved: all of it happens, or none, also if the process is killed meanwhile.

A `_Plan` checks every file, and holds what each name will mean; nothing on the disk has changed then. The recorder
writes it down; from then on a kill leaves a change behind that `recovery` brings to an end. A `_Transaction` puts what
is new under temporary names, where nobody looks, and takes the rename steps; where one fails it takes all of them back.
What fails after the last step does not undo the change any more, but is reported.
"""

import errno
import hashlib
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from mendgraph.nodes.execute_tools.files.atomic_write import (
    PERMISSION_BITS,
    Identity,
    OpenFolders,
    RenameStep,
    Role,
    commit,
    identity,
    identity_at,
    temporary_name,
    undo,
    write_temporary,
)
from mendgraph.nodes.execute_tools.files.bare_repositories import repository_refusal
from mendgraph.nodes.execute_tools.files.change_records import (
    ChangeRecorder,
    ChangeState,
    FileEffect,
    FileState,
    RecordError,
    folders_above,
)
from mendgraph.nodes.execute_tools.files.handles import beginning, closing, open_regular, open_root
from mendgraph.nodes.execute_tools.files.sandbox import JudgedPaths, PathAccess, Place
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.records import CONTENT_BYTES, ToolError, ToolErrorCode, invalid, os_failure, quoted

MOST_CHANGES: Final = 200
"""Changes in one request: each may hold two open directories, and a process has 1024 handles. Source: getrlimit(2)."""
LARGEST_BACKUP: Final = 10_000_000
"""Bytes of a file whose old content is recorded before it changes: as many as the tools read at once."""

_NO_SECOND_NAME: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""Why a file gets no second name: it may not, or the place is on another disk. Then it is copied. Source: link(2)."""


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

_DOING: Final[dict[type[Change], str]] = {WriteFile: "write", DeleteFile: "delete", MoveFile: "move"}


@dataclass(frozen=True)
class ChangedFile:
    """What a change came to: the file's real name, after a move its new one too, and the hash of what it holds now.

    `target` is "" where nothing was moved, `sha256` where the file was deleted.
    """

    path: str
    target: str = ""
    sha256: str = ""


@dataclass(frozen=True)
class PlacedChange:
    """A change with the place of its path, and of its target where it is a move."""

    change: Change
    place: Place
    target: Place | None = None


def change_files(
    paths: JudgedPaths, changes: Sequence[Change], recorder: ChangeRecorder | None = None
) -> tuple[ChangedFile, ...] | ToolError:
    """Make all changes; on a failure everything is as it was. See `Workspace.change_files`."""
    if isinstance(placed := placed_changes(paths, changes), ToolError):
        return placed

    try:
        folders = OpenFolders(paths.root)
    except OSError as error:
        return os_failure(error, "write", ".")

    with folders:
        plan = _Plan(paths, folders, backups=recorder is not None)
        refusal = plan.add_all(placed)
        if refusal is not None or not plan.effects:
            return refusal or ()

        return _Transaction(folders, plan, recorder).run()


# --- Where changes take place


def placed_changes(paths: JudgedPaths, changes: Sequence[Change]) -> list[PlacedChange] | ToolError:
    """Each change in its place, or why one of them cannot be made, or not together with another one.

    Nothing is changed, and no file is opened for its content.
    """
    if len(changes) > MOST_CHANGES:
        return invalid(f"{len(changes)} files are too many for one change: {MOST_CHANGES} are allowed.")

    found: list[PlacedChange] = []

    for change in changes:
        if isinstance(change, WriteFile):
            placed = _write(paths, change)
        else:
            placed = _leave(paths, change)

        if isinstance(placed, ToolError):
            return placed

        found.append(placed)

    names_taken: set[str] = set()

    for name in (
        place.real
        for placed_change in found
        for place in (placed_change.place, placed_change.target)
        if place is not None
    ):
        if name in names_taken:
            return invalid(f"Two of these changes concern {quoted(name)}: make one of them.")

        names_taken.add(name)

    return _repository_refusal(paths, found) or found


def _repository_refusal(paths: JudgedPaths, placed: Sequence[PlacedChange]) -> ToolError | None:
    changed = [
        place.real
        for placed_change in placed
        for place in (placed_change.place, placed_change.target)
        if place is not None
    ]
    names_made = [
        place.real
        for placed_change in placed
        for place in (placed_change.place, placed_change.target)
        if place is not None and place.missing
    ]

    try:
        with closing(open_root(paths.root)) as root:
            return repository_refusal(root, changed, names_made)
    except OSError as error:
        return os_failure(error, "write", ".")


def _write(paths: JudgedPaths, change: WriteFile) -> PlacedChange | ToolError:
    if isinstance(place := paths.place(change.path, PathAccess.WRITE_FILE), ToolError):
        return place
    if (denial := paths.held_denial(place.real, lambda: change.data[:CONTENT_BYTES])) is not None:
        return denial

    if change.expected_sha256:
        if place.missing:
            gone = _conflict(place, "write", "it is gone")
        else:
            gone = None
        return gone or PlacedChange(change, place)
    if place.missing:
        return PlacedChange(change, place)
    return _conflict(place, "write", "it exists already; read it first, then replace it")


def _leave(paths: JudgedPaths, change: DeleteFile | MoveFile) -> PlacedChange | ToolError:
    if isinstance(source := paths.existing(change.path, PathAccess.WRITE_FILE), ToolError):
        return source
    if (link := _link(paths, change.path, source, _DOING[type(change)])) is not None:
        return link
    if isinstance(change, DeleteFile):
        return PlacedChange(change, source)
    if isinstance(target := paths.place(change.target, PathAccess.WRITE_FILE), ToolError):
        return target
    if not target.missing:
        return _conflict(target, "move to", "it exists already")
    link = _link(paths, change.target, target, "move to")
    return link or _held(paths, change, source, target) or PlacedChange(change, source, target)


def _held(paths: JudgedPaths, change: MoveFile, source: Place, target: Place) -> ToolError | None:
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
    return invalid(f"{message} Name the file itself.", place.real)


def _conflict(place: Place, doing: str, reason: str) -> ToolError:
    return ToolError(code=ToolErrorCode.CONFLICT, message=f"Cannot {doing} {quoted(place.requested)}: {reason}.")


# --- What will be done, name by name

_NO_FILE: Final = FileState()


@dataclass(frozen=True)
class _Effect:
    """One name that will mean another file: a file comes, is replaced, or goes away, as `recorded` says.

    `data` is what the new file holds; None where none comes, or where it is the `original` itself, which is moved: the
    file of that `identity` that is replaced, goes away or is moved. A file that is made out of nothing has no original.
    An error of it says "Cannot `doing` `place`".
    """

    recorded: FileEffect
    doing: str
    place: Place
    data: bytes | None = None
    original: Place | None = None
    identity: Identity | None = None

    @property
    def comes(self) -> bool:
        return not self.recorded.before.sha256

    @property
    def goes(self) -> bool:
        return not self.recorded.after.sha256


class _Plan:
    """All of a change, checked against what is there now.

    `effects` are in order, `done` is what it will come to, `made` the directories that have to be made, outermost
    first. With `backups` the bytes of the files before are kept by their hash, and a file that is too large is refused.
    """

    def __init__(self, paths: JudgedPaths, folders: OpenFolders, *, backups: bool) -> None:
        self._paths = paths
        self._folders = folders
        self._keeps_backups = backups
        self.effects: list[_Effect] = []
        self.done: list[ChangedFile] = []
        self.made: list[str] = []
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
            name = self._come(place, after, "write", change.data)
            if isinstance(name, ToolError):
                return name
            return ChangedFile(name, sha256=after.sha256)
        if isinstance(current := self._current(change, place, doing), ToolError):
            return current
        real, status = current
        before = FileState(change.expected_sha256, _bits(status.st_mode))
        which = identity(status)
        data = None
        target = ""
        after = _NO_FILE
        if isinstance(change, WriteFile):
            data = change.data
            after = FileState(_sha256(data), before.mode if change.mode is None else _bits(change.mode))
        effect = _Effect(FileEffect(real, before, after), doing, place, data, place, which)
        if isinstance(change, MoveFile) and placed.target is not None:
            # It comes to the target first and leaves its old name then: there is no moment without it.
            if change.data is None:
                after = before
            else:
                after = FileState(_sha256(change.data), before.mode)
            name = self._come(placed.target, after, "move to", change.data, place, which)
            if isinstance(name, ToolError):
                return name
            target = name
        self.effects.append(effect)
        return ChangedFile(real, target, after.sha256)

    def _current(self, change: Change, place: Place, doing: str) -> tuple[str, os.stat_result] | ToolError:
        """The real name and the status of the file, if it may be used and still holds what is expected."""
        if isinstance(change, MoveFile):
            keeps = change.data is None
        else:
            keeps = change.even_read_only
        folder = self._folders.open(place.parts[:-1])
        try:
            descriptor, status = open_regular(folder, place.parts[-1:], os.O_RDONLY if keeps else os.O_RDWR)
        except FileNotFoundError:
            return _conflict(place, doing, "it is gone")
        with os.fdopen(descriptor, "rb") as stream:
            name = self._paths.opened_name(descriptor, self._folders.root, place, for_write=True)
            if isinstance(name, ToolError):
                return name
            if not keeps and not status.st_mode & 0o222:  # the bits do not bind root, but they say what is meant
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if not self._keeps_backups:
                sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
            elif status.st_size > LARGEST_BACKUP:
                message = (
                    f"Cannot {doing} {quoted(place.requested)}: it has {status.st_size} bytes, and what a file of more"
                    f" than {LARGEST_BACKUP} held cannot be kept, so it could not be restored. Go on without it."
                )
                return ToolError(code=ToolErrorCode.IO_ERROR, message=message)
            else:
                data = stream.read(LARGEST_BACKUP + 1)
                sha256 = _sha256(data)
                self.backups[sha256] = data
        if sha256 != change.expected_sha256:
            return _conflict(place, doing, "it has changed since it was read; read it again")
        return name, status

    def _come(
        self,
        place: Place,
        after: FileState,
        doing: str,
        data: bytes | None,
        original: Place | None = None,
        which: Identity | None = None,
    ) -> str | ToolError:
        """Plan a new file, and the directories that it needs. Gives its real name."""
        parts = place.parts
        folder, length = self._folders.deepest(parts[:-1])
        # A directory can be moved to where nothing may be written, between the decision and its opening.
        name = self._folders.real_name(folder, *parts[length:])
        if name is None:
            denial = None
        else:
            denial = self._paths.denial(name, for_write=True)
        if denial is not None:
            return denial
        name = name or place.real
        above = folders_above(name)
        missing = above[len(above) - (len(parts) - 1 - length) :]
        self.made.extend(each for each in missing if each not in self.made)
        self.effects.append(_Effect(FileEffect(name, _NO_FILE, after), doing, place, data, original, which))
        return name


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _bits(mode: int | None) -> int | None:
    return None if mode is None else mode & PERMISSION_BITS


# --- Doing it


class _Transaction:
    """Carries out a plan. All that it makes is known here before it is made, so that it can be removed.

    `_temporaries` are names in open directories that must be gone in the end, `_made` the directories that were made.
    The `_token` is in every temporary name.
    """

    def __init__(self, folders: OpenFolders, plan: _Plan, recorder: ChangeRecorder | None) -> None:
        self._folders = folders
        self._plan = plan
        self._recorder = recorder
        self._token = secrets.token_hex(8)
        self._steps: list[RenameStep] = []
        self._temporaries: list[tuple[int, str]] = []
        self._made: list[str] = []

    def run(self) -> tuple[ChangedFile, ...] | ToolError:
        try:
            self._record()
            refusal = self._stage() or self._commit()
        except RecordError as error:
            message = f"Nothing was changed, because the record of it could not be written: {error}"
            return ToolError(code=ToolErrorCode.IO_ERROR, message=message, fatal=True)
        except BaseException:
            self._take_back()
            raise
        if refusal is None:
            return self._finish() or tuple(self._plan.done)
        lost = self._take_back()
        if not lost:
            return refusal
        message = f"{refusal.message} Undoing the rest failed as well: {'; '.join(lost)}."  # a person has to mend it
        return refusal.model_copy(update={"message": message, "fatal": True})

    def _record(self) -> None:
        if self._recorder is not None:
            effects = [effect.recorded for effect in self._plan.effects]
            self._recorder.intend(self._token, effects, self._plan.backups, self._plan.made)

    def _stage(self) -> ToolError | None:
        """Prepare all effects, in order; no name that anybody knows changes yet."""
        for number, effect in enumerate(self._plan.effects):
            try:
                self._stage_one(effect, number)
            except OSError as error:
                return os_failure(error, effect.doing, effect.place.requested)
        return None

    def _stage_one(self, effect: _Effect, number: int) -> None:
        """A file that is replaced alone needs no name for the old one: after one step nothing has to be taken back."""
        folders = self._folders
        path = effect.recorded.path
        parts = effect.place.parts
        folder = folders.open(parts[:-1], made=self._made if effect.comes else None)
        if effect.comes and folders.real_name(folder, parts[-1]) not in {path, None}:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        temporary = kept_name = ""
        after: Identity | None = None
        if not effect.goes:
            temporary = self._temporary(folder, path, number, Role.NEW)
            after = self._new_file(effect, folder, temporary)
        if effect.goes or not (effect.comes or len(self._plan.effects) == 1):
            kept_name = self._temporary(folder, path, number, Role.KEPT)
        if kept_name and effect.original is not None and not effect.goes:
            self._second_name(effect, effect.original, effect.recorded.before.mode, folder, kept_name)
        before = None if effect.comes else effect.identity
        self._steps.append(
            RenameStep(folder, parts[-1], before, after, temporary, kept_name, effect.doing, effect.place.requested)
        )

    def _temporary(self, folder: int, path: str, number: int, role: Role) -> str:
        name = temporary_name(path, self._token, number, role)
        self._temporaries.append((folder, name))
        return name

    def _new_file(self, effect: _Effect, folder: int, temporary: str) -> Identity | None:
        original = effect.original
        mode = effect.recorded.after.mode
        if effect.data is not None:
            like = None if original is None else self._source(original)
            return identity(write_temporary(folder, temporary, effect.data, mode=mode, like=like))
        if original is None:
            return None
        return self._second_name(effect, original, mode, folder, temporary)

    def _second_name(
        self, effect: _Effect, original: Place, mode: int | None, folder: int, temporary: str
    ) -> Identity | None:
        """Give the file another name in the open folder too; where that cannot be, make a copy of it there."""
        source = self._source(original)
        try:
            os.link(source[1], temporary, src_dir_fd=source[0], dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_SECOND_NAME:
                raise
            descriptor, status = open_regular(source[0], source[1:], os.O_RDONLY)
            with os.fdopen(descriptor, "rb") as stream:
                _require(identity(status), effect.identity)
                return identity(write_temporary(folder, temporary, stream.read(), mode=mode, like=source))
        _require(identity_at(folder, temporary), effect.identity)
        return effect.identity

    def _source(self, original: Place) -> tuple[int, str]:
        return self._folders.open(original.parts[:-1]), original.parts[-1]

    def _commit(self) -> ToolError | None:
        for step in self._steps:
            try:
                commit(step)
            except OSError as error:
                return os_failure(error, step.doing, step.path)
            if None not in (step.before, step.after):  # the name that the new file had is used up
                self._temporaries.remove((step.directory_fd, step.temporary))
        return None

    def _take_back(self) -> list[str]:
        """Undo all steps, last first, and remove what was prepared. Returns what could not be put back, and where.

        Where something remains, or the disk does not confirm it, the change is not settled, and the next start goes on.
        """
        lost: list[str] = []
        for step in reversed(self._steps):
            try:
                undo(step)
            except OSError:
                kept_place = (step.directory_fd, step.kept)
                if kept_place in self._temporaries:
                    self._temporaries.remove(kept_place)
                    lost.append(f"{quoted(step.path)} is kept as {quoted(step.kept)} beside it")
                else:
                    lost.append(f"{quoted(step.path)} is left {'behind' if step.before is None else 'changed'}")
        _, failure = self._remove_temporaries()
        self._folders.remove_made(self._made)
        if self._recorder is not None and not lost and failure is None and self._sync() is None:
            self._settle(ChangeState.UNDONE)
        return lost

    def _finish(self) -> ToolError | None:
        """Write the names through to the disk, and remove what was kept. Says what may not last, though it is there."""
        failure = self._sync()
        removed, temporaries_left = self._remove_temporaries()
        failure = failure or temporaries_left or (self._sync() if removed else None)
        if temporaries_left is None:  # else the next start removes what is left, and finds that all was done
            self._settle(ChangeState.DONE)
        if failure is None:
            return None
        names = listed(quoted(step.path) for step in self._steps)
        reason = f"the disk does not confirm that this lasts: {failure.strerror}. Have it checked."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=f"{names} changed, but {reason}", fatal=True)

    def _remove_temporaries(self) -> tuple[int, OSError | None]:
        """Take them all away. Gives how many were there, and why one could not be removed."""
        removed = 0
        failure = None
        for folder, name in self._temporaries:
            try:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                    removed += 1
            except OSError as error:
                failure = error
        return removed, failure

    def _sync(self) -> OSError | None:
        try:
            self._folders.sync(self._made)
        except OSError as error:
            return error
        return None

    def _settle(self, state: ChangeState) -> None:
        """Where this cannot be written down nothing is lost: the next start decides by the files."""
        if self._recorder is not None:
            with suppress(RecordError):
                self._recorder.settle(self._token, state)


def _require(found: Identity | None, expected: Identity | None) -> None:
    if found != expected:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
