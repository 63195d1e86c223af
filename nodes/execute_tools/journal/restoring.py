"""Files become again what they were before a run, or before one of its steps: time travel for the workspace.

All that a run did to one path counts as one: how the path was before the first change, and how the last one left it.
First it is looked at all files that the run changed, and nothing is done where somebody else has changed one of them
since. Then they are restored in changes that are recorded like those of a run, so that a kill in the middle harms
nothing: whoever restores again goes on. Only when all is done the run's own changes count as taken back.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from mendgraph.nodes.execute_tools.files.atomic_write import PERMISSION_BITS, sync_folder
from mendgraph.nodes.execute_tools.files.change_records import UNKNOWN_SHA256, FileState, RecordedChange, folders_above
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.file_changes import LARGEST_BACKUP, MOST_CHANGES, Change, DeleteFile, WriteFile
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_regular, open_root, status_beneath
from mendgraph.nodes.execute_tools.files.workspace import Workspace
from mendgraph.nodes.execute_tools.journal.journal import UNDO_EFFECT, CallKey, Journal, call_fingerprint
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import ChangeKind, ToolError, ToolErrorCode

MOST_ENTRIES: Final = 10_000
"""Of a directory in the place of a file, which is looked through to tell whether it would be empty."""

NO_FILE: Final = FileState()


class FoundDirectory(NamedTuple):
    """A directory is at the path; all that lies below it, by the names in the workspace."""

    files: frozenset[str]
    directories: frozenset[str]


class FoundAbove(NamedTuple):
    """Nothing can be at the path, because a part of it is a file."""

    file: str


class Unusable(NamedTuple):
    """Something else is there, or it cannot be looked at."""

    why: str


Found: TypeAlias = FileState | FoundDirectory | FoundAbove | Unusable
"""What is at a path now; a `FileState` is a file, or that nothing is there."""


def found_at(root_fd: int, path: str) -> Found:
    """The file at the path, or what is there instead. `path` is a real name relative to the root."""
    parts = path.split("/")
    try:
        descriptor, status = open_regular(root_fd, parts, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            return FileState(hashlib.file_digest(stream, "sha256").hexdigest(), stat.S_IMODE(status.st_mode))
    except FileNotFoundError:
        return NO_FILE
    except NotADirectoryError:
        return _above(root_fd, parts)
    except IsADirectoryError:
        return _below(root_fd, path)
    except OSError as error:
        return _unusable(error, path)


def bytes_at(root_fd: int, path: str) -> bytes | None:
    """All that the file at the path holds; None where it cannot be read."""
    with suppress(OSError):
        descriptor, _ = open_regular(root_fd, path.split("/"), os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read()
    return None


def size_at(root_fd: int, path: str) -> int:
    """How many bytes the file at the path has; 0 where it cannot be told."""
    with suppress(OSError):
        return status_beneath(root_fd, path.split("/")).st_size
    return 0


def _above(root_fd: int, parts: Sequence[str]) -> Found:
    for length in range(1, len(parts)):
        with suppress(OSError):
            if not stat.S_ISDIR(status_beneath(root_fd, parts[:length]).st_mode):
                return FoundAbove("/".join(parts[:length]))
    return Unusable("its directories are being changed at this moment")


def _below(root_fd: int, path: str) -> Found:
    files: set[str] = set()
    directories: set[str] = set()
    try:
        with closing(open_directory(root_fd, path.split("/"))) as here:
            for folder, inner, names, _ in os.fwalk(dir_fd=here, onerror=_raise):
                place = os.path.normpath(os.path.join(path, folder))
                directories.update(f"{place}/{name}" for name in inner)
                files.update(f"{place}/{name}" for name in names)
                if len(files) + len(directories) > MOST_ENTRIES:
                    return Unusable("it is a directory now, which holds very much")
    except OSError as error:
        return _unusable(error, path)
    return FoundDirectory(frozenset(files), frozenset(directories))


def _raise(error: OSError) -> None:
    raise error


def _unusable(error: OSError, path: str) -> Unusable:
    if error.errno == errno.ESTALE:
        return Unusable("it is a symbolic link now, or reached through one")
    return Unusable(os_failure(error, "read", path).message)


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
    NOT_KEPT = "Changed by a command, and what it held was not recorded"
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
        return f"{self.obstacle}: {self.detail}" if self.detail else str(self.obstacle)


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
        return ChangeKind.EDITED if self.goal.sha256 else ChangeKind.DELETED


class RestorePlan(NamedTuple):
    """What to do, all but the directories sorted by path.

    `clearing` are deletions that make room for the `steps`. `directories` are those that the run made, innermost
    first: they go where they are empty, before the steps and after them. `left` is not restored.
    """

    clearing: tuple[RestoreStep, ...]
    steps: tuple[RestoreStep, ...]
    directories: tuple[str, ...]
    left: tuple[LeftFile, ...]

    @property
    def all_steps(self) -> tuple[RestoreStep, ...]:
        """Every step in its order."""
        return self.clearing + self.steps


def net_effects(changes: Sequence[RecordedChange]) -> tuple[NetEffect, ...]:
    """What these changes of a run, newest first, did to each path in all; sorted, without what came to nothing."""
    return tuple(each for each in path_effects(changes[::-1]) if not _is_nothing(each))


def path_effects(changes: Sequence[RecordedChange], bits: int = PERMISSION_BITS) -> tuple[NetEffect, ...]:
    """What these changes, oldest first, did to each path in all, sorted. Of modes only these bits are compared."""
    found: dict[str, NetEffect] = {}
    for effect in (effect for change in changes for effect in change.effects):
        earlier = found.get(effect.path, NetEffect(effect.path, effect.before, effect.before))
        gap = earlier.gap or not _may_be_one(earlier.after, effect.before, bits)
        found[effect.path] = NetEffect(effect.path, earlier.before, effect.after, gap)
    return tuple(found[path] for path in sorted(found))


def restore_plan(
    changes: Sequence[RecordedChange],
    found: Mapping[str, Found],
    refused: Mapping[str, LeftFile] | None = None,
) -> RestorePlan:
    """How to take back these changes of a run, newest first. `found` is what is there now, by each path they concern.

    `refused` are files that would have to be restored, and cannot be for a reason that is not to be seen here.
    """
    refused = refused or {}
    made = frozenset(name for change in changes for name in change.made)
    steps: dict[str, RestoreStep] = {}
    left: dict[str, LeftFile] = {}
    effects = net_effects(changes)
    for effect in sorted(effects, key=lambda effect: not effect.after.sha256):  # what goes away makes room for others
        goes = {path for path, step in steps.items() if step.kind is ChangeKind.DELETED}
        now = _state(effect, found[effect.path], goes, made)
        if isinstance(now, FileState) and is_state(now, effect.before):
            continue
        obstacle = _obstacle(effect, now) or refused.get(effect.path)
        if obstacle is not None:
            left[effect.path] = obstacle
        elif isinstance(now, FileState):
            steps[effect.path] = RestoreStep(effect.path, now, effect.before)
    clearing = _in_the_way(steps)
    needed = {each for path, step in steps.items() if step.goal.sha256 for each in folders_above(path)}
    return RestorePlan(
        tuple(steps[path] for path in sorted(clearing)),
        tuple(steps[path] for path in sorted(steps.keys() - clearing)),
        tuple(sorted(made - needed, key=lambda name: (-name.count("/"), name))),
        tuple(left[path] for path in sorted(left)),
    )


def is_state(now: FileState, wanted: FileState, bits: int = PERMISSION_BITS) -> bool:
    """Whether a file is as it is wanted, as far as that is known; of the mode these bits count."""
    if UNKNOWN_SHA256 in (now.sha256, wanted.sha256):
        return False
    return _may_be_one(now, wanted, bits)


def kept_bytes(journal: Journal, root_fd: int, path: str, sha256: str) -> bytes | None:
    """The bytes with this hash that the journal has kept, or that the file at the path still holds; None without."""
    data = journal.backup(sha256)
    if data is None:
        data = bytes_at(root_fd, path)
    return data if data is not None and hashlib.sha256(data).hexdigest() == sha256 else None


def _may_be_one(one: FileState, other: FileState, bits: int) -> bool:
    if UNKNOWN_SHA256 not in (one.sha256, other.sha256) and one.sha256 != other.sha256:
        return False
    return one.mode is None or other.mode is None or one.mode & bits == other.mode & bits


def _is_nothing(effect: NetEffect) -> bool:
    """Whether the run left the path as it had found it: then it is not the run's to touch."""
    return effect.before.mode == effect.after.mode and is_state(effect.after, effect.before)


def _state(effect: NetEffect, found: Found, goes: set[str], made: frozenset[str]) -> FileState | Unusable:
    """The file at the path, or that none is in its way once the files in `goes` and what held them are gone."""
    if isinstance(found, FileState | Unusable):
        return found
    if not effect.before.sha256:  # whatever it is, it is not the file
        return NO_FILE
    if isinstance(found, FoundAbove):
        return NO_FILE if found.file in goes else Unusable("a part of its path is a file now")
    emptied = found.files <= goes and found.directories | {effect.path} <= made
    return NO_FILE if emptied else Unusable("it is a directory now")


def _obstacle(effect: NetEffect, now: FileState | Unusable) -> LeftFile | None:
    if UNKNOWN_SHA256 in (effect.before.sha256, effect.after.sha256):
        return LeftFile(effect.path, Obstacle.NOT_KEPT)
    if isinstance(now, Unusable):
        return LeftFile(effect.path, Obstacle.CHANGED_SINCE, now.why)
    if not is_state(now, effect.after):
        return LeftFile(effect.path, Obstacle.CHANGED_SINCE)
    return LeftFile(effect.path, Obstacle.CHANGED_BETWEEN) if effect.gap else None


def _in_the_way(steps: Mapping[str, RestoreStep]) -> set[str]:
    """The files that have to go before others can come: they lie where those need a directory, or below them."""
    come = {path for path, step in steps.items() if step.kind is ChangeKind.CREATED}
    above = {each for path in come for each in folders_above(path)}
    return {
        path
        for path, step in steps.items()
        if step.kind is ChangeKind.DELETED and (path in above or not come.isdisjoint(folders_above(path)))
    }


UNDO_TOOL: Final = "undo"

MOST_BYTES: Final = 50_000_000
"""Of one change: all of it is held in memory, together with what it replaces."""

_STAYS: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ESTALE, errno.EBUSY, errno.EACCES, errno.EPERM}
)
"""Why a directory is not taken away: somebody needs it, holds it, or has put something else there. Source: rmdir(2)."""

_NAMED: Final = 5
"""Files that a message names for each obstacle; all of them are among the suggestions."""


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
        self._journal, self._workspace, self._root_fd = journal, workspace, root_fd
        self._run, self._from_step = run, from_step
        self._removed: list[str] = []

    def run(self, *, skip_changed: bool) -> Restored | ToolError:
        changes = self._journal.changes_of(self._run, self._from_step)
        plan = self._plan(changes)
        if plan.left and not skip_changed:
            return _refusal(plan.left)
        failure = self._carry_out(plan)
        if failure is not None:
            return failure
        left = {each.path for each in plan.left}
        done = [change.token for change in changes if not any(effect.path in left for effect in change.effects)]
        self._journal.revert(done)
        return Restored(
            tuple(sorted(RestoredFile(step.path, step.kind) for step in plan.all_steps)),
            plan.left,
            tuple(self._removed),
            tuple(sorted({change.step for change in changes})),
            tuple(self._journal.cut_off_commands(self._run, self._from_step)),
        )

    def _plan(self, changes: Sequence[RecordedChange]) -> RestorePlan:
        found = {effect.path: found_at(self._root_fd, effect.path) for effect in net_effects(changes)}
        plan = restore_plan(changes, found)
        refusals = (self._refused(step, found[step.path]) for step in plan.all_steps)
        refused = {refusal.path: refusal for refusal in refusals if refusal is not None}
        return restore_plan(changes, found, refused) if refused else plan

    def _refused(self, step: RestoreStep, found: Found) -> LeftFile | None:
        denial = self._workspace.denied(step.path, for_write=True)
        makes_room = isinstance(found, FoundAbove)  # the name cannot be looked up yet, and was judged before that
        if denial is not None and not (makes_room and denial.code is ToolErrorCode.INVALID_ARGUMENT):
            return LeftFile(step.path, Obstacle.DENIED, denial.message)
        if size_at(self._root_fd, step.path) > LARGEST_BACKUP:
            return LeftFile(step.path, Obstacle.TOO_LARGE)
        if step.goal.sha256 and kept_bytes(self._journal, self._root_fd, step.path, step.goal.sha256) is None:
            return LeftFile(step.path, Obstacle.BACKUP_MISSING)
        return None

    def _carry_out(self, plan: RestorePlan) -> ToolError | None:
        if not plan.all_steps:
            return self._remove(plan.directories)
        call = self._journal.begin(self._key())
        workspace = self._workspace.recorded(self._journal.recorder(call))
        restored = 0
        for steps in (plan.clearing, plan.steps):
            for batch in self._batches(steps):
                done = workspace.change_files(batch)
                if isinstance(done, ToolError):
                    return _with_restored(done, restored)
                restored += len(batch)
            failure = self._remove(plan.directories)
            if failure is not None:
                return _with_restored(failure, restored)
        self._journal.end(call, json.dumps({"restored": restored}))
        return None

    def _key(self) -> CallKey:
        """A call of its own for each undo, so that what it changes is told apart from what the run did."""
        execution = f"{UNDO_TOOL}-{secrets.token_hex(8)}"
        fingerprint = call_fingerprint(UNDO_TOOL, {"run": self._run, "from_step": self._from_step})
        return CallKey(self._run, execution, self._from_step, 0, UNDO_TOOL, UNDO_EFFECT, fingerprint)

    def _batches(self, steps: Sequence[RestoreStep]) -> Iterator[list[Change]]:
        """The steps as changes of a bounded size each."""
        batch: list[Change] = []
        size = 0
        for step in steps:
            wanted = step.goal.sha256
            data = kept_bytes(self._journal, self._root_fd, step.path, wanted) if wanted else b""
            if data is None:
                raise StoreError(f"The backup of {quoted(step.path)} is gone or damaged: nothing can bring it back.")
            batch.append(_change(step, data))
            size += len(data)
            if len(batch) == MOST_CHANGES or size >= MOST_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

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


def _change(step: RestoreStep, data: bytes) -> Change:
    if not step.goal.sha256:
        return DeleteFile(step.path, step.now.sha256, even_read_only=True)
    return WriteFile(step.path, data, step.now.sha256, step.goal.mode, even_read_only=True)


def _refusal(left: Sequence[LeftFile]) -> ToolError:
    obstacles = sorted({each.obstacle for each in left}, key=list(Obstacle).index)
    code = ToolErrorCode.CONFLICT
    if len(obstacles) == 1:
        code = _CODES.get(obstacles[0], code)
    said = " ".join(f"{each}: {_names([file for file in left if file.obstacle is each])}." for each in obstacles)
    remedy = "Look at what is there. With skip_changed all other files are restored, and these stay as they are."
    return ToolError(
        code=code,
        message=f"Nothing was restored. {said} {remedy}",
        suggestions=tuple(each.path for each in left),
    )


_CODES: Final = {Obstacle.DENIED: ToolErrorCode.PERMISSION_DENIED, Obstacle.BACKUP_MISSING: ToolErrorCode.IO_ERROR}


def _names(left: Sequence[LeftFile]) -> str:
    named = [quoted(each.path) + (f" ({each.detail.rstrip('.')})" if each.detail else "") for each in left[:_NAMED]]
    more = len(left) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _with_restored(error: ToolError, restored: int) -> ToolError:
    if not restored:
        return error
    message = f"{error.message} Files that were restored before that: {restored}. Undo again to go on."
    return error.model_copy(update={"message": message})
