"""What makes turns last: the workspace is a run's own while it works, and each turn is written down first."""

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.workspace import WorkspaceRecords
from mendgraph.graph.persistence.store import Store
from mendgraph.graph.runs.run_keeper import RETRIED, Begun, ResumePlan, RunKeeper, resume_plan
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.run_folder import workspace_folder_path
from mendgraph.nodes.execute_tools.store.run_lock import Owner, RunLock
from mendgraph.nodes.records import Outcome, OutcomeKind, StopCause, StopReason, ToolError, ToolErrorCode

DONE = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.", answer="Done.")


@pytest.fixture
def root(any_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:  # noqa: ARG001 - with both
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "root").mkdir()
    return str(tmp_path / "root")


class Kept(RunKeeper):
    """A keeper with the records of its machine."""

    def __init__(self, root: str, thread_id: str = "one", **more: Any) -> None:
        settings: dict[str, Any] = {"secrets": ("s3cr3t-value",), "durability": "sync", "checkpointer": None, **more}
        super().__init__(AgentContext(workspace=root), thread_id, **settings)
        self.records = WorkspaceRecords()

    def start(self, request: str = "Mend it.") -> Begun | StopCause:
        return self.begin(self.records, request)

    def again(self) -> Begun | StopCause:
        return self.begin(self.records)


@pytest.fixture
def kept(root: str) -> Any:
    keeper = Kept(root)
    yield keeper
    keeper.close()


@pytest.mark.parametrize(("method", "begin"), [("begin_turn", Kept.start), ("run", Kept.again)])
def test_a_store_that_fails_is_why_the_turn_cannot_begin_and_nothing_stays_locked(
    kept: Kept, root: str, monkeypatch: pytest.MonkeyPatch, method: str, begin: Any
) -> None:
    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Store, method, full)
    assert begin(kept) == StopCause(reason=StopReason.STORE_FAILED, message="the disk is full")
    with RunLock(workspace_folder_path(root)) as lock:
        assert (lock.acquire(Owner("other")), kept.at_work) == (None, False)


def test_a_change_that_cannot_be_brought_to_an_end_is_why_the_turn_cannot_begin(
    kept: Kept, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = ToolError(code=ToolErrorCode.IO_ERROR, message="A change of a.txt cannot be brought to an end yet.")
    monkeypatch.setattr("mendgraph.graph.runs.run_keeper.decide_open_changes", lambda *_: refused)
    assert kept.start() == StopCause(reason=StopReason.WORKSPACE_FAILED, message=refused.message)
    with RunLock(workspace_folder_path(root)) as lock:
        assert (lock.acquire(Owner("other")), kept.at_work) == (None, False)


def test_with_a_saver_of_the_users_own_nothing_is_written_down_but_the_workspace_is_taken(root: str) -> None:
    saver = InMemorySaver()
    keeper = Kept(root, checkpointer=saver)
    assert keeper.saver is saver
    assert keeper.start() == Begun("Mend it.", "")
    keeper.take_up()
    assert keeper.record() is None
    assert RunLock(workspace_folder_path(root)).acquire(Owner("other")) is not None
    keeper.close()


# --- How a run goes on

ASKED = HumanMessage("Mend it.", id="run-1")
SAID = AIMessage("Done.", id="a")


def outcome(kind: OutcomeKind, reason: StopReason) -> Outcome:
    return Outcome(kind=kind, reason=reason, message="x")


FINISHED = outcome(OutcomeKind.FINISHED, StopReason.ANSWERED)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ResumePlan.SEND_AGAIN),
        ({"messages": [HumanMessage("x", id="run-0"), SAID], "outcome": FINISHED}, ResumePlan.SEND_AGAIN),
        ({"messages": [ASKED], "outcome": None}, ResumePlan.GO_ON),
        ({"messages": [SAID, ASKED], "outcome": FINISHED}, ResumePlan.GO_ON),
        ({"messages": [ASKED, SAID], "outcome": FINISHED}, ResumePlan.NOTHING),
    ],
)
def test_the_request_the_outcome_and_the_last_message_decide(values: dict[str, Any], expected: ResumePlan) -> None:
    assert resume_plan(values, "run-1") is expected


@pytest.mark.parametrize("reason", [*sorted(RETRIED), StopReason.WALL_CLOCK])
@pytest.mark.parametrize("kind", [OutcomeKind.BUDGET_STOP])
def test_a_run_that_ended_early_goes_back_only_where_nothing_was_said_of_the_work(
    kind: OutcomeKind, reason: StopReason
) -> None:
    values = {"messages": [ASKED, SAID], "outcome": outcome(kind, reason)}
    assert resume_plan(values, "run-1") is (ResumePlan.GO_BACK if reason in RETRIED else ResumePlan.NEW_TURN)
