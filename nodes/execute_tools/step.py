"""One step: the calls of one reply, run in order, each seeing what the ones before it read, changed and planned.

Calls that follow each other and change nothing here run side by side; their results come in order all the same.

A terminal call (the final answer) is settled last. It stands only when everything else in the reply went well: a
model that answers before it has seen a failure would report what did not happen. Once the run is to stop no call
begins any more but that one: an answer that is there is not thrown away.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial

from mendgraph.nodes.execute_tools.files.deadline import CancellationScope, Worker, monotonic_s
from mendgraph.nodes.execute_tools.journal.journal import Journal
from mendgraph.nodes.execute_tools.registry import ActionRegistry, ToolContext
from mendgraph.nodes.execute_tools.run_call import JOURNALED, StepResources, run_call
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.tool_run import ToolRun
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
    VerdictKind,
)

NOTHING_TO_JUDGE = "Another call of this reply failed, so there is nothing to check yet."
STOPPED = "The run was stopped before this call, so it did not run."
OUT_OF_TIME = "The time of this turn is used up, so this call did not run."


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
    execution = using.execution
    done = StepDone(results=[], plan=using.context.plan)

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

        changes = (*using.context.changes, *done.changes)
        failures = [result for result in results.values() if _prevents_answer(result, changes)]
        refusal = _refusal(call, len(failures), using.context.scope, is_answer=call.tool in terminal)
        if refusal is not None:
            results[place] = refusal
            continue

        log_results(range(place))
        batch, are_children = _next_batch(in_order[number:], using)

        try:
            if are_children:
                results.update(_run_children(batch, using, done))
            else:
                # The evidence judges the last call of a tool: the edits before may leave the code broken in between.
                last = all(other.tool != call.tool for later, other in waiting if later > place)
                judged = using.context.evidence_required and last
                results.update(_run_batch(batch, verdicts, using, done, evidence_required=judged))
        except BaseException:
            for cut_off in batch:
                using.log.cut_off(execution.step, batch[cut_off], verdicts[cut_off])

            raise

        log_results(range(place, max(batch) + 1))

    log_results(range(len(items)))
    done.results = [results[place] for place in range(len(items))]
    return done


def nothing_done(items: Sequence[ToolCall | CallError], problem: ToolError) -> list[CallResult]:
    """The results of a step whose workspace is no more: the run ends with that."""
    failed = ToolResult(ok=False, error=problem.model_copy(update={"fatal": True}))
    return [CallResult(call_id=item.call_id, tool=item.tool, result=failed) for item in items]


def changes_something(
    items: Sequence[ToolCall | CallError], verdicts: Sequence[Verdict], registry: ActionRegistry
) -> bool:
    """Whether a call of this step that may run has an effect."""
    for item, verdict in zip(items, verdicts, strict=False):
        tool = registry.get(item.tool)
        if verdict.kind is VerdictKind.ALLOW and tool is not None and tool.effect in JOURNALED:
            return True

    return False


def _refusal(call: ToolCall, failures: int, scope: CancellationScope | None, *, is_answer: bool) -> CallResult | None:
    """Why a call does not begin after that many failures of others, None if it may."""
    if is_answer and failures:
        message = (
            f"Not taken as the final answer: {failures} other call(s) of this reply failed. Mend that, then answer."
        )
        return _not_run(call, ToolErrorCode.CANCELLED, message)

    if call.implied and failures:
        return _not_run(call, ToolErrorCode.CANCELLED, NOTHING_TO_JUDGE)

    if scope is not None and scope.closed and (scope.over or not is_answer):
        return _not_run(call, ToolErrorCode.CANCELLED, STOPPED)

    return None


def _prevents_answer(result: CallResult, changes: Sequence[FileChange]) -> bool:
    """Whether the result forbids an answer in the same reply.

    A failure does, and an edit that only showed the file (`changed` is false). UNCHANGED does not if the turn changed
    something else.
    """
    error = result.result.error
    if error is None:
        return result.result.data.get("changed") is False
    return not (error.code is ToolErrorCode.UNCHANGED and changes)


def _not_run(call: ToolCall, code: ToolErrorCode, message: str) -> CallResult:
    return CallResult(call_id=call.call_id, tool=call.tool, result=ToolResult.failure(code, message))


def _next_batch(waiting: Sequence[tuple[int, ToolCall]], using: StepResources) -> tuple[dict[int, ToolCall], bool]:
    """The next calls that run side by side, one at least; and whether they are runs of their own.

    An identical call does not join the batch: it runs afterwards, where the cache may answer it.
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


def _is_child(call: ToolCall, using: StepResources) -> bool:
    tool = using.registry.get(call.tool)
    return using.children is not None and tool is not None and tool.child


def _run_batch(
    batch: Mapping[int, ToolCall],
    verdicts: Sequence[Verdict],
    using: StepResources,
    done: StepDone,
    *,
    evidence_required: bool,
) -> dict[int, CallResult]:
    """Run the calls of these places side by side, or a single one in this thread, and add their effects to `done`."""
    remaining_s = using.context.seconds_left - done.seconds
    if remaining_s <= 0:
        return _out_of_time(batch)

    context = replace(
        using.context,
        files_read={**using.context.files_read, **done.files_read},
        plan=done.plan,
        changes=(*using.context.changes, *done.changes),
        timeout_s=min(using.context.timeout_s, remaining_s),
        seconds_left=remaining_s,
        evidence_required=evidence_required,
    )
    started_s = monotonic_s()

    if len(batch) == 1:
        runs = [run_call(place, call, verdicts[place], using, context) for place, call in batch.items()]
    else:
        runs = _run_side_by_side(batch, verdicts, using, context)

    # A call that ran before a kill took its time then.
    done.seconds += max(monotonic_s() - started_s, *(run.ms / 1_000 for run in runs))

    for run in runs:
        done.changes += run.output.changes
        done.files_read.update(run.output.files_read)
        done.plan = run.output.plan or done.plan

    return _results_by_place(batch, runs)


def _run_side_by_side(
    batch: Mapping[int, ToolCall], verdicts: Sequence[Verdict], using: StepResources, context: ToolContext
) -> list[ToolRun]:
    """Run each call in a thread; an interruption of this one cancels all of them."""
    scope = CancellationScope(context.scope)
    context = replace(context, scope=scope)
    workers: list[Worker[ToolRun]] = []

    for place, call in batch.items():
        workers.append(Worker(copy_context(), partial(run_call, place, call, verdicts[place], using, context)))

    try:
        wait([worker.outcome for worker in workers])
    except BaseException:
        scope.revoke()
        raise

    return [worker.outcome.result() for worker in workers]


def _run_children(batch: Mapping[int, ToolCall], using: StepResources, done: StepDone) -> dict[int, CallResult]:
    """Run the calls of these places side by side. Nothing is recorded of them: each child has records of its own."""
    remaining_s = using.context.seconds_left - done.seconds
    if remaining_s <= 0 or using.children is None:
        return _out_of_time(batch)

    started_s = monotonic_s()
    written = {place: using.as_written(call) for place, call in batch.items()}
    runs, seconds = using.children(written, replace(using.context, seconds_left=remaining_s))
    done.seconds += max(monotonic_s() - started_s, seconds)

    for run in runs:
        done.changes += run.output.changes

    return _results_by_place(batch, runs)


def _out_of_time(batch: Mapping[int, ToolCall]) -> dict[int, CallResult]:
    return {place: _not_run(call, ToolErrorCode.TIMEOUT, OUT_OF_TIME) for place, call in batch.items()}


def _results_by_place(batch: Mapping[int, ToolCall], runs: Sequence[ToolRun]) -> dict[int, CallResult]:
    return {place: run.as_record() for place, run in zip(batch, runs, strict=True)}
