"""A fresh copy of a workspace becomes again as a run has left it elsewhere.

All that was done to one path counts as one: how it was before the first change, and how the last one left it. The copy
has to begin where the run began; what the run was doing when it was cut off is left to the recovery.
"""

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from mendgraph.nodes.execute_tools.files.atomic_write import Role, temporary_name, write_temporary
from mendgraph.nodes.execute_tools.files.change_records import (
    UNKNOWN_SHA256,
    ChangeState,
    FileState,
    RecordedChange,
    folders_above,
)
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import closing, open_directory, open_root
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.journal.restoring import (
    NO_FILE,
    Found,
    FoundAbove,
    FoundDirectory,
    NetEffect,
    found_at,
    is_state,
    kept_bytes,
    path_effects,
)
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder
from mendgraph.nodes.execute_tools.store.run_lock import Owner, WorkspaceLock
from mendgraph.nodes.records import ToolError, ToolErrorCode

_HAPPENED: Final = frozenset({ChangeState.DONE, ChangeState.REVERTED})
_EXECUTABLE: Final = 0o100


class WriteStep(NamedTuple):
    """The file is given the bytes with this hash, and the mode where it is known."""

    path: str
    sha256: str
    mode: int | None


class RebuildPlan(NamedTuple):
    """What is `removed` first, the `directories` that are there then, outermost first, and what is `written` last."""

    removed: tuple[str, ...]
    directories: tuple[str, ...]
    written: tuple[WriteStep, ...]


def rebuild_effects(changes: Sequence[RecordedChange]) -> tuple[NetEffect, ...] | ToolError:
    """What all changes of a workspace, oldest first, did to each path; CONFLICT where that cannot be told."""
    foreign = next((each for each in changes if each.state is ChangeState.FOREIGN), None)
    if foreign is not None:
        return impossible(foreign.effects[0].path, "somebody else has changed it while the run was at work")
    effects = path_effects([each for each in changes if each.state in _HAPPENED], _EXECUTABLE)
    for effect in effects:
        if effect.gap:
            return impossible(effect.path, "it was changed also between two recorded changes")
        if effect.after.sha256 == UNKNOWN_SHA256:
            return impossible(effect.path, "a command has changed it, and what it held then was not recorded")
    return effects


def rebuild_plan(
    changes: Sequence[RecordedChange], effects: Sequence[NetEffect], found: Mapping[str, Found]
) -> RebuildPlan | ToolError:
    """How the copy becomes as these changes have left it; `found` is what is there now, by each path of `effects`.

    CONFLICT where it is neither as before the first change nor as after the last one.
    """
    cut_off = [change for change in changes if change.state is ChangeState.INTENDED]
    maybe = {(effect.path, effect.after) for change in cut_off for effect in change.effects}
    removed: list[str] = []
    written: list[WriteStep] = []
    wanted = {effect.path for effect in effects if effect.after.sha256}
    going = {effect.path for effect in effects} - wanted
    for path, before, after, _ in effects:
        now = _seen(found[path], going, wanted)
        if now is None:
            return impossible(path, "something else is in its place")
        if _is(now, after) or any(each == path and _is(now, state) for each, state in maybe):
            continue
        if not _is(now, before) and before.sha256 != UNKNOWN_SHA256:
            return impossible(path, "the copy does not hold what the run began with")
        if not after.sha256:
            removed.append(path)
        else:
            written.append(
                WriteStep(path, after.sha256, None if before.mode == after.mode and now.sha256 else after.mode)
            )
    made = {name for change in changes if change.state in _HAPPENED for name in change.made} - wanted
    needed = {each for path in wanted for each in folders_above(path)} | made
    inner = {name for name in needed if not any(each in wanted for each in (name, *folders_above(name)))}
    return RebuildPlan(tuple(removed), tuple(sorted(inner)), tuple(written))


def impossible(path: str, why: str) -> ToolError:
    """The error for a workspace that cannot be made again."""
    message = f"The files of this run cannot be made again here, so begin it anew: {quoted(path)}: {why}."
    return ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=(path,))


def _seen(found: Found, going: set[str], wanted: set[str]) -> FileState | None:
    """The file that is there, or that none is, once what goes away is gone; None for anything else."""
    if isinstance(found, FileState):
        return found
    if isinstance(found, FoundAbove) and found.file in going | wanted:
        return NO_FILE
    return NO_FILE if isinstance(found, FoundDirectory) and found.files <= going else None


def _is(now: FileState, wanted: FileState) -> bool:
    """Whether it is that file, executable or not: the other bits are those of the user who made the copy."""
    return is_state(now, wanted, _EXECUTABLE)


_MARK: Final = "rebuild"
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


class Rebuilt(NamedTuple):
    """The files that were written and removed, and how many changes were cut off, which the recovery has to decide."""

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unfinished: int = 0


def rebuild_workspace(run_id: str, root: str) -> Rebuilt | ToolError:
    """Bring a fresh copy of the run's workspace to where the run's last change that came to its end has left it.

    Called before the run is resumed, in a folder with the run's name (`give_workspace_name`). Where the files are
    so already, as in the folder in which the run was at work, nothing is done; so it may be called before every resume,
    and again after a kill. A change that was cut off is decided by the recovery when the run begins, by the files'
    hashes. What commands have left in ignored files is not recorded, and so not made again.

    Returns:
        What was written and removed. CONFLICT says that the files cannot be made again (their bytes were not kept, or
        the copy is not what the run began with): begin the run anew. UNAVAILABLE where another run works in the
        workspace, IO_ERROR where the store or the disk cannot be used: try again.
    """
    real = check_workspace(root)
    if isinstance(real, ToolError):
        return real
    folder = workspace_folder(real)
    if isinstance(folder, ToolError):
        return folder
    try:
        with WorkspaceLock(folder) as lock:
            busy = lock.acquire(Owner(run_id))
            return busy or rebuild(Journal(folder), real)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))
    except OSError as error:
        return os_failure(error, "make the files of the run again in", root)


def rebuild(journal: Journal, root: str) -> Rebuilt | ToolError:
    """Bring the workspace `root` to where all changes in its journal have left it; CONFLICT where that cannot be.

    Nobody may be at work there.

    Raises:
        OSError: the disk refuses.
        StoreError: the journal cannot be read.
    """
    with closing(open_root(root)) as root_fd, journal.held():
        changes = journal.all_changes()
        effects = rebuild_effects(changes)
        if isinstance(effects, ToolError):
            return effects
        found = {effect.path: found_at(root_fd, effect.path) for effect in effects}
        plan = rebuild_plan(changes, effects, found)
        if isinstance(plan, ToolError):
            return plan
        missing = next(
            (step for step in plan.written if kept_bytes(journal, root_fd, step.path, step.sha256) is None), None
        )
        if missing is not None:
            return impossible(missing.path, "what it held was not kept, or is damaged")
        _remove_temporaries(root_fd, (effect.path for effect in effects))
        _carry_out(journal, root_fd, plan)
        unfinished = sum(change.state is ChangeState.INTENDED for change in changes)
        return Rebuilt(tuple(step.path for step in plan.written), plan.removed, unfinished)


def _carry_out(journal: Journal, root_fd: int, plan: RebuildPlan) -> None:
    for path in plan.removed:
        *above, name = path.split("/")
        with suppress(FileNotFoundError), closing(open_directory(root_fd, above)) as folder:
            os.unlink(name, dir_fd=folder)
    for path in plan.directories:
        with closing(open_directory(root_fd, path.split("/"), made=[])):
            pass
    for step in plan.written:
        data = kept_bytes(journal, root_fd, step.path, step.sha256)
        if data is not None:
            _write(root_fd, step, data)


def _write(root_fd: int, step: WriteStep, data: bytes) -> None:
    *above, name = step.path.split("/")
    temporary = temporary_name(step.path, _MARK, 0, Role.NEW)
    with closing(open_directory(root_fd, above)) as folder:
        mode = step.mode
        with suppress(OSError):
            if mode is None:
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o777
        _remove_empty(folder, name)
        write_temporary(folder, temporary, data, mode=mode)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _remove_empty(folder: int, name: str) -> None:
    try:
        inner = open_directory(folder, [name])
    except OSError:
        return
    with closing(inner) as here:
        for each in os.listdir(here):
            _remove_empty(here, each)
    os.rmdir(name, dir_fd=folder)


def _remove_temporaries(root_fd: int, paths: Iterable[str]) -> None:
    """Take away what a rebuilding that was cut off has left."""
    for path in paths:
        try:
            with closing(open_directory(root_fd, path.split("/")[:-1])) as folder:
                os.unlink(temporary_name(path, _MARK, 0, Role.NEW), dir_fd=folder)
        except OSError as error:
            if error.errno not in _GONE:
                raise
