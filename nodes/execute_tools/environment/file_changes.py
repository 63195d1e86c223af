"""Several files are written, deleted and moved: all of it happens, or none.

Three phases. `stage` checks every file and puts what is new under temporary names, where nobody looks; `_commit` takes
the steps of `name_steps`, each of which makes one name mean another file; `_roll_back` takes them back where one fails.
What fails after the last step is no failure of the change any more.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from nodes.execute_tools.environment.change_places import Change, PlacedChange, placed_changes
from nodes.execute_tools.environment.change_staging import ChangedFile, Transaction, stage
from nodes.execute_tools.environment.failures import os_failure, quoted
from nodes.execute_tools.environment.file_writes import remove_directories
from nodes.execute_tools.environment.handles import closing, open_directory, open_root
from nodes.execute_tools.environment.judged_paths import JudgedPaths
from nodes.execute_tools.environment.name_steps import commit, undo
from nodes.records import ToolError

__all__ = ["ChangedFile", "change_files"]


def change_files(paths: JudgedPaths, changes: Sequence[Change]) -> tuple[ChangedFile, ...] | ToolError:
    """Make all changes; on a failure everything is as it was. See `Workspace.change_files`."""
    placed = placed_changes(paths, changes)
    if isinstance(placed, ToolError):
        return placed
    try:
        with ExitStack() as handles:
            root = handles.enter_context(closing(open_root(paths.root)))
            return _run(Transaction(paths, root, handles), placed)
    except OSError as error:
        return os_failure(error, "write", ".")


def _run(transaction: Transaction, placed: Sequence[PlacedChange]) -> tuple[ChangedFile, ...] | ToolError:
    try:
        staged = stage(transaction, placed)
        refusal = staged if isinstance(staged, ToolError) else _commit(transaction)
    except BaseException:
        _roll_back(transaction)
        raise
    if isinstance(staged, ToolError) or refusal is not None:
        lost = _roll_back(transaction)
        return staged if refusal is None else _told(refusal, lost)
    _finish(transaction)
    return staged


def _commit(transaction: Transaction) -> ToolError | None:
    for step in transaction.steps:
        try:
            commit(step.names)
        except OSError as error:
            return os_failure(error, step.doing, step.path)
    return None


def _roll_back(transaction: Transaction) -> list[str]:
    """Undo all steps, last first, and remove what was prepared. Returns what could not be put back, and where it is."""
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
                lost.append(f"{quoted(step.path)} is left behind")
    _remove_temporaries(transaction)
    remove_directories(transaction.root, transaction.made)
    return lost


def _finish(transaction: Transaction) -> None:
    """Write the names through to the disk, and remove what was kept."""
    for directory in (*transaction.folders.values(), *_above(transaction)):
        with suppress(OSError):
            os.fsync(directory)
    _remove_temporaries(transaction)


def _above(transaction: Transaction) -> list[int]:
    """The open directories in which directories were made."""
    opened: list[int] = []
    for name in transaction.made:
        with suppress(OSError):
            parent = open_directory(transaction.root, name.split("/")[:-1])
            opened.append(transaction.handles.enter_context(closing(parent)))
    return opened


def _remove_temporaries(transaction: Transaction) -> None:
    for directory, name in transaction.temporaries:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)


def _told(refusal: ToolError, lost: Sequence[str]) -> ToolError:
    """The refusal, with what a person has to put right where not even the old state could be restored."""
    if not lost:
        return refusal
    message = f"{refusal.message} Undoing the rest failed as well: {'; '.join(lost)}."
    return refusal.model_copy(update={"message": message, "fatal": True})
