from typing import Any

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.run_records import RunRecord, find_run, run_record
from mendgraph.nodes.records import ToolError, ToolErrorCode

CONTEXT = AgentContext(workspace="/w", max_seconds=1.5)


def record(run_id: str = "abc", **changed: Any) -> RunRecord:
    row = (
        *(run_id, "task", "2026-01-01T00:00:00.000+00:00", "2026-01-02T00:00:00.000+00:00", 2, "request", "ended"),
        *("FINISHED", "answered", "message", "answer", '["a.py", "é"]', CONTEXT.model_dump_json(), "sync", "", None),
    )
    return RunRecord(**{**vars(run_record(row)), **changed})


# --- By name

RUNS = [record("abc"), record("abd"), record("xyz")]


def test_a_beginning_of_several_ids_is_refused_with_them() -> None:
    assert find_run("ab", RUNS) == ToolError(
        code=ToolErrorCode.INVALID_ARGUMENT,
        message="2 runs of this workspace begin with 'ab': give more of the id.",
        suggestions=("abc", "abd"),
    )
