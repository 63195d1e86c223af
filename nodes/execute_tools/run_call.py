"""One call of a step, from the journal's look back to the record of its outcome: `run_call` shows the order.

A call with an effect is recorded before it begins and when it has ended. After a kill its outcome is returned again, or
it runs again, or its result says that nobody knows; `journal.recovery` has looked at the files by then.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope
from mendgraph.nodes.execute_tools.files.workspace import ApprovedWorkspace, Workspace
from mendgraph.nodes.execute_tools.interrupted_calls import (
    Execution,
    describe_effect,
    outcome_json,
    run_before_interruption,
)
from mendgraph.nodes.execute_tools.journal.journal import CallKey, Journal, idempotency_key
from mendgraph.nodes.execute_tools.registry import ActionRegistry, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.records import CHANGING, Effect, ToolCall, ToolError, ToolErrorCode, Verdict

JOURNALED = CHANGING | {Effect.NETWORK}  # effects that must not happen twice
Ended = Callable[[ToolRun], None]


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
        earlier = context.changes[len(using.context.changes) :]
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
    """Record that the call begins; or the run that ends it: its outcome of before, or why it must not begin.

    None where nothing is recorded of it. A call without an effect runs also where the journal fails; one with an effect
    does not. A busy workspace may be free later.
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
            record.journal.note(record.key, outcome)
