"""What became of calls that a kill interrupted, by the journal: their result, no effect at all, or nobody knows."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial

from pydantic import TypeAdapter, ValidationError

from mendgraph.nodes.execute_tools.edits.diffs import Version, file_change
from mendgraph.nodes.execute_tools.files.change_records import ChangeState, FileEffect
from mendgraph.nodes.execute_tools.files.text_files import text_of
from mendgraph.nodes.execute_tools.files.workspace import FileContent, Workspace
from mendgraph.nodes.execute_tools.journal.journal import CallKey, Journal, RecordedCall, call_fingerprint
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolOutput
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.records import (
    CallError,
    Effect,
    FileChange,
    JsonMap,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
)

DONE_BEFORE = "This was done before the run was cut off, and is in place."


@dataclass(frozen=True)
class Execution:
    """Which step of which run this is; `task` is the same when a step that was cut off is run again."""

    run_id: str
    task: str
    step: int

    def key(self, place: int, call: ToolCall, tool: Tool) -> CallKey:
        """The key of the call at this place of the step in the journal."""
        fingerprint = call_fingerprint(call.tool, call.arguments)
        return CallKey(self.run_id, self.task, self.step, place, call.tool, tool.effect.value, fingerprint)


@cache
def _run_adapter() -> TypeAdapter[ToolRun]:
    return TypeAdapter(ToolRun)


def outcome_json(run: ToolRun) -> str:
    """The run as the journal stores it, without the call's id and tool, which the call itself has."""
    return _run_adapter().dump_json(replace(run, call_id="", tool="")).decode()


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
    runs: dict[int, ToolRun] = {}
    describe = partial(describe_effect, workspace, journal)

    for place, record in journal.calls_of_step(execution.run_id, execution.step).items():
        call = items[place] if place < len(items) else None
        tool = registry.get(record.key.tool)
        if not isinstance(call, ToolCall) or tool is None:
            continue
        if record.key.arguments_sha256 != call_fingerprint(call.tool, call.arguments):
            continue

        run = run_before_interruption(call, tool, record, describe)
        if run is not None:
            runs[place] = run

    return runs


def run_before_interruption(
    call: ToolCall, tool: Tool, record: RecordedCall, describe: Callable[[FileEffect], FileChange]
) -> ToolRun | None:
    """How the recorded call ended; None where it had no effect, so that it has to be run again.

    Only of a tool whose whole effect is one change is it certain that it had none. A change that a person has reverted
    since counts as not done. `describe` gives the change that an effect on a file is.
    """
    if record.outcome and not _effects_in_state(record, ChangeState.REVERTED):
        with suppress(ValidationError):  # of another version
            return replace(_run_adapter().validate_json(record.outcome), call_id=call.call_id, tool=call.tool)

    name = call.tool
    foreign = [effect.path for effect in _effects_in_state(record, ChangeState.FOREIGN)]
    if foreign:
        message = (
            f"The run was cut off while {name} changed {_distinct(foreign)}, and somebody else has changed it since."
            " Nothing was overwritten: look at it, then send the next request."
        )
        return _failed(call, ToolError(code=ToolErrorCode.CONFLICT, message=message, fatal=True), ())

    changes = tuple(describe(effect) for effect in _effects_in_state(record, ChangeState.DONE))
    if tool.one_change:
        return _done_run(call, changes) if changes else None

    if tool.effect is Effect.WRITE and changes:
        paths = _distinct([change.path for change in changes])
        message = (
            f"The run was cut off while {name} worked. It had changed {paths} by then; what else it was to do did not"
            " happen. It was not run again: look at what there is."
        )
    else:
        message = (
            f"The run was cut off while {name} worked, so its outcome is unknown: all, some or nothing of it may have"
            " happened. It was not run again. Look at what there is before you decide to repeat it."
        )

    return _failed(call, ToolError(code=ToolErrorCode.OUTCOME_UNKNOWN, message=message), changes)


def _done_run(call: ToolCall, changes: tuple[FileChange, ...]) -> ToolRun:
    data: JsonMap = {"path": changes[0].path, "note": DONE_BEFORE}
    if len(changes) > 1:
        data["files"] = [{"path": change.path, "action": change.kind.value} for change in changes]

    output = ToolOutput(ToolResult(ok=True, data=data), changes, _hashes_after(changes))
    return ToolRun(call.call_id, call.tool, output, attempts=1)


def _failed(call: ToolCall, error: ToolError, changes: tuple[FileChange, ...]) -> ToolRun:
    output = replace(ToolOutput.failed(error), changes=changes, files_read=_hashes_after(changes))
    return ToolRun(call.call_id, call.tool, output, error=f"tool_error:{error.message}", attempts=1)


def _hashes_after(changes: Sequence[FileChange]) -> dict[str, str]:
    return {change.path: change.sha256_after for change in changes}


def _distinct(paths: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(paths))


def _effects_in_state(record: RecordedCall, state: ChangeState) -> list[FileEffect]:
    effects: list[FileEffect] = []
    for change in record.changes:
        if change.state is state:
            effects += change.effects

    return effects


def describe_effect(workspace: Workspace, journal: Journal, effect: FileEffect) -> FileChange:
    """The effect on one file. The diff is "" where a version is binary, or is not stored any more."""
    before = Version(effect.before.sha256, None)
    if before.sha256:
        backup = journal.backup(before.sha256)
        if backup is not None:
            before = before._replace(text=text_of(backup))

    after = Version(effect.after.sha256, None)
    if after.sha256:
        file = workspace.read_file(effect.path)
        if isinstance(file, FileContent) and file.sha256 == after.sha256:
            after = after._replace(text=text_of(file.data))

    return file_change(effect.path.encode(errors="backslashreplace").decode(), before, after)
