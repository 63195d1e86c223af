"""One step: the calls of one reply, run in order, each seeing what the ones before it read, changed and planned.

A terminal call (the final answer) is settled last. It stands only when everything else in the reply went well: a
model that answers before it has seen a failure would report what did not happen. Once the run is to stop no call
begins any more but that one: an answer that is there is not thrown away.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from nodes.execute_tools.engine import ToolRun
from nodes.execute_tools.environment.deadline import CancellationScope, monotonic_s
from nodes.execute_tools.registry import ToolContext
from nodes.records import CallError, CallResult, FileChange, Plan, ToolCall, ToolErrorCode, ToolResult

Run = Callable[[ToolCall, ToolContext], ToolRun]
"""The engine's way for one call."""

KeyOf = Callable[[int, ToolCall], str]
"""(place in the reply, call) -> a key that is the same whenever this step is run again."""

NOTHING_TO_JUDGE = "Another call of this reply failed, so there is nothing to check yet."
STOPPED = "The run was stopped before this call, so it did not run."


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
    settled: Sequence[CallResult | None],
    run: Run,
    context: ToolContext,
    terminal: frozenset[str],
    key_of: KeyOf = lambda _index, _call: "",
) -> StepDone:
    """Run each call that `settled` has no result for; terminal ones after all others. `key_of` names each for good."""
    done = StepDone(results=[], plan=context.plan)
    results: dict[int, CallResult] = {index: result for index, result in enumerate(settled) if result is not None}
    waiting = [(index, item) for index, item in enumerate(items) if index not in results and isinstance(item, ToolCall)]
    for index, call in sorted(waiting, key=lambda entry: entry[1].tool in terminal):
        failed = sum(_failed(result, done) for result in results.values())
        if call.tool in terminal and failed:
            results[index] = _not_yet(call, failed)
        elif call.implied and failed:
            results[index] = _not_run(call, ToolErrorCode.CANCELLED, NOTHING_TO_JUDGE)
        elif not _may_begin(context.scope, is_answer=call.tool in terminal):
            results[index] = _not_run(call, ToolErrorCode.CANCELLED, STOPPED)
        else:
            more = any(other.tool == call.tool for place, other in waiting if place > index)
            gated = context.gated and not more  # of several edits only all together can be judged
            now = _context_now(context, done, key_of(index, call), gated=gated)
            results[index] = _run_one(call, run, now, done)
    done.results = [results[index] for index in range(len(items))]
    return done


def _may_begin(scope: CancellationScope | None, *, is_answer: bool) -> bool:
    return scope is None or not (scope.over if is_answer else scope.closed)


def _failed(result: CallResult, done: StepDone) -> bool:
    """Whether a call stands in the way of the answer. A file that was repeated as it is does not, beside a change."""
    error = result.result.error
    if error is None:
        return result.result.data.get("changed") is False
    return not (error.code is ToolErrorCode.UNCHANGED and done.changes)


def _context_now(context: ToolContext, done: StepDone, key: str, *, gated: bool) -> ToolContext:
    left = context.seconds_left - done.seconds
    return replace(
        context,
        files_read={**context.files_read, **done.files_read},
        plan=done.plan,
        timeout_s=min(context.timeout_s, left),
        seconds_left=left,
        idempotency_key=key,
        gated=gated,
    )


def _run_one(call: ToolCall, run: Run, context: ToolContext, done: StepDone) -> CallResult:
    if context.seconds_left <= 0:
        return _not_run(call, ToolErrorCode.TIMEOUT, "The time of this turn is used up, so this call did not run.")
    begun = monotonic_s()
    ran = run(call, context)
    done.seconds += max(monotonic_s() - begun, ran.ms / 1_000)  # what ran before a kill took its time then
    output = ran.output
    done.changes += output.changes
    done.files_read.update(output.files_read)
    done.plan = output.plan or done.plan
    return ran.as_record()


def _not_yet(call: ToolCall, failed: int) -> CallResult:
    message = f"Not taken as the final answer: {failed} other call(s) of this reply failed. Mend that, then answer."
    return _not_run(call, ToolErrorCode.CANCELLED, message)


def _not_run(call: ToolCall, code: ToolErrorCode, message: str) -> CallResult:
    return CallResult(call_id=call.call_id, tool=call.tool, result=ToolResult.failure(code, message))
