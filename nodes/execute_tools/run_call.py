"""One call of a step, with its record in the journal; `run_call` shows the order.

A call with an effect is recorded before it begins and when it has ended. After a crash its outcome is returned again,
or it runs again, or its result says that the outcome is unknown; `journal.recovery` has checked the files by then.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from mendgraph.nodes.execute_tools.edits.diffs import Version, file_change, with_hunks
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome
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
from mendgraph.nodes.workspace.files.change_records import ChangeState, FileEffect
from mendgraph.nodes.workspace.files.deadline import CancellationScope
from mendgraph.nodes.workspace.files.text_files import escaped_name, text_of
from mendgraph.nodes.workspace.files.workspace import ApprovedWorkspace, FileContent, PartlyApprovedWorkspace, Workspace
from mendgraph.nodes.workspace.journal.journal import CallKey, Journal, RecordedCall, call_fingerprint, idempotency_key
from mendgraph.nodes.workspace.store.database import StoreError

DONE_BEFORE = "This was done before the run was cut off, and is in place."
JOURNALED = CHANGING | {Effect.NETWORK}  # effects that must not happen twice
ReportOutcome = Callable[[ToolOutcome], None]


@dataclass(frozen=True)
class Execution:
    """The step of a run; `task` is the same if an interrupted step is run again."""

    run_id: str
    task: str
    step: int

    def key(self, place: int, call: ToolCall, tool: Tool) -> CallKey:
        """Return the journal key of the call at this place of the step."""
        fingerprint = call_fingerprint(call.tool, call.arguments)
        return CallKey(self.run_id, self.task, self.step, place, call.tool, tool.effect.value, fingerprint)


@dataclass(frozen=True)
class StepResources:
    """What the calls of one step need.

    Attributes:
        run: validates, permits and invokes one call (`Engine.run_sync`).
        context: the context of the tools.
        journal: None if no call of the step has an effect; an error prevents all calls with an effect.
        as_written: returns the call as the model wrote it, without marks for secrets.
        observe: entered around each call; it yields a function that receives the outcome.
        beside: returns whether a call may run beside others, in another thread.
        permit: returns the context of a call that a person has approved.
        children: runs delegated calls by their places, and returns their outcomes and the seconds that they took.
    """

    run: Callable[[ToolCall, ToolContext], ToolOutcome]
    registry: ActionRegistry
    context: ToolContext
    log: RunLog
    execution: Execution
    journal: Journal | ToolError | None = None
    as_written: Callable[[ToolCall], ToolCall] = lambda call: call
    observe: Callable[[ToolCall], AbstractContextManager[ReportOutcome]] = lambda _: nullcontext(lambda _: None)
    beside: Callable[[ToolCall], bool] = lambda _: False
    permit: Callable[[ToolCall, ToolContext], ToolContext] = lambda _, context: context
    children: Callable[[Mapping[int, ToolCall], ToolContext], tuple[list[ToolOutcome], float]] | None = None


class _CallRecord(NamedTuple):
    """The journal record of a call; `number` is 0 if it gets a record only at its end."""

    journal: Journal
    key: CallKey
    number: int


def run_call(place: int, call: ToolCall, verdict: Verdict, using: StepResources, context: ToolContext) -> ToolOutcome:
    """Run the call at this place of the step, or return its recorded outcome from before a crash."""
    execution = using.execution
    workspace = context.workspace
    if verdict.pins is not None:  # a person approved this version of the files
        earlier = context.changes[len(using.context.changes) :]  # those of this step
        changed = {change.path: change.sha256_after for change in earlier}
        if verdict.hunks:
            part = partial(with_hunks, numbers=verdict.hunks)
            workspace = PartlyApprovedWorkspace.of_part(workspace, verdict.pins, changed, part)
        else:
            workspace = ApprovedWorkspace.of(workspace, verdict.pins, changed)

    key = idempotency_key(execution.run_id, execution.step, place, call.tool, call.arguments)
    context = replace(context, workspace=workspace, idempotency_key=key, call_id=call.call_id, answer=verdict.answer)

    with using.observe(call) as report:
        record = _begin_record(place, call, using, workspace)
        if isinstance(record, ToolOutcome):
            report(record)
            return record

        written = using.as_written(call)
        if verdict.edited:  # by a person: it is not what its text says
            written = written.model_copy(update={"raw_arguments": ""})

        if verdict.rule:  # it waited for an approval, and has it
            context = using.permit(written, context)

        if record is not None and record.number:
            context = replace(context, workspace=workspace.recorded(record.journal.recorder(record.number)))

        outcome = using.run(written, context)  # validates, permits and invokes: see `Engine.run_sync`
        if record is not None:
            _record_outcome(record, outcome, using.context.scope)

        report(outcome)
        return outcome


def _begin_record(
    place: int, call: ToolCall, using: StepResources, workspace: Workspace
) -> _CallRecord | ToolOutcome | None:
    """Record that the call begins, and return the record, or None for a call that needs none.

    A `ToolOutcome` means that the call must not run: it ended before a crash, or its effect cannot be recorded. That
    error ends the run, unless another run holds the workspace.
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
            outcome = recorded_outcome(call, tool, earlier, partial(describe_effect, workspace, journal))
            if outcome is not None:
                return outcome

        number = journal.begin(key) if has_effect else 0
    except StoreError as error:
        if has_effect:
            return _not_recorded(call, ToolError(code=ToolErrorCode.IO_ERROR, message=str(error)))
        number = 0

    return _CallRecord(journal, key, number)


def _not_recorded(call: ToolCall, problem: ToolError) -> ToolOutcome:
    message = f"{call.tool} was not run, because its effect could not be recorded: {problem.message}"
    refusal = ToolError(code=problem.code, message=message, fatal=problem.code is not ToolErrorCode.UNAVAILABLE)
    return ToolOutcome(call.call_id, call.tool, ToolOutput.failed(refusal), error=f"tool_error:{message}")


def _record_outcome(record: _CallRecord, outcome: ToolOutcome, scope: CancellationScope | None) -> None:
    """Store the outcome until the step's checkpoint is written."""
    if scope is not None and scope.over and not outcome.result.ok:
        return  # the call was cancelled, so its outcome is unknown

    with suppress(StoreError):  # the files' hashes still show what was done
        text = outcome_json(outcome)
        if record.number:
            record.journal.end(record.number, text)
        else:
            record.journal.begin(record.key, text)


# --- Calls that a crash has interrupted


@cache
def _adapter() -> TypeAdapter[ToolOutcome]:
    return TypeAdapter(ToolOutcome)


def outcome_json(outcome: ToolOutcome) -> str:
    """Return the outcome as the journal stores it, without the call's id and tool."""
    return _adapter().dump_json(replace(outcome, call_id="", tool="")).decode()


def recorded_outcomes(
    journal: Journal,
    registry: ActionRegistry,
    workspace: Workspace,
    execution: Execution,
    items: Sequence[ToolCall | CallError],
) -> dict[int, ToolOutcome]:
    """Return the recorded outcomes of an interrupted step by the places of its calls.

    Raises:
        StoreError: the journal cannot be read.
    """
    outcomes: dict[int, ToolOutcome] = {}
    describe = partial(describe_effect, workspace, journal)

    for place, record in journal.calls_of_step(execution.run_id, execution.step).items():
        call = items[place] if place < len(items) else None
        tool = registry.get(record.key.tool)
        if not isinstance(call, ToolCall) or tool is None:
            continue
        if record.key.arguments_sha256 != call_fingerprint(call.tool, call.arguments):
            continue

        outcome = recorded_outcome(call, tool, record, describe)
        if outcome is not None:
            outcomes[place] = outcome

    return outcomes


def recorded_outcome(
    call: ToolCall, tool: Tool, record: RecordedCall, describe: Callable[[FileEffect], FileChange]
) -> ToolOutcome | None:
    """Return the outcome of a recorded call, or None if it had no effect and has to run again.

    Only a tool whose whole effect is one change certainly had none. A change that a person has reverted counts as not
    done. `describe` returns an effect on a file as a change.
    """
    if record.outcome and not _effects_in_state(record, ChangeState.REVERTED):
        with suppress(ValidationError):  # written by another version
            return replace(_adapter().validate_json(record.outcome), call_id=call.call_id, tool=call.tool)

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
        return _done_before(call, changes) if changes else None

    if tool.effect is Effect.WRITE and changes:
        paths = _distinct([change.path for change in changes])
        message = (
            f"The run was cut off while {name} worked. It had changed {paths} by then; what else it was to do did not"
            " happen. It was not run again: look at what there is."
        )
        return _failed(call, ToolError(code=ToolErrorCode.OUTCOME_UNKNOWN, message=message), changes)

    return _failed(call, unknown_outcome(name), changes)


def unknown_outcome(tool: str) -> ToolError:
    """Return the result of a call that was cut off and is not run again."""
    message = (
        f"{tool} began, and how it ended was not recorded, so its outcome is unknown: all, some or nothing of it"
        " may have happened. It was not run again. Look at what there is before you decide to repeat it."
    )
    return ToolError(code=ToolErrorCode.OUTCOME_UNKNOWN, message=message)


def _done_before(call: ToolCall, changes: tuple[FileChange, ...]) -> ToolOutcome:
    data: JsonMap = {"path": changes[0].path, "note": DONE_BEFORE}
    if len(changes) > 1:
        data["files"] = [{"path": change.path, "action": change.kind.value} for change in changes]

    output = ToolOutput(ToolResult(ok=True, data=data), changes, _hashes_after(changes))
    return ToolOutcome(call.call_id, call.tool, output, attempts=1)


def _failed(call: ToolCall, error: ToolError, changes: tuple[FileChange, ...]) -> ToolOutcome:
    output = replace(ToolOutput.failed(error), changes=changes, files_read=_hashes_after(changes))
    return ToolOutcome(call.call_id, call.tool, output, error=f"tool_error:{error.message}", attempts=1)


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
    """Return the effect on one file as a change; the diff is "" if a version is binary or no longer stored."""
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
