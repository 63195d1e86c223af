"""Restores files to their state before a run, or before one of its steps.

All changes of a run to one path count as one effect: from its state before the first to its state after the last.
Nothing is done where somebody else has changed one of the files since. Files are restored in changes that are recorded
like those of a run, so that a restore after a kill continues the one before.
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
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

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
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.journal.journal import UNDO_EFFECT, CallKey, Journal, call_fingerprint
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.language.display import listed, short_id
from mendgraph.nodes.records import ChangeKind, ToolError, ToolErrorCode, os_failure, quoted

NO_FILE: Final = FileState()
A_DIRECTORY: Final = "it is a directory now"
BELOW_A_FILE: Final = "a part of its path is a file now"

PathState: TypeAlias = FileState | str
"""The file at a path, or that there is none; or in words what is there instead."""


def state_at(root_fd: int, path: str) -> PathState:
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


def stored_bytes(journal: Journal, root_fd: int, path: str, sha256: str) -> bytes | None:
    """The bytes with this hash from the journal, else from the file at the path; None where neither has them."""
    data = journal.backup(sha256)
    if data is not None:
        return data

    with suppress(OSError):
        descriptor, _ = open_regular(root_fd, path.split("/"), os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            data = stream.read()

        if hashlib.sha256(data).hexdigest() == sha256:
            return data

    return None


class NetEffect(NamedTuple):
    """The effect of a run on one path. `gap`: between two of its changes somebody else changed the file."""

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
    """The steps of a restore, by path. Where files and directories change places, deletions are a phase of their own.

    `directories` are those that the run created, innermost first: the empty ones are removed after each phase. The
    files in `left` are not restored.
    """

    phases: tuple[tuple[RestoreStep, ...], ...]
    directories: tuple[str, ...]
    left: tuple[LeftFile, ...]


def net_effects(changes: Sequence[RecordedChange]) -> tuple[NetEffect, ...]:
    """The effect of these changes of a run, newest first, on each path; sorted, without those that cancel out."""
    by_path: dict[str, NetEffect] = {}

    for change in reversed(changes):
        for effect in change.effects:
            earlier = by_path.get(effect.path, NetEffect(effect.path, effect.before, effect.before))
            gap = earlier.gap or not _may_be_one(earlier.after, effect.before)
            by_path[effect.path] = NetEffect(effect.path, earlier.before, effect.after, gap)

    return tuple(effect for _, effect in sorted(by_path.items()) if _has_effect(effect))


def _has_effect(effect: NetEffect) -> bool:
    return effect.before.mode != effect.after.mode or not is_state(effect.after, effect.before)


def is_state(now: FileState, goal: FileState) -> bool:
    """Whether a file has the goal's state, as far as both are known."""
    return UNKNOWN_SHA256 not in (now.sha256, goal.sha256) and _may_be_one(now, goal)


def _may_be_one(one: FileState, other: FileState) -> bool:
    if UNKNOWN_SHA256 not in (one.sha256, other.sha256) and one.sha256 != other.sha256:
        return False
    return one.mode is None or other.mode is None or one.mode & PERMISSION_BITS == other.mode & PERMISSION_BITS


def restore_plan(
    changes: Sequence[RecordedChange],
    states: Mapping[str, PathState],
    refused: Callable[[RestoreStep], LeftFile | None] = lambda _: None,
) -> RestorePlan:
    """How to revert these changes of a run, newest first.

    Args:
        changes: the changes, newest first.
        states: the present state of each path that they concern.
        refused: why a step cannot be taken for a reason that `states` do not show.
    """
    folders: set[str] = set()
    for change in changes:
        folders.update(change.folders)

    effects = net_effects(changes)
    added = {effect.path for effect in effects if effect.after.sha256 and not effect.before.sha256}
    steps: list[RestoreStep] = []
    left: list[LeftFile] = []

    for effect in effects:
        now = _state(effect, states[effect.path], added, folders)
        if isinstance(now, FileState) and is_state(now, effect.before):
            continue

        step = RestoreStep(effect.path, now if isinstance(now, FileState) else NO_FILE, effect.before)
        obstacle = _obstacle(effect, now) or refused(step)
        if obstacle is None:
            steps.append(step)
        else:
            left.append(obstacle)

    needed: set[str] = set()
    for step in steps:
        if step.goal.sha256:
            needed.update(folders_above(step.path))

    directories = sorted(folders - needed, key=lambda name: (-name.count("/"), name))
    return RestorePlan(_phases(steps), tuple(directories), tuple(left))


def _phases(steps: Sequence[RestoreStep]) -> tuple[tuple[RestoreStep, ...], ...]:
    """The steps in one phase, or deletions first where a file is in the way of another one."""
    names = {step.path for step in steps}
    if all(names.isdisjoint(folders_above(name)) for name in names):
        phases = [tuple(steps)]
    else:
        deletions = tuple(step for step in steps if not step.goal.sha256)
        others = tuple(step for step in steps if step.goal.sha256)
        phases = [deletions, others]

    return tuple(phase for phase in phases if phase)


def _state(effect: NetEffect, now: PathState, added: Collection[str], folders: Collection[str]) -> PathState:
    """The state of the path, or no file where only what the run created is in its way."""
    if now == A_DIRECTORY:
        free = effect.path in folders
    elif now == BELOW_A_FILE:
        free = any(folder in added for folder in folders_above(effect.path))
    else:
        return now

    if free or not effect.before.sha256:
        return NO_FILE

    return now


def _obstacle(effect: NetEffect, now: PathState) -> LeftFile | None:
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
"""Bytes of one change: all of it is in memory, together with what it replaces."""

_STAYS: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ESTALE, errno.EBUSY, errno.EACCES, errno.EPERM}
)
"""Why a directory is not removed: it is in use, not empty, or something else is there. Source: rmdir(2)."""


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
        with closing(open_root(workspace.root)) as root, journal.connected():
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
        self._states = {effect.path: state_at(self._root_fd, effect.path) for effect in effects}
        self._added = {effect.path for effect in effects if not effect.before.sha256}
        plan = restore_plan(changes, self._states, self._refused)
        if plan.left and not skip_changed:
            return _refusal(plan.left)

        failure = self._carry_out(plan)
        if failure is not None:
            return failure

        left_paths = {file.path for file in plan.left}
        reverted = [
            change.token for change in changes if left_paths.isdisjoint(effect.path for effect in change.effects)
        ]
        self._journal.revert(reverted)
        restored = [RestoredFile(step.path, step.kind) for step in chain.from_iterable(plan.phases)]

        return Restored(
            files=tuple(sorted(restored)),
            left=plan.left,
            removed=tuple(self._removed),
            steps=tuple(sorted({change.step for change in changes})),
            cut_off=tuple(self._journal.commands(self._run, self._from_step, cut_off=True)),
        )

    def _refused(self, step: RestoreStep) -> LeftFile | None:
        denial = self._workspace.denied(step.path, for_write=True)
        if denial is not None and denial.code is ToolErrorCode.PERMISSION_DENIED:
            return LeftFile(step.path, Obstacle.DENIED, denial.message)

        with suppress(OSError):
            if status_beneath(self._root_fd, step.path.split("/")).st_size > LARGEST_BACKUP:
                return LeftFile(step.path, Obstacle.TOO_LARGE)

        if self._states[step.path] == A_DIRECTORY and self._holds_others(step.path):
            return LeftFile(step.path, Obstacle.CHANGED_SINCE, A_DIRECTORY)
        if step.goal.sha256 and stored_bytes(self._journal, self._root_fd, step.path, step.goal.sha256) is None:
            return LeftFile(step.path, Obstacle.BACKUP_MISSING)

        return None

    def _holds_others(self, path: str) -> bool:
        """Whether the directory has files that are not the run's."""
        for folder, _, names, _ in os.fwalk(path, dir_fd=self._root_fd):
            if any(f"{folder}/{name}" not in self._added for name in names):
                return True

        return False

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
            for batch in batches_of(self._changes(steps)):
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
            now = step.now.sha256
            sha256, mode = step.goal
            if not sha256:
                yield DeleteFile(step.path, now, even_read_only=True)
                continue

            data = stored_bytes(self._journal, self._root_fd, step.path, sha256)
            if data is None:
                raise StoreError(f"The backup of {quoted(step.path)} is gone or damaged: nothing can bring it back.")

            yield WriteFile(step.path, data, now, mode, even_read_only=True)

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


def batches_of(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes in parts that can each be made at once."""
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


def words_of_failed_work(restored: Sequence[str], left: Sequence[LeftFile], commands: Collection[str], run: str) -> str:
    """The sentence of an outcome about files that are restored to their state before the turn, and about the others."""
    message = "The files are as they were"
    if left:
        message += f", but for {'; '.join(f'{quoted(file.path)} ({file.why})' for file in left)}"

    message += f"; the attempt is kept: mendgraph apply {short_id(run)}" if restored else "."
    if commands:
        message += f". What {', '.join(sorted({*commands}))} did elsewhere stays."

    return message


def _refusal(left: Sequence[LeftFile]) -> ToolError:
    by_obstacle: dict[Obstacle, list[LeftFile]] = {}
    for obstacle in Obstacle:
        files = [file for file in left if file.obstacle is obstacle]
        if files:
            by_obstacle[obstacle] = files

    code = ToolErrorCode.CONFLICT
    if len(by_obstacle) == 1:
        code = _CODES.get(next(iter(by_obstacle)), code)

    reasons = " ".join(f"{obstacle}: {_names(files)}." for obstacle, files in by_obstacle.items())
    remedy = "Look at what is there. With skip_changed all other files are restored, and these stay as they are."
    return ToolError(
        code=code,
        message=f"Nothing was restored. {reasons} {remedy}",
        suggestions=tuple(file.path for file in left),
    )


_CODES: Final = {Obstacle.DENIED: ToolErrorCode.PERMISSION_DENIED, Obstacle.BACKUP_MISSING: ToolErrorCode.IO_ERROR}


def _names(left: Sequence[LeftFile]) -> str:
    return listed(map(_name_with_detail, left))


def _name_with_detail(file: LeftFile) -> str:
    if not file.detail:
        return quoted(file.path)
    return f"{quoted(file.path)} ({file.detail.rstrip('.')})"


def _with_restored(error: ToolError, restored: int) -> ToolError:
    if not restored:
        return error

    message = f"{error.message} Files that were restored before that: {restored}. Undo again to go on."
    return error.model_copy(update={"message": message})


def taken_back(journal: Journal, run: str, step: int | None = None) -> tuple[FileEffect, ...]:
    """The effects of the last restore of the run's files (from this step on), by path; none where nothing was restored.

    Raises StoreError: the journal cannot be read.
    """
    changes = [change for change in journal.taken_back(run) if step in {None, change.step}]
    return tuple(FileEffect(effect.path, effect.before, effect.after) for effect in net_effects(changes))
