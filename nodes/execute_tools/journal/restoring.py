"""Files become again what they were before a run, or before one of its steps: time travel for the workspace.

All that a run did to one path counts as one: how the path was before the first change, and how the last one left it.
Nothing is done where somebody else has changed one of the files since. They are restored in changes that are recorded
like those of a run, so that whoever restores again after a kill goes on.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.edits.patches import PatchError, apply_hunks, hunks_between
from mendgraph.nodes.execute_tools.files.atomic_write import PERMISSION_BITS, sync_folder
from mendgraph.nodes.execute_tools.files.change_records import (
    UNKNOWN_SHA256,
    FileEffect,
    FileState,
    RecordedChange,
    folders_above,
)
from mendgraph.nodes.execute_tools.files.file_changes import LARGEST_BACKUP, MOST_CHANGES, Change, DeleteFile, WriteFile
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_regular, open_root, status_beneath
from mendgraph.nodes.execute_tools.files.text_files import decode_text, encode_text
from mendgraph.nodes.execute_tools.files.workspace import DryWorkspace, FileContent, Workspace
from mendgraph.nodes.execute_tools.journal.journal import UNDO_EFFECT, CallKey, Journal, call_fingerprint
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.language.display import listed, short_id
from mendgraph.nodes.records import ChangeKind, Effect, ToolError, ToolErrorCode, os_failure, quoted

NO_FILE: Final = FileState()
A_DIRECTORY: Final = "it is a directory now"
BELOW_A_FILE: Final = "a part of its path is a file now"

Found: TypeAlias = FileState | str
"""What is at a path now: a file, or that nothing is there; or else in words what is there instead."""


def found_at(root_fd: int, path: str) -> Found:
    """The file at the path, or what is there instead. `path` is a real name relative to the root."""
    try:
        descriptor, status = open_regular(root_fd, path.split("/"), os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            return FileState(hashlib.file_digest(stream, "sha256").hexdigest(), stat.S_IMODE(status.st_mode))
    except FileNotFoundError:
        return NO_FILE
    except NotADirectoryError:
        return BELOW_A_FILE
    except IsADirectoryError:
        return A_DIRECTORY
    except OSError as error:
        a_link = "it is a symbolic link now, or reached through one"
        if error.errno == errno.ESTALE:
            return a_link
        return os_failure(error, "read", path).message


def kept_bytes(journal: Journal, root_fd: int, path: str, sha256: str) -> bytes | None:
    """The bytes with this hash that the journal has kept, or that the file at the path still holds; None without."""
    data = journal.backup(sha256)
    with suppress(OSError):
        if data is None:
            with os.fdopen(open_regular(root_fd, path.split("/"), os.O_RDONLY)[0], "rb") as stream:
                data = stream.read()

    if data is not None and hashlib.sha256(data).hexdigest() == sha256:
        return data

    return None


class NetEffect(NamedTuple):
    """What a run did to one path in all. `gap`: between two of its changes somebody else changed the file."""

    path: str
    before: FileState
    after: FileState
    gap: bool = False


class Obstacle(StrEnum):
    """Why a file cannot be restored, in the words of messages."""

    CHANGED_SINCE = "Changed since the run"
    CHANGED_BETWEEN = "Changed also between two recorded changes of the run"
    NOT_KEPT = "Changed by a command or tool, and what it held was not recorded"
    TOO_LARGE = "Too large to be replaced"
    BACKUP_MISSING = "The backup is missing or damaged"
    DENIED = "May not be written"


class LeftFile(NamedTuple):
    """A file that is not restored; `detail` says more than the obstacle does, or is ""."""

    path: str
    obstacle: Obstacle
    detail: str = ""

    @property
    def why(self) -> str:
        """The reason as one phrase."""
        if self.detail:
            return f"{self.obstacle}: {self.detail}"
        return str(self.obstacle)


class RestoreStep(NamedTuple):
    """One file goes from how it is `now` to its `goal`."""

    path: str
    now: FileState
    goal: FileState

    @property
    def kind(self) -> ChangeKind:
        """What happens to the file: it is made again, gets its bytes and mode back, or goes away."""
        if not self.now.sha256:
            return ChangeKind.CREATED
        if self.goal.sha256:
            return ChangeKind.EDITED

        return ChangeKind.DELETED


class RestorePlan(NamedTuple):
    """What to do, by path. Where files and directories change places, deletions are a phase of their own.

    `directories` are those that the run made, innermost first: they go where they are empty, after each phase. `left`
    is not restored.
    """

    phases: tuple[tuple[RestoreStep, ...], ...]
    directories: tuple[str, ...]
    left: tuple[LeftFile, ...]


def net_effects(changes: Sequence[RecordedChange]) -> tuple[NetEffect, ...]:
    """What these changes of a run, newest first, did to each path in all; sorted, without what came to nothing."""
    effects_by_path: dict[str, NetEffect] = {}

    for effect in (effect for change in reversed(changes) for effect in change.effects):
        earlier = effects_by_path.get(effect.path, NetEffect(effect.path, effect.before, effect.before))
        gap = earlier.gap or not _may_be_one(earlier.after, effect.before)
        effects_by_path[effect.path] = NetEffect(effect.path, earlier.before, effect.after, gap)

    effects = (effects_by_path[path] for path in sorted(effects_by_path))
    return tuple(
        each for each in effects if each.before.mode != each.after.mode or not is_state(each.after, each.before)
    )


def is_state(now: FileState, wanted: FileState) -> bool:
    """Whether a file is as it is wanted, as far as that is known."""
    return UNKNOWN_SHA256 not in (now.sha256, wanted.sha256) and _may_be_one(now, wanted)


def _may_be_one(one: FileState, other: FileState) -> bool:
    if UNKNOWN_SHA256 not in (one.sha256, other.sha256) and one.sha256 != other.sha256:
        return False
    return one.mode is None or other.mode is None or one.mode & PERMISSION_BITS == other.mode & PERMISSION_BITS


def restore_plan(
    changes: Sequence[RecordedChange],
    found: Mapping[str, Found],
    refused: Callable[[RestoreStep], LeftFile | None] = lambda _: None,
) -> RestorePlan:
    """How to take back these changes of a run, newest first. `found` is what is there now, by each path they concern.

    `refused` says why a step cannot be taken for a reason that is not to be seen here.
    """
    folders_made = {name for change in changes for name in change.made}
    effects = net_effects(changes)
    goes = {effect.path for effect in effects if effect.after.sha256 and not effect.before.sha256}
    steps: list[RestoreStep] = []
    left_files: list[LeftFile] = []

    for effect in effects:
        now = _state(effect, found[effect.path], goes, folders_made)
        if isinstance(now, FileState) and is_state(now, effect.before):
            continue

        obstacle = _obstacle(effect, now)
        step = RestoreStep(effect.path, now if isinstance(now, FileState) else NO_FILE, effect.before)
        obstacle = obstacle or refused(step)

        if obstacle is None:
            steps.append(step)
        else:
            left_files.append(obstacle)

    names = {step.path for step in steps}
    phases = [steps]

    if not all(names.isdisjoint(folders_above(name)) for name in names):
        phases = [
            [restore_step for restore_step in steps if bool(restore_step.goal.sha256) is comes]
            for comes in (False, True)
        ]

    needed = {folder for step in steps if step.goal.sha256 for folder in folders_above(step.path)}
    directories = sorted(folders_made - needed, key=lambda name: (-name.count("/"), name))
    return RestorePlan(tuple(map(tuple, filter(None, phases))), tuple(directories), tuple(left_files))


def _state(effect: NetEffect, found: Found, goes: Collection[str], made: Collection[str]) -> Found:
    """What is at the path, or that nothing is in its way once what the run made there is gone."""
    if found == A_DIRECTORY:
        free = effect.path in made
    elif found == BELOW_A_FILE:
        free = any(folder in goes for folder in folders_above(effect.path))
    else:
        return found

    if free or not effect.before.sha256:
        return NO_FILE

    return found


def _obstacle(effect: NetEffect, now: Found) -> LeftFile | None:
    if UNKNOWN_SHA256 in (effect.before.sha256, effect.after.sha256):
        return LeftFile(effect.path, Obstacle.NOT_KEPT)
    if isinstance(now, str):
        return LeftFile(effect.path, Obstacle.CHANGED_SINCE, now)
    if not is_state(now, effect.after):
        return LeftFile(effect.path, Obstacle.CHANGED_SINCE)
    if effect.gap:
        return LeftFile(effect.path, Obstacle.CHANGED_BETWEEN)

    return None


UNDO_TOOL: Final = "undo"

MOST_BYTES: Final = 50_000_000
"""Of one change: all of it is held in memory, together with what it replaces."""

_STAYS: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ESTALE, errno.EBUSY, errno.EACCES, errno.EPERM}
)
"""Why a directory is not taken away: somebody needs it, holds it, or has put something else there. Source: rmdir(2)."""


class RestoredFile(NamedTuple):
    """A file that is as it was. CREATED is one that was made again, DELETED one that the run had made."""

    path: str
    kind: ChangeKind


class Restored(NamedTuple):
    """What was done. `left` are files that stay as they are, `removed` directories, `steps` those taken back.

    `cut_off` are the tools that ran programs and never ended: what these changed nobody knows, so it stays.
    """

    files: tuple[RestoredFile, ...] = ()
    left: tuple[LeftFile, ...] = ()
    removed: tuple[str, ...] = ()
    steps: tuple[int, ...] = ()
    cut_off: tuple[str, ...] = ()


def restore(
    journal: Journal, workspace: Workspace, run: str, from_step: int = 0, *, skip_changed: bool = False
) -> Restored | ToolError:
    """Give each file that the run changed from this step on the bytes and permission bits that it had before.

    Directories that the run made go away where they are empty. A file that somebody else has changed, that may not be
    written or whose old bytes are not at hand is an error that names it, and nothing is changed; with `skip_changed`
    it stays as it is, and the others are restored. Whoever calls holds the workspace's lock, and what an
    earlier process left open is recovered.

    Returns:
        What was restored, or CONFLICT, PERMISSION_DENIED or IO_ERROR. After an error in the middle, which says so, and
        after a kill the same call goes on.
    """
    try:
        with closing(open_root(workspace.root)) as root, journal.held():
            return _Restoring(journal, workspace, root, run, from_step).run(skip_changed=skip_changed)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))
    except OSError as error:
        return os_failure(error, "restore", ".")


class _Restoring:
    def __init__(self, journal: Journal, workspace: Workspace, root_fd: int, run: str, from_step: int) -> None:
        self._journal = journal
        self._workspace = workspace
        self._root_fd = root_fd
        self._run = run
        self._from_step = from_step
        self._removed: list[str] = []

    def run(self, *, skip_changed: bool) -> Restored | ToolError:
        changes = self._journal.changes_of(self._run, self._from_step)
        effects = net_effects(changes)
        self._found = {effect.path: found_at(self._root_fd, effect.path) for effect in effects}
        self._goes = {effect.path for effect in effects if not effect.before.sha256}
        plan = restore_plan(changes, self._found, self._refused)

        if plan.left and not skip_changed:
            return _refusal(plan.left)
        if (failure := self._carry_out(plan)) is not None:
            return failure

        left_paths = {left_file.path for left_file in plan.left}
        self._journal.revert(
            [change.token for change in changes if left_paths.isdisjoint(e.path for e in change.effects)]
        )

        return Restored(
            tuple(sorted(RestoredFile(step.path, step.kind) for phase in plan.phases for step in phase)),
            plan.left,
            tuple(self._removed),
            tuple(sorted({change.step for change in changes})),
            tuple(self._journal.commands(self._run, self._from_step, cut_off=True)),
        )

    def _refused(self, step: RestoreStep) -> LeftFile | None:
        denial = self._workspace.denied(step.path, for_write=True)
        if denial is not None and denial.code is ToolErrorCode.PERMISSION_DENIED:
            return LeftFile(step.path, Obstacle.DENIED, denial.message)

        with suppress(OSError):
            if status_beneath(self._root_fd, step.path.split("/")).st_size > LARGEST_BACKUP:
                return LeftFile(step.path, Obstacle.TOO_LARGE)

        if self._found[step.path] == A_DIRECTORY and self._holds_others(step.path):
            return LeftFile(step.path, Obstacle.CHANGED_SINCE, A_DIRECTORY)
        if step.goal.sha256 and kept_bytes(self._journal, self._root_fd, step.path, step.goal.sha256) is None:
            return LeftFile(step.path, Obstacle.BACKUP_MISSING)

        return None

    def _holds_others(self, path: str) -> bool:
        """Whether the directory has files that are not the run's."""
        below = os.fwalk(path, dir_fd=self._root_fd)
        return any(f"{folder}/{name}" not in self._goes for folder, _, names, _ in below for name in names)

    def _carry_out(self, plan: RestorePlan) -> ToolError | None:
        failure = self._remove(plan.directories)  # an undo that was cut off may have emptied them
        if failure is not None or not plan.phases:
            return failure

        # A call of its own for each undo, so that what it changes is told apart from what the run did.
        execution = f"{UNDO_TOOL}-{secrets.token_hex(8)}"
        fingerprint = call_fingerprint(UNDO_TOOL, {"run": self._run, "from_step": self._from_step})
        key = CallKey(self._run, execution, self._from_step, 0, UNDO_TOOL, UNDO_EFFECT, fingerprint)
        call = self._journal.begin(key)
        workspace = self._workspace.recorded(self._journal.recorder(call))
        restored = 0

        for steps in plan.phases:
            for batch in _batches(self._changes(steps)):
                done = workspace.change_files(batch)
                if isinstance(done, ToolError):
                    return _with_restored(done, restored)

                restored += len(batch)

            if (failure := self._remove(plan.directories)) is not None:
                return _with_restored(failure, restored)

        self._journal.end(call, json.dumps({"restored": restored}))
        return None

    def _changes(self, steps: Sequence[RestoreStep]) -> Iterator[Change]:
        for step in steps:
            goal_sha256, mode = step.goal
            now = step.now.sha256

            if goal_sha256:
                data = kept_bytes(self._journal, self._root_fd, step.path, goal_sha256)
            else:
                data = b""

            if data is None:
                raise StoreError(f"The backup of {quoted(step.path)} is gone or damaged: nothing can bring it back.")

            replaced = WriteFile(step.path, data, now, mode, even_read_only=True)
            yield replaced if goal_sha256 else DeleteFile(step.path, now, even_read_only=True)

    def _remove(self, directories: Sequence[str]) -> ToolError | None:
        """Take away those of the directories that are empty; what is there no more, or is used by now, is no error."""
        for name in directories:
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


def _batches(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes in parts that can each be made at once."""
    batch: list[Change] = []
    size = 0

    for change in changes:
        batch.append(change)
        size += len(change.data) if isinstance(change, WriteFile) else 0

        if len(batch) == MOST_CHANGES or size >= MOST_BYTES:
            yield batch
            batch = []
            size = 0

    if batch:
        yield batch


def words_of_failed_work(restored: Sequence[str], left: Sequence[LeftFile], commands: Collection[str], run: str) -> str:
    """What an outcome says of files that are as they were before the turn, and of what is not."""
    if left:
        but = f", but for {'; '.join(f'{quoted(left_file.path)} ({left_file.why})' for left_file in left)}"
    else:
        but = ""

    message = f"The files are as they were{but}"
    message += f"; the attempt is kept: mendgraph apply {short_id(run)}" if restored else "."
    return message + (f". What {', '.join(sorted({*commands}))} did elsewhere stays." if commands else "")


def _refusal(left: Sequence[LeftFile]) -> ToolError:
    obstacles = sorted({left_file.obstacle for left_file in left}, key=list(Obstacle).index)
    code = ToolErrorCode.CONFLICT
    if len(obstacles) == 1:
        code = _CODES.get(obstacles[0], code)

    obstacle = " ".join(f"{each}: {_names([file for file in left if file.obstacle is each])}." for each in obstacles)
    remedy = "Look at what is there. With skip_changed all other files are restored, and these stay as they are."

    return ToolError(
        code=code,
        message=f"Nothing was restored. {obstacle} {remedy}",
        suggestions=tuple(left_file.path for left_file in left),
    )


_CODES: Final = {Obstacle.DENIED: ToolErrorCode.PERMISSION_DENIED, Obstacle.BACKUP_MISSING: ToolErrorCode.IO_ERROR}


def _names(left: Sequence[LeftFile]) -> str:
    return listed(
        quoted(left_file.path) + (f" ({left_file.detail.rstrip('.')})" if left_file.detail else "")
        for left_file in left
    )


def _with_restored(error: ToolError, restored: int) -> ToolError:
    if not restored:
        return error

    message = f"{error.message} Files that were restored before that: {restored}. Undo again to go on."
    return error.model_copy(update={"message": message})


# --- What was taken back, made again

APPLY_TOOL: Final = "apply"


def taken_back(journal: Journal, run: str, step: int | None = None) -> tuple[FileEffect, ...]:
    """How the run's files were last restored (from this step on), path by path; none where nothing was.

    Raises StoreError: the journal cannot be read.
    """
    changes = [change for change in journal.taken_back(run) if step in {None, change.step}]
    return tuple(FileEffect(effect.path, effect.before, effect.after) for effect in net_effects(changes))


def apply_again(journal: Journal, workspace: Workspace, run: str) -> tuple[RestoredFile, ...] | ToolError:
    """Change the files as they are now in the way that was taken back of the run: all of them, or none.

    A file that has not changed since gets the very bytes; in another one each hunk has to fit in one place, to the
    letter. It is recorded as a change of the run, so that `restore` takes it back. Whoever calls holds the workspace's
    lock.

    Returns:
        The files that were changed, none where all of them hold it already; NOT_FOUND where nothing was taken back,
        CONFLICT for a file that it does not fit, or what else denies or prevents the change. More than 200 files are
        changed in parts: after an error in the middle, which says so, and after a kill the same call goes on.
    """
    try:
        with journal.held():
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

    batches = [*_batches(changes)]
    dry = DryWorkspace.of(workspace)
    for batch in batches if batches[1:] else ():  # one change is all or none by itself; of several the first is not
        if isinstance(refused := dry.change_files(batch), ToolError):
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
    return tuple(RestoredFile(each.path, kinds[each.path]) for each in changes)


def _again(journal: Journal, workspace: Workspace, effect: FileEffect) -> Change | ToolError | None:
    """The change that makes undone what `effect` did; None where that is so already."""
    after, mode = effect.before
    before, old_mode = effect.after
    file = workspace.read_file(effect.path)

    if isinstance(file, ToolError) and file.code is not ToolErrorCode.NOT_FOUND:
        return file

    now = "" if isinstance(file, ToolError) else file.sha256
    if now == after != before:
        return None
    if not after:
        return DeleteFile(effect.path, before)

    data = journal.backup(after)
    if data is not None and isinstance(file, FileContent) and before and now != before:
        merged = _with_hunks(effect.path, journal.backup(before), data, file.data)
        if isinstance(merged, ToolError) or merged == file.data:
            return merged if isinstance(merged, ToolError) else None

        data = merged

    if data is None:
        message = f"What the run made of {quoted(effect.path)} was not kept, or is damaged."
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message)

    return WriteFile(effect.path, data, (now or before) if before else "", None if mode == old_mode else mode)


def _with_hunks(path: str, before: bytes | None, after: bytes, now: bytes) -> bytes | ToolError:
    """What a file holds with the difference of two versions; CONFLICT where it does not fit."""
    old, new, current = (None if content is None else decode_text(content) for content in (before, after, now))
    if old is None or new is None or current is None:
        message = f"{quoted(path)} has changed since, and what was taken back is not text."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)

    patched = apply_hunks(current.text, hunks_between(old.text, new.text), path)
    if isinstance(patched, PatchError) or patched.inexact:
        where = ""
        if isinstance(patched, PatchError):
            where = f" from its line {patched.line} on"

        message = f"{quoted(path)} has changed since, and the change{where} does not fit any more."
        return ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=(path,))

    return encode_text(patched.text, current.form)


def _not_applied(error: ToolError) -> ToolError:
    return error.model_copy(update={"message": f"Nothing was applied. {error.message}"})
