"""One call of a step, from the journal's look back to the record of its outcome: `run_call` shows the order.

A call with an effect is recorded before it begins and when it has ended. After a kill its outcome is returned again, or
it runs again, or its result says that nobody knows; `journal.recovery` has looked at the files by then.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from mendgraph.nodes.execute_tools.edits.diffs import Version, file_change
from mendgraph.nodes.execute_tools.files.change_records import ChangeState, FileEffect
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope
from mendgraph.nodes.execute_tools.files.text_files import escaped_name, text_of
from mendgraph.nodes.execute_tools.files.workspace import ApprovedWorkspace, FileContent, Workspace
from mendgraph.nodes.execute_tools.journal.journal import (
    CallKey,
    Journal,
    RecordedCall,
    call_fingerprint,
    idempotency_key,
)
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.records import (
    CHANGING,
    CallError,
    Effect,
    FileChange,
    JsonMap,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    Verdict,
)

DONE_BEFORE = "This was done before the run was cut off, and is in place."
JOURNALED = CHANGING | {Effect.NETWORK}  # effects that must not happen twice
Ended = Callable[[ToolRun], None]


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


@dataclass(frozen=True)
class StepResources:
    """What the calls of one step may use, and where they are recorded.

    Attributes:
        run: runs one call: it is validated, permitted and invoked there (`Engine.run_sync`).
        context: what the tools may use.
        journal: None where nothing of the step has an effect, or why there is no journal: then nothing with an effect
            is run.
        as_written: the call as the model wrote it, where the state holds it with marks.
        observe: entered around each call; it yields a function that receives the call's run.
        beside: whether a call may run while others do, for which `run` and `observe` are used in several threads.
        permit: the context of a call that a person has approved.
        children: runs the calls that are runs of their own, by their places, and returns their runs and the seconds
            that they took.
    """

    run: Callable[[ToolCall, ToolContext], ToolRun]
    registry: ActionRegistry
    context: ToolContext
    log: RunLog
    execution: Execution
    journal: Journal | ToolError | None = None
    as_written: Callable[[ToolCall], ToolCall] = lambda call: call
    observe: Callable[[ToolCall], AbstractContextManager[Ended]] = lambda _: nullcontext(lambda _: None)
    beside: Callable[[ToolCall], bool] = lambda _: False
    permit: Callable[[ToolCall, ToolContext], ToolContext] = lambda _, context: context
    children: Callable[[Mapping[int, ToolCall], ToolContext], tuple[list[ToolRun], float]] | None = None


class _CallRecord(NamedTuple):
    """Where the outcome of a call is recorded. `number` is that of its record, 0 where it has none before it ends."""

    journal: Journal
    key: CallKey
    number: int


def run_call(place: int, call: ToolCall, verdict: Verdict, using: StepResources, context: ToolContext) -> ToolRun:
    """Run the call at this place of the step, or return what it came to before the run was cut off."""
    execution = using.execution
    workspace = context.workspace
    if verdict.pins is not None:  # a person has approved this version of the files, and no other one
        earlier = context.changes[len(using.context.changes) :]  # those of this step
        changed = {change.path: change.sha256_after for change in earlier}
        workspace = ApprovedWorkspace.of(workspace, verdict.pins, changed)

    key = idempotency_key(execution.run_id, execution.step, place, call.tool, call.arguments)
    context = replace(context, workspace=workspace, idempotency_key=key, call_id=call.call_id)

    with using.observe(call) as ended:
        record = _begin_record(place, call, using, workspace)
        if isinstance(record, ToolRun):
            ended(record)
            return record

        written = using.as_written(call)
        if verdict.edited:  # by a person: it is not what its text says
            written = written.model_copy(update={"raw_arguments": ""})

        if verdict.rule:  # it waited for an approval, and has it
            context = using.permit(written, context)

        if record is not None and record.number:
            context = replace(context, workspace=workspace.recorded(record.journal.recorder(record.number)))

        run = using.run(written, context)  # validates, permits and invokes: see `Engine.run_sync`
        if record is not None:
            _record_outcome(record, run, using.context.scope)

        ended(run)
        return run


def _begin_record(
    place: int, call: ToolCall, using: StepResources, workspace: Workspace
) -> _CallRecord | ToolRun | None:
    """Record that the call begins.

    Returns a record: run the call. A `ToolRun`: do not run it, as it ended before a kill, or its effect cannot be
    recorded. None: it needs no record, run it. A journal that fails stops only calls with an effect; the error ends the
    run, unless another run holds the workspace, which may leave it.
    """
    tool = using.registry.get(call.tool)
    journal = using.journal
    if tool is None or journal is None:
        return None

    has_effect = tool.effect in JOURNALED
    if isinstance(journal, ToolError):
        return _not_recorded(call, journal) if has_effect else None

    key = using.execution.key(place, call, tool)
    try:
        earlier = journal.find(key.thread, key.execution, key.place)
        if earlier is not None and earlier.key == key:
            run = run_before_interruption(call, tool, earlier, partial(describe_effect, workspace, journal))
            if run is not None:
                return run

        number = journal.begin(key) if has_effect else 0
    except StoreError as error:
        if has_effect:
            return _not_recorded(call, ToolError(code=ToolErrorCode.IO_ERROR, message=str(error)))
        number = 0

    return _CallRecord(journal, key, number)


def _not_recorded(call: ToolCall, problem: ToolError) -> ToolRun:
    message = f"{call.tool} was not run, because its effect could not be recorded: {problem.message}"
    refusal = ToolError(code=problem.code, message=message, fatal=problem.code is not ToolErrorCode.UNAVAILABLE)
    return ToolRun(call.call_id, call.tool, ToolOutput.failed(refusal), error=f"tool_error:{message}")


def _record_outcome(record: _CallRecord, run: ToolRun, scope: CancellationScope | None) -> None:
    """Store what the call came to until the step's checkpoint is written."""
    if scope is not None and scope.over and not run.result.ok:
        return  # the call was cancelled: its failure is not how it ended

    with suppress(StoreError):  # what was done stands, and the files' hashes tell of it
        outcome = outcome_json(run)
        if record.number:
            record.journal.end(record.number, outcome)
        else:
            record.journal.begin(record.key, outcome)


# --- Calls that a kill has interrupted: their result, no effect at all, or nobody knows


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

    return file_change(escaped_name(effect.path), before, after)
