"""What a person or a program sees of a run while it goes on: a few typed events, read from the graph's stream.

Pure: takes the parts of `stream(stream_mode=["custom", "updates"])` and gives events.
"""

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
    """The next piece of what the model says, calls included."""

    text: str


@dataclass(frozen=True)
class Waiting:
    """The endpoint failed for a reason that may pass; it is asked again after this many seconds, from the start."""

    seconds: float
    reason: str


@dataclass(frozen=True)
class FellBack:
    """`model` could not answer, for this reason, and `following` is asked from here on."""

    model: str
    following: str
    reason: str


@dataclass(frozen=True)
class Paid:
    """One try of a model call is settled, whatever came of it. `step` counts model calls of the thread from 1.

    `purpose` is `reply` or `summary`; `cost_usd` is None where the model's price is not known. Of the input
    tokens, some were read from the provider's cache (`cached_tokens`) or written into it (`cache_write_tokens`); of the
    output tokens, `reasoning_tokens` were thought and not said.
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
    """What the model is shown was made smaller: the tokens of the next request, before and after, estimated.

    `kind` is `cleared` (old results), `summarised` or `slid` (the beginning is gone from view).
    """

    step: int
    kind: str
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class CallsRead:
    """The reply was read; these calls are to be judged, in order."""

    calls: tuple[ToolCall | CallError, ...]


@dataclass(frozen=True)
class HealingBegan:
    """The reply could not be used and is asked for again; `attempt` counts from 1."""

    attempt: int
    errors: tuple[ExtractionError, ...]


@dataclass(frozen=True)
class Rescued:
    """The reply was a call in another form, and is read as it is."""

    calls: tuple[ToolCall | CallError, ...]


@dataclass(frozen=True)
class Denied:
    """Guard refused a call."""

    tool: str
    verdict: Verdict


@dataclass(frozen=True)
class Asked:
    """Guard needs a person. Answer by running the session on with the decisions."""

    request: Mapping[str, Any]


@dataclass(frozen=True)
class ToolStarted:
    """A tool runs this call."""

    call: ToolCall


@dataclass(frozen=True)
class StepDone:
    """All calls of the reply have results, in order; `changes` are those of the turn so far.

    `plan` is the model's plan as it stands, None where it is not known.
    """

    results: tuple[CallResult, ...]
    changes: tuple[FileChange, ...]
    plan: Plan | None = None


@dataclass(frozen=True)
class LoopOverridden:
    """The same action came too often and is now refused."""

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
    """Errors, invalid replies or the cost of a call went up; `value` has passed `threshold`."""

    kind: str
    message: str
    value: float
    threshold: float


@dataclass(frozen=True)
class Ended:
    """The run is over."""

    outcome: Outcome


@dataclass(frozen=True)
class OfChild:
    """What happened in a child of the run, which works on `task`.

    `place` is its place in the tree: "3.2" is the child of the second call of step 3.
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
"""Events of the trace that are also typed ones, which come before them."""


@dataclass
class EventReader:
    """Turns the stream's parts into events. Keeps the calls of the step at hand, to name what guard denied.

    `changes` are the file effects of the turn so far.
    """

    changes: tuple[FileChange, ...] = ()
    _calls: tuple[ToolCall | CallError, ...] = ()
    _waiting: list[ToolCall] = field(default_factory=list)
    _children: "dict[str, EventReader]" = field(default_factory=dict)

    @classmethod
    def taking_up(cls, values: Mapping[str, Any]) -> Self:
        """A reader that knows what a turn that is taken up again has read and changed before."""
        judged = zip(values.get("items") or (), values.get("verdicts") or (), strict=False)
        waiting = [call for call, verdict in judged if isinstance(call, ToolCall) and verdict.kind is VerdictKind.ALLOW]
        return cls(tuple(values.get("changes") or ()), tuple(values.get("items") or ()), waiting)

    def read(self, mode: str, part: Any) -> Iterator[Event]:
        """The events of one part, in order."""
        if mode == "custom":
            yield from self._custom(part)
            return

        for node, update in part.items():
            if node == "__interrupt__":
                yield from (Asked(request=approval.value) for approval in update)
            elif isinstance(update, Mapping):
                yield from self._update(node, update)

    def _custom(self, part: object) -> Iterator[Event]:
        """Tools of users write to this stream as well, whatever they like: that is no event."""
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
        """The engine names the tool alone; calls of one tool start in the order of the reply."""
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
