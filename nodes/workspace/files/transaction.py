"""Carries out the planned effects on files: all of them, or none, also if the process is killed meanwhile.

The recorder stores the effects first; after a kill `recovery` completes or undoes the change. New files are written
under temporary names; then the rename steps are taken, and if one fails all of them are undone. A failure after the
last step is reported, and does not undo the change.
"""

import errno
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mendgraph.nodes.language.display import listed
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted
from mendgraph.nodes.workspace.files.atomic_write import (
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
from mendgraph.nodes.workspace.files.change_records import ChangeRecorder, ChangeState, FileEffect, RecordError
from mendgraph.nodes.workspace.files.handles import open_regular
from mendgraph.nodes.workspace.files.sandbox import Place

_NO_SECOND_NAME: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""Errors of link(2) for which the file is copied instead."""


@dataclass(frozen=True)
class PlannedEffect:
    """The creation, replacement or removal of one file, as `recorded` says.

    `data` is the content of the new file; None if there is none, or if the `original` is moved. The original is the
    file with this `identity` that is replaced, removed or moved. Errors begin with "Cannot `doing` `place`".
    """

    recorded: FileEffect
    doing: str
    place: Place
    data: bytes | None = None
    original: Place | None = None
    identity: Identity | None = None

    @property
    def is_new(self) -> bool:
        """Whether the file is created."""
        return not self.recorded.before.sha256

    @property
    def is_removed(self) -> bool:
        """Whether the file is removed."""
        return not self.recorded.after.sha256


class Transaction:
    """Carries out a plan. Every name is listed before it is created, so that it can be removed.

    `_temporaries` are names in open directories, `_created` the new directories. `_token` is a part of every temporary
    name.
    """

    def __init__(
        self,
        open_folders: OpenFolders,
        effects: Sequence[PlannedEffect],
        backups: Mapping[str, bytes],
        folders: Sequence[str],
        recorder: ChangeRecorder | None,
    ) -> None:
        """`backups` are the former bytes of the files by their hash, `folders` the directories to create."""
        self._open_folders = open_folders
        self._effects = effects
        self._backups = backups
        self._folders = folders
        self._recorder = recorder
        self._token = secrets.token_hex(8)
        self._steps: list[RenameStep] = []
        self._temporaries: list[tuple[int, str]] = []
        self._created: list[str] = []

    def run(self) -> ToolError | None:
        """Carry out all effects. The error says whether anything was changed; a fatal one needs a person."""
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
            return self._finish()

        lost = self._take_back()
        if not lost:
            return refusal

        message = f"{refusal.message} Undoing the rest failed as well: {'; '.join(lost)}."
        return refusal.model_copy(update={"message": message, "fatal": True})

    def _record(self) -> None:
        if self._recorder is not None:
            effects = [effect.recorded for effect in self._effects]
            self._recorder.intend(self._token, effects, self._backups, self._folders)

    def _stage(self) -> ToolError | None:
        """Prepare all effects, in order; no existing name changes."""
        for number, effect in enumerate(self._effects):
            try:
                self._stage_one(effect, number)
            except OSError as error:
                return os_failure(error, effect.doing, effect.place.requested)
        return None

    def _stage_one(self, effect: PlannedEffect, number: int) -> None:
        """Prepare one effect. If a single file is replaced, the old one need not be kept: one step is not undone."""
        path = effect.recorded.path
        parts = effect.place.parts
        created = self._created if effect.is_new else None
        folder = self._open_folders.open(parts[:-1], created=created)
        if effect.is_new and self._open_folders.real_name(folder, parts[-1]) not in {path, None}:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        temporary = ""
        kept_name = ""
        after: Identity | None = None

        if not effect.is_removed:
            temporary = self._temporary(folder, path, number, Role.NEW)
            after = self._new_file(effect, folder, temporary)

        is_replaced = not effect.is_new and not effect.is_removed
        if effect.is_removed or (is_replaced and len(self._effects) > 1):
            kept_name = self._temporary(folder, path, number, Role.KEPT)
        if kept_name and is_replaced and effect.original is not None:
            self._second_name(effect, effect.original, effect.recorded.before.mode, folder, kept_name)

        before = None if effect.is_new else effect.identity
        self._steps.append(
            RenameStep(folder, parts[-1], before, after, temporary, kept_name, effect.doing, effect.place.requested)
        )

    def _temporary(self, folder: int, path: str, number: int, role: Role) -> str:
        name = temporary_name(path, self._token, number, role)
        self._temporaries.append((folder, name))
        return name

    def _new_file(self, effect: PlannedEffect, folder: int, temporary: str) -> Identity | None:
        original = effect.original
        mode = effect.recorded.after.mode
        if effect.data is not None:
            like = None if original is None else self._source(original)
            return identity(write_temporary(folder, temporary, effect.data, mode=mode, like=like))
        if original is None:
            return None

        return self._second_name(effect, original, mode, folder, temporary)

    def _second_name(
        self, effect: PlannedEffect, original: Place, mode: int | None, folder: int, temporary: str
    ) -> Identity | None:
        """Link the file to a second name in the open folder, or copy it there."""
        source_folder, source_name = self._source(original)
        try:
            os.link(source_name, temporary, src_dir_fd=source_folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_SECOND_NAME:
                raise

            descriptor, status = open_regular(source_folder, (source_name,), os.O_RDONLY)
            with os.fdopen(descriptor, "rb") as stream:
                _require(identity(status), effect.identity)
                like = (source_folder, source_name)
                return identity(write_temporary(folder, temporary, stream.read(), mode=mode, like=like))

        _require(identity_at(folder, temporary), effect.identity)
        return effect.identity

    def _source(self, original: Place) -> tuple[int, str]:
        return self._open_folders.open(original.parts[:-1]), original.parts[-1]

    def _commit(self) -> ToolError | None:
        for step in self._steps:
            try:
                commit(step)
            except OSError as error:
                return os_failure(error, step.doing, step.path)

            if None not in (step.before, step.after):  # the step has renamed it
                self._temporaries.remove((step.directory_fd, step.temporary))

        return None

    def _take_back(self) -> list[str]:
        """Undo all steps, last first, and remove what was prepared; returns what could not be undone.

        If something remains, or cannot be synced, the change stays open for the next recovery.
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
                    lost.append(f"{quoted(step.path)} is left changed")

        _, failure = self._remove_temporaries()
        self._open_folders.remove_created(self._created)
        if self._recorder is not None and not lost and failure is None and self._sync() is None:
            self._settle(ChangeState.UNDONE)

        return lost

    def _finish(self) -> ToolError | None:
        """Sync the folders, and remove the old files. The error says what may be lost."""
        failure = self._sync()
        removed, unremoved = self._remove_temporaries()
        if failure is None:
            failure = unremoved
        if failure is None and removed:
            failure = self._sync()

        if unremoved is None:  # else the next recovery removes it
            self._settle(ChangeState.DONE)

        if failure is None:
            return None

        names = listed(quoted(step.path) for step in self._steps)
        reason = f"the disk does not confirm the write: {failure.strerror}. Check the disk."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=f"{names} changed, but {reason}", fatal=True)

    def _remove_temporaries(self) -> tuple[int, OSError | None]:
        """Remove all temporary files; returns their number, and an error for one that could not be removed."""
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
            self._open_folders.sync(self._created)
        except OSError as error:
            return error
        return None

    def _settle(self, state: ChangeState) -> None:
        """Record the end of the change; after a failure the next recovery decides by the files."""
        if self._recorder is not None:
            with suppress(RecordError):
                self._recorder.settle(self._token, state)


def _require(actual: Identity | None, expected: Identity | None) -> None:
    if actual != expected:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
