"""What makes the turns of a session last: the workspace is its own while it works, and each turn is written down."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.build import NodeTimeoutError
from mendgraph.graph.machine.run_records import REQUEST_ID, UNDONE
from mendgraph.graph.machine.state import serializer
from mendgraph.graph.machine.workspace import WorkspaceRecords, decide_open_changes
from mendgraph.graph.persistence.store import Durability, RunRecord, Store
from mendgraph.nodes.execute_tools.files.sandbox import check_workspace
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.run_folder import run_folder, workspace_folder, workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock, WorkspaceLock
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.records import Outcome, OutcomeKind, StopCause, StopReason, ToolError, ToolErrorCode


class Begun(NamedTuple):
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

    def begin(self, records: WorkspaceRecords, request: str | None = None) -> Begun | StopCause:
        """Take the workspace and write the turn down, or say why it cannot begin; without a request the last one."""
        if self._failure is not None:
            return given_up(self._failure)
        with self._beginning:
            if self.at_work:
                return AT_WORK
            taken = self._lock_all(records)
            self.at_work = taken is None
        if taken is not None:
            return taken
        try:
            begun = self._last_turn() if request is None else self._new_turn(request)
        except StoreError as error:
            begun = given_up(error)
        if isinstance(begun, StopCause):
            self.release()
        return begun

    def _new_turn(self, request: str) -> Begun | StopCause:
        if self._store is None:
            return Begun(request, "")
        if self._turns and self.record() is None:
            return StopCause(reason=StopReason.STORE_FAILED, message=_FORGOTTEN)
        self._turns = self._store.begin_turn(self._thread_id, request, self.context, self._durability)
        return Begun(request, f"{REQUEST_ID}{self._turns}")

    def _last_turn(self) -> Begun:
        known = self.record()
        if known is None:
            return Begun("", "")
        self._turns = known.turns
        return Begun(known.request, f"{REQUEST_ID}{known.turns}", undone=known.reason == UNDONE)

    def take_up(self) -> None:
        """Write down that the turn is at work again. Raises StoreError: the store cannot be written."""
        if self._store is not None:
            self._store.take_up(self._thread_id)

    def record(self) -> RunRecord | None:
        """The run as it is written down, None where nothing is. Raises StoreError: the store cannot be read."""
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

    def _lock_all(self, records: WorkspaceRecords) -> StopCause | None:
        """Lock the workspace and the thread, and decide what the last run there left open. None: it is ours."""
        if self._locks or self._root is None:
            return None  # ours already, or nothing that could be taken: the machine says so
        if self._store is None and isinstance(workspace_folder(self._root), ToolError):
            return None  # it may look at files; each change will be refused, with the reason
        for folder, kind, what in (
            (workspace_folder(self._root), WorkspaceLock, "in this workspace"),
            (run_folder(self._thread_id), RunLock, f"on the run {self._thread_id}"),
        ):
            problem = folder
            if isinstance(folder, str):
                lock = kind(folder, what=what)
                problem = lock.acquire(Owner(self._thread_id)) or ""
                if not problem:
                    self._locks.append(lock)
            if isinstance(problem, ToolError):
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


# --- How a run that was begun goes on

CALLING = ("call_model",)
"""What is next where a model call is due: everything before it is settled, so a run can begin there."""

TO_THE_CALL = "begin_turn"
"""The node in whose name a state is written that is to go to the model: its router sends it there."""

RETRIED = frozenset({StopReason.CANCELLED, StopReason.PROVIDER_FAILED, StopReason.STORE_FAILED})
"""Reasons that say nothing of the work: the call that did not happen is made again, as if nothing had been."""


class ResumePlan(StrEnum):
    """What a resumed run does.

    Its request never arrived: send it again. It was cut off: go on. It was stopped before a model call: go back to it.
    It ended early for another reason: begin a new turn. It has finished: nothing.
    """

    SEND_AGAIN, GO_ON, GO_BACK = "send_again", "go_on", "go_back"
    NEW_TURN, NOTHING = "new_turn", "nothing"


def resume_plan(values: Mapping[str, Any], request_id: str, *, undone: bool = False) -> ResumePlan:
    """How to go on from the newest state; `request_id` is the message that began the turn, "" where nobody knows it.

    Where what the turn changed was `undone` since, its history tells what is not so any more: a new turn says that.
    """
    messages = values.get("messages") or []
    if request_id and all(message.id != request_id for message in messages):
        return ResumePlan.SEND_AGAIN
    outcome = values.get("outcome")
    if not messages or not isinstance(messages[-1], AIMessage):
        outcome = None  # that of the turn before
    if outcome is not None and outcome.kind is OutcomeKind.FINISHED:
        return ResumePlan.NOTHING
    if undone:
        return ResumePlan.NEW_TURN
    if outcome is None:
        return ResumePlan.GO_ON
    return ResumePlan.GO_BACK if outcome.reason in RETRIED else ResumePlan.NEW_TURN


class TurnStart(NamedTuple):
    """What a turn gives to the machine, and from which checkpoint on; `ended` says that there is nothing to do."""

    request: Any = None
    config: RunnableConfig | None = None
    ended: Outcome | None = None


def asking(begun: Begun) -> TurnStart:
    """A request. The same one has the same id, so that sending it again adds nothing."""
    return TurnStart({"messages": [HumanMessage(begun.request, id=begun.request_id or None)]})


def requests_of(values: Mapping[str, Any]) -> list[Any]:
    """The messages in which a person asked for something, oldest first."""
    return [message for message in values.get("messages", ()) if is_request(message)]
