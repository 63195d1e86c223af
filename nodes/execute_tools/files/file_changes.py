"""Several files are written, deleted and moved: all of it happens, or none, also if the process is killed meanwhile.

`plan_changes` checks every file. What is going to happen is written down by the recorder; from then on a kill leaves a
change behind that `recovery` brings to an end. `_stage_all` puts what is new under temporary names, where nobody looks;
`_commit` takes the rename steps; `_take_back` takes them back where one fails. What fails after the last step does not
undo the change any more, but is reported.
"""

import errno
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from mendgraph.nodes.execute_tools.files.change_plan import (
    Change,
    ChangedFile,
    Original,
    Plan,
    PlannedEffect,
    listed,
    placed_changes,
    plan_changes,
)
from mendgraph.nodes.execute_tools.files.change_records import ChangeRecorder, ChangeState, RecordError
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import open_regular
from mendgraph.nodes.execute_tools.files.judged_paths import JudgedPaths
from mendgraph.nodes.records import ToolError, ToolErrorCode

_NO_SECOND_NAME: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""Why a file gets no second name: it may not, or the place is on another disk. Then it is copied. Source: link(2)."""


@dataclass
class Transaction:
    """What has been prepared so far. All of it is known here before it is made, so that it can be removed.

    `temporaries` are names in open directories that must be gone in the end, `made` the directories that were made.
    The `token` is in every temporary name.
    """

    folders: OpenFolders
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    steps: list[RenameStep] = field(default_factory=list)
    temporaries: list[tuple[int, str]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def remove_temporaries(self) -> tuple[int, OSError | None]:
        """Take them all away. Gives how many were there, and why one could not be removed."""
        removed, failure = 0, None
        for folder, name in self.temporaries:
            try:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
                    removed += 1
            except OSError as error:
                failure = error
        return removed, failure


def _stage_all(transaction: Transaction, plan: Plan) -> ToolError | None:
    """Prepare all effects, in order; no name that anybody knows changes yet. Says what cannot be prepared."""
    for place, planned in enumerate(plan.effects):
        try:
            _stage_one(transaction, planned, place, alone=len(plan.effects) == 1)
        except OSError as error:
            return os_failure(error, planned.doing, planned.place.requested)
    return None


def _stage_one(transaction: Transaction, planned: PlannedEffect, place: int, *, alone: bool) -> None:
    """A file that is replaced alone needs no name for the old one: one step has nothing to be taken back after it."""
    folders, effect, parts = transaction.folders, planned.effect, planned.place.parts
    folder = folders.open(parts[:-1], made=transaction.made if planned.comes else None)
    if planned.comes and folders.real_name(folder, parts[-1]) not in {effect.path, None}:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    temporary = kept = ""
    after: Identity | None = None
    if not planned.goes:
        temporary = temporary_name(effect.path, transaction.token, place, Role.NEW)
        transaction.temporaries.append((folder, temporary))
        after = _new_file(folders, planned, folder, temporary)
    if planned.goes or not (planned.comes or alone):
        kept = temporary_name(effect.path, transaction.token, place, Role.KEPT)
        transaction.temporaries.append((folder, kept))
    if kept and planned.original is not None and not planned.goes:
        _second_name(folders, planned.original, effect.before.mode, folder, kept)
    before = None if planned.comes or planned.original is None else planned.original.identity
    doing, path = planned.doing, planned.place.requested
    transaction.steps.append(RenameStep(folder, parts[-1], before, after, temporary, kept, doing, path))


def _new_file(folders: OpenFolders, planned: PlannedEffect, folder: int, temporary: str) -> Identity | None:
    original, mode = planned.original, planned.effect.after.mode
    if planned.data is not None:
        like = None if original is None else (folders.open(original.place.parts[:-1]), original.place.parts[-1])
        return identity(write_temporary(folder, temporary, planned.data, mode=mode, like=like))
    return None if original is None else _second_name(folders, original, mode, folder, temporary)


def _second_name(folders: OpenFolders, original: Original, mode: int | None, folder: int, temporary: str) -> Identity:
    """Give the file another name in the open folder too; where that cannot be, make a copy of it there."""
    source = (folders.open(original.place.parts[:-1]), original.place.parts[-1])
    try:
        os.link(source[1], temporary, src_dir_fd=source[0], dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_SECOND_NAME:
            raise
        descriptor, status = open_regular(source[0], source[1:], os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            _require(identity(status), original.identity)
            return identity(write_temporary(folder, temporary, stream.read(), mode=mode, like=source))
    _require(identity_at(folder, temporary), original.identity)
    return original.identity


def _require(found: Identity | None, expected: Identity) -> None:
    if found != expected:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def change_files(
    paths: JudgedPaths, changes: Sequence[Change], recorder: ChangeRecorder | None = None
) -> tuple[ChangedFile, ...] | ToolError:
    """Make all changes; on a failure everything is as it was. See `Workspace.change_files`."""
    placed = placed_changes(paths, changes)
    if isinstance(placed, ToolError):
        return placed
    try:
        folders = OpenFolders(paths.root)
    except OSError as error:
        return os_failure(error, "write", ".")
    with folders:
        plan = plan_changes(paths, folders, placed, backups=recorder is not None)
        if isinstance(plan, ToolError) or not plan.effects:
            return plan if isinstance(plan, ToolError) else ()
        return _make(Transaction(folders), plan, recorder)


def _make(transaction: Transaction, plan: Plan, recorder: ChangeRecorder | None) -> tuple[ChangedFile, ...] | ToolError:
    try:
        if recorder is not None:
            effects = [planned.effect for planned in plan.effects]
            new = {each.effect.after.sha256: each.data for each in plan.effects if each.data is not None}
            recorder.intend(transaction.token, effects, {**new, **plan.backups}, plan.made)
        refusal = _stage_all(transaction, plan) or _commit(transaction)
    except RecordError as error:
        message = f"Nothing was changed, because the record of it could not be written: {error}"
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message, fatal=True)
    except BaseException:
        _take_back(transaction, recorder)
        raise
    if refusal is None:
        return _finish(transaction, recorder) or tuple(plan.done)
    lost = _take_back(transaction, recorder)
    if not lost:
        return refusal
    message = f"{refusal.message} Undoing the rest failed as well: {'; '.join(lost)}."  # a person has to put it right
    return refusal.model_copy(update={"message": message, "fatal": True})


def _commit(transaction: Transaction) -> ToolError | None:
    for step in transaction.steps:
        try:
            commit(step)
        except OSError as error:
            return os_failure(error, step.doing, step.path)
        if step.replaces:  # the name that the new file had is used up
            transaction.temporaries.remove((step.directory_fd, step.temporary))
    return None


def _take_back(transaction: Transaction, recorder: ChangeRecorder | None) -> list[str]:
    """Undo all steps, last first, and remove what was prepared. Returns what could not be put back, and where it is.

    Where something remains, or the disk does not confirm it, the change is not settled, and the next start goes on.
    """
    lost: list[str] = []
    for step in reversed(transaction.steps):
        try:
            undo(step)
        except OSError:
            kept = (step.directory_fd, step.kept)
            if kept in transaction.temporaries:
                transaction.temporaries.remove(kept)
                lost.append(f"{quoted(step.path)} is kept as {quoted(step.kept)} beside it")
            else:
                lost.append(f"{quoted(step.path)} is left {'behind' if step.before is None else 'changed'}")
    _, failure = transaction.remove_temporaries()
    transaction.folders.remove_made(transaction.made)
    if recorder is not None and not lost and failure is None:
        with suppress(OSError):
            transaction.folders.sync(transaction.made)
            _settle(transaction, recorder, ChangeState.UNDONE)
    return lost


def _finish(transaction: Transaction, recorder: ChangeRecorder | None) -> ToolError | None:
    """Write the names through to the disk, and remove what was kept. Says what may not last, though it is there now."""
    failure = _sync(transaction)
    removed, left = transaction.remove_temporaries()
    failure = failure or left or (_sync(transaction) if removed else None)
    if left is None:  # else the next start removes what is left, and finds that all was done
        _settle(transaction, recorder, ChangeState.DONE)
    if failure is None:
        return None
    names = listed([step.path for step in transaction.steps])
    message = f"{names} changed, but the disk does not confirm that this lasts: {failure.strerror}. Have it checked."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message, fatal=True)


def _sync(transaction: Transaction) -> OSError | None:
    try:
        transaction.folders.sync(transaction.made)
    except OSError as error:
        return error
    return None


def _settle(transaction: Transaction, recorder: ChangeRecorder | None, state: ChangeState) -> None:
    """Where this cannot be written down nothing is lost: the next start decides by the files."""
    if recorder is not None:
        with suppress(RecordError):
            recorder.settle(transaction.token, state)
