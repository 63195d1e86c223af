"""Several files are written, deleted and moved: all of it happens, or none, also if the process is killed meanwhile.

`plan_changes` checks every file. What is going to happen is written down by the recorder; from then on a kill leaves a
change behind that `recovery` brings to an end. `stage` puts what is new under temporary names, where nobody looks;
`_commit` takes the steps of `name_steps`, each of which makes one name mean another file; `_take_back` takes them back
where one fails. What fails after the last step does not undo the change any more, but is told.
"""

from collections.abc import Sequence
from contextlib import suppress

from nodes.execute_tools.environment.change_places import Change, listed, placed_changes
from nodes.execute_tools.environment.change_plan import ChangedFile, Plan, plan_changes
from nodes.execute_tools.environment.change_staging import Transaction, stage
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.journal_records import ChangeRecorder, ChangeState
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.name_steps import commit, undo
from nodes.execute_tools.environment.open_folders import OpenFolders
from nodes.records import ToolError, ToolErrorCode

__all__ = ["ChangedFile", "change_files"]


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
            recorder.intend(transaction.token, effects, {**_new_bytes(plan), **plan.backups}, plan.made)
        refusal = stage(transaction, plan) or _commit(transaction)
    except StoreError as error:
        message = f"Nothing was changed, because the record of it could not be written: {error}"
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message, fatal=True)
    except BaseException:
        _take_back(transaction, recorder)
        raise
    if refusal is not None:
        return _told(refusal, _take_back(transaction, recorder))
    return _finish(transaction, recorder) or tuple(plan.done)


def _new_bytes(plan: Plan) -> dict[str, bytes]:
    """What the files will hold, by its hash."""
    return {planned.effect.after.sha256: planned.data for planned in plan.effects if planned.data is not None}


def _commit(transaction: Transaction) -> ToolError | None:
    for step in transaction.steps:
        try:
            commit(step.names)
        except OSError as error:
            return os_failure(error, step.doing, step.path)
        if step.names.replaces:  # the name that the new file had is used up
            transaction.temporaries.remove((step.names.directory_fd, step.names.temporary))
    return None


def _take_back(transaction: Transaction, recorder: ChangeRecorder | None) -> list[str]:
    """Undo all steps, last first, and remove what was prepared. Returns what could not be put back, and where it is.

    Where something remains, or the disk does not confirm it, the change is not settled, and the next start goes on.
    """
    lost: list[str] = []
    for step in reversed(transaction.steps):
        try:
            undo(step.names)
        except OSError:
            kept = (step.names.directory_fd, step.names.kept)
            if kept in transaction.temporaries:
                transaction.temporaries.remove(kept)
                lost.append(f"{quoted(step.path)} is kept as {quoted(step.names.kept)} beside it")
            else:
                lost.append(f"{quoted(step.path)} is left {'behind' if step.names.before is None else 'changed'}")
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
        with suppress(StoreError):
            recorder.settle(transaction.token, state)


def _told(refusal: ToolError, lost: Sequence[str]) -> ToolError:
    """The refusal, with what a person has to put right where not even the old state could be restored."""
    if not lost:
        return refusal
    message = f"{refusal.message} Undoing the rest failed as well: {'; '.join(lost)}."
    return refusal.model_copy(update={"message": message, "fatal": True})
