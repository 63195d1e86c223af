"""What is done with a call that was begun before the run was cut off.

Its result is given again, or it runs again, or it is said that nobody knows. What it has done to files is known by
then: `environment.recovery` has looked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nodes.execute_tools.environment.change_records import ChangeState, FileEffect
from nodes.execute_tools.environment.journal import RecordedCall
from nodes.execute_tools.recorded_runs import from_json
from nodes.execute_tools.registry import Tool, ToolOutput
from nodes.execute_tools.tool_run import ToolRun
from nodes.records import Effect, FileChange, JsonMap, ToolCall, ToolError, ToolErrorCode, ToolResult

DONE_BEFORE = "This was done before the run was cut off, and is in place."

DescribeEffect = Callable[[FileEffect], FileChange]
"""What a journaled effect was, with its diff where both versions are at hand."""


def resumed(call: ToolCall, tool: Tool, recorded: RecordedCall, describe: DescribeEffect) -> ToolRun | None:
    """How the call ended, as far as anybody knows; None where it had no effect, so that it has to be run again.

    Only of a tool whose whole effect is one change is it known that it had none. What a person has taken back since
    counts as not done.
    """
    if recorded.outcome and not _in_state(recorded, ChangeState.REVERTED):
        known = from_json(call.call_id, call.tool, recorded.outcome)
        if known is not None:
            return known
    foreign = [effect.path for change in _in_state(recorded, ChangeState.FOREIGN) for effect in change]
    if foreign:
        return _ended(call, changed_by_others(call.tool, foreign))
    done = [describe(effect) for change in _in_state(recorded, ChangeState.DONE) for effect in change]
    if tool.one_change:
        return _finished(call, done) if done else None
    if tool.effect is Effect.WRITE and done:
        return _ended(call, _half_done(call.tool, done), done)
    return _ended(call, outcome_unknown(call.tool), done)


def outcome_unknown(tool: str) -> ToolError:
    """The error of a call that may or may not have done its work."""
    message = (
        f"The run was cut off while {tool} worked, so its outcome is unknown: all, some or nothing of it may have"
        " happened. It was not run again. Look at what there is before you decide to repeat it."
    )
    return ToolError(code=ToolErrorCode.OUTCOME_UNKNOWN, message=message)


def changed_by_others(tool: str, paths: Sequence[str]) -> ToolError:
    """The error that ends a run: files hold neither what they held before the call nor what it was to write."""
    names = ", ".join(dict.fromkeys(paths))
    message = (
        f"The run was cut off while {tool} changed {names}, and somebody else has changed it since. Nothing was"
        " overwritten: look at it, then send the next request."
    )
    return ToolError(code=ToolErrorCode.CONFLICT, message=message, fatal=True)


def _half_done(tool: str, done: Sequence[FileChange]) -> ToolError:
    names = ", ".join(dict.fromkeys(change.path for change in done))
    message = (
        f"The run was cut off while {tool} worked. It had changed {names} by then; what else it was to do did not"
        " happen. It was not run again: look at what there is."
    )
    return ToolError(code=ToolErrorCode.OUTCOME_UNKNOWN, message=message)


def _finished(call: ToolCall, done: Sequence[FileChange]) -> ToolRun:
    data: JsonMap = {"path": done[0].path, "note": DONE_BEFORE}
    if len(done) > 1:
        data["files"] = [{"path": change.path, "action": change.kind.value} for change in done]
    output = ToolOutput(ToolResult(ok=True, data=data), tuple(done), _hashes(done))
    return ToolRun(call.call_id, call.tool, output, attempts=1)


def _ended(call: ToolCall, error: ToolError, done: Sequence[FileChange] = ()) -> ToolRun:
    output = replace(ToolOutput.failed(error), changes=tuple(done), files_read=_hashes(done))
    return ToolRun(call.call_id, call.tool, output, error=f"tool_error:{error.message}", attempts=1)


def _hashes(done: Sequence[FileChange]) -> Mapping[str, str]:
    return {change.path: change.sha256_after for change in done}


def _in_state(recorded: RecordedCall, state: ChangeState) -> list[tuple[FileEffect, ...]]:
    return [change.effects for change in recorded.changes if change.state is state]
