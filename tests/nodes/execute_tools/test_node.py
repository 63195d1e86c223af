from collections.abc import Sequence
from typing import Any

from nodes.execute_tools.node import ExecuteToolsState, execute_tools
from nodes.execute_tools.registry import ToolContext, ToolOutput
from nodes.execute_tools.tool_run import ToolRun
from nodes.records import (
    CallError,
    CallResult,
    ChangeKind,
    FileChange,
    Plan,
    PlanStep,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)

UNTOUCHED: Any = None
"""The workspace: a step hands it on, and does nothing with it."""

ALLOW, DENY = Verdict(kind=VerdictKind.ALLOW), Verdict(kind=VerdictKind.DENY)
AFTER = FileChange(path="a.py", kind=ChangeKind.CREATED, sha256_before="", sha256_after="1", diff="")
PLAN = Plan(steps=(PlanStep(title="mend"),))
OUTPUT = ToolOutput(ToolResult.success(n=1), changes=(AFTER,), files_read={"a.py": "2"}, plan=PLAN)
FAILED = ToolResult.failure(ToolErrorCode.PERMISSION_DENIED, "No.")


def call(call_id: str, tool: str = "edit") -> ToolCall:
    return ToolCall(call_id=call_id, tool=tool, arguments={}, raw_arguments="{}")


def run(item: ToolCall, context: ToolContext) -> ToolRun:
    assert context.files_read["z.py"] == "1"
    return ToolRun(item.call_id, item.tool, OUTPUT, attempts=1, ms=2_000)


def denied(items: Sequence[ToolCall | CallError], verdicts: Sequence[Verdict]) -> list[CallResult | None]:
    return [
        None if verdict is ALLOW else CallResult(call_id=item.call_id, tool=item.tool, result=FAILED)
        for item, verdict in zip(items, verdicts, strict=True)
    ]


def executed(state: ExecuteToolsState) -> dict[str, object]:
    context = ToolContext(UNTOUCHED, files_read={"z.py": "1"})
    return execute_tools(state, run, context, frozenset({"final_answer"}), denied)


def test_what_is_allowed_runs_and_only_what_is_new_is_given() -> None:
    state = ExecuteToolsState(
        items=[call("x"), call("y"), call("z", "final_answer")],
        verdicts=[DENY, ALLOW, ALLOW],
        files_read={"z.py": "1", "a.py": "0"},
    )
    message = "Not taken as the final answer: 1 other call(s) of this reply failed. Mend that, then answer."
    refused = ToolResult.failure(ToolErrorCode.CANCELLED, message)
    assert executed(state) == {
        "results": [
            CallResult(call_id="x", tool="edit", result=FAILED),
            CallResult(call_id="y", tool="edit", result=OUTPUT.result, changes=(AFTER,), attempts=1, ms=2_000),
            CallResult(call_id="z", tool="final_answer", result=refused),
        ],
        "files_read": {"a.py": "2"},
        "changes": [AFTER],
        "plan": PLAN,
        "seconds": 2.0,
    }


def test_the_first_step_of_a_thread_gives_the_same() -> None:
    assert executed(ExecuteToolsState(items=[call("x")], verdicts=[ALLOW])) == {
        "results": [CallResult(call_id="x", tool="edit", result=OUTPUT.result, changes=(AFTER,), attempts=1, ms=2_000)],
        "files_read": {"a.py": "2"},
        "changes": [AFTER],
        "plan": PLAN,
        "seconds": 2.0,
    }
