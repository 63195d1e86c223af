"""A fresh copy of a workspace becomes again what a run has left elsewhere, from the bytes in the shared journal.

Nothing is touched before it is known that all of it can be done. Each file is then written whole, or removed, so that
after a kill the same call goes on.
"""

import errno
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from nodes.execute_tools.environment.atomic_write import Role, temporary_name, write_temporary
from nodes.execute_tools.environment.found_files import bytes_at, found_at
from nodes.execute_tools.environment.handles import closing, open_directory, open_root
from nodes.execute_tools.environment.journal import Journal
from nodes.execute_tools.environment.journal_records import ChangeState
from nodes.execute_tools.environment.rebuild_plan import (
    RebuildPlan,
    WriteStep,
    impossible,
    path_histories,
    rebuild_plan,
)
from nodes.records import ToolError

_MARK: Final = "rebuild"
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


class Rebuilt(NamedTuple):
    """The files that were written and removed, and how many changes were cut off, which the recovery has to decide."""

    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unfinished: int = 0


def rebuild(journal: Journal, root: str) -> Rebuilt | ToolError:
    """Bring the workspace `root` to where all changes in its journal have left it; CONFLICT where that cannot be.

    Nobody may be at work there.

    Raises:
        OSError: the disk refuses.
        StoreError: the journal cannot be read.
    """
    with closing(open_root(root)) as root_fd, journal.held():
        changes = journal._changes_where("ORDER BY 1")  # noqa: SLF001 - of all runs, oldest first, whatever their state
        histories = path_histories(changes)
        if isinstance(histories, ToolError):
            return histories
        found = {history.path: found_at(root_fd, history.path) for history in histories}
        plan = rebuild_plan(changes, histories, found)
        if isinstance(plan, ToolError):
            return plan
        missing = next((step for step in plan.written if _bytes(journal, root_fd, step) is None), None)
        if missing is not None:
            return impossible(missing.path, "what it held was not kept, or is damaged")
        _remove_temporaries(root_fd, (history.path for history in histories))
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
        data = _bytes(journal, root_fd, step)
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
    """Take away the empty directories in the place of a file."""
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


def _bytes(journal: Journal, root_fd: int, step: WriteStep) -> bytes | None:
    """What the file is to hold: those are its own bytes where only its mode differs."""
    for data in (bytes_at(root_fd, step.path), journal.backup(step.sha256)):
        if data is not None and hashlib.sha256(data).hexdigest() == step.sha256:
            return data
    return None
