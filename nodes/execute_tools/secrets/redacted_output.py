"""Nothing secret in what a tool gives back: its result, the diffs of its changes, the plan."""

from dataclasses import replace

from nodes.execute_tools.redact import Redactor
from nodes.execute_tools.registry import ToolOutput
from nodes.records import FileChange, Plan, PlanStep, ToolError, ToolResult


def redacted(output: ToolOutput, redactor: Redactor) -> ToolOutput:
    """The output without secrets. Paths and hashes stay: they say which file was changed, and to what."""
    return replace(
        output,
        result=_result(output.result, redactor),
        changes=tuple(_change(change, redactor) for change in output.changes),
        plan=None if output.plan is None else _plan(output.plan, redactor),
    )


def _result(result: ToolResult, redactor: Redactor) -> ToolResult:
    if result.error is not None:
        return ToolResult(ok=False, error=_error(result.error, redactor))
    data = redactor.content(result.data)
    return ToolResult(ok=result.ok, data=data if isinstance(data, dict) else {"redacted": data})


def _error(error: ToolError, redactor: Redactor) -> ToolError:
    suggestions = tuple(redactor.text(each) for each in error.suggestions)
    return error.model_copy(update={"message": redactor.text(error.message), "suggestions": suggestions})


def _change(change: FileChange, redactor: Redactor) -> FileChange:
    return change.model_copy(update={"diff": redactor.text(change.diff)})


def _plan(plan: Plan, redactor: Redactor) -> Plan:
    steps = (PlanStep(title=redactor.text(step.title) or "-", status=step.status) for step in plan.steps)
    return Plan(steps=tuple(steps))
