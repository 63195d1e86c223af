"""One step: the calls of one reply, run in order, each seeing what the ones before it read, changed and planned.

A call with an effect is recorded before it begins and when it has ended. So a step that is run again after a kill finds
what its calls came to, and makes only those that had no effect.

A terminal call (the final answer) is settled last. It stands only when everything else in the reply went well: a
model that answers before it has seen a failure would report what did not happen. Once the run is to stop no call
begins any more but that one: an answer that is there is not thrown away.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, monotonic_s
from mendgraph.nodes.execute_tools.files.workspace import ApprovedWorkspace, Workspace
from mendgraph.nodes.execute_tools.journal.journal import CallKey, Journal, idempotency_key
from mendgraph.nodes.execute_tools.journaled_calls import JOURNALED, Execution, as_json, describe_effect, resumed
from mendgraph.nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.tool_run import ToolRun
from mendgraph.nodes.execute_tools.trace import RunLog
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    FileChange,
    Plan,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    Verdict,
)

NOTHING_TO_JUDGE = "Another call of this reply failed, so there is nothing to check yet."
STOPPED = "The run was stopped before this call, so it did not run."
OUT_OF_TIME = "The time of this turn is used up, so this call did not run."


Run = Callable[[ToolCall, ToolContext], ToolRun]
"""The engine's way for one call."""

Ended = Callable[[ToolRun], None]


def _unobserved(_: ToolCall) -> AbstractContextManager[Ended]:
    return nullcontext(lambda _: None)


@dataclass(frozen=True)
class StepResources:
    """What one step may use, and where it is written down.

    `run` runs one call. `journal` is None where nothing of the step has an effect, or why there is no journal: then
    nothing with an effect is run. `as_written` gives a call as the model wrote it, where the state holds it with marks.
    `observe` is entered around each call, and is given what the call came to.
    """

    run: Run
    registry: ActionRegistry
    context: ToolContext
    log: RunLog
    execution: Execution
    journal: Journal | ToolError | None = None
    as_written: Callable[[ToolCall], ToolCall] = lambda call: call
    observe: Callable[[ToolCall], AbstractContextManager[Ended]] = _unobserved


@dataclass
class StepDone:
    """What a step came to. `results` is aligned with the calls, `seconds` is the time that they took in all."""

    results: list[CallResult]
    plan: Plan
    seconds: float = 0.0
    changes: list[FileChange] = field(default_factory=list)
    files_read: dict[str, str] = field(default_factory=dict)


def run_step(
    items: Sequence[ToolCall | CallError],
    verdicts: Sequence[Verdict],
    settled: Sequence[CallResult | None],
    using: StepResources,
) -> StepDone:
    """Run each call that `settled` has no result for; terminal ones after all others. Each is logged as it ends."""
    step = _Step(items, verdicts, using)
    if isinstance(using.journal, Journal):
        with suppress(StoreError):
            using.journal.forget_outcomes(using.execution.run_id, using.execution.step)
    results: dict[int, CallResult] = {index: result for index, result in enumerate(settled) if result is not None}
    waiting = [(index, item) for index, item in enumerate(items) if index not in results and isinstance(item, ToolCall)]
    terminal = {spec.name for spec in using.registry.specs() if spec.terminal}
    for index, call in sorted(waiting, key=lambda entry: entry[1].tool in terminal):
        failed = sum(_failed(result, step.done) for result in results.values())
        refusal = _refusal(call, failed, using.context.scope, is_answer=call.tool in terminal)
        if refusal is None:
            step.note(dict(enumerate(settled[:index])))
            # Of several edits only all together can be judged.
            last = not any(other.tool == call.tool for place, other in waiting if place > index)
            results[index] = step.run(index, call, gated=using.context.gated and last)
        else:
            results[index] = refusal
    step.note(results)
    step.done.results = [results[index] for index in range(len(items))]
    return step.done


def nothing_done(items: Sequence[ToolCall | CallError], problem: ToolError) -> list[CallResult]:
    """The results of a step whose workspace is no more: the run ends with that."""
    failed = ToolResult(ok=False, error=problem.model_copy(update={"fatal": True}))
    return [CallResult(call_id=item.call_id, tool=item.tool, result=failed) for item in items]


def _refusal(call: ToolCall, failed: int, scope: CancellationScope | None, *, is_answer: bool) -> CallResult | None:
    """Why this call does not begin after so many failed ones, None where it does."""
    if is_answer and failed:
        message = f"Not taken as the final answer: {failed} other call(s) of this reply failed. Mend that, then answer."
        return _not_run(call, ToolErrorCode.CANCELLED, message)
    if call.implied and failed:
        return _not_run(call, ToolErrorCode.CANCELLED, NOTHING_TO_JUDGE)
    if scope is not None and (scope.over if is_answer else scope.closed):
        return _not_run(call, ToolErrorCode.CANCELLED, STOPPED)
    return None


def _failed(result: CallResult, done: StepDone) -> bool:
    """Whether a call stands in the way of the answer. A file that was repeated as it is does not, beside a change."""
    error = result.result.error
    if error is None:
        return result.result.data.get("changed") is False
    return not (error.code is ToolErrorCode.UNCHANGED and done.changes)


def _not_run(call: ToolCall, code: ToolErrorCode, message: str) -> CallResult:
    return CallResult(call_id=call.call_id, tool=call.tool, result=ToolResult.failure(code, message))


class _Step:
    """The calls of one step on their way through the engine."""

    def __init__(
        self, items: Sequence[ToolCall | CallError], verdicts: Sequence[Verdict], using: StepResources
    ) -> None:
        self._judged = list(zip(items, verdicts, strict=False))
        self._using, self._execution = using, using.execution
        self._noted: set[int] = set()
        self.done = StepDone(results=[], plan=using.context.plan)

    def note(self, results: Mapping[int, CallResult | None]) -> None:
        """Log the results that are not logged yet, in call order."""
        for index, (item, verdict) in enumerate(self._judged):
            result = results.get(index)
            if result is not None and index not in self._noted:
                self._noted.add(index)
                self._using.log.call(self._execution.step, item, verdict, result)

    def run(self, place: int, call: ToolCall, *, gated: bool) -> CallResult:
        """Run the call, or give what it came to before the run was cut off."""
        verdict, done = self._judged[place][1], self.done
        context = self._context_now(place, call, verdict, gated=gated)
        if context.seconds_left <= 0:
            return _not_run(call, ToolErrorCode.TIMEOUT, OUT_OF_TIME)
        begun = monotonic_s()
        try:
            with self._using.observe(call) as ended:
                ran = self._made(place, call, verdict, context)
                ended(ran)
        except BaseException:
            self._noted.add(place)
            self._using.log.cut_off(self._execution.step, call, verdict)
            raise
        done.seconds += max(monotonic_s() - begun, ran.ms / 1_000)  # what ran before a kill took its time then
        done.changes += ran.output.changes
        done.files_read.update(ran.output.files_read)
        done.plan = ran.output.plan or done.plan
        record = ran.as_record()
        self.note({place: record})
        return record

    def _context_now(self, place: int, call: ToolCall, verdict: Verdict, *, gated: bool) -> ToolContext:
        """What this call may use: one that a person has allowed gets a workspace for what was shown alone."""
        context, done = self._using.context, self.done
        left, workspace = context.seconds_left - done.seconds, context.workspace
        if verdict.pins is not None:
            changed = {change.path: change.sha256_after for change in done.changes}
            workspace = ApprovedWorkspace.of(workspace, verdict.pins, changed)
        run = self._execution
        return replace(
            context,
            workspace=workspace,
            files_read={**context.files_read, **done.files_read},
            plan=done.plan,
            timeout_s=min(context.timeout_s, left),
            seconds_left=left,
            idempotency_key=idempotency_key(run.run_id, run.step, place, call.tool, call.arguments),
            gated=gated,
        )

    def _made(self, place: int, call: ToolCall, verdict: Verdict, context: ToolContext) -> ToolRun:
        """Run the call between its two records; where the first one fails, nothing with an effect is run."""
        using, tool, journal = self._using, self._using.registry.get(call.tool), self._using.journal
        written = using.as_written(call)
        if verdict.edited:  # by a person: it is not what its text says
            written = written.model_copy(update={"raw_arguments": ""})
        if tool is None or journal is None:
            return using.run(written, context)
        if isinstance(journal, ToolError):
            return self._unrecorded(tool, written, context, journal)
        key = self._execution.key(place, call, tool)
        begun = _begun(journal, key, call, tool, context.workspace)
        if isinstance(begun, ToolRun):
            return begun
        if isinstance(begun, ToolError):
            return self._unrecorded(tool, written, context, begun)
        workspace = context.workspace.recorded(journal.recorder(begun)) if begun else context.workspace
        ran = using.run(written, replace(context, workspace=workspace))
        if context.scope is not None and context.scope.over and not ran.result.ok:
            return ran  # the run was given up in its middle: nobody hears this result, and it is not how the call ended
        with suppress(StoreError):  # what was done stands, and the files' hashes tell of it
            if begun:
                journal.end(begun, as_json(ran))
            else:
                journal.note(key, as_json(ran))
        return ran

    def _unrecorded(self, tool: Tool, call: ToolCall, context: ToolContext, why: ToolError) -> ToolRun:
        """What has no effect runs without a journal; what has one does not run. A busy workspace may be free later."""
        if tool.effect not in JOURNALED:
            return self._using.run(call, context)
        message = f"{call.tool} was not run, because its effect could not be recorded: {why.message}"
        error = ToolError(code=why.code, message=message, fatal=why.code is not ToolErrorCode.UNAVAILABLE)
        return ToolRun(call.call_id, call.tool, ToolOutput.failed(error), error=f"tool_error:{message}")


def _begun(
    journal: Journal, key: CallKey, call: ToolCall, tool: Tool, workspace: Workspace
) -> ToolRun | int | ToolError:
    """How the call ended before, or the number of its record: 0 for one without an effect, which has none."""
    try:
        known = journal.find(key.thread, key.execution, key.place)
        if known is not None and known.key == key:
            ran = resumed(call, tool, known, partial(describe_effect, workspace, journal.backup))
            if ran is not None:
                return ran
        return journal.begin(key) if tool.effect in JOURNALED else 0
    except StoreError as error:
        return ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))
