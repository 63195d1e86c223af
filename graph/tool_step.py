"""The calls of one step on their way through the engine: written down before and after, and run once.

A call with an effect is recorded before it begins and when it has ended. So a step that is run again after a kill finds
what its calls came to, and makes only those that had no effect.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from graph.run_log import RunLog
from graph.slices import ExecuteToolsSlice
from graph.telemetry.traced_call import told_call
from nodes.execute_tools.cut_off_calls import resumed
from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.journal import CallKey, Journal
from nodes.execute_tools.environment.workspace import Workspace
from nodes.execute_tools.environment.workspace_views import ApprovedWorkspace
from nodes.execute_tools.policy.idempotency import call_fingerprint
from nodes.execute_tools.recorded_runs import as_json
from nodes.execute_tools.registry import ActionRegistry, Tool, ToolContext, ToolOutput
from nodes.execute_tools.step import Run
from nodes.execute_tools.tool_run import ToolRun
from nodes.execute_tools.tools.past_changes import describe_effect
from nodes.guard.policy import results_of_denied
from nodes.records import CHANGING, CallError, CallResult, Effect, ToolCall, ToolError, ToolErrorCode, VerdictKind

JOURNALED = CHANGING | {Effect.NETWORK}
"""Effects that must not happen twice."""


@dataclass(frozen=True)
class Execution:
    """Which step of which run this is; `task` is the same when a step that was cut off is run again."""

    run_id: str
    task: str
    step: int


def changes_something(state: ExecuteToolsSlice, registry: ActionRegistry) -> bool:
    """Whether a call of this step that may run has an effect."""
    judged = zip(state["items"], state["verdicts"], strict=False)
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
        if isinstance(call, ToolCall) and tool is not None and known.key.arguments_sha256 == _fingerprint(call):
            ran = resumed(call, tool, known, partial(describe_effect, workspace, journal.backup))
            if ran is not None:
                found[place] = ran
    return found


class ToolStep:
    """Runs the calls of one step, each written down as soon as it has ended, in call order.

    `journal` is None where nothing of the step has an effect, or why there is no journal: then nothing with an effect
    is run. `engine` runs one call. `written` gives a call as the model wrote it, where the state holds it with marks.
    """

    def __init__(
        self,
        state: ExecuteToolsSlice,
        execution: Execution,
        engine: Run,
        registry: ActionRegistry,
        log: RunLog,
        journal: Journal | ToolError | None,
        written: Callable[[ToolCall], ToolCall] = lambda call: call,
    ) -> None:
        self._judged = list(zip(state["items"], state["verdicts"], strict=False))
        self._settled = results_of_denied(state["items"], state["verdicts"])
        self._execution, self._engine, self._registry, self._written = execution, engine, registry, written
        self._log, self._journal = log, journal
        self._noted: set[int] = set()
        self._changed: dict[str, str] = {}

    def run(self, call: ToolCall, context: ToolContext) -> ToolRun:
        """Run the call, or give what it came to before the run was cut off."""
        place = next(index for index, (item, _) in enumerate(self._judged) if item is call)
        self._note(self._settled[:place])
        self._noted.add(place)
        try:
            ran = told_call(call, partial(self._run, place, call, self._bound(place, context)))
        except BaseException:
            self._log.cut_off(self._execution.step, call, self._judged[place][1])
            raise
        self._changed.update({change.path: change.sha256_after for change in ran.output.changes})
        self._log.call(self._execution.step, call, self._judged[place][1], ran.as_record())
        return ran

    def note_the_rest(self, results: Sequence[CallResult]) -> None:
        """Write down the calls that did not run."""
        self._note(results)

    def _bound(self, place: int, context: ToolContext) -> ToolContext:
        """The context of a call that a person has allowed: with a workspace for what was shown, and nothing else."""
        pins = self._judged[place][1].pins
        if pins is None:
            return context
        return replace(context, workspace=ApprovedWorkspace.of(context.workspace, pins, self._changed))

    def _run(self, place: int, call: ToolCall, context: ToolContext) -> ToolRun:
        tool = self._registry.get(call.tool)
        if tool is None or self._journal is None:
            return self._engine(self._as_run(call), context)
        if isinstance(self._journal, ToolError):
            return self._unrecorded(tool, call, context, self._journal)
        return self._recorded(self._journal, tool, self._key(place, call, tool), call, context)

    def _as_run(self, call: ToolCall) -> ToolCall:
        """The call as the model wrote it; one that a person has edited is not what its text says."""
        edited = any(item is call and verdict.edited for item, verdict in self._judged)
        written = self._written(call)
        return written.model_copy(update={"raw_arguments": ""}) if edited else written

    def _recorded(self, journal: Journal, tool: Tool, key: CallKey, call: ToolCall, context: ToolContext) -> ToolRun:
        """Run the call between its two records; where the first one fails, nothing with an effect is run."""
        try:
            known = journal.find(key.thread, key.execution, key.place)
            if known is not None and known.key == key:
                ran = resumed(call, tool, known, partial(describe_effect, context.workspace, journal.backup))
                if ran is not None:
                    return ran
            number = journal.begin(key) if tool.effect in JOURNALED else 0
        except StoreError as error:
            return self._unrecorded(tool, call, context, ToolError(code=ToolErrorCode.IO_ERROR, message=str(error)))
        workspace = context.workspace.recorded(journal.recorder(number)) if number else context.workspace
        ran = self._engine(self._as_run(call), replace(context, workspace=workspace))
        if context.scope is not None and context.scope.over and not ran.result.ok:
            return ran  # the run was given up in its middle: nobody hears this result, and it is not how the call ended
        with suppress(StoreError):  # what was done stands, and the files' hashes tell of it
            if number:
                journal.end(number, as_json(ran))
            else:
                journal.note(key, as_json(ran))
        return ran

    def _unrecorded(self, tool: Tool, call: ToolCall, context: ToolContext, why: ToolError) -> ToolRun:
        """What has no effect runs without a journal; what has one does not run. A busy workspace may be free later."""
        if tool.effect not in JOURNALED:
            return self._engine(self._as_run(call), context)
        message = f"{call.tool} was not run, because its effect could not be recorded: {why.message}"
        fatal = why.code is not ToolErrorCode.UNAVAILABLE
        error = ToolError(code=why.code, message=message, fatal=fatal)
        return ToolRun(call.call_id, call.tool, ToolOutput.failed(error), error=f"tool_error:{message}")

    def _key(self, place: int, call: ToolCall, tool: Tool) -> CallKey:
        run = self._execution
        return CallKey(run.run_id, run.task, run.step, place, call.tool, tool.effect.value, _fingerprint(call))

    def _note(self, results: Sequence[CallResult | None]) -> None:
        for index, ((item, verdict), result) in enumerate(zip(self._judged, results, strict=False)):
            if result is not None and index not in self._noted:
                self._noted.add(index)
                self._log.call(self._execution.step, item, verdict, result)


def _fingerprint(call: ToolCall) -> str:
    return call_fingerprint(call.tool, call.arguments)
