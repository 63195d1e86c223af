"""The typed events of a run, read from the parts of `stream(stream_mode=["custom", "updates"])`. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ExtractionError,
    FileChange,
    LoopVerdict,
    Outcome,
    OverrideConstraint,
    Plan,
    ToolCall,
    Verdict,
    VerdictKind,
)


@dataclass(frozen=True)
class Text:
    """The next piece of the model's text, including calls."""

    text: str


@dataclass(frozen=True)
class Waiting:
    """The endpoint failed temporarily; the request is repeated after this many seconds."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class FellBack:
    """`model` failed for this reason, and `following` replaces it."""

    model: str
    following: str
    reason: str


@dataclass(frozen=True)
class Paid:
    """The usage of one attempt of a model call, successful or not. `step` counts the model calls of the thread from 1.

    `purpose` is `reply` or `summary`; `cost_usd` is None if the price is unknown. Input tokens include those read from
    the provider's cache (`cached_tokens`) and written to it (`cache_write_tokens`), output tokens `reasoning_tokens`.
    """

    step: int
    purpose: str
    model: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None
    seconds: float
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0


@dataclass(frozen=True)
class Compacted:
    """The history for the model was shortened: the estimated tokens of the next request before and after.

    `kind` is `cleared` (old results), `summarised` or `slid` (the beginning is left out).
    """

    step: int
    kind: str
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class CallsRead:
    """The calls of a reply, in order, before guard judges them."""

    calls: tuple[ToolCall | CallError, ...]


@dataclass(frozen=True)
class HealingBegan:
    """The reply could not be used and the model is asked again; `attempt` counts from 1."""

    attempt: int
    errors: tuple[ExtractionError, ...]


@dataclass(frozen=True)
class Rescued:
    """The calls of a reply in another format, which are run."""

    calls: tuple[ToolCall | CallError, ...]


@dataclass(frozen=True)
class Denied:
    """A call that guard denied."""

    tool: str
    verdict: Verdict


@dataclass(frozen=True)
class Asked:
    """Calls that need a person's approval; continue with `Session.answer`."""

    request: Mapping[str, Any]


@dataclass(frozen=True)
class ToolStarted:
    """A call that begins to run."""

    call: ToolCall


@dataclass(frozen=True)
class StepDone:
    """The results of a reply's calls, in order; `changes` are those of the turn so far.

    `plan` is the model's current plan, None if it is unknown.
    """

    results: tuple[CallResult, ...]
    changes: tuple[FileChange, ...]
    plan: Plan | None = None


@dataclass(frozen=True)
class LoopOverridden:
    """Actions that were repeated too often and are now refused."""

    overrides: tuple[OverrideConstraint, ...]


@dataclass(frozen=True)
class Traced:
    """An event of the engine's trace, or of the sandbox."""

    name: str
    payload: Mapping[str, Any]
    run_id: str
    step_id: str
    ms: int


@dataclass(frozen=True)
class Alerted:
    """An alert on errors, invalid replies or the cost of a call: `value` exceeds `threshold`."""

    kind: str
    message: str
    value: float
    threshold: float


@dataclass(frozen=True)
class Ended:
    """The outcome of the run; the last event."""

    outcome: Outcome


@dataclass(frozen=True)
class OfChild:
    """An event of a child of the run, which works on `task`.

    `place` is "3.2" for the child of the second call of step 3.
    """

    place: str
    task: str
    inner: "Event"


Event = (
    Text
    | Waiting
    | FellBack
    | Paid
    | Compacted
    | CallsRead
    | HealingBegan
    | Rescued
    | Denied
    | Asked
    | ToolStarted
    | StepDone
    | LoopOverridden
    | Traced
    | Alerted
    | Ended
    | OfChild
)


_OF_MODEL_CALLS: Final[Mapping[str, type[FellBack | Paid | Compacted]]] = {
    "model.fallback": FellBack,
    "model.usage": Paid,
    "context.compacted": Compacted,
}
"""Trace events that are also typed events, which precede them."""


@dataclass
class EventReader:
    """Converts the parts of the stream to events. `changes` are the file changes of the turn so far.

    It keeps the calls of the current step, to name those that guard denied.
    """

    changes: tuple[FileChange, ...] = ()
    _calls: tuple[ToolCall | CallError, ...] = ()
    _waiting: list[ToolCall] = field(default_factory=list)
    _children: "dict[str, EventReader]" = field(default_factory=dict)

    @classmethod
    def resuming(cls, values: Mapping[str, Any]) -> Self:
        """Return a reader for a resumed turn, with the calls and changes of its state."""
        judged = zip(values.get("items") or (), values.get("verdicts") or (), strict=False)
        waiting = [call for call, verdict in judged if isinstance(call, ToolCall) and verdict.kind is VerdictKind.ALLOW]
        return cls(tuple(values.get("changes") or ()), tuple(values.get("items") or ()), waiting)

    def read(self, mode: str, part: Any) -> Iterator[Event]:
        """Yield the events of one part, in order."""
        if mode == "custom":
            yield from self._custom(part)
            return

        for node, update in part.items():
            if node == "__interrupt__":
                yield from (Asked(request=approval.value) for approval in update)
            elif isinstance(update, Mapping):
                yield from self._update(node, update)

    def _custom(self, part: object) -> Iterator[Event]:
        """Yield the events of the custom stream. Users' tools write to it as well; unknown parts are no events."""
        match part:
            case {"type": "text", "text": text}:
                yield Text(str(text))
            case {"type": "waiting", "seconds": seconds, "reason": reason}:
                yield Waiting(float(seconds), str(reason))
            case {"type": "alert", "kind": kind, "message": message, "value": value, "threshold": threshold}:
                yield Alerted(kind, message, value, threshold)
            case {"type": "child", "place": place, "task": task, "mode": mode, "part": inner}:
                reader = self._children.setdefault(place, EventReader())
                yield from (OfChild(place, task, event) for event in reader.read(mode, inner))
            case {"type": "trace", "name": name, "payload": payload, "run_id": run_id, "step_id": step, "ms": ms}:
                if name == "tool.invoke.start":
                    yield from self._started(str(payload.get("tool_name", "")))
                elif name in _OF_MODEL_CALLS:
                    event_type = _OF_MODEL_CALLS[name]
                    values = {**payload, "step": int(step)}
                    yield event_type(
                        **{event_field.name: values[event_field.name] for event_field in fields(event_type)}
                    )

                yield Traced(name, payload, run_id, step, ms)

    def _started(self, tool: str) -> Iterator[Event]:
        """Yield the next call of a tool: the engine names the tool alone, and calls start in the order of the reply."""
        for call in self._waiting:
            if call.tool == tool:
                self._waiting.remove(call)
                yield ToolStarted(call)
                return

    def _update(self, node: str, update: Mapping[str, Any]) -> Iterator[Event]:
        if node == "parse":
            self._calls = tuple(update.get("items") or ())
            if self._calls:
                yield CallsRead(self._calls)
        elif node == "heal":
            yield from self._healing(update)
        elif node == "guard":
            self._calls = tuple(update.get("items") or self._calls)  # a person may have changed one
            judged = list(zip(self._calls, update.get("verdicts") or (), strict=False))
            allowed = [call for call, verdict in judged if verdict.kind is VerdictKind.ALLOW]
            self._waiting = [call for call in allowed if isinstance(call, ToolCall)]

            for call, verdict in judged:
                if verdict.kind is VerdictKind.DENY and isinstance(call, ToolCall):
                    yield Denied(call.tool, verdict)

            if update.get("results"):
                yield StepDone(tuple(update["results"]), self.changes)
        elif node == "execute_tools":
            self.changes += tuple(update.get("changes") or ())
            yield StepDone(tuple(update.get("results") or ()), self.changes, update.get("plan"))
        elif node == "loop_check":
            loop = update.get("loop")
            if loop is not None and loop.verdict is LoopVerdict.OVERRIDE:
                yield LoopOverridden(loop.overrides)
        elif update.get("outcome") is not None:
            yield Ended(update["outcome"])

    def _healing(self, update: Mapping[str, Any]) -> Iterator[Event]:
        if update.get("items"):
            self._calls = tuple(update["items"])
            yield Rescued(self._calls)

        attempts = update.get("healing_attempts") or ()
        if attempts:
            yield HealingBegan(len(attempts), tuple(attempts[-1].errors))
