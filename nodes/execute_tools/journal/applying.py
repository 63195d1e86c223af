"""Applies a reverted run again, to the files as they are now: all of its changes, or none."""

import json
import secrets
from typing import Final

from mendgraph.nodes.execute_tools.edits.patches import PatchError, apply_hunks, hunks_between
from mendgraph.nodes.execute_tools.files.change_records import FileEffect
from mendgraph.nodes.execute_tools.files.file_changes import Change, DeleteFile, WriteFile
from mendgraph.nodes.execute_tools.files.text_files import decode_text, encode_text
from mendgraph.nodes.execute_tools.files.workspace import DryWorkspace, FileContent, Workspace
from mendgraph.nodes.execute_tools.journal.journal import CallKey, Journal, call_fingerprint
from mendgraph.nodes.execute_tools.journal.restoring import RestoredFile, RestoreStep, batches_of, taken_back
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode, quoted

APPLY_TOOL: Final = "apply"


def apply_again(journal: Journal, workspace: Workspace, run: str) -> tuple[RestoredFile, ...] | ToolError:
    """Make the reverted changes of the run again, in the files as they are now: all of them, or none.

    A file that has not changed since gets the very bytes; in another one each hunk has to fit in one place, to the
    letter. It is recorded as a change of the run, so that `restore` takes it back. Whoever calls holds the workspace's
    lock.

    Returns:
        The files that were changed, none where all of them hold it already; NOT_FOUND where nothing was taken back,
        CONFLICT for a file that it does not fit, or what else denies or prevents the change. More than 200 files are
        changed in parts: after an error in the middle, which says so, and after a kill the same call goes on.
    """
    try:
        with journal.connected():
            return _apply(journal, workspace, run)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))


def _apply(journal: Journal, workspace: Workspace, run: str) -> tuple[RestoredFile, ...] | ToolError:
    effects = taken_back(journal, run)
    if not effects:
        message = f"Nothing of the run {run} was taken back, so there is nothing to apply."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

    changes: list[Change] = []

    for effect in effects:
        change = _again(journal, workspace, effect)
        if isinstance(change, ToolError):
            return _not_applied(change)

        if change is not None:
            changes.append(change)

    if not changes:
        return ()

    batches = list(batches_of(changes))
    if len(batches) > 1:  # one batch is all or none by itself; of several, the first may be made and the next refused
        dry = DryWorkspace.of(workspace)
        for batch in batches:
            refused = dry.change_files(batch)
            if isinstance(refused, ToolError):
                return _not_applied(refused)

    step = journal.taken_back(run)[0].step
    fingerprint = call_fingerprint(APPLY_TOOL, {"run": run})
    execution = f"{APPLY_TOOL}-{secrets.token_hex(8)}"
    call = journal.begin(CallKey(run, execution, step, 0, APPLY_TOOL, Effect.WRITE, fingerprint))
    recorded = workspace.recorded(journal.recorder(call))

    for number, batch in enumerate(batches):
        done = recorded.change_files(batch)
        if isinstance(done, ToolError):
            again = "Some files were changed before that: apply again to go on."
            if number:
                return done.model_copy(update={"message": f"{done.message} {again}"})
            return _not_applied(done)

    journal.end(call, json.dumps({"applied": len(changes)}))
    kinds = {path: RestoreStep(path, restored, attempt).kind for path, attempt, restored in effects}
    return tuple(RestoredFile(change.path, kinds[change.path]) for change in changes)


def _again(journal: Journal, workspace: Workspace, effect: FileEffect) -> Change | ToolError | None:
    """The change that reverts this effect of a restore; None where the file is as before it already."""
    goal, goal_mode = effect.before
    before, mode = effect.after
    file = workspace.read_file(effect.path)
    if isinstance(file, ToolError) and file.code is not ToolErrorCode.NOT_FOUND:
        return file

    now = "" if isinstance(file, ToolError) else file.sha256
    if now == goal != before:
        return None
    if not goal:
        return DeleteFile(effect.path, before)

    data = journal.backup(goal)
    if data is not None and isinstance(file, FileContent) and before and now != before:
        merged = _with_hunks(effect.path, journal.backup(before), data, file.data)
        if isinstance(merged, ToolError):
            return merged
        if merged == file.data:
            return None

        data = merged

    if data is None:
        message = f"What the run made of {quoted(effect.path)} was not kept, or is damaged."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message)

    expected = (now or before) if before else ""
    new_mode = None if goal_mode == mode else goal_mode
    return WriteFile(effect.path, data, expected, new_mode)


def _with_hunks(path: str, before: bytes | None, after: bytes, now: bytes) -> bytes | ToolError:
    """The bytes of the file now with the difference of two versions applied; CONFLICT where it does not fit."""
    old = None if before is None else decode_text(before)
    new = decode_text(after)
    current = decode_text(now)
    if old is None or new is None or current is None:
        message = f"{quoted(path)} has changed since, and what was taken back is not text."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)

    patched = apply_hunks(current.text, hunks_between(old.text, new.text), path)
    if isinstance(patched, PatchError) or patched.inexact:
        where = f" from its line {patched.line} on" if isinstance(patched, PatchError) else ""
        message = f"{quoted(path)} has changed since, and the change{where} does not fit any more."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=(path,))

    return encode_text(patched.text, current.form)


def _not_applied(error: ToolError) -> ToolError:
    return error.model_copy(update={"message": f"Nothing was applied. {error.message}"})
