"""Loop detection over the signatures of the last actions (spec 3, "Loop detection").

An action is repeated if it makes up `threshold` of the last `window` actions, if the same calls in the same order make
up `threshold` of the last `window` steps, or if it ends a cycle of two or three different actions that came `threshold`
times in a row (A, B, A, B, A, B). The first time, each repeated signature gets a typed override, which guard enforces.
Reading from another line is another action. Two calls that would do the same have the same signature.

An overridden action that is repeated is refused. Spec 3 ends the run at the next repetition ("repeat again and confirm
SYSTEM_ERROR"), and at the "second repeat after override". Both hold: `max_overrides` refusals end the run of a model
that only repeats overridden actions. A model that has obeyed, by another action, has one more refusal.

A call with a new result, such as that of a job's state, is progress: its earlier calls do not count.

A file change is progress. It removes the overrides and forgets all actions but those that made the change. An edit that
succeeds in the same way again and again (appending one line) is therefore still detected. Two changes that undo each
other are not detected here; the budgets end them.
"""

import json
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from pydantic import Field
from typing_extensions import TypedDict

from mendgraph.nodes.records import (
    CallError,
    CallResult,
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
    ToolResult,
    ToolSpec,
    Verdict,
)

SIGNATURE_CHARS = 16
"""64 bits: two actions of a run never have the same signature by chance, and a person can still read it."""


def action_signature(action_type: str, tool: str, arguments: Mapping[str, Any], target: str) -> str:
    """Return 16 hexadecimal digits over the action's type, tool, arguments and workspace-relative target.

    The order of keys does not matter; `1` and `1.0` differ. Arguments that are not JSON all count as the same: `parse`
    accepts none. Source: spec 3, "Loop detection".
    """
    try:
        canonical = json.dumps(dict(arguments), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        canonical = "not JSON"

    return sha256(json.dumps([action_type, tool, canonical, target]).encode()).hexdigest()[:SIGNATURE_CHARS]


def signature_of(call: ToolCall, spec: ToolSpec, root: str = "") -> str:
    """Return the call's signature with normalized paths: `./a.py` and `{root}/a.py` are `a.py`."""
    plain = {key: _plain(value, root) if key in spec.path_fields else value for key, value in call.arguments.items()}
    return action_signature(spec.effect.value, spec.name, plain, target_of(call, spec, root))


def target_of(call: ToolCall, spec: ToolSpec, root: str = "") -> str:
    """Return the workspace paths that the call names, in the order of the tool's path fields."""
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
"""Number of compared actions or steps. Source: spec 3, MVP defaults."""

LOOP_REPEAT_THRESHOLD = 3
"""Number of identical ones that make a repetition. Source: spec 3, MVP defaults."""

LOOP_OVERRIDE_MAX_RETRIES = 1
"""Number of refused repeats of an overridden action that end the run. Source: spec 3, MVP defaults."""

MAX_FAILED_TRIES = 4
"""Number of consecutive steps with failed edits or checks that end the run.

Source: measured on a 1.5B model, which succeeds within four tries or hardly ever.
"""

LONGEST_CYCLE = 3
"""The longest cycle that is recognised, in actions; an action may occur twice in it."""

MOST_OUTCOMES = 16
"""Number of kept results, by which a new result of a repeated call is recognised."""

Steps = tuple[tuple[str, ...], ...]


class LoopConfig(Record):
    """When repetition is a loop, and what an answer needs. The window is at least the threshold."""

    window: int = Field(default=REPEAT_WINDOW, ge=1)
    threshold: int = Field(default=LOOP_REPEAT_THRESHOLD, ge=2)
    max_overrides: int = Field(default=LOOP_OVERRIDE_MAX_RETRIES, ge=0)
    max_failed_tries: int = Field(default=MAX_FAILED_TRIES, ge=1)
    require_checks: bool = False
    require_changes: bool = False

    @property
    def span(self) -> int:
        """The effective window."""
        return max(self.window, self.threshold)


class LoopState(TypedDict, total=False):
    """What the node reads. `results` and `verdicts` are those of `items`, in order."""

    items: list[ToolCall | CallError]
    results: list[CallResult]
    verdicts: list[Verdict]
    changes: list[FileChange]
    loop: LoopRecord
    reply: ModelReply | None
    profile: Profile


def record_step(
    state: LoopState,
    config: LoopConfig,
    signature_of: Callable[[ToolCall, ToolSpec], str],
    specs: Mapping[str, ToolSpec],
    root: str,
) -> tuple[LoopRecord, dict[int, str]]:
    """Return the record after this step, and the signatures of the model's calls by their places."""
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
    """Return the record after a step in which these actions were called, in order, including denied ones.

    `described` has the tool and target of each signature, `changed` the signatures of the calls that changed a file,
    `outcomes` hashes of the results; `answered`: the final answer was accepted. The verdict is about this step alone.
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
    """Return the overrides after this step: obeyed, repeated once more, or new for a looping action."""
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
    """Return a hash of a call's result, whatever the name under which a long result is kept."""
    text = json.dumps(result.as_map(), sort_keys=True, default=str)
    return sha256(_REFERENCES.sub("", text).encode("utf-8", "surrogatepass")).hexdigest()[:SIGNATURE_CHARS]


_REFERENCES: Final = re.compile(r"@result/[0-9]+")


def _progressing(record: LoopRecord, outcomes: Mapping[str, str]) -> set[str]:
    """Return the signatures of repeated calls with a new result."""
    called = {name for name, _ in record.outcomes}
    return {name for name, outcome in outcomes.items() if name in called and (name, outcome) not in record.outcomes}


def loop_stop(record: LoopRecord, config: LoopConfig) -> StopCause | None:
    """Return why the run ends, if an action persisted, with its signature as evidence."""
    if record.verdict is not LoopVerdict.PERSISTED:
        return None

    override = next(override for override in record.overrides if _persists(override, config))
    message = f"The same call was made {override.repeats} times with the same arguments: {_action(override)}."
    evidence = f"repeated action: {_action(override)}, signature {override.signature}"

    return StopCause(reason=StopReason.LOOP_PERSISTED, message=message, diagnostics=(evidence,))


def override_notice(record: LoopRecord, signature: str) -> JsonMap | None:
    """Return the notice for the model beside the result of a repeated call, as JSON; None for any other call."""
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
    """Return the actions of the last step that were repeated, as actions, as whole steps or as a cycle."""
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
