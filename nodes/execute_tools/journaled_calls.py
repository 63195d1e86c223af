"""Calls that the journal knows: which they are, what came of them, and what is done with one that was cut off.

What became of a call is kept for the time between its end and the step's checkpoint. After a kill its result is given
again, or it runs again, or it is said that nobody knows. What it has done to files is known by then:
`journal.recovery` has looked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pydantic import BaseModel, ConfigDict, ValidationError

from mendgraph.nodes.execute_tools.edits.diffs import Version, file_change
from mendgraph.nodes.execute_tools.files.change_records import ChangeState, FileEffect
from mendgraph.nodes.execute_tools.files.text_files import text_of
from mendgraph.nodes.execute_tools.files.workspace import FileContent, Workspace
from mendgraph.nodes.execute_tools.journal.journal import CallKey, Journal, RecordedCall, call_fingerprint
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolOutput
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import (
    CHANGING,
    CallError,
    Effect,
    FileChange,
    JsonMap,
    Plan,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)

JOURNALED = CHANGING | {Effect.NETWORK}
"""Effects that must not happen twice."""

DONE_BEFORE = "This was done before the run was cut off, and is in place."


@dataclass(frozen=True)
class Execution:
    """Which step of which run this is; `task` is the same when a step that was cut off is run again."""

    run_id: str
    task: str
    step: int

    def key(self, place: int, call: ToolCall, tool: Tool) -> CallKey:
        """What the journal knows the call by."""
        fingerprint = call_fingerprint(call.tool, call.arguments)
        return CallKey(self.run_id, self.task, self.step, place, call.tool, tool.effect.value, fingerprint)


def changes_something(
    items: Sequence[ToolCall | CallError], verdicts: Sequence[Verdict], registry: ActionRegistry
) -> bool:
    """Whether a call of this step that may run has an effect."""
    judged = zip(items, verdicts, strict=False)
    tools = (registry.get(item.tool) for item, verdict in judged if verdict.kind is VerdictKind.ALLOW)
    return any(tool is not None and tool.effect in JOURNALED for tool in tools)


def calls_made(
    journal: Journal,
    registry: ActionRegistry,
    workspace: Workspace,
    execution: Execution,
    items: Sequence[ToolCall | CallError],
) -> dict[int, ToolRun]:
    """What the calls of a step that was cut off came to, by their places, whichever execution it was.

    Raises:
        StoreError: the journal cannot be read.
    """
    found: dict[int, ToolRun] = {}
    for place, known in journal.calls_of_step(execution.run_id, execution.step).items():
        call = items[place] if place < len(items) else None
        tool = registry.get(known.key.tool)
        if not isinstance(call, ToolCall) or tool is None:
            continue
        if known.key.arguments_sha256 == call_fingerprint(call.tool, call.arguments):
            ran = resumed(call, tool, known, partial(describe_effect, workspace, journal.backup))
            if ran is not None:
                found[place] = ran
    return found


def resumed(
    call: ToolCall, tool: Tool, recorded: RecordedCall, describe: Callable[[FileEffect], FileChange]
) -> ToolRun | None:
    """How the call ended, as far as anybody knows; None where it had no effect, so that it has to be run again.

    Only of a tool whose whole effect is one change is it known that it had none. What a person has taken back since
    counts as not done.
    """
    if recorded.outcome and not _in_state(recorded, ChangeState.REVERTED):
        known = from_json(call.call_id, call.tool, recorded.outcome)
        if known is not None:
            return known
    foreign = [effect.path for effect in _in_state(recorded, ChangeState.FOREIGN)]
    if foreign:
        return _ended(call, changed_by_others(call.tool, foreign))
    done = [describe(each) for each in _in_state(recorded, ChangeState.DONE)]
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


def _in_state(recorded: RecordedCall, state: ChangeState) -> list[FileEffect]:
    return [effect for change in recorded.changes if change.state is state for effect in change.effects]


class _Recorded(BaseModel):
    """A ToolRun without the call's own name and id, which whoever resumes it knows: a stored format."""

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


def describe_effect(workspace: Workspace, backup: Callable[[str], bytes | None], effect: FileEffect) -> FileChange:
    """The effect on one file. The diff is "" where a version is binary, or is not at hand any more.

    `backup` gives the bytes of a file before it was changed, by their hash.
    """
    before, after = effect.before.sha256, effect.after.sha256
    old = backup(before) if before else None
    found = workspace.read_file(effect.path) if after else None
    new = found.data if isinstance(found, FileContent) and found.sha256 == after else None
    return file_change(
        effect.path,
        Version(before, None if old is None else text_of(old)),
        Version(after, None if new is None else text_of(new)),
    )
