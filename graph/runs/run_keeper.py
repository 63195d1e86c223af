"""What makes the turns of a session last: the workspace is its own while it works, and each turn is written down."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.run_records import REQUEST_ID, UNDONE
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.machine.two_ways import NodeTimeoutError
from mendgraph.graph.machine.workspace_records import WorkspaceRecords, decide_open_changes
from mendgraph.graph.persistence.store import Durability, RunRecord, Store
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.run_folder import run_folder, workspace_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock, WorkspaceLock
from mendgraph.nodes.records import Outcome, StopCause, StopReason, ToolError, ToolErrorCode


@dataclass(frozen=True)
class Begun:
    """A turn that may run. `request_id` is the id of the message that began it, the same whenever it is sent again.

    `undone` says that a person has taken back since what the turn changed.
    """

    request: str
    request_id: str
    undone: bool = False


class RunKeeper:
    """Keeps the runs of one thread. Without a store (the checkpointer is the user's own) nothing is written down."""

    def __init__(
        self,
        context: AgentContext,
        thread_id: str,
        *,
        secrets: Sequence[str],
        durability: Durability,
        checkpointer: BaseCheckpointSaver[Any] | None,
    ) -> None:
        """Open the store; where that fails, `begin` says why."""
        self._thread_id, self._durability = thread_id, durability
        root = check_workspace(context.workspace)
        self._root = None if isinstance(root, ToolError) else root
        self.context = context if self._root is None else context.model_copy(update={"workspace": self._root})
        self.at_work = False
        """Whether a turn goes on; not while a person is asked."""
        self._beginning = threading.Lock()
        self._turns = 0
        self._locks: list[RunLock | WorkspaceLock] = []
        self._records: WorkspaceRecords | None = None
        self._failure: StoreError | None = None
        self._store: Store | None = None
        if checkpointer is None and self._root is not None:
            try:
                self._store = Store(self._root, secrets)
            except StoreError as error:
                self._failure = error
        kept = self._store.saver if self._store else checkpointer
        self.saver: BaseCheckpointSaver[Any] = InMemorySaver(serde=serializer(secrets)) if kept is None else kept

    def begin(self, request: str, records: WorkspaceRecords) -> Begun | StopCause:
        """Take the workspace and write the turn down, or say why it cannot begin."""
        taken = self._take(records)
        if taken is not None:
            return taken
        if self._store is None:
            return Begun(request, "")
        try:
            if self._turns and self.record() is None:
                self.release()
                return StopCause(reason=StopReason.STORE_FAILED, message=_FORGOTTEN)
            self._turns = self._store.begin_turn(self._thread_id, request, self.context, self._durability)
        except StoreError as error:
            self.release()
            return given_up(error)
        return Begun(request, self._request_id(self._turns))

    def begin_again(self, records: WorkspaceRecords) -> Begun | StopCause:
        """Take the workspace for the turn that was begun last."""
        taken = self._take(records)
        if taken is not None:
            return taken
        try:
            known = self.record()
        except StoreError as error:
            self.release()
            return given_up(error)
        if known is None:
            return Begun("", "")
        self._turns = known.turns
        return Begun(known.request, self._request_id(known.turns), undone=known.reason == UNDONE)

    def take_up(self) -> None:
        """Write down that the turn is at work again.

        Raises:
            StoreError: the store cannot be written.
        """
        if self._store is not None:
            self._store.take_up(self._thread_id)

    def record(self) -> RunRecord | None:
        """The run as it is written down, None where nothing is.

        Raises:
            StoreError: the store cannot be read.
        """
        found = self._store.run(self._thread_id) if self._store else None
        return found if isinstance(found, RunRecord) else None

    def end(self, outcome: Outcome) -> None:
        """Write down how the turn ended, and leave the workspace to others."""
        with suppress(StoreError):  # the checkpoint tells it as well
            known = self.record()
            if self._store is not None and known is not None and known.state == "working":
                self._store.end_turn(self._thread_id, outcome)
        self.release()

    def kept_bytes(self, sha256: str) -> bytes | None:
        """What the journal kept of a file, by its hash; None where that is gone."""
        with suppress(StoreError):
            return Journal(workspace_folder_path(self._root)).backup(sha256) if self._root else None
        return None

    def wait(self) -> None:
        """Nothing is at work while a person is asked; the workspace stays ours."""
        self.at_work = False

    def release(self) -> None:
        """Leave the workspace to others."""
        self.at_work = False
        if self._store is not None:
            with suppress(StoreError):  # a step that is not stored is done once more
                self._store.saver.flush()
        if self._records is not None and self._root is not None:
            self._records.release(self._root)
        while self._locks:
            self._locks.pop().release()

    def close(self) -> None:
        """Leave the workspace, and close the store."""
        self.release()
        if self._store is not None:
            self._store.close()

    def _take(self, records: WorkspaceRecords) -> StopCause | None:
        """Lock the workspace and the thread, and decide what the last run there left open. None: it is ours."""
        if self._failure is not None:
            return given_up(self._failure)
        with self._beginning:
            if self.at_work:
                return AT_WORK
            taken = self._lock_all(records)
            self.at_work = taken is None
            return taken

    def _lock_all(self, records: WorkspaceRecords) -> StopCause | None:
        if self._locks or self._root is None:
            return None  # ours already, or nothing that could be taken: the machine says so
        if self._store is None and isinstance(workspace_folder(self._root), ToolError):
            return None  # it may look at files; each change will be refused, with the reason
        for folder, kind, what in (
            (workspace_folder(self._root), WorkspaceLock, "in this workspace"),
            (run_folder(self._thread_id), RunLock, f"on the run {self._thread_id}"),
        ):
            problem = folder if isinstance(folder, ToolError) else self._lock(kind(folder, what=what))
            if problem is not None:
                self.release()
                busy = problem.code is ToolErrorCode.UNAVAILABLE
                reason = StopReason.WORKSPACE_BUSY if busy else StopReason.STORE_FAILED
                return StopCause(reason=reason, message=problem.message)
        self._records = records
        records.hold(self._root)
        decided = decide_open_changes(Journal(workspace_folder_path(self._root)), self._root)
        if isinstance(decided, ToolError):
            self.release()
            return StopCause(reason=StopReason.WORKSPACE_FAILED, message=decided.message)
        return None

    def _lock(self, lock: RunLock | WorkspaceLock) -> ToolError | None:
        busy = lock.acquire(Owner(self._thread_id))
        if busy is None:
            self._locks.append(lock)
        return busy

    @staticmethod
    def _request_id(turn: int) -> str:
        return f"{REQUEST_ID}{turn}"


AT_WORK = StopCause(
    reason=StopReason.WORKSPACE_BUSY,
    message="This session is at work on another request: wait for its end, or use another session.",
)
"""Why a session cannot begin a second turn."""
_FORGOTTEN = "This run was removed meanwhile (`mendgraph runs prune`), and its history with it: begin a new one."


def given_up(error: StoreError | NodeTimeoutError) -> StopCause:
    """Why a turn ends whose store cannot be used, or in which a node did not end in time."""
    reason = StopReason.STORE_FAILED if isinstance(error, StoreError) else StopReason.WALL_CLOCK
    return StopCause(reason=reason, message=str(error))
