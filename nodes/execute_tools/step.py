"""One step: the calls of one reply in order, each with the reads, changes and plan of the calls before it.

Consecutive calls that change nothing run side by side. A terminal call (the final answer) runs last, and only if all
others succeeded: a model that answers before it has seen a failure would report what did not happen. After a stop
request only the terminal call still runs.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial

from mendgraph.nodes.execute_tools.registry import ActionRegistry, ToolContext
from mendgraph.nodes.execute_tools.run_call import JOURNALED, StepResources, run_call
from mendgraph.nodes.execute_tools.tool_outcome import ToolOutcome
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    Effect,
    FileChange,
    Plan,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)
from mendgraph.nodes.workspace.files.deadline import CancellationScope, Worker, monotonic_s
from mendgraph.nodes.workspace.journal.journal import Journal
from mendgraph.nodes.workspace.store.database import StoreError

NOTHING_TO_JUDGE = "Another call of this reply failed, so there is nothing to check yet."
STOPPED = "The run was stopped before this call, so it did not run."
OUT_OF_TIME = "The time of this turn is used up, so this call did not run."


@dataclass
class StepEffects:
    """The effects of a step. `results` are in the order of the calls, `seconds` is their total time."""

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
) -> StepEffects:
    """Run each call without a result in `settled`, terminal ones last, and log each at its end."""
    execution = using.execution
    step = StepEffects(results=[], plan=using.context.plan)

    if isinstance(using.journal, Journal):
        with suppress(StoreError):
            using.journal.forget_outcomes(execution.run_id, execution.step)

    results = {place: result for place, result in enumerate(settled) if result is not None}
    waiting = [(place, item) for place, item in enumerate(items) if place not in results and isinstance(item, ToolCall)]
    logged: set[int] = set()

    def log_results(places: range) -> None:
        for place in places:
            if place in results and place not in logged and place < len(verdicts):
                logged.add(place)
                using.log.call(execution.step, items[place], verdicts[place], results[place])

    terminal = {spec.name for spec in using.registry.specs() if spec.terminal}
    in_order = sorted(waiting, key=lambda entry: entry[1].tool in terminal)

    for number, (place, call) in enumerate(in_order):
        if place in results:  # it ran beside another one
            continue

        changes = (*using.context.changes, *step.changes)
        failures = [result for result in results.values() if _prevents_answer(result, changes)]
        refusal = _refusal(call, len(failures), using.context.scope, is_answer=call.tool in terminal)
        if refusal is not None:
            results[place] = refusal
            continue

        log_results(range(place))
        batch, are_children = _next_batch(in_order[number:], using)

        try:
            if are_children:
                results.update(_run_children(batch, using, step))
            else:
                later_tools = {other.tool for later, other in waiting if later > place}
                results.update(_run_batch(batch, verdicts, using, step, later_tools))
        except BaseException:
            for cut_off in batch:
                using.log.cut_off(execution.step, batch[cut_off], verdicts[cut_off])

            raise

        log_results(range(place, max(batch) + 1))

    log_results(range(len(items)))
    step.results = [results[place] for place in range(len(items))]
    return step


def nothing_done(items: Sequence[ToolCall | CallError], problem: ToolError) -> list[CallResult]:
    """Return the results of a step whose workspace does not exist any more; they end the run."""
    failed = ToolResult(ok=False, error=problem.model_copy(update={"fatal": True}))
    return [CallResult(call_id=item.call_id, tool=item.tool, result=failed) for item in items]


def changes_something(
    items: Sequence[ToolCall | CallError], verdicts: Sequence[Verdict], registry: ActionRegistry
) -> bool:
    """Return whether an allowed call of this step has an effect."""
    for item, verdict in zip(items, verdicts, strict=False):
        tool = registry.get(item.tool)
        if verdict.kind is VerdictKind.ALLOW and tool is not None and tool.effect in JOURNALED:
            return True

    return False


def _refusal(call: ToolCall, failures: int, scope: CancellationScope | None, *, is_answer: bool) -> CallResult | None:
    """Return the result of a call that may not begin after the failures of others or a stop, or None."""
    if is_answer and failures:
        message = (
            f"Not taken as the final answer: {failures} other call(s) of this reply failed. Fix that, then answer."
        )
        return _not_run(call, ToolErrorCode.CANCELLED, message)

    if call.implied and failures:
        return _not_run(call, ToolErrorCode.CANCELLED, NOTHING_TO_JUDGE)

    if scope is not None and scope.closed and (scope.over or not is_answer):
        return _not_run(call, ToolErrorCode.CANCELLED, STOPPED)

    return None


def _prevents_answer(result: CallResult, changes: Sequence[FileChange]) -> bool:
    """Return whether the result forbids an answer in the same reply.

    A failure does, and so does an edit that only showed the file (`changed` is false). UNCHANGED does not if the turn
    changed something else.
    """
    error = result.result.error
    if error is None:
        return result.result.data.get("changed") is False
    return not (error.code is ToolErrorCode.UNCHANGED and changes)


def _not_run(call: ToolCall, code: ToolErrorCode, message: str) -> CallResult:
    return CallResult(call_id=call.call_id, tool=call.tool, result=ToolResult.failure(code, message))


def _next_batch(waiting: Sequence[tuple[int, ToolCall]], using: StepResources) -> tuple[dict[int, ToolCall], bool]:
    """Return the next calls to run side by side, at least one, and whether they are delegated.

    An identical call does not join the batch: it runs afterwards, and the cache may answer it.
    """
    batch: dict[int, ToolCall] = {}
    are_children = _is_child(waiting[0][1], using)

    for place, call in waiting:
        if are_children:
            fits = _is_child(call, using)
        else:
            repeated = any((call.tool, call.arguments) == (other.tool, other.arguments) for other in batch.values())
            fits = using.beside(call) and not repeated

        if batch and not fits:
            break

        batch[place] = call
        if not fits:
            break

    return batch, are_children


def _is_edit(tool_name: str, using: StepResources) -> bool:
    tool = using.registry.get(tool_name)
    return tool is not None and tool.effect is Effect.WRITE


def _is_child(call: ToolCall, using: StepResources) -> bool:
    tool = using.registry.get(call.tool)
    return using.children is not None and tool is not None and tool.child


def _run_batch(
    batch: Mapping[int, ToolCall],
    verdicts: Sequence[Verdict],
    using: StepResources,
    step: StepEffects,
    later_tools: set[str],
) -> dict[int, CallResult]:
    """Run the calls side by side, or a single one in this thread, and add their effects to `step`.

    The evidence is checked after the last call of a tool, and linters run after the last edit: the edits before may
    leave the code broken.
    """
    remaining_s = using.context.seconds_left - step.seconds
    if remaining_s <= 0:
        return _out_of_time(batch)

    repeated = any(call.tool in later_tools for call in batch.values())
    context = replace(
        using.context,
        files_read={**using.context.files_read, **step.files_read},
        plan=step.plan,
        changes=(*using.context.changes, *step.changes),
        timeout_s=min(using.context.timeout_s, remaining_s),
        seconds_left=remaining_s,
        evidence_required=using.context.evidence_required and not repeated,
        is_last_edit=not any(_is_edit(tool, using) for tool in later_tools),
    )
    started_s = monotonic_s()

    if len(batch) == 1:
        outcomes = [run_call(place, call, verdicts[place], using, context) for place, call in batch.items()]
    else:
        outcomes = _run_side_by_side(batch, verdicts, using, context)

    # A recorded call took its time before the crash.
    step.seconds += max(monotonic_s() - started_s, *(outcome.ms / 1_000 for outcome in outcomes))

    for outcome in outcomes:
        step.changes += outcome.output.changes
        step.files_read.update(outcome.output.files_read)
        step.plan = outcome.output.plan or step.plan

    return _results_by_place(batch, outcomes)


def _run_side_by_side(
    batch: Mapping[int, ToolCall], verdicts: Sequence[Verdict], using: StepResources, context: ToolContext
) -> list[ToolOutcome]:
    """Run each call in a thread; an interruption of this thread cancels all of them."""
    scope = CancellationScope(context.scope)
    context = replace(context, scope=scope)
    workers: list[Worker[ToolOutcome]] = []

    for place, call in batch.items():
        workers.append(Worker(copy_context(), partial(run_call, place, call, verdicts[place], using, context)))

    try:
        wait([worker.outcome for worker in workers])
    except BaseException:
        scope.revoke()
        raise

    return [worker.outcome.result() for worker in workers]


def _run_children(batch: Mapping[int, ToolCall], using: StepResources, step: StepEffects) -> dict[int, CallResult]:
    """Run delegated calls side by side. They need no record: each child run has its own."""
    remaining_s = using.context.seconds_left - step.seconds
    if remaining_s <= 0 or using.children is None:
        return _out_of_time(batch)

    started_s = monotonic_s()
    written = {place: using.as_written(call) for place, call in batch.items()}
    outcomes, seconds = using.children(written, replace(using.context, seconds_left=remaining_s))
    step.seconds += max(monotonic_s() - started_s, seconds)

    for outcome in outcomes:
        step.changes += outcome.output.changes

    return _results_by_place(batch, outcomes)


def _out_of_time(batch: Mapping[int, ToolCall]) -> dict[int, CallResult]:
    return {place: _not_run(call, ToolErrorCode.TIMEOUT, OUT_OF_TIME) for place, call in batch.items()}


def _results_by_place(batch: Mapping[int, ToolCall], outcomes: Sequence[ToolOutcome]) -> dict[int, CallResult]:
    return {place: outcome.as_record() for place, outcome in zip(batch, outcomes, strict=True)}
