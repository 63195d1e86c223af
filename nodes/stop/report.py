"""The outcome of a run: what ended it, what was done, what is left, and how to go on.

Nothing here asks the model: a run that ended without its budget still gives a full account of itself.
"""

from collections.abc import Sequence

from mendgraph.nodes.records import (
    Answer,
    CallResult,
    FileChange,
    JsonMap,
    Outcome,
    OutcomeKind,
    Plan,
    PlanStatus,
    StopCause,
    StopReason,
    ToolErrorCode,
)


def finished(answer: Answer, changes: Sequence[FileChange], usage: JsonMap, checks: str = "") -> Outcome:
    """The outcome of a run that gave its final answer."""
    cause = StopCause(reason=StopReason.ANSWERED, message=answer.text or "Done.")
    outcome = stopped(OutcomeKind.FINISHED, cause, Plan(), changes, usage, checks)
    return outcome.model_copy(update={"answer": answer.text, "value": answer.value})


def stopped(
    kind: OutcomeKind,
    cause: StopCause,
    plan: Plan,
    changes: Sequence[FileChange],
    usage: JsonMap,
    checks: str = "",
    restored: Sequence[str] = (),
) -> Outcome:
    """The outcome of a run that ended before its answer. `cause` is what the deciding node said."""
    left = [step.title for step in plan.steps if step.status is not PlanStatus.DONE]
    return Outcome(
        kind=kind,
        reason=cause.reason,
        message=cause.message,
        diagnostics=cause.diagnostics,
        changed_files=tuple(path for path in changed_files(changes) if path not in restored),
        restored=tuple(restored),
        checks=checks,
        usage=usage,
        how_to_go_on=(f"Left: {'; '.join(left)}. " if left else "") + cause.reason.how_to_go_on,
    )


def wrap_up(outcome: Outcome, plan: Plan, last_results: Sequence[CallResult]) -> str:
    """The last message of a run that ended early: why, what was done, what is left, how to go on."""
    lines = [f"{outcome.kind.value} ({outcome.reason.value}): {outcome.message}"]
    lines += [f"- {line}" for line in outcome.diagnostics]
    done = [step.title for step in plan.steps if step.status is PlanStatus.DONE]
    lines.append("Done: " + ("; ".join(done) or "no step of a plan") + ".")
    lines.append("Changed files: " + (", ".join(outcome.changed_files) or "none") + ".")
    failed = [r.result.error.message for r in last_results if r.result.error is not None]
    if failed:
        lines.append(f"Last failure: {failed[-1]}")
    lines.append(f"How to go on: {outcome.how_to_go_on}")
    # What is quoted from a reply may hold a `tool:` line, which must not stand in the history as one.
    return "\n".join(" ".join(line.split()) for line in lines)


def checks_of(results: Sequence[CallResult]) -> str:
    """What the last step's checks came to, as `Outcome.checks` says it; "" where there were none."""
    for result in results:
        error = result.result.error
        if error is not None and error.code is ToolErrorCode.CHECK_FAILED:
            return "failed"
        if error is None and "checks" in result.result.data:
            return str(result.result.data["checks"])
    return ""


def changed_files(changes: Sequence[FileChange]) -> tuple[str, ...]:
    """Paths in the order of their first change, each once."""
    return tuple(dict.fromkeys(change.path for change in changes))
