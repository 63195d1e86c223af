"""Restores files to their state before a run, or before one of its steps.

All changes of a run to one path count as one effect. Nothing is restored if somebody else has changed one of the files
since. The restoring changes are recorded like those of a run, so that a second restore continues one that was killed.
"""

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final, NamedTuple

from mendgraph.nodes.language.display import listed, short_id
from mendgraph.nodes.language.os_errors import os_failure
from mendgraph.nodes.records import ChangeKind, ToolError, ToolErrorCode, quoted
from mendgraph.nodes.workspace.files.atomic_write import PERMISSION_BITS, read_state, sync_folder
from mendgraph.nodes.workspace.files.change_records import (
    UNKNOWN_SHA256,
    FileEffect,
    FileState,
    RecordedChange,
    folders_above,
)
from mendgraph.nodes.workspace.files.file_changes import LARGEST_BACKUP, MOST_CHANGES, Change, DeleteFile, WriteFile
from mendgraph.nodes.workspace.files.handles import closing, open_directory, open_regular, open_root, status_beneath
from mendgraph.nodes.workspace.files.workspace import Workspace
from mendgraph.nodes.workspace.journal.journal import UNDO_EFFECT, CallKey, Journal, call_fingerprint
from mendgraph.nodes.workspace.store.database import StoreError

UNDO_TOOL: Final = "undo"

MOST_BYTES: Final = 50_000_000
"""Bytes of one change; they are in memory, together with the bytes that they replace."""

A_DIRECTORY: Final = "it is a directory now"
BELOW_A_FILE: Final = "a part of its path is a file now"

_STAYS: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ESTALE, errno.EBUSY, errno.EACCES, errno.EPERM}
)
"""Errors of rmdir(2) for a directory that is not empty, in use, or not there any more."""


class Obstacle(StrEnum):
    """Why a file cannot be restored, as messages say it."""

    CHANGED_SINCE = "Changed since the run"
    CHANGED_BETWEEN = "Changed between two recorded changes of the run"
    NOT_KEPT = "Changed by a command or tool; its earlier content was not recorded"
    BESIDE_JOBS = "Changed while a job was running"
    TOO_LARGE = "Too large to be replaced"
    BACKUP_MISSING = "The backup is missing or damaged"
    DENIED = "May not be written"


_CODES: Final = {Obstacle.DENIED: ToolErrorCode.PERMISSION_DENIED, Obstacle.BACKUP_MISSING: ToolErrorCode.IO_ERROR}


class LeftFile(NamedTuple):
    """A file that is not restored, with an optional detail of the obstacle."""

    path: str
    obstacle: Obstacle
    detail: str = ""

    @property
    def why(self) -> str:
        """The reason as one phrase."""
        if self.detail:
            return f"{self.obstacle}: {self.detail}"
        return str(self.obstacle)


class RestoredFile(NamedTuple):
    """A restored file: CREATED again, EDITED, or DELETED because the run had created it."""

    path: str
    kind: ChangeKind


class Restored(NamedTuple):
    """The result of a restore: the files that were restored and those that were not, and the removed directories.

    `steps` are the reverted steps. `cut_off` are tools that ran programs and never ended: their changes are unknown.
    `beside_jobs` are those of the files that were changed while a job was running, perhaps by a person.
    """

    files: tuple[RestoredFile, ...] = ()
    left: tuple[LeftFile, ...] = ()
    removed: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    cut_off: tuple[str, ...] = ()
    beside_jobs: tuple[str, ...] = ()


# --- Effects


def net_effects(changes: Sequence[RecordedChange]) -> tuple[FileEffect, ...]:
    """Return the effect of the changes (newest first) on each path, by path; those that cancel out are left out."""
    by_path: dict[str, FileEffect] = {}

    for change in reversed(changes):
        for effect in change.effects:
            earlier = by_path.get(effect.path, FileEffect(effect.path, effect.before, effect.before))
            has_gap = earlier.has_gap or not _may_be_same(earlier.after, effect.before)
            by_path[effect.path] = FileEffect(effect.path, earlier.before, effect.after, has_gap)

    return tuple(
        effect
        for _, effect in sorted(by_path.items())
        if effect.before.mode != effect.after.mode or not _is_same(effect.after, effect.before)
    )


def effects_of_last_restore(journal: Journal, run: str, step: int | None = None) -> tuple[FileEffect, ...]:
    """Return the effects of the last restore of the run's files (from this step on), by path.

    Raises:
        StoreError: the journal cannot be read.
    """
    return net_effects([change for change in journal.changes_of_last_restore(run) if step in {None, change.step}])


def _is_same(one: FileState, other: FileState) -> bool:
    """Return whether both hashes are known and the states do not differ."""
    return UNKNOWN_SHA256 not in (one.sha256, other.sha256) and _may_be_same(one, other)


def _may_be_same(one: FileState, other: FileState) -> bool:
    if UNKNOWN_SHA256 not in (one.sha256, other.sha256) and one.sha256 != other.sha256:
        return False
    return one.mode is None or other.mode is None or one.mode & PERMISSION_BITS == other.mode & PERMISSION_BITS


def restoring_effect(effect: FileEffect, now: FileState | str) -> FileEffect | LeftFile | None:
    """Return the effect that restores the file, the obstacle, or None if the file is as before already.

    `now` is the present state, or a description of what is there instead of a file.
    """
    if isinstance(now, FileState) and _is_same(now, effect.before):
        return None

    if UNKNOWN_SHA256 in (effect.before.sha256, effect.after.sha256):
        return LeftFile(effect.path, Obstacle.NOT_KEPT)
    if isinstance(now, str):
        return LeftFile(effect.path, Obstacle.CHANGED_SINCE, now)
    if not _is_same(now, effect.after):
        return LeftFile(effect.path, Obstacle.CHANGED_SINCE)
    if effect.has_gap:
        return LeftFile(effect.path, Obstacle.CHANGED_BETWEEN)

    return FileEffect(effect.path, now, effect.before)


# --- Restore


def restore(
    journal: Journal,
    workspace: Workspace,
    run: str,
    from_step: int = 0,
    *,
    skip_changed: bool = False,
    skip_beside_jobs: bool = False,
) -> Restored | ToolError:
    """Restore the bytes and permission bits of each file that the run changed from this step on.

    Empty directories that the run created are removed. A file that somebody else has changed, that may not be written
    or whose backup is missing is an error that names it, and nothing is restored; with `skip_changed` it is skipped.
    With `skip_beside_jobs` files are skipped that were changed only while a job was running: a person may have done it.
    The caller holds the workspace's lock and has recovered open changes.

    Returns:
        The result, or CONFLICT, PERMISSION_DENIED or IO_ERROR. After an error in the middle, which says so, and after a
        kill the same call continues.
    """
    try:
        with closing(open_root(workspace.root)) as root, journal.connected():
            restoring = _Restore(journal, workspace, root, run, from_step)
            return restoring.run(skip_changed=skip_changed, skip_beside_jobs=skip_beside_jobs)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))
    except OSError as error:
        return os_failure(error, "restore", ".")


class _Restore:
    """One restore. `_folders` are the directories that the run created, `_new_files` the names of its new files."""

    def __init__(self, journal: Journal, workspace: Workspace, root_fd: int, run: str, from_step: int) -> None:
        self._journal = journal
        self._workspace = workspace
        self._root_fd = root_fd
        self._run = run
        self._from_step = from_step
        self._folders: set[str] = set()
        self._new_files: set[str] = set()
        self._removed: list[str] = []

    def run(self, *, skip_changed: bool, skip_beside_jobs: bool) -> Restored | ToolError:
        changes = self._journal.changes_of(self._run, self._from_step)
        for change in changes:
            self._folders.update(change.folders)

        effects = net_effects(changes)
        beside_jobs = _paths_of(change for change in changes if change.beside_jobs)
        by_others = _paths_of(change for change in changes if not change.beside_jobs)
        self._new_files = {effect.path for effect in effects if effect.kind is ChangeKind.CREATED}
        planned: list[FileEffect] = []
        left: list[LeftFile] = []

        for effect in effects:
            step: FileEffect | LeftFile | None
            if skip_beside_jobs and effect.path not in by_others:
                step = LeftFile(effect.path, Obstacle.BESIDE_JOBS)
            else:
                step = self._plan(effect)

            if isinstance(step, FileEffect):
                planned.append(step)
            elif step is not None:
                left.append(step)

        if left and not skip_changed:
            return _refusal(left)

        failure = self._carry_out(planned)
        if failure is not None:
            return failure

        left_paths = {file.path for file in left}
        reverted = [
            change.token for change in changes if left_paths.isdisjoint(effect.path for effect in change.effects)
        ]
        self._journal.revert(reverted)

        return Restored(
            files=tuple(RestoredFile(effect.path, effect.kind) for effect in planned),
            left=tuple(left),
            removed=tuple(self._removed),
            steps=tuple(sorted({change.step for change in changes})),
            cut_off=tuple(self._journal.commands(self._run, self._from_step, cut_off=True)),
            beside_jobs=tuple(effect.path for effect in planned if effect.path in beside_jobs),
        )

    def _plan(self, effect: FileEffect) -> FileEffect | LeftFile | None:
        path = effect.path
        step = restoring_effect(effect, self._state(effect))
        if not isinstance(step, FileEffect):
            return step

        denial = self._workspace.denied(path, for_write=True)
        if denial is not None and denial.code is ToolErrorCode.PERMISSION_DENIED:
            return LeftFile(path, Obstacle.DENIED, denial.message)

        with suppress(OSError):
            if status_beneath(self._root_fd, path.split("/")).st_size > LARGEST_BACKUP:
                return LeftFile(path, Obstacle.TOO_LARGE)

        if step.after.sha256 and self._stored_bytes(path, step.after.sha256) is None:
            return LeftFile(path, Obstacle.BACKUP_MISSING)

        return step

    def _state(self, effect: FileEffect) -> FileState | str:
        """Return the state at the path, "no file" if only things that the run created are in the way."""
        state = state_at(self._root_fd, effect.path)
        if state == A_DIRECTORY:
            is_free = effect.path in self._folders and not self._holds_other_files(effect.path)
        elif state == BELOW_A_FILE:
            is_free = not self._new_files.isdisjoint(folders_above(effect.path))
        else:
            return state

        if is_free or not effect.before.sha256:
            return FileState()

        return state

    def _holds_other_files(self, path: str) -> bool:
        for folder, _, names, _ in os.fwalk(path, dir_fd=self._root_fd):
            if any(f"{folder}/{name}" not in self._new_files for name in names):
                return True

        return False

    def _stored_bytes(self, path: str, sha256: str) -> bytes | None:
        """Return the bytes with this hash from the journal, or from the file itself if only its mode has changed."""
        data = self._journal.backup(sha256)
        if data is not None:
            return data

        with suppress(OSError):
            descriptor, _ = open_regular(self._root_fd, path.split("/"), os.O_RDONLY)
            with os.fdopen(descriptor, "rb") as stream:
                data = stream.read()

            if hashlib.sha256(data).hexdigest() == sha256:
                return data

        return None

    def _carry_out(self, planned: Sequence[FileEffect]) -> ToolError | None:
        needed: set[str] = set()
        for effect in planned:
            if effect.after.sha256:
                needed.update(folders_above(effect.path))

        innermost_first = sorted(self._folders - needed, key=lambda name: (-name.count("/"), name))
        failure = self._remove(innermost_first)  # a restore that was killed may have emptied them
        if failure is not None or not planned:
            return failure

        # Each restore is a call of its own, so that its changes differ from those of the run.
        execution = f"{UNDO_TOOL}-{secrets.token_hex(8)}"
        fingerprint = call_fingerprint(UNDO_TOOL, {"run": self._run, "from_step": self._from_step})
        key = CallKey(self._run, execution, self._from_step, 0, UNDO_TOOL, UNDO_EFFECT, fingerprint)
        call = self._journal.begin(key)
        workspace = self._workspace.recorded(self._journal.recorder(call))
        restored = 0

        for phase in _phases(planned):
            for batch in batches_of(map(self._change, phase)):
                done = workspace.change_files(batch)
                if isinstance(done, ToolError):
                    return _with_restored(done, restored)

                restored += len(batch)

            failure = self._remove(innermost_first)
            if failure is not None:
                return _with_restored(failure, restored)

        self._journal.end(call, json.dumps({"restored": restored}))
        return None

    def _change(self, effect: FileEffect) -> Change:
        now = effect.before.sha256
        sha256, mode = effect.after
        if not sha256:
            return DeleteFile(effect.path, now, even_read_only=True)

        data = self._stored_bytes(effect.path, sha256)
        if data is None:
            raise StoreError(
                f"The backup of {quoted(effect.path)} is missing or damaged, so the file cannot be restored."
            )

        return WriteFile(effect.path, data, now, mode, even_read_only=True)

    def _remove(self, folders: Sequence[str]) -> ToolError | None:
        """Remove the empty ones of these directories."""
        for name in folders:
            *above, last = name.split("/")
            try:
                with closing(open_directory(self._root_fd, above)) as parent:
                    os.rmdir(last, dir_fd=parent)
                    self._removed.append(name)
                    sync_folder(parent)
            except OSError as error:
                if error.errno not in _STAYS:
                    return os_failure(error, "delete", name)

        return None


def _paths_of(changes: Iterable[RecordedChange]) -> set[str]:
    return {effect.path for change in changes for effect in change.effects}


def state_at(root_fd: int, path: str) -> FileState | str:
    """Return the state of the file at a real name below the root, or a description of what is there instead."""
    try:
        return read_state(root_fd, path.split("/"))[0]
    except FileNotFoundError:
        return FileState()
    except NotADirectoryError:
        return BELOW_A_FILE
    except IsADirectoryError:
        return A_DIRECTORY
    except OSError as error:
        if error.errno == errno.ESTALE:
            return "it is a symbolic link now, or reached through one"
        return os_failure(error, "read", path).message


def _phases(effects: Sequence[FileEffect]) -> list[list[FileEffect]]:
    """Return the effects in one phase, or deletions first if a file is in the way of another one."""
    names = {effect.path for effect in effects}
    if all(names.isdisjoint(folders_above(name)) for name in names):
        return [list(effects)]

    deletions = [effect for effect in effects if effect.kind is ChangeKind.DELETED]
    others = [effect for effect in effects if effect.kind is not ChangeKind.DELETED]
    return [deletions, others]


def batches_of(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Yield the changes in batches that can each be made at once."""
    batch: list[Change] = []
    size = 0

    for change in changes:
        batch.append(change)
        if isinstance(change, WriteFile):
            size += len(change.data)

        if len(batch) == MOST_CHANGES or size >= MOST_BYTES:
            yield batch
            batch = []
            size = 0

    if batch:
        yield batch


def change_in_batches(workspace: Workspace, changes: Iterable[Change]) -> ToolError | None:
    """Make the changes, each batch of them at once."""
    for batch in batches_of(changes):
        done = workspace.change_files(batch)
        if isinstance(done, ToolError):
            return done

    return None


# --- Messages


def failed_work_message(restored: Sequence[str], left: Sequence[LeftFile], commands: Collection[str], run: str) -> str:
    """Return the sentence of an outcome about files that were restored to their state before the turn."""
    message = "The files are as they were"
    if left:
        message += f", but for {'; '.join(f'{quoted(file.path)} ({file.why})' for file in left)}"

    message += f"; the attempt is kept: mendgraph apply {short_id(run)}" if restored else "."
    if commands:
        message += f". What {', '.join(sorted({*commands}))} did elsewhere stays."

    return message


def _refusal(left: Sequence[LeftFile]) -> ToolError:
    reasons: list[str] = []
    for obstacle in Obstacle:
        names = [_name_with_detail(file) for file in left if file.obstacle is obstacle]
        if names:
            reasons.append(f"{obstacle}: {listed(names)}.")

    code = ToolErrorCode.CONFLICT
    if len(reasons) == 1:
        code = _CODES.get(left[0].obstacle, code)

    remedy = "Review these files. With skip_changed, they stay as they are and all others are restored."
    return ToolError(
        code=code,
        message=f"Nothing was restored. {' '.join(reasons)} {remedy}",
        suggestions=tuple(file.path for file in left),
    )


def _name_with_detail(file: LeftFile) -> str:
    if not file.detail:
        return quoted(file.path)
    return f"{quoted(file.path)} ({file.detail.rstrip('.')})"


def _with_restored(error: ToolError, restored: int) -> ToolError:
    if not restored:
        return error

    message = f"{error.message} Files that were restored before that: {restored}. Undo again to continue."
    return error.model_copy(update={"message": message})
