from datetime import UTC, datetime
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.run_records import RunRecord, find_run, old_runs, run_record
from mendgraph.nodes.records import ToolError, ToolErrorCode

CONTEXT = AgentContext(workspace="/w", max_seconds=1.5)


def record(run_id: str = "abc", **changed: Any) -> RunRecord:
    row = (
        *(run_id, "task", "2026-01-01T00:00:00.000+00:00", "2026-01-02T00:00:00.000+00:00", 2, "request", "ended"),
        *("FINISHED", "answered", "message", "answer", '["a.py", "é"]', CONTEXT.model_dump_json(), "sync", "", None),
    )
    return RunRecord(**{**vars(run_record(row)), **changed})


def test_a_record_comes_from_its_row() -> None:
    assert record() == RunRecord(
        run_id="abc",
        task="task",
        created="2026-01-01T00:00:00.000+00:00",
        updated="2026-01-02T00:00:00.000+00:00",
        turns=2,
        request="request",
        state="ended",
        kind="FINISHED",
        reason="answered",
        message="message",
        answer="answer",
        changed=("a.py", "é"),
        stored_context=CONTEXT.model_dump_json(),
        durability="sync",
        parent="",
        forked_at=None,
    )


# --- By name

RUNS = [record("abc"), record("abd"), record("xyz")]


def test_a_beginning_of_several_ids_is_refused_with_them() -> None:
    assert find_run("ab", RUNS) == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message="2 runs of this workspace begin with 'ab': give more of the id.",
        suggestions=("abc", "abd"),
    )


NEWEST_FIRST = [
    record("four", updated="2026-01-04T00:00:00.000+00:00"),
    record("three", updated="2026-01-03T00:00:00.000+00:00", state="working", kind=""),
    record("two", updated="2026-01-02T00:00:00.000+00:00", kind="BUDGET_STOP"),
    record("one", updated="2026-01-01T00:00:00.000+00:00"),
]


@pytest.mark.parametrize(
    ("keep", "oldest", "unfinished", "expected"),
    [
        (0, 9, True, ["four", "three", "two", "one"]),
        (0, 9, False, ["four", "one"]),
        (2, 9, True, ["two", "one"]),
        (9, 9, True, []),
        (0, 2, True, ["two", "one"]),
        (0, 2, False, ["one"]),
        (3, 2, True, ["one"]),
        (1, 1, True, ["one"]),
    ],
)
def test_runs_that_are_old_and_not_among_the_newest_may_go(
    keep: int, oldest: int, unfinished: bool, expected: list[str]
) -> None:
    assert old_runs(NEWEST_FIRST, keep, datetime(2026, 1, oldest, tzinfo=UTC), unfinished=unfinished) == expected
