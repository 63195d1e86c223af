"""The records of a workspace while a machine works in it: its lock, its journal, and what the last run left open."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mendgraph.nodes.execute_tools.files.change_records import ChangeState
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.journal.recovery import Recovered, recover
from mendgraph.nodes.execute_tools.processes.workspace_cover import remove_placeholder
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder
from mendgraph.nodes.execute_tools.store.run_lock import Owner, WorkspaceLock
from mendgraph.nodes.execute_tools.trace import TraceSink
from mendgraph.nodes.records import ToolError, ToolErrorCode

LONGEST_WAIT_S = 30.0
"""How long a step waits for another run of the same workspace to end its own step."""


class WorkspaceRecords:
    """Opens the journal of a workspace for one step at a time, with nobody else at work there."""

    def __init__(self) -> None:
        self._held: set[str] = set()

    def hold(self, workspace: str) -> None:
        """Whoever runs the machine has the workspace's lock for longer than a step."""
        self._held.add(workspace)

    def release(self, workspace: str) -> None:
        """It has the lock no longer."""
        self._held.discard(workspace)

    @contextmanager
    def journal(
        self, workspace: str, run_id: str, sink: TraceSink, *, wanted: bool
    ) -> Iterator[Journal | ToolError | None]:
        """The journal, once what was left open in it is decided; None where it is not `wanted`, or why there is none.

        UNAVAILABLE where another run works in the workspace, IO_ERROR where the journal cannot be used.
        """
        if not wanted:
            yield None
            return
        folder = workspace_folder(workspace)
        if isinstance(folder, ToolError):
            yield folder
            return
        with self._alone(workspace, folder, run_id) as busy, ExitStack() as opened:
            yield busy or _opened(opened, folder, workspace, sink)

    @contextmanager
    def _alone(self, workspace: str, folder: str, run_id: str) -> Iterator[ToolError | None]:
        if workspace in self._held:
            yield None
            return
        lock = WorkspaceLock(folder)
        busy = lock.acquire(Owner(run_id), LONGEST_WAIT_S)
        try:
            yield busy
        finally:
            if busy is None:
                lock.release()


def decide_open_changes(journal: Journal, workspace: str) -> tuple[Recovered, ...] | ToolError:
    """How each change that was cut off has ended; IO_ERROR where one could not be brought to an end."""
    try:
        found = recover(journal, workspace)
        if journal.cut_off_commands():
            remove_placeholder(workspace)
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))
    for each in found:
        if each.state is ChangeState.INTENDED:
            return ToolError(code=ToolErrorCode.IO_ERROR, message=each.sentence)
    return found


def _opened(stack: ExitStack, folder: str, workspace: str, sink: TraceSink) -> Journal | ToolError:
    """The journal, open until `stack` ends, after every change that was cut off has been decided."""
    try:
        journal = stack.enter_context(Journal(folder).held())
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))
    found = decide_open_changes(journal, workspace)
    if isinstance(found, ToolError):
        return found
    for each in found:
        sink.emit("journal.recovered", {"state": each.state.value, "reason": each.sentence})
    return journal
