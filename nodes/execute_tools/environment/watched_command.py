"""Commands are run with somebody watching: what they change in the workspace is told, and recorded for an undo."""

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from nodes.execute_tools.environment.change_records import ChangeRecorder, FileEffect
from nodes.execute_tools.environment.command_changes import CommandChanges, changed, snapshot
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.file_index import WatchLimits, file_index
from nodes.execute_tools.environment.tree_status import Unwatched
from nodes.execute_tools.environment.workspace import Workspace

Result = TypeVar("Result")

_LIMITS: Final = WatchLimits()


class WatchedRun(NamedTuple, Generic[Result]):
    """What was run gave `result`. `unrecorded` says why the changes could not be recorded, "" where nothing failed."""

    result: Result
    changes: CommandChanges | Unwatched
    unrecorded: str = ""


def watched(
    workspace: Workspace, run: Callable[[], Result], patience_s: float, limits: WatchLimits = _LIMITS
) -> WatchedRun[Result]:
    """Run something that may change the workspace; tell and record what it changed. Where it raises, that is recorded.

    `patience_s` seconds at most pass before it begins: for another command of this workspace to end, and for a look.
    """
    index, deadline = file_index(workspace.root), time.monotonic() + patience_s
    if not index.turn.acquire(timeout=min(max(patience_s, 0.0), threading.TIMEOUT_MAX)):
        return WatchedRun(run(), Unwatched("another command was at work in the workspace"))
    try:
        paths = workspace._paths.of_any_extension()  # noqa: SLF001 - what a program may change has any extension
        before = snapshot(paths, index, limits, deadline)
        try:
            result = run()
        except BaseException:
            with suppress(StoreError):
                record_changes(workspace.recorder, changed(paths, index, limits, before))
            raise
        changes = changed(paths, index, limits, before)
        try:
            record_changes(workspace.recorder, changes)
        except StoreError as error:
            return WatchedRun(result, changes, str(error))
        return WatchedRun(result, changes)
    finally:
        index.turn.release()


def record_changes(recorder: ChangeRecorder | None, changes: CommandChanges | Unwatched) -> None:
    """Write down what has happened, with the bytes before, so that it can be taken back, and those after.

    Raises:
        StoreError: it could not be written.
    """
    if recorder is None or isinstance(changes, Unwatched) or changes == CommandChanges():
        return
    effects = [FileEffect(each.path, each.before, each.after) for each in changes.files]
    backups = {
        state.sha256: data
        for each in changes.files
        for state, data in ((each.after, each.after_data), (each.before, each.before_data))
        if data is not None
    }
    recorder.add(secrets.token_hex(8), effects, backups, changes.made)
