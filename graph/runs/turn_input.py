"""The input of a session's turn: its request, its locks, and why it cannot begin."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from mendgraph.graph.machine import run_records
from mendgraph.graph.machine.build import Machine, NodeTimeoutError
from mendgraph.graph.machine.serializer import PrunedHistoryError, serializer
from mendgraph.graph.machine.workspace import WorkspaceRecords, recover_open_changes
from mendgraph.nodes.call_model.ledger import begin_turn
from mendgraph.nodes.call_model.pending_call import PendingCall
from mendgraph.nodes.records import JsonMap, Outcome, StopCause, StopReason, ToolError, ToolErrorCode
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.store.database import StoreError
from mendgraph.nodes.workspace.store.run_folder import run_folder, workspace_folder, workspace_folder_path
from mendgraph.nodes.workspace.store.run_lock import Owner, RunLock, WorkspaceLock


class TurnRequest(NamedTuple):
    """The request of a turn: its text, and the id of its message, which stays the same when it is sent again.

    `undone`: a person has undone the changes of the turn since.
    """

    text: str
    message_id: str
    undone: bool = False


class TurnInput(NamedTuple):
    """The input of the machine and the checkpoint that it starts from; with `ended` there is nothing to run.

    The machine is interrupted after the node `until`.
    """

    input: Any = None
    config: RunnableConfig | None = None
    ended: Outcome | None = None
    until: str = ""


PrepareTurn = Callable[[], TurnInput | StopCause]
"""Locks the workspace and returns the input of a turn, or why it cannot begin."""

AT_WORK = StopCause(
    reason=StopReason.WORKSPACE_BUSY,
    message="This session is working on another request: wait for it to end, or use another session.",
)
"""Why a session cannot begin a second turn."""
NO_SUMMARY = StopCause(
    reason=StopReason.PROVIDER_FAILED, message="The model returned no usable summary; nothing was changed."
)
"""Why a conversation is not summarised."""
REMOVED = "This run was removed meanwhile (`mendgraph runs prune`), and its history with it: start a new one."


def storable_answer(decisions: Any) -> Any:
    """Return the answer to a question; one that no checkpoint can store becomes one that cannot be read."""
    if decisions is None or (isinstance(decisions, Mapping) and "decisions" not in decisions):
        return str(decisions)  # LangGraph would fail on None and on other maps

    try:
        serializer().dumps_typed(decisions)
    except StoreError:
        return {"decisions": None}

    return decisions


def cause_of(error: StoreError | NodeTimeoutError) -> StopCause:
    """Return why a turn ends whose store or history cannot be used, or in which a node did not end in time."""
    if isinstance(error, PrunedHistoryError):
        reason = StopReason.HISTORY_PRUNED
    elif isinstance(error, StoreError):
        reason = StopReason.STORE_FAILED
    else:
        reason = StopReason.WALL_CLOCK
    return StopCause(reason=reason, message=str(error))


def input_of(request: TurnRequest, images: Sequence[JsonMap] = ()) -> TurnInput:
    """Return the input of a turn with this request, followed by the blocks of its images.

    Its message keeps its id, so that sending it again adds nothing.
    """
    content: str | list[str | JsonMap] = request.text
    if images:
        content = [{"type": "text", "text": request.text}, *images]

    return TurnInput({"messages": [HumanMessage(content, id=request.message_id or None)]})


def compaction_input(machine: Machine, config: RunnableConfig) -> TurnInput | StopCause:
    """Return the input that summarises the conversation of a thread whose last turn has ended, or why it cannot be."""
    snapshot = machine.get_state(config)
    outcome = snapshot.values.get("outcome")
    if snapshot.next or outcome is None or outcome.reason in run_records.RETRIED:
        return invalid_request("The last turn has not ended: resume it, or send a new request.")

    pending = PendingCall(edge="conversation shortened", is_too_long=True, compacts=True)
    update = {"pending_call": pending, "spending": begin_turn(snapshot.values["spending"])}
    return TurnInput(config=machine.update_state(config, update, as_node=run_records.TO_THE_CALL), until="call_model")


def end_compaction(machine: Machine, config: RunnableConfig) -> None:
    """Let the thread stand where its last turn has ended."""
    outcome = machine.get_state(config).values["outcome"]
    machine.update_state(config, {"pending_call": None, "stop": None}, as_node=outcome.kind.value)


def request_to_resume(request: TurnRequest, values: Mapping[str, Any]) -> str:
    """Return the request of a new turn that continues the last one."""
    task = request.text
    if not task:
        messages = run_records.requests_of(values)
        task = messages[-1].text if messages else ""

    outcome = values.get("outcome")
    restored = outcome is not None and bool(outcome.restored)
    return run_records.resuming_request(task, undone=request.undone or restored)


def checkpoint_before_stop(
    machine: Machine, config: RunnableConfig, values: Mapping[str, Any]
) -> RunnableConfig | None:
    """Return the checkpoint before the model call that did not happen, with the spending since."""
    update = {"spending": values["spending"], "pending_call": None}
    for snapshot in machine.get_state_history(config):
        if snapshot.next == run_records.CALLING:
            return machine.update_state(snapshot.config, update, as_node=run_records.TO_THE_CALL)

    return None


def is_of_another_workspace(values: Mapping[str, Any], root: str | None) -> bool:
    """Return whether the turn began in another folder than `root`, which the session must not change."""
    context = values.get("context")
    return context is not None and root is not None and context.workspace != root


def invalid_request(message: str) -> StopCause:
    """Return why a turn cannot begin whose request does not fit the thread."""
    return StopCause(reason=StopReason.INVALID_REQUEST, message=message)


# --- Locks


class SessionLocks:
    """The locks of the workspace at `root` and of the thread, which no other process may use during a turn.

    `records` are those of the machine's workspaces.
    """

    def __init__(self, root: str, thread_id: str, records: WorkspaceRecords) -> None:
        self._root = root
        self._thread_id = thread_id
        self._records = records
        self._locks: list[RunLock | WorkspaceLock] = []

    def acquire(self) -> StopCause | None:
        """Lock both unless they are locked, and recover the changes that the last run left open.

        Returns why that is not possible.
        """
        if self._locks:
            return None

        problem = self._lock(WorkspaceLock, workspace_folder(self._root), "in this workspace")
        problem = problem or self._lock(RunLock, run_folder(self._thread_id), f"on the run {self._thread_id}")
        if problem is not None:
            self.release()
            reason = StopReason.STORE_FAILED
            if problem.code is ToolErrorCode.UNAVAILABLE:
                reason = StopReason.WORKSPACE_BUSY

            return StopCause(reason=reason, message=problem.message)

        self._records.hold(self._root)
        decided = recover_open_changes(Journal(workspace_folder_path(self._root)), self._root)
        if isinstance(decided, ToolError):
            self.release()
            return StopCause(reason=StopReason.WORKSPACE_FAILED, message=decided.message)

        return None

    def _lock(self, kind: type[WorkspaceLock] | type[RunLock], folder: str | ToolError, what: str) -> ToolError | None:
        if isinstance(folder, ToolError):
            return folder

        lock = kind(folder, what=what)
        problem = lock.acquire(Owner(self._thread_id))
        if problem is None:
            self._locks.append(lock)

        return problem

    def release(self) -> None:
        """Unlock both, if they are locked."""
        self._records.release(self._root)
        while self._locks:
            self._locks.pop().release()
