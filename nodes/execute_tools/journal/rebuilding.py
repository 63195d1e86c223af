"""A fresh copy of a workspace becomes again as a run has left it elsewhere.

All that was done to one path counts as one: how it was before the first change, and how the last one left it. The copy
has to begin where the run began; what the run was doing when it was cut off is left to the recovery.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
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
    A_DIRECTORY,
    BELOW_A_FILE,
    NO_FILE,
    Found,
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
"""Of a mode: the other bits are those of the user who made the copy."""
_MARK: Final = "rebuild"


class Rebuilt(NamedTuple):
    """The files that were written and removed, and how many changes were cut off, which the recovery has to decide."""

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unfinished: int = 0


class _ImpossibleError(Exception):
    def __init__(self, path: str, why: str) -> None:
        message = f"The files of this run cannot be made again here, so begin it anew: {quoted(path)}: {why}."
        self.error = ToolError(code=ToolErrorCode.CONFLICT, message=message, suggestions=(path,))


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
        try:
            effects = _effects(changes)
            found = {effect.path: found_at(root_fd, effect.path) for effect in effects}
            steps = tuple(_steps(changes, effects, found))
            removed, written = ([step for step in steps if bool(step.sha256) is comes] for comes in (False, True))
            for step in written:
                _kept(journal, root_fd, step)
        except _ImpossibleError as error:
            return error.error
        for effect in effects:  # what a rebuilding that was cut off has left
            _remove(root_fd, effect.path, temporary_name(effect.path, _MARK, 0, Role.NEW))
        for step in removed:
            _remove(root_fd, step.path, step.path.rpartition("/")[2])
        for name in _directories(changes, effects):
            os.close(open_directory(root_fd, name.split("/"), made=[]))
        for step in written:
            _write(root_fd, step, _kept(journal, root_fd, step))
        unfinished = sum(change.state is ChangeState.INTENDED for change in changes)
        return Rebuilt(tuple(step.path for step in written), tuple(step.path for step in removed), unfinished)


def _effects(changes: Sequence[RecordedChange]) -> tuple[NetEffect, ...]:
    """What all changes of a workspace, oldest first, did to each path."""
    for change in changes:
        if change.state is ChangeState.FOREIGN:
            raise _ImpossibleError(change.effects[0].path, "somebody else has changed it while the run was at work")
    effects = path_effects([each for each in changes if each.state in _HAPPENED], _EXECUTABLE)
    for effect in effects:
        if effect.gap:
            raise _ImpossibleError(effect.path, "it was changed also between two recorded changes")
        if effect.after.sha256 == UNKNOWN_SHA256:
            raise _ImpossibleError(effect.path, "a command has changed it, and what it held then was not recorded")
    return effects


class _Step(NamedTuple):
    """The file gets the bytes with this hash, and the mode where it is known; it goes away where there is none."""

    path: str
    sha256: str
    mode: int | None


def _steps(
    changes: Sequence[RecordedChange], effects: Sequence[NetEffect], found: Mapping[str, Found]
) -> Iterator[_Step]:
    """What is still to be done, where each file is as before the first change, or as after the last one."""
    cut_off = [change for change in changes if change.state is ChangeState.INTENDED]
    maybe = {(effect.path, effect.after) for change in cut_off for effect in change.effects}
    for path, before, after, _ in effects:
        now = found[path]
        changed_places = now == BELOW_A_FILE and not found.keys().isdisjoint(folders_above(path))
        if changed_places or (now == A_DIRECTORY and not after.sha256):
            now = NO_FILE
        if isinstance(now, str):
            raise _ImpossibleError(path, "something else is in its place")
        if _is(now, after) or any(each == path and _is(now, state) for each, state in maybe):
            continue
        if not _is(now, before) and before.sha256 != UNKNOWN_SHA256:
            raise _ImpossibleError(path, "the copy does not hold what the run began with")
        yield _Step(path, after.sha256, None if before.mode == after.mode and now.sha256 else after.mode)


def _kept(journal: Journal, root_fd: int, step: _Step) -> bytes:
    data = kept_bytes(journal, root_fd, step.path, step.sha256)
    if data is None:
        raise _ImpossibleError(step.path, "what it held was not kept, or is damaged")
    return data


def _is(now: FileState, wanted: FileState) -> bool:
    return is_state(now, wanted, _EXECUTABLE)


def _directories(changes: Sequence[RecordedChange], effects: Sequence[NetEffect]) -> list[str]:
    files = {effect.path for effect in effects if effect.after.sha256}
    made = {name for change in changes if change.state in _HAPPENED for name in change.made}
    return sorted(made.union(*map(folders_above, files)) - files)


def _remove(root_fd: int, path: str, name: str) -> None:
    """Take away the file of this name beside the path."""
    with (
        suppress(FileNotFoundError, NotADirectoryError),
        closing(open_directory(root_fd, path.split("/")[:-1])) as folder,
    ):
        os.unlink(name, dir_fd=folder)


def _write(root_fd: int, step: _Step, data: bytes) -> None:
    *above, name = step.path.split("/")
    temporary = temporary_name(step.path, _MARK, 0, Role.NEW)
    with closing(open_directory(root_fd, above)) as folder:
        mode = step.mode
        with suppress(FileNotFoundError):
            if mode is None:
                mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o777
        write_temporary(folder, temporary, data, mode=mode)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
