"""Carries out the planned effects on files: all of them, or none, also if the process is killed meanwhile.

The recorder stores the effects first; from then on a kill leaves a change behind that `recovery` completes or undoes.
New files are written under temporary names; then the rename steps are taken, and where one fails all of them are
undone. What fails after the last step does not undo the change any more, but is reported.
"""

import errno
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from mendgraph.nodes.execute_tools.files.atomic_write import (
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
from mendgraph.nodes.execute_tools.files.change_records import ChangeRecorder, ChangeState, FileEffect, RecordError
from mendgraph.nodes.execute_tools.files.handles import open_regular
from mendgraph.nodes.execute_tools.files.sandbox import Place
from mendgraph.nodes.language.display import listed
from mendgraph.nodes.records import ToolError, ToolErrorCode, os_failure, quoted

_NO_SECOND_NAME: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""Why a file gets no second name: it may not, or the place is on another disk. Then it is copied. Source: link(2)."""


@dataclass(frozen=True)
class PlannedEffect:
    """One name that will mean another file: a file is created, replaced or removed, as `recorded` says.

    `data` is the content of the new file; None if there is none, or where it is the `original` itself, which is
    moved: the file of that `identity` that is replaced, removed or moved. A new file has no original. An error of it
    says "Cannot `doing` `place`".
    """

    recorded: FileEffect
    doing: str
    place: Place
    data: bytes | None = None
    original: Place | None = None
    identity: Identity | None = None

    @property
    def is_new(self) -> bool:
        """Whether no file has the name before."""
        return not self.recorded.before.sha256

    @property
    def is_removed(self) -> bool:
        """Whether no file has the name after it."""
        return not self.recorded.after.sha256


class Transaction:
    """Carries out a plan. Every name that it creates is listed before it is created, so that it can be removed.

    `_temporaries` are names in open directories that have to be removed in the end, `_created` the new directories.
    The `_token` is in every temporary name.
    """

    def __init__(
        self,
        open_folders: OpenFolders,
        effects: Sequence[PlannedEffect],
        backups: Mapping[str, bytes],
        folders: Sequence[str],
        recorder: ChangeRecorder | None,
    ) -> None:
        """`backups` are the bytes of the files before, by their hash; `folders` the directories to create."""
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
        """Make all effects. The error says whether anything was changed; a fatal one needs a person."""
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

        message = f"{refusal.message} Undoing the rest failed as well: {'; '.join(lost)}."  # a person has to mend it
        return refusal.model_copy(update={"message": message, "fatal": True})

    def _record(self) -> None:
        if self._recorder is not None:
            effects = [effect.recorded for effect in self._effects]
            self._recorder.intend(self._token, effects, self._backups, self._folders)

    def _stage(self) -> ToolError | None:
        """Prepare all effects, in order; no name that anybody knows changes yet."""
        for number, effect in enumerate(self._effects):
            try:
                self._stage_one(effect, number)
            except OSError as error:
                return os_failure(error, effect.doing, effect.place.requested)
        return None

    def _stage_one(self, effect: PlannedEffect, number: int) -> None:
        """A file that is replaced alone needs no name for the old one: after one step nothing has to be undone."""
        path = effect.recorded.path
        parts = effect.place.parts
        created = self._created if effect.is_new else None
        folder = self._open_folders.open(parts[:-1], made=created)
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
        """Give the file another name in the open folder too; where that is not possible, copy it there."""
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

            if None not in (step.before, step.after):  # the name that the new file had is used up
                self._temporaries.remove((step.directory_fd, step.temporary))

        return None

    def _take_back(self) -> list[str]:
        """Undo all steps, last first, and remove what was prepared. Returns what could not be undone, and where it is.

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
                elif step.before is None:
                    lost.append(f"{quoted(step.path)} is left behind")
                else:
                    lost.append(f"{quoted(step.path)} is left changed")

        _, failure = self._remove_temporaries()
        self._open_folders.remove_created(self._created)
        if self._recorder is not None and not lost and failure is None and self._sync() is None:
            self._settle(ChangeState.UNDONE)

        return lost

    def _finish(self) -> ToolError | None:
        """Write the names through to the disk, and remove the old files. The error says what may not last."""
        failure = self._sync()
        removed, unremoved = self._remove_temporaries()
        if failure is None:
            failure = unremoved
        if failure is None and removed:
            failure = self._sync()

        if unremoved is None:  # else the next start removes what is left, and finds that all was done
            self._settle(ChangeState.DONE)

        if failure is None:
            return None

        names = listed(quoted(step.path) for step in self._steps)
        reason = f"the disk does not confirm that this lasts: {failure.strerror}. Have it checked."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=f"{names} changed, but {reason}", fatal=True)

    def _remove_temporaries(self) -> tuple[int, OSError | None]:
        """Remove all of them. Gives how many there were, and why one could not be removed."""
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
        """Where this cannot be written down nothing is lost: the next start decides by the files."""
        if self._recorder is not None:
            with suppress(RecordError):
                self._recorder.settle(self._token, state)


def _require(actual: Identity | None, expected: Identity | None) -> None:
    if actual != expected:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
