"""Is this progress? Pure bookkeeping over the signatures of the last actions (spec 3, "Loop detection").

An action is repeated when it makes up `threshold` of the last `window` actions, or when the same calls in the same
order make up `threshold` of the last `window` steps. The first time, each repeated signature gets a typed override,
which guard enforces. An overridden action that comes again has been refused; after `max_overrides` such refusals the
repetition counts as persistent. Reading on from another line is another action, so it is progress.

A file change is progress too: the world is different now. It lifts the overrides and forgets every action but the ones
that made it. Those stay, so an edit that succeeds the same way again and again (appending one line for ever) is still
caught, whatever is read in between. Two different changes that undo each other are not caught here; the budgets end
them.
"""

from collections.abc import Collection, Mapping

from pydantic import Field

from nodes.records import JsonMap, LoopRecord, LoopVerdict, OverrideConstraint, Record, StopCause, StopReason

REPEAT_WINDOW = 3
"""How many actions, or steps, are compared. Source: spec 3, MVP defaults."""

LOOP_REPEAT_THRESHOLD = 3
"""So many of them identical make a repetition. Source: spec 3, MVP defaults."""

LOOP_OVERRIDE_MAX_RETRIES = 1
"""So many refused repeats of an overridden action end the run. Source: spec 3, MVP defaults."""

MAX_FAILED_TRIES = 4
"""So many steps in a row whose edits or checks fail end the run.

Source: measured on a 1.5B model, where nearly all that succeed do so within four tries.
"""

Steps = tuple[tuple[str, ...], ...]


class LoopConfig(Record):
    """When repetition counts. A window smaller than the threshold could never fill: it is widened to it."""

    window: int = Field(default=REPEAT_WINDOW, ge=1)
    threshold: int = Field(default=LOOP_REPEAT_THRESHOLD, ge=2)
    max_overrides: int = Field(default=LOOP_OVERRIDE_MAX_RETRIES, ge=0)
    max_failed_tries: int = Field(default=MAX_FAILED_TRIES, ge=1)

    @property
    def span(self) -> int:
        """The window that is in force."""
        return max(self.window, self.threshold)


def check_progress(
    record: LoopRecord,
    signatures: tuple[str, ...],
    described: Mapping[str, tuple[str, str]],
    changed: Collection[str],
    answered: bool,
    config: LoopConfig,
) -> LoopRecord:
    """The record after a step in which these actions were called, in order, denied ones included.

    `described` gives each signature's tool and target, `changed` holds the signatures of the calls that changed a file,
    and `answered` says that the run's final answer was accepted. The new verdict is about this step alone; `recent`
    holds at most the window's steps.
    """
    if answered:
        return record.model_copy(update={"verdict": LoopVerdict.ANSWERED})
    earlier = _only(record.recent, changed) if changed else record.recent
    step = tuple(name for name in signatures if name in changed) if changed else signatures
    standing = () if changed else record.overrides
    counted = tuple(_count_again(override) if override.signature in step else override for override in standing)
    known = {override.signature for override in standing}
    new = tuple(_constraint(name, described, config) for name in _repeated(earlier, step, config) if name not in known)
    overrides = (*counted, *new)
    touched = tuple(override for override in overrides if override.signature in step)
    recent = tuple(past for past in (*earlier, step) if past)[-config.span :]
    verdict = _verdict(touched, config)
    return record.model_copy(update={"recent": recent, "overrides": overrides, "verdict": verdict})


def loop_stop(record: LoopRecord, config: LoopConfig) -> StopCause | None:
    """Why the run ends: the first action that persisted, with its signature as evidence; else None."""
    if record.verdict is not LoopVerdict.PERSISTED:
        return None
    override = next(override for override in record.overrides if _persists(override, config))
    message = f"The same call was made {override.repeats} times with the same arguments: {_action(override)}."
    evidence = f"repeated action: {_action(override)}, signature {override.signature}"
    return StopCause(reason=StopReason.LOOP_PERSISTED, message=message, diagnostics=(evidence,))


def override_notice(record: LoopRecord, signature: str) -> JsonMap | None:
    """What the model is told beside the result of the repeated call, as JSON values; None for any other call."""
    if record.verdict is not LoopVerdict.OVERRIDE:
        return None
    for override in record.overrides:
        if override.signature == signature:
            message = (
                f"{_action(override)} was called {override.repeats} times with the same arguments. It is refused until "
                "a file changes, and more repeats end the run. Do something else, or give your final answer."
            )
            return {"kind": "loop_override", **override.model_dump(), "message": message}
    return None


def _only(steps: Steps, kept: Collection[str]) -> Steps:
    return tuple(tuple(name for name in step if name in kept) for step in steps)


def _repeated(earlier: Steps, step: tuple[str, ...], config: LoopConfig) -> tuple[str, ...]:
    """The signatures of this step that complete a repetition, in order, each once."""
    actions = [name for past in (*earlier, step) for name in past]
    ends = range(len(actions) - len(step) + 1, len(actions) + 1)
    windows = (actions[max(0, end - config.span) : end] for end in ends)
    looping = {window[-1] for window in windows if window.count(window[-1]) >= config.threshold}
    if (*earlier, step)[-config.span :].count(step) >= config.threshold:
        looping.update(step)
    return tuple(name for name in dict.fromkeys(step) if name in looping)


def _constraint(signature: str, described: Mapping[str, tuple[str, str]], config: LoopConfig) -> OverrideConstraint:
    tool, target = described.get(signature, ("", ""))
    return OverrideConstraint(signature=signature, tool=tool, target=target, repeats=config.threshold)


def _count_again(override: OverrideConstraint) -> OverrideConstraint:
    return override.model_copy(update={"repeats": override.repeats + 1})


def _persists(override: OverrideConstraint, config: LoopConfig) -> bool:
    return override.repeats - config.threshold >= config.max_overrides


def _verdict(touched: Collection[OverrideConstraint], config: LoopConfig) -> LoopVerdict:
    if any(_persists(override, config) for override in touched):
        return LoopVerdict.PERSISTED
    return LoopVerdict.OVERRIDE if touched else LoopVerdict.FRESH


def _action(override: OverrideConstraint) -> str:
    return f"{override.tool} on {override.target!r}" if override.target else override.tool
