"""How a run is resumed from its newest state, and when runs are removed."""

from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.run_records import (
    ResumePlan,
    RunRecord,
    bounded,
    is_resuming,
    resume_plan,
    resuming_request,
    runs_to_prune,
)
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason
from tests.row_tables import rows

ASKED = HumanMessage("Mend it.", id="run-1")
SAID = AIMessage("Done.", id="a")


def outcome(kind: OutcomeKind, reason: StopReason) -> Outcome:
    return Outcome(kind=kind, reason=reason, message="x")


FINISHED = outcome(OutcomeKind.FINISHED, StopReason.ANSWERED)


PLANS: list[tuple[dict[str, Any], ResumePlan]] = [
    ({}, ResumePlan.SEND_AGAIN),
    ({"messages": [HumanMessage("x", id="run-0"), SAID], "outcome": FINISHED}, ResumePlan.SEND_AGAIN),
    ({"messages": [ASKED], "outcome": None}, ResumePlan.GO_ON),
    ({"messages": [SAID, ASKED], "outcome": FINISHED}, ResumePlan.GO_ON),
    ({"messages": [ASKED, SAID], "outcome": FINISHED}, ResumePlan.NOTHING),
]


def test_resume_plan_depends_on_request_outcome_and_last_message() -> None:
    assert [resume_plan(values, "run-1") for values, _ in PLANS] == [plan for _, plan in PLANS]


OUTSIDE = {StopReason.CANCELLED, StopReason.PROVIDER_FAILED, StopReason.STORE_FAILED}
"""Ends that say nothing of the work."""


def test_run_stopped_from_outside_goes_back_and_any_other_begins_a_new_turn() -> None:
    for reason in StopReason:
        values = {"messages": [ASKED, SAID], "outcome": outcome(OutcomeKind.BUDGET_STOP, reason)}
        plan = ResumePlan.GO_BACK if reason in OUTSIDE else ResumePlan.NEW_TURN
        assert resume_plan(values, "run-1") is plan, reason
        assert resume_plan(values, "run-1", anew=True) is ResumePlan.NEW_TURN


def test_undone_run_begins_a_new_turn() -> None:
    assert resume_plan({"messages": [ASKED], "outcome": None}, "run-1", undone=True) is ResumePlan.NEW_TURN


def test_request_of_a_resumed_task_contains_the_task_once() -> None:
    again = resuming_request("Mend it.")
    afresh = resuming_request(again, undone=True)
    assert again == "Go on with this task, which is not finished yet: Mend it."
    assert afresh == "Your changes of the files were taken back since, so read them again. The task is: Mend it."
    assert resuming_request(again) == resuming_request(afresh) == again
    assert [is_resuming(request) for request in ("Mend it.", again, afresh)] == [False, True, False]


def test_text_of_a_run_record_is_cut_at_its_limit() -> None:
    texts = [bounded("x" * length) for length in (1_999, 2_000, 2_001, 99_999)]
    assert [len(text) for text in texts] == [1_999, 2_000, 2_000, 2_000]
    assert [text.endswith("...") for text in texts] == [False, False, True, True]


# --- Which runs are removed

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def record(run_id: str, days_ago: float, kind: str = "FINISHED", state: Any = "ended") -> RunRecord:
    time = (NOW - timedelta(days=days_ago)).isoformat()
    texts = dict.fromkeys(("task", "request", "reason", "message", "answer", "parent"), "")
    return RunRecord(
        run_id=run_id,
        created=time,
        updated=time,
        turns=1,
        state=state,
        kind=kind,
        changed=(),
        stored_context="{}",
        durability="sync",
        forked_at=None,
        **texts,
    )


WORKING, FORKED = {"kind": "", "state": "working"}, {"kind": ""}


BY_AGE: list[tuple[float, list[RunRecord], list[str]]] = [
    (1, [record("newest", 99)], []),
    (1, [record("newest", 99, "SYSTEM_ERROR"), record("old", 99, "SYSTEM_ERROR")], ["old"]),
    (1, [record("newest", 0), record("young", 0.9), record("old", 1), record("older", 2)], ["old", "older"]),
    (1, [record("newest", 0), record("failed", 29, "SYSTEM_ERROR"), record("stopped", 29, "BUDGET_STOP")], []),
    (1, [record("newest", 0), record("failed", 30, "SYSTEM_ERROR")], ["failed"]),
    (45, [record("newest", 0), record("failed", 44, "BUDGET_STOP"), record("old", 45, "BUDGET_STOP")], ["old"]),
    (1, [record("newest", 0), record("cut off", 99, **WORKING), record("forked", 99, **FORKED)], []),
]


@rows(*BY_AGE)
def test_run_is_removed_after_keep_days_and_a_resumable_one_after_thirty_at_least(
    keep_days: float, records: list[RunRecord], removed: list[str]
) -> None:
    assert runs_to_prune(records, {}, AgentContext(keep_days=keep_days), NOW) == removed


def test_oldest_finished_runs_are_removed_by_number_and_by_size() -> None:
    records = [record("a", 0), record("b", 0), record("failed", 0, "SYSTEM_ERROR"), record("d", 0)]
    sizes = {"a": 2_000_000, "b": 3_000_000, "failed": 3_000_000, "d": 1_000_000}
    for keep_runs, removed in ((1, ["b", "d"]), (2, ["d"]), (3, ["d"]), (4, []), (9, [])):
        assert runs_to_prune(records, {}, AgentContext(keep_runs=keep_runs), NOW) == removed
    for keep_mb, removed in ((9, []), (8, ["d"]), (5, ["d", "b"]), (1, ["d", "b"])):
        assert runs_to_prune(records, sizes, AgentContext(keep_mb=keep_mb), NOW) == removed


def test_size_of_a_run_removed_by_age_no_longer_counts() -> None:
    records = [record("a", 0), record("b", 0), record("c", 9)]
    sizes = {"a": 1_000_000, "b": 1_000_000, "c": 9_000_000}
    assert runs_to_prune(records, sizes, AgentContext(keep_days=5, keep_mb=2), NOW) == ["c"]
