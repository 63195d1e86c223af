"""What came of a call, as the journal keeps it: for the time between the call's end and the step's checkpoint."""

from pydantic import BaseModel, ConfigDict, ValidationError

from nodes.execute_tools.registry import ToolOutput
from nodes.execute_tools.tool_run import ToolRun
from nodes.records import FileChange, Plan, ToolResult


class _Recorded(BaseModel):
    """A ToolRun without the call's own name and id, which whoever resumes it knows."""

    model_config = ConfigDict(extra="forbid")

    result: ToolResult
    changes: tuple[FileChange, ...]
    files_read: dict[str, str]
    plan: Plan | None
    error: str
    attempts: int
    cached: bool
    ms: int
    error_type: str


def as_json(run: ToolRun) -> str:
    """The run as one line of JSON."""
    output = run.output
    return _Recorded(
        result=output.result,
        changes=output.changes,
        files_read=dict(output.files_read),
        plan=output.plan,
        error=run.error,
        attempts=run.attempts,
        cached=run.cached,
        ms=run.ms,
        error_type=run.error_type,
    ).model_dump_json()


def from_json(call_id: str, tool: str, recorded: str) -> ToolRun | None:
    """The run again, for this call; None where the text is none that `as_json` wrote."""
    try:
        found = _Recorded.model_validate_json(recorded)
    except ValidationError:
        return None
    output = ToolOutput(found.result, found.changes, found.files_read, found.plan)
    return ToolRun(call_id, tool, output, found.error, found.attempts, found.cached, found.ms, found.error_type)
