"""Is this progress? Pure bookkeeping over the signatures of the last actions (spec 3, "Loop detection").

An action is repeated when it makes up `threshold` of the last `window` actions, when the same calls in the same order
make up `threshold` of the last `window` steps, or when it ends a cycle of two or three different actions that came
`threshold` times one after the other (A, B, A, B, A, B), for which there is a window of its own. The first time, each
repeated signature gets a typed override, which guard enforces. Reading on from another line is another action, so it is
progress. Two calls that would do the same thing have the same signature.

An overridden action that comes again has been refused. Spec 3 ends the run at the next repetition ("repeat again and
confirm SYSTEM_ERROR"), and at the "second repeat after override". Both hold: `max_overrides` refusals end the run of a
model that goes on with overridden actions. One that has obeyed, by another action, has one refusal more, so that a
single later repetition does not end its run.

A call whose result it has not had before is progress, such as that of a job's state: its earlier calls do not count.

A file change is progress too: the world is different now. It lifts the overrides and forgets every action but the ones
that made it. Those stay, so an edit that succeeds the same way again and again (appending one line for ever) is still
caught, whatever is read in between. Two different changes that undo each other are not caught here; the budgets end
them.
"""

import json
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import Field
from typing_extensions import TypedDict

from mendgraph.nodes.language.display import listed, target_of as target_words
from mendgraph.nodes.language.names import IS_TEST
from mendgraph.nodes.language.text_protocol import is_miss
from mendgraph.nodes.records import (
    CHANGING,
    Answer,
    CallError,
    CallResult,
    Effect,
    FileChange,
    JsonMap,
    LoopRecord,
    LoopVerdict,
    ModelReply,
    OverrideConstraint,
    Profile,
    Record,
    StopCause,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
    Verdict,
    Verification,
)

SIGNATURE_CHARS = 16
"""64 bits: a chance meeting of two actions in one run is out of the question, and a person can still read it."""


def action_signature(action_type: str, tool: str, arguments: Mapping[str, Any], target: str) -> str:
    """16 hexadecimal digits over the action's type, tool, arguments and workspace-relative target.

    The order of keys makes no difference; `1` and `1.0` do. Arguments that are no JSON (NaN, foreign objects, nesting
    without end) all count as the same: `parse` lets none through. Source: spec 3, "Loop detection".
    """
    try:
        canonical = json.dumps(dict(arguments), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        canonical = "not JSON"

    return sha256(json.dumps([action_type, tool, canonical, target]).encode()).hexdigest()[:SIGNATURE_CHARS]


def signature_of(call: ToolCall, spec: ToolSpec, root: str = "") -> str:
    """The call's signature. Its paths count as what they mean: `./a.py` is `a.py`, and so is `{root}/a.py`."""
    plain = {key: _plain(value, root) if key in spec.path_fields else value for key, value in call.arguments.items()}
    return action_signature(spec.effect.value, spec.name, plain, target_of(call, spec, root))


def target_of(call: ToolCall, spec: ToolSpec, root: str = "") -> str:
    """The workspace paths that the call names, in the order of the tool's path fields; "" where it names none."""
    values = [_plain(call.arguments[field], root) for field in spec.path_fields if field in call.arguments]
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return ", ".join(name for name in names if isinstance(name, str))


def _plain(value: Any, root: str) -> Any:
    if isinstance(value, list):
        return [_plain(part, root) for part in value]
    if isinstance(value, str):
        return _workspace_relative(value, root)
    return value


def _workspace_relative(path: str, root: str) -> str:
    full = posixpath.normpath(posixpath.join(root, path))
    base = posixpath.normpath(root) if root else "."
    if full == base:
        return "."
    if root:
        return full.removeprefix(base.rstrip("/") + "/")

    return full


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

LONGEST_CYCLE = 3
"""The longest cycle that is recognised, in actions; one of them may come twice in it."""

MOST_OUTCOMES = 16
"""So many last results are remembered: a call whose result is a new one makes progress."""

Steps = tuple[tuple[str, ...], ...]


class LoopConfig(Record):
    """When repetition counts, and what an answer needs; a smaller window than the threshold is widened to it."""

    window: int = Field(default=REPEAT_WINDOW, ge=1)
    threshold: int = Field(default=LOOP_REPEAT_THRESHOLD, ge=2)
    max_overrides: int = Field(default=LOOP_OVERRIDE_MAX_RETRIES, ge=0)
    max_failed_tries: int = Field(default=MAX_FAILED_TRIES, ge=1)
    require_checks: bool = False
    require_changes: bool = False

    @property
    def span(self) -> int:
        """The window that is in force."""
        return max(self.window, self.threshold)


def judge_step(
    state: "LoopState",
    config: LoopConfig,
    signature_of: Callable[[ToolCall, ToolSpec], str],
    specs: Mapping[str, ToolSpec],
    root: str,
) -> tuple[LoopRecord, dict[int, str]]:
    """The record after the calls of this step, and the signatures of the model's calls by their place."""
    items = state.get("items", [])
    results = state.get("results", [])
    calls = {at: item for at, item in enumerate(items) if isinstance(item, ToolCall) and item.tool in specs}
    signatures = {at: signature_of(call, specs[call.tool]) for at, call in calls.items() if not call.implied}
    described = {}
    changed = set()
    outcomes = {}

    for at, name in signatures.items():
        call = calls[at]
        described[name] = (call.tool, target_of(call, specs[call.tool], root))
        outcomes[name] = outcome_of(results[at].result)
        if results[at].changes:
            changed.add(name)

    record = check_progress(
        record=state.get("loop", LoopRecord()),
        signatures=tuple(signatures.values()),
        described=described,
        changed=changed,
        answered=any(specs[call.tool].terminal and results[at].result.ok for at, call in calls.items()),
        config=config,
        outcomes=outcomes,
    )
    return record, signatures


def check_progress(
    record: LoopRecord,
    signatures: tuple[str, ...],
    described: Mapping[str, tuple[str, str]],
    changed: Collection[str],
    answered: bool,
    config: LoopConfig,
    outcomes: Mapping[str, str] = MappingProxyType({}),
) -> LoopRecord:
    """The record after a step in which these actions were called, in order, denied ones included.

    `described` gives each signature's tool and target, `changed` holds the signatures of the calls that changed a file,
    and `answered` says that the run's final answer was accepted. `outcomes` are hashes of what the calls came to. The
    new verdict is about this step alone; `recent` holds at most the steps of the windows.
    """
    if answered:
        return record.model_copy(update={"verdict": LoopVerdict.ANSWERED})

    steps = (*record.recent, signatures)
    overrides = {override.signature: override for override in record.overrides}
    if changed:
        steps = _filtered(steps, lambda name: name in changed)
        overrides = {}

    outcomes = {name: outcome for name, outcome in outcomes.items() if name not in overrides}  # which were refused
    progressing = _progressing(record, outcomes) - {*changed}
    last = steps[-1]
    steps = (*_filtered(steps[:-1], lambda name: name not in progressing), last)
    looping = _repeated(steps, config)
    overrides = _updated_overrides(overrides, last, looping, described, config)
    repeated = [override for name, override in overrides.items() if name in last]

    if any(_persists(override, config) for override in repeated):
        verdict = LoopVerdict.PERSISTED
    elif repeated:
        verdict = LoopVerdict.OVERRIDE
    else:
        verdict = LoopVerdict.FRESH

    most_steps = max(config.span, LONGEST_CYCLE * config.threshold)
    recent = tuple(step for step in steps if step)[-most_steps:]
    last_outcomes = tuple(dict.fromkeys((*record.outcomes, *outcomes.items())))[-MOST_OUTCOMES:]
    update = {"recent": recent, "outcomes": last_outcomes, "overrides": tuple(overrides.values()), "verdict": verdict}
    return record.model_copy(update=update)


def _filtered(steps: Steps, is_counted: Callable[[str], bool]) -> Steps:
    return tuple(tuple(filter(is_counted, step)) for step in steps)


def _updated_overrides(
    overrides: Mapping[str, OverrideConstraint],
    step: tuple[str, ...],
    looping: Sequence[str],
    described: Mapping[str, tuple[str, str]],
    config: LoopConfig,
) -> dict[str, OverrideConstraint]:
    """The overrides after this step: obeyed, repeated once more, or new for an action that loops."""
    updated = dict(overrides)
    if updated.keys().isdisjoint(step) and not {*step} <= {*looping}:
        for name, override in updated.items():
            updated[name] = override.model_copy(update={"obeyed": True})

    for name in {*step} & updated.keys():
        updated[name] = updated[name].model_copy(update={"repeats": updated[name].repeats + 1})

    for name in looping:
        tool, target = described[name]
        new = OverrideConstraint(signature=name, tool=tool, target=target, repeats=config.threshold)
        updated.setdefault(name, new)

    return updated


def outcome_of(result: ToolResult) -> str:
    """A hash of what a call came to; under which name a long result was kept makes no difference."""
    text = json.dumps(result.as_map(), sort_keys=True, default=str)
    return sha256(_REFERENCES.sub("", text).encode("utf-8", "surrogatepass")).hexdigest()[:SIGNATURE_CHARS]


_REFERENCES: Final = re.compile(r"@result/[0-9]+")


def _progressing(record: LoopRecord, outcomes: Mapping[str, str]) -> set[str]:
    """The signatures of the calls that were made before and now have an outcome that they never had."""
    called = {name for name, _ in record.outcomes}
    return {name for name, outcome in outcomes.items() if name in called and (name, outcome) not in record.outcomes}


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

            return {"kind": "loop_override", **override.model_dump(exclude={"obeyed"}), "message": message}

    return None


def _repeated(steps: Steps, config: LoopConfig) -> list[str]:
    """The actions of the last step that were called too often, in a row of calls, of steps, or as a cycle."""
    step = steps[-1]
    actions = list(chain.from_iterable(steps))
    looping = set()

    for end in range(len(actions) - len(step) + 1, len(actions) + 1):
        action = actions[end - 1]
        window = actions[max(0, end - config.span) : end]
        if window.count(action) >= config.threshold or _ends_cycle(actions[:end], config.threshold):
            looping.add(action)

    if steps[-config.span :].count(step) >= config.threshold:
        looping.update(step)

    return [name for name in dict.fromkeys(step) if name in looping]


def _ends_cycle(actions: list[str], times: int) -> bool:
    for length in range(2, LONGEST_CYCLE + 1):
        cycle = actions[-length:]
        if len({*cycle}) > 1 and actions[-length * times :] == cycle * times:
            return True

    return False


def _persists(override: OverrideConstraint, config: LoopConfig) -> bool:
    most_repeats = config.max_overrides
    if override.obeyed and most_repeats:
        most_repeats += 1

    return override.repeats - config.threshold >= most_repeats


def _action(override: OverrideConstraint) -> str:
    if override.target:
        return f"{override.tool} on {override.target!r}"
    return override.tool


MOST_MISSES = 2
"""Edits that miss on one file in one turn, after which its whole text is asked for: who cannot quote it can still write
it. A model that may is asked for whole blocks from then on."""

Items = Sequence[ToolCall | CallError]


def count_tries(
    record: LoopRecord,
    items: Items,
    results: Sequence[CallResult],
    specs: Mapping[str, ToolSpec],
    max_failed_tries: int,
    *,
    in_blocks: bool,
) -> LoopRecord:
    """The record with the failed tries and missed edits after this step, and the verdict that they were too many.

    A check that failed is a failed try, whatever the form; `in_blocks` also a step whose edits all failed. Checks that
    passed end the row; in the block form, where checks come with the edit, an edit that was used does too.
    """
    missed = list(record.missed)
    edit_errors = []

    for item, result in zip(items, results, strict=True):
        if item.tool not in specs or specs[item.tool].effect not in CHANGING:
            continue

        edit_errors.append(result.result.error)
        if isinstance(item, ToolCall) and is_miss(result.result.error):
            missed.append(_path(item))

    errors = [result.result.error for result in results]
    all_edits_failed = bool(edit_errors) and all(error is not None for error in edit_errors)
    check_failed = any(error is not None and error.code is ToolErrorCode.CHECK_FAILED for error in errors)
    check_passed = any("checks" in result.result.data for result in results)
    edit_used = any(result.changes for result in results)
    tries = record.failed_tries

    if check_failed or (in_blocks and all_edits_failed):
        tries += 1
    elif check_passed or (in_blocks and edit_used):
        tries = 0

    gave_up = tries >= max_failed_tries and record.verdict in {LoopVerdict.FRESH, LoopVerdict.OVERRIDE}
    verdict = LoopVerdict.GAVE_UP if gave_up else record.verdict
    return record.model_copy(update={"failed_tries": tries, "missed": tuple(missed), "verdict": verdict})


def tries_stop(record: LoopRecord, results: Sequence[CallResult]) -> StopCause | None:
    """Why the run ends where the tries are used up; else None."""
    if record.verdict is not LoopVerdict.GAVE_UP:
        return None

    errors = [result.result.error for result in results]
    failed = [error for error in errors if error is not None and error.code is not ToolErrorCode.CANCELLED]
    reason = StopReason.EDITS_FAILED
    problem = "No edit could be used"

    if any(error.code is ToolErrorCode.CHECK_FAILED for error in failed):
        reason = StopReason.CHECKS_FAILED
        problem = "The work did not pass its checks"

    return StopCause(
        reason=reason,
        message=f"{problem} after {record.failed_tries} tries.",
        diagnostics=tuple(error.message for error in failed),
    )


def keeps_missing(record: LoopRecord) -> bool:
    """Whether `MOST_MISSES` edits of this turn have missed on one file."""
    counts = [record.missed.count(path) for path in set(record.missed)]
    return max(counts, default=0) >= MOST_MISSES


def _path(call: ToolCall) -> str:
    return str(call.arguments.get("path"))


def with_notices(
    items: Items, results: Sequence[CallResult], signatures: Mapping[int, str], loop: LoopRecord
) -> list[CallResult]:
    """Tell the model, in the result itself, that an action is refused from now on, or that its edits keep missing.

    `signatures` are those of the calls by their place. A result that has data gets the notice as data; a failure gets
    its sentence added, for a failure is all that its reader looks at.
    """
    notices = []

    for place, (item, result) in enumerate(zip(items, results, strict=True)):
        notice = override_notice(loop, signatures.get(place, ""))
        error = result.result.error
        advice = ""

        if isinstance(item, ToolCall) and is_miss(error):
            advice = _miss_advice(item, loop)

        tool_result = result.result

        if error is not None and (notice or advice):
            message = " ".join(filter(None, [error.message, advice, notice["message"] if notice else ""]))
            tool_result = ToolResult(ok=False, error=error.model_copy(update={"message": message}))
        elif notice:
            tool_result = ToolResult(ok=True, data={**tool_result.data, "override": notice})

        notices.append(result.model_copy(update={"result": tool_result}))

    return notices


def _miss_advice(call: ToolCall, loop: LoopRecord) -> str:
    # The file is read first, as write_file replaces only what was read.
    path = _path(call)
    misses = loop.missed.count(path)
    advice = f"That is miss {misses} on {path} in this turn: read_file it, then give its whole new text with write_file"

    if misses >= MOST_MISSES:
        return f"{advice} instead of old_str and new_str."

    return ""


def fatal_failure(results: Sequence[CallResult]) -> StopCause | None:
    """Why the run must not go on (the disk is full, or somebody else works on its files), as a call has found out."""
    for result in results:
        error = result.result.error
        if error is not None and error.fatal:
            reason = _FATAL.get(error.code, StopReason.WORKSPACE_FAILED)
            return StopCause(reason=reason, message=error.message, diagnostics=(f"{result.tool}: {error.code.value}",))

    return None


_FATAL = {
    ToolErrorCode.CONFLICT: StopReason.WORKSPACE_CHANGED,
    ToolErrorCode.HOOK_FAILED: StopReason.HOOK_FAILED,
}


def accepted_answer(
    items: Items, results: Sequence[CallResult], loop: LoopRecord, specs: Mapping[str, ToolSpec]
) -> Answer | None:
    """The final answer that this step gave beside its other calls, where it was accepted."""
    if loop.verdict is not LoopVerdict.ANSWERED:
        return None

    for item, result in zip(items, results, strict=True):
        if isinstance(item, ToolCall) and specs[item.tool].terminal and result.result.ok:
            return Answer.given(item.arguments)

    return None


class LoopState(TypedDict, total=False):
    """What loop control reads. `results` are those of `items`, in order, and `verdicts` guard's of them."""

    items: list[ToolCall | CallError]
    results: list[CallResult]
    verdicts: list[Verdict]
    changes: list[FileChange]
    loop: LoopRecord
    reply: ModelReply | None
    profile: Profile


_ACTING: Final = CHANGING | {Effect.NETWORK}
_REFUSALS: Final = frozenset({ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.APPROVAL_REQUIRED})


def with_account(
    record: LoopRecord, state: LoopState, specs: Mapping[str, ToolSpec], changed: Sequence[str]
) -> LoopRecord:
    """The record with what the checks before the answer say of all `changed` files, and the calls that were refused."""
    items = state.get("items", [])
    verified = record.verified
    refused = list(record.refused)
    verdicts = state.get("verdicts", [])

    for place, (item, result) in enumerate(zip(items, state.get("results", []), strict=True)):
        verified = None if result.changes else verified
        if isinstance(item, ToolCall) and item.implied and not specs[item.tool].terminal:
            verified = verification(item, result.result, changed) or verified

        renamed = result.result.data.get("set_aside", ())
        refused += (f"refused (a protected name; not named by the user), so it is called {path}" for path in renamed)
        refused += result.result.data.get("child_refused", ())

        error = result.result.error
        if not isinstance(item, ToolCall) or item.tool not in specs or error is None:
            continue

        if specs[item.tool].effect in _ACTING and error.code in _REFUSALS:
            words = verdicts[place].refused if place < len(verdicts) else ""
            refused.append(f"{words or 'refused:'} {item.tool} {target_words(item.arguments)}".rstrip())

    return record.model_copy(update={"verified": verified, "refused": tuple(dict.fromkeys(refused))})


def verification(call: ToolCall, result: ToolResult, changed: Sequence[str]) -> Verification | None:
    """What the call of the checks came to, for all `changed` files; None where they were not made."""
    error = result.error
    data = result.data

    if error is not None:
        failed: Literal["contradicted", "none"] = "contradicted" if error.code is ToolErrorCode.CHECK_FAILED else "none"
        if error.code is ToolErrorCode.CANCELLED:
            return None
        return Verification(kind=failed, reason=error.message)

    unseen = [path for path in changed if path not in call.arguments.get("paths", ())]
    fields = {name: data[name] for name in Verification.model_fields if name in data}

    if unseen:
        reason = f"no check looked at {listed(unseen)}"
    else:
        reason = str(data.get("reason", ""))

    kind = "none" if unseen else data.get("checks", "none")
    return Verification.model_validate({**fields, "kind": kind, "reason": reason})


def answer_stop(
    record: LoopRecord, answer: Answer | None, changed: Sequence[str], config: LoopConfig
) -> StopCause | None:
    """Why an answer is not taken: its run has to be checked or to change a file, and was not or did not; else None."""
    if answer is None:
        return None

    evidence = (f"the answer: {answer.text}",)
    if not changed and config.require_changes:
        message = "This run has to change a file, and its changes cancel out."
        return StopCause(reason=StopReason.NOTHING_CHANGED, message=message, diagnostics=evidence)

    if changed and config.require_checks and not _is_checked(record.verified, changed):
        is_indistinct = record.verified is not None and record.verified.kind == "indistinct"
        if is_indistinct:
            why = "no test that passes distinguishes"
        else:
            why = "nothing could check"

        message = f"This run has to be checked, and {why} its changes."
        return StopCause(reason=StopReason.NOT_CHECKED, message=message, diagnostics=evidence)

    return None


def _is_checked(verified: Verification | None, changed: Sequence[str]) -> bool:
    """Whether checks say something of the changes; tests that pass before them too say enough of changed tests."""
    if verified is None:
        return False
    if verified.kind == "indistinct":
        return all(map(IS_TEST.search, changed))

    return verified.kind != "none"
