"""One step: the calls of one reply, run in order, each seeing what the ones before it read, changed and planned.

Calls that follow each other and change nothing here run side by side; their results come in order all the same.

A call with an effect is recorded before it begins and when it has ended. After a kill its result is given again, or it
runs again, or it is said that nobody knows; what it has done to files is known by then: `journal.recovery` has looked.

A terminal call (the final answer) is settled last. It stands only when everything else in the reply went well: a
model that answers before it has seen a failure would report what did not happen. Once the run is to stop no call
begins any more but that one: an answer that is there is not thrown away.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import takewhile

from pydantic import TypeAdapter, ValidationError

from mendgraph.nodes.execute_tools.edits.diffs import Version, file_change
from mendgraph.nodes.execute_tools.files.change_records import ChangeState, FileEffect
from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, Worker, monotonic_s
from mendgraph.nodes.execute_tools.files.text_files import text_of
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
    CallResult,
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

JOURNALED = CHANGING | {Effect.NETWORK}  # effects that must not happen twice
NOTHING_TO_JUDGE = "Another call of this reply failed, so there is nothing to check yet."
STOPPED = "The run was stopped before this call, so it did not run."
OUT_OF_TIME = "The time of this turn is used up, so this call did not run."
DONE_BEFORE = "This was done before the run was cut off, and is in place."
Ended = Callable[[ToolRun], None]


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


@dataclass(frozen=True)
class StepResources:
    """What one step may use, and where it is written down.

    `run` runs one call. `journal` is None where nothing of the step has an effect, or why there is no journal: then
    nothing with an effect is run. `as_written` gives a call as the model wrote it, where the state holds it with marks.
    `observe` is entered around each call, and is given what the call came to. `beside` says whether a call may run
    while others do, for which `run` and `observe` are used in several threads. `children` runs those that are runs of
    their own: it is given them by their places, and gives their ends and the seconds that they took. `permit` gives
    what a call may use that a person has approved.
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
    step = using.execution.step
    log = using.log
    done = StepDone(results=[], plan=using.context.plan)

    if isinstance(using.journal, Journal):
        with suppress(StoreError):
            using.journal.forget_outcomes(using.execution.run_id, step)

    results: dict[int, CallResult] = {index: result for index, result in enumerate(settled) if result is not None}
    waiting = [(index, item) for index, item in enumerate(items) if index not in results and isinstance(item, ToolCall)]
    logged: set[int] = set()

    def note(places: range) -> None:
        for index in places:
            if index in results and index not in logged and index < len(verdicts):
                logged.add(index)
                log.call(step, items[index], verdicts[index], results[index])

    terminal = _terminal_tools(waiting, using.registry)
    in_order = sorted(waiting, key=lambda entry: entry[1].tool in terminal)

    for number, (index, call) in enumerate(in_order):
        if index in results:  # it ran beside another one
            continue

        failed = sum(_failed(result, (*using.context.changes, *done.changes)) for result in results.values())
        refusal = _refusal(call, failed, using.context.scope, is_answer=call.tool in terminal)
        if refusal is not None:
            results[index] = refusal
            continue

        note(range(index))
        # Of several edits only all together can be judged.
        last = not any(other.tool == call.tool for place, other in waiting if place > index)
        children = dict(takewhile(lambda entry: _is_child(entry[1], using), in_order[number:]))
        row = children or _row(in_order[number:], using) or {index: call}

        try:
            if children:
                results.update(_run_children(row, using, done))
            else:
                results.update(_run(row, verdicts, using, done, gated=using.context.gated and last))
        except BaseException:
            for place in row:
                log.cut_off(step, row[place], verdicts[place])

            raise

        note(range(index, max(row) + 1))

    note(range(len(items)))
    done.results = [results[index] for index in range(len(items))]
    return done


def _terminal_tools(waiting: Sequence[tuple[int, ToolCall]], registry: ActionRegistry) -> set[str]:
    names = set()
    for _, call in waiting:
        tool = registry.get(call.tool)
        if tool is not None and tool.terminal:
            names.add(call.tool)

    return names


def nothing_done(items: Sequence[ToolCall | CallError], problem: ToolError) -> list[CallResult]:
    """The results of a step whose workspace is no more: the run ends with that."""
    failed = ToolResult(ok=False, error=problem.model_copy(update={"fatal": True}))
    return [CallResult(call_id=item.call_id, tool=item.tool, result=failed) for item in items]


def _refusal(call: ToolCall, failed: int, scope: CancellationScope | None, *, is_answer: bool) -> CallResult | None:
    if is_answer and failed:
        message = f"Not taken as the final answer: {failed} other call(s) of this reply failed. Mend that, then answer."
        return _not_run(call, ToolErrorCode.CANCELLED, message)

    if call.implied and failed:
        return _not_run(call, ToolErrorCode.CANCELLED, NOTHING_TO_JUDGE)
    if scope is not None and (scope.over if is_answer else scope.closed):
        return _not_run(call, ToolErrorCode.CANCELLED, STOPPED)

    return None


def _failed(result: CallResult, changes: Sequence[FileChange]) -> bool:
    """Whether a call stands in the way of the answer. A file that is repeated as it is does not, beside a change."""
    if (error := result.result.error) is None:
        return result.result.data.get("changed") is False
    return not (error.code is ToolErrorCode.UNCHANGED and changes)


def _not_run(call: ToolCall, code: ToolErrorCode, message: str) -> CallResult:
    return CallResult(call_id=call.call_id, tool=call.tool, result=ToolResult.failure(code, message))


def _run(
    row: Mapping[int, ToolCall], verdicts: Sequence[Verdict], using: StepResources, done: StepDone, *, gated: bool
) -> dict[int, CallResult]:
    """Run the calls of these places side by side, or a single one in this thread; `done` takes in what they did."""
    remaining_s = using.context.seconds_left - done.seconds
    if remaining_s <= 0:
        return {place: _not_run(call, ToolErrorCode.TIMEOUT, OUT_OF_TIME) for place, call in row.items()}

    context = replace(
        using.context,
        files_read={**using.context.files_read, **done.files_read},
        plan=done.plan,
        changes=(*using.context.changes, *done.changes),
        timeout_s=min(using.context.timeout_s, remaining_s),
        seconds_left=remaining_s,
        gated=gated,
    )
    started_s = monotonic_s()

    if len(row) == 1:
        runs = [_run_call(place, call, verdicts[place], using, context) for place, call in row.items()]
    else:
        scope = CancellationScope(context.scope)
        context = replace(context, scope=scope)
        ways = (partial(_run_call, place, call, verdicts[place], using, context) for place, call in row.items())
        workers = [Worker(copy_context(), way) for way in ways]

        try:
            wait([worker.outcome for worker in workers])
        except BaseException:
            scope.revoke()
            raise

        runs = [worker.outcome.result() for worker in workers]

    took = (monotonic_s() - started_s, *(run.ms / 1_000 for run in runs))  # what ran before a kill took its time then
    done.seconds += max(took)

    for run in runs:
        done.changes += run.output.changes
        done.files_read.update(run.output.files_read)
        done.plan = run.output.plan or done.plan

    return {place: run.as_record() for place, run in zip(row, runs, strict=True)}


def _row(waiting: Sequence[tuple[int, ToolCall]], using: StepResources) -> dict[int, ToolCall]:
    """The next calls that may run side by side. One that is made again waits: what it gives may be known by then."""
    row: dict[int, ToolCall] = {}

    for place, call in waiting:
        calls = ((other.tool, other.arguments) for other in row.values())
        if not using.beside(call) or (call.tool, call.arguments) in calls:
            break

        row[place] = call

    return row


def _run_call(place: int, call: ToolCall, verdict: Verdict, using: StepResources, context: ToolContext) -> ToolRun:
    """Run the call, or give what it came to before the run was cut off."""
    execution = using.execution
    workspace = context.workspace
    if verdict.pins is not None:  # a person has allowed what was shown, and nothing else
        changed = {change.path: change.sha256_after for change in context.changes[len(using.context.changes) :]}
        workspace = ApprovedWorkspace.of(workspace, verdict.pins, changed)

    key = idempotency_key(execution.run_id, execution.step, place, call.tool, call.arguments)
    context = replace(context, workspace=workspace, idempotency_key=key, call_id=call.call_id)

    with using.observe(call) as ended:
        record, run = _recorded(place, call, using, workspace)
        if run is None:
            written = using.as_written(call)
            if verdict.edited:  # by a person: it is not what its text says
                written = written.model_copy(update={"raw_arguments": ""})

            if verdict.rule:  # it waited for an approval, and has it
                context = using.permit(written, context)

            if record and isinstance(using.journal, Journal):
                context = replace(context, workspace=workspace.recorded(using.journal.recorder(record)))

            run = using.run(written, context)
            _note_outcome(place, call, using, record, run)

        ended(run)

    return run


def _is_child(call: ToolCall, using: StepResources) -> bool:
    tool = using.registry.get(call.tool)
    return using.children is not None and tool is not None and tool.child


def _run_children(row: Mapping[int, ToolCall], using: StepResources, done: StepDone) -> dict[int, CallResult]:
    """Run the calls of these places side by side. Nothing is recorded of them: each child has records of its own."""
    context = using.context
    remaining_s = using.context.seconds_left - done.seconds
    if remaining_s <= 0 or using.children is None:
        return {place: _not_run(call, ToolErrorCode.TIMEOUT, OUT_OF_TIME) for place, call in row.items()}

    started_s = monotonic_s()
    written = {place: using.as_written(call) for place, call in row.items()}
    runs, seconds = using.children(written, replace(context, seconds_left=remaining_s))
    done.seconds += max(monotonic_s() - started_s, seconds)

    for run in runs:
        done.changes += run.output.changes

    return {place: run.as_record() for place, run in zip(row, runs, strict=True)}


def _recorded(place: int, call: ToolCall, using: StepResources, workspace: Workspace) -> tuple[int, ToolRun | None]:
    """The number of the call's record (0: it has none), and how it ended before, or that it must not be run.

    What has no effect runs without a journal; what has one does not run. A busy workspace may be free later.
    """
    tool = using.registry.get(call.tool)
    journal = using.journal
    if tool is None or journal is None:
        return 0, None

    why = journal if isinstance(journal, ToolError) else None

    if isinstance(journal, Journal):
        key = using.execution.key(place, call, tool)
        try:
            change_recorded = journal.find(key.thread, key.execution, key.place)
            if change_recorded is None or change_recorded.key != key:
                run = None
            else:
                run = resumed(call, tool, change_recorded, partial(describe_effect, workspace, journal))

            if run is not None:
                return 0, run

            return (journal.begin(key) if tool.effect in JOURNALED else 0), None
        except StoreError as error:
            why = ToolError(code=ToolErrorCode.IO_ERROR, message=str(error))

    if why is None or tool.effect not in JOURNALED:
        return 0, None

    message = f"{call.tool} was not run, because its effect could not be recorded: {why.message}"
    refusal = ToolError(code=why.code, message=message, fatal=why.code is not ToolErrorCode.UNAVAILABLE)
    return 0, ToolRun(call.call_id, call.tool, ToolOutput.failed(refusal), error=f"tool_error:{message}")


def _note_outcome(place: int, call: ToolCall, using: StepResources, record: int, run: ToolRun) -> None:
    """Keep what the call came to until the step's checkpoint is written."""
    tool = using.registry.get(call.tool)
    journal = using.journal
    scope = using.context.scope
    given_up = scope is not None and scope.over and not run.result.ok  # nobody hears this: it is not how it ended

    if tool is None or given_up or not isinstance(journal, Journal):
        return

    with suppress(StoreError):  # what was done stands, and the files' hashes tell of it
        outcome = _runs().dump_json(replace(run, call_id="", tool="")).decode()

        if record:
            journal.end(record, outcome)
        else:
            journal.note(using.execution.key(place, call, tool), outcome)


# --- Calls that were cut off


@cache
def _runs() -> TypeAdapter[ToolRun]:
    return TypeAdapter(ToolRun)


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
    runs_found: dict[int, ToolRun] = {}

    for place, calls_recorded in journal.calls_of_step(execution.run_id, execution.step).items():
        call = items[place] if place < len(items) else None
        tool = registry.get(calls_recorded.key.tool)
        if not isinstance(call, ToolCall) or tool is None:
            continue

        same = calls_recorded.key.arguments_sha256 == call_fingerprint(call.tool, call.arguments)
        if (
            same
            and (run := resumed(call, tool, calls_recorded, partial(describe_effect, workspace, journal))) is not None
        ):
            runs_found[place] = run

    return runs_found


def resumed(
    call: ToolCall, tool: Tool, recorded: RecordedCall, describe: Callable[[FileEffect], FileChange]
) -> ToolRun | None:
    """How the call ended, as far as anybody knows; None where it had no effect, so that it has to be run again.

    Only of a tool whose whole effect is one change is it known that it had none. What a person has taken back since
    counts as not done.
    """
    if recorded.outcome and not _in_state(recorded, ChangeState.REVERTED):
        with suppress(ValidationError):  # of another version
            return replace(_runs().validate_json(recorded.outcome), call_id=call.call_id, tool=call.tool)

    name = call.tool
    done = [describe(change) for change in _in_state(recorded, ChangeState.DONE)]
    paths = ", ".join(dict.fromkeys(change.path for change in done))
    foreign = ", ".join(dict.fromkeys(effect.path for effect in _in_state(recorded, ChangeState.FOREIGN)))

    if foreign:
        message = (
            f"The run was cut off while {name} changed {foreign}, and somebody else has changed it since. Nothing was"
            " overwritten: look at it, then send the next request."
        )

        return _ended(call, ToolError(code=ToolErrorCode.CONFLICT, message=message, fatal=True))

    if tool.one_change and done:
        data: JsonMap = {"path": done[0].path, "note": DONE_BEFORE}
        if len(done) > 1:
            data["files"] = [{"path": change.path, "action": change.kind.value} for change in done]

        hashes = {change.path: change.sha256_after for change in done}
        output = ToolOutput(ToolResult(ok=True, data=data), tuple(done), hashes)
        return ToolRun(call.call_id, name, output, attempts=1)

    if tool.one_change:
        return None

    if tool.effect is Effect.WRITE and done:
        message = (
            f"The run was cut off while {name} worked. It had changed {paths} by then; what else it was to do did not"
            " happen. It was not run again: look at what there is."
        )
    else:
        message = (
            f"The run was cut off while {name} worked, so its outcome is unknown: all, some or nothing of it may have"
            " happened. It was not run again. Look at what there is before you decide to repeat it."
        )

    return _ended(call, ToolError(code=ToolErrorCode.OUTCOME_UNKNOWN, message=message), done)


def _ended(call: ToolCall, error: ToolError, done: Sequence[FileChange] = ()) -> ToolRun:
    hashes = {change.path: change.sha256_after for change in done}
    output = replace(ToolOutput.failed(error), changes=tuple(done), files_read=hashes)
    return ToolRun(call.call_id, call.tool, output, error=f"tool_error:{error.message}", attempts=1)


def _in_state(recorded: RecordedCall, state: ChangeState) -> list[FileEffect]:
    return [effect for change in recorded.changes if change.state is state for effect in change.effects]


def describe_effect(workspace: Workspace, journal: Journal, effect: FileEffect) -> FileChange:
    """The effect on one file. The diff is "" where a version is binary, or is not at hand any more."""
    before = effect.before.sha256
    after = effect.after.sha256
    old = journal.backup(before) if before else None
    file = workspace.read_file(effect.path) if after else None
    new = None

    if isinstance(file, FileContent) and file.sha256 == after:
        new = file.data

    return file_change(
        effect.path.encode(errors="backslashreplace").decode(),
        Version(before, None if old is None else text_of(old)),
        Version(after, None if new is None else text_of(new)),
    )
