"""Applies the reverted changes of a run again, to the files as they are now."""

import json
import secrets
from typing import Final

from mendgraph.nodes.execute_tools.edits.patches import PatchError, apply_hunks, hunks_between
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode, quoted
from mendgraph.nodes.workspace.files.change_records import FileEffect
from mendgraph.nodes.workspace.files.file_changes import Change, DeleteFile, WriteFile
from mendgraph.nodes.workspace.files.text_files import decode_text, encode_text
from mendgraph.nodes.workspace.files.workspace import DryWorkspace, FileContent, Workspace
from mendgraph.nodes.workspace.journal.journal import CallKey, Journal, call_fingerprint
from mendgraph.nodes.workspace.journal.restoring import RestoredFile, batches_of, net_effects
from mendgraph.nodes.workspace.store.database import StoreError

APPLY_TOOL: Final = "apply"


def apply_again(journal: Journal, workspace: Workspace, run: str) -> tuple[RestoredFile, ...] | ToolError:
    """Make the reverted changes of the run again: all of them, or none.

    A file that has not changed since gets the same bytes; in a changed file each hunk has to match exactly one place.
    The change is recorded for the run, so that `restore` reverts it. The caller holds the workspace's lock.

    Returns:
        The changed files, none if all of them are so already; NOT_FOUND if nothing was reverted, CONFLICT for a file
        that does not match, or another error. More than 200 files are changed in batches: after an error in the middle,
        which says so, and after a kill the same call continues.
    """
    try:
        with journal.connected():
            return _apply(journal, workspace, run)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))


def _apply(journal: Journal, workspace: Workspace, run: str) -> tuple[RestoredFile, ...] | ToolError:
    restoring_changes = journal.changes_of_last_restore(run)
    effects = [effect.reversed() for effect in net_effects(restoring_changes)]
    if not effects:
        message = f"The run {run} has no changes that were taken back, so there is nothing to apply."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

    changes: list[Change] = []
    files: list[RestoredFile] = []

    for effect in effects:
        change = _change(journal, workspace, effect)
        if isinstance(change, ToolError):
            return _not_applied(change)

        if change is not None:
            changes.append(change)
            files.append(RestoredFile(effect.path, effect.kind))

    if not changes:
        return ()

    batches = list(batches_of(changes))
    if len(batches) > 1:  # a single batch is made as a whole or not at all
        dry = DryWorkspace.of(workspace)
        for batch in batches:
            refused = dry.change_files(batch)
            if isinstance(refused, ToolError):
                return _not_applied(refused)

    fingerprint = call_fingerprint(APPLY_TOOL, {"run": run})
    execution = f"{APPLY_TOOL}-{secrets.token_hex(8)}"
    step = restoring_changes[0].step
    call = journal.begin(CallKey(run, execution, step, 0, APPLY_TOOL, Effect.WRITE, fingerprint))
    recorded = workspace.recorded(journal.recorder(call))

    for number, batch in enumerate(batches):
        done = recorded.change_files(batch)
        if isinstance(done, ToolError):
            if number == 0:
                return _not_applied(done)

            again = "Some files were changed before that: apply again to continue."
            return done.model_copy(update={"message": f"{done.message} {again}"})

    journal.end(call, json.dumps({"applied": len(changes)}))
    return tuple(files)


def _change(journal: Journal, workspace: Workspace, effect: FileEffect) -> Change | ToolError | None:
    """Return the change that makes this effect in the file as it is now, None if nothing remains to be changed."""
    before = effect.before.sha256
    after = effect.after.sha256
    file = workspace.read_file(effect.path)
    if isinstance(file, ToolError) and file.code is not ToolErrorCode.NOT_FOUND:
        return file

    now = file.sha256 if isinstance(file, FileContent) else ""
    if now == after != before:
        return None
    if not after:
        return DeleteFile(effect.path, before)

    data = journal.backup(after)
    if data is None:
        message = f"The run's content of {quoted(effect.path)} was not stored, or is damaged."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message)

    mode = effect.after.mode
    if mode == effect.before.mode:
        mode = None

    if not before or not isinstance(file, FileContent) or now == before:
        return WriteFile(effect.path, data, before, mode)

    merged = _merge(effect.path, journal.backup(before), data, file.data)
    if isinstance(merged, ToolError):
        return merged
    if merged == file.data:
        return None

    return WriteFile(effect.path, merged, now, mode)


def _merge(path: str, before: bytes | None, after: bytes, now: bytes) -> bytes | ToolError:
    """Apply the difference of two versions to the bytes of the file now; CONFLICT if it does not match."""
    old = None if before is None else decode_text(before)
    new = decode_text(after)
    current = decode_text(now)
    if old is None or new is None or current is None:
        message = f"{quoted(path)} has changed since, and the change is not text."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)

    patched = apply_hunks(current.text, hunks_between(old.text, new.text), path)
    if isinstance(patched, PatchError) or patched.inexact:
        where = f" at line {patched.line}" if isinstance(patched, PatchError) else ""
        message = f"{quoted(path)} has changed since, and the change{where} no longer fits."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=(path,))

    return encode_text(patched.text, current.form)


def _not_applied(error: ToolError) -> ToolError:
    return error.model_copy(update={"message": f"Nothing was applied. {error.message}"})
