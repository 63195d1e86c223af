"""What a person or a program sees of a run while it goes on: a few typed events, read from the graph's stream.

Pure: takes the parts of `stream(stream_mode=["custom", "updates"])` and gives events.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from langchain_core.messages import AnyMessage

from mendgraph.nodes.execute_tools.edits.diffs import unified_diff
from mendgraph.nodes.guard.policy import shown
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ExtractionError,
    FileChange,
    JsonMap,
    LoopVerdict,
    Outcome,
    OutcomeKind,
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
    """All calls of the reply have results, in order; `changes` are those of the turn so far."""

    results: tuple[CallResult, ...]
    changes: tuple[FileChange, ...]


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
                yield from (Asked(request=asked.value) for asked in update)
            elif isinstance(update, Mapping):
                yield from self._update(node, update)

    def _custom(self, part: Mapping[str, Any]) -> Iterator[Event]:
        if part.get("type") == "text":
            yield Text(str(part["text"]))
        elif part.get("type") == "waiting":
            yield Waiting(float(part["seconds"]), str(part["reason"]))
        elif part.get("type") == "alert":
            yield Alerted(part["kind"], part["message"], part["value"], part["threshold"])
        elif part.get("type") == "trace":
            name, payload = part["name"], part["payload"]
            if name == "tool.invoke.start":
                yield from self._started(str(payload.get("tool_name", "")))
            elif name in _OF_MODEL_CALLS:
                kind, values = _OF_MODEL_CALLS[name], {**payload, "step": int(part["step_id"])}
                yield kind(**{each.name: values[each.name] for each in fields(kind)})
            yield Traced(name, payload, part["run_id"], part["step_id"], part["ms"])

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
            yield StepDone(tuple(update.get("results") or ()), self.changes)
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


# --- What a program gets at its end

_LONGEST_MESSAGE = 200
"""Characters of an outcome's message that one line shows."""


@dataclass(frozen=True)
class RunResult:
    """A run from its end. `print(result)` tells it in one line; every failure that can be expected is an `outcome`.

    `messages` are those of the whole thread, `changes` the file effects of its last turn in the order in which they
    were made, and `diffs` what they come to: one unified diff for each file that is not as it was, without secrets.
    `plan` is the model's own, empty where it made none.
    """

    outcome: Outcome
    messages: tuple[AnyMessage, ...]
    changes: tuple[FileChange, ...]
    plan: Plan
    thread_id: str
    diffs: tuple[str, ...] = ()

    @property
    def diff(self) -> str:
        """The `diffs`, one after the other."""
        return "".join(self.diffs)

    @property
    def ok(self) -> bool:
        """Whether the run has FINISHED: it gave its answer, and no check of it failed."""
        return self.outcome.kind is OutcomeKind.FINISHED

    @property
    def answer(self) -> str:
        """What the model answered, "" unless it has FINISHED; `outcome.message` says why another run ended."""
        return self.outcome.answer

    @property
    def changed_files(self) -> tuple[str, ...]:
        """The files that the last turn has changed, relative to the workspace."""
        return self.outcome.changed_files

    @property
    def usage(self) -> JsonMap:
        """Calls, tokens, steps, seconds and `cost_usd` (None where a price is not known) of the thread and the turn."""
        return self.outcome.usage

    @property
    def run_id(self) -> str:
        """The run's name for `resume_run`, `undo_run`, `get_run` and `mendgraph runs show`; the same as `thread_id`."""
        return self.thread_id

    @property
    def resumable(self) -> bool:
        """Whether `resume_run(result.run_id, workspace)` goes on with the work: it ended, but not with its answer.

        Under a checkpointer of your own, which `resume_run` does not know, that is
        `Session(context, checkpointer=..., thread_id=result.thread_id).resume()`.
        """
        return not self.ok

    def __str__(self) -> str:
        """Kind, reason, message, changed files and run in one line that holds nothing but printable characters."""
        message = shown(" ".join(self.outcome.message.split()), _LONGEST_MESSAGE)
        files = ", ".join(map(shown, self.changed_files)) or "no file"
        return (
            f"{self.outcome.kind.value} ({self.outcome.reason.value}): {message} [changed: {files}; run {self.run_id}]"
        )


# --- What many changes of a file come to


def net_diffs(changes: Sequence[FileChange], kept: Callable[[str, str], bytes | None]) -> list[str]:
    """A unified diff for each changed file, in the order of the first change; none for one that is as it was.

    `kept` gives the bytes that a file had, by its path and their SHA-256. Where they are gone, or no text, the recorded
    diffs stand as they are. Diffs do not compare line ends: a change of these alone is one line that says so.
    """
    by_path: dict[str, list[FileChange]] = {}
    for change in changes:
        by_path.setdefault(change.path, []).append(change)
    diffs = [_net_diff(each, kept) for each in by_path.values() if each[0].sha256_before != each[-1].sha256_after]
    return [diff for diff in diffs if diff]


def file_diff(path: str, before: bytes | None, after: bytes | None) -> str | None:
    """The diff between two states of a file, None being one that is not there; None where one is no text."""
    try:
        old, new = (None if each is None else each.decode() for each in (before, after))
    except UnicodeDecodeError:
        return None
    return unified_diff(path, old, new)


def _net_diff(changes: list[FileChange], kept: Callable[[str, str], bytes | None]) -> str:
    first, last = changes[0], changes[-1]
    before = kept(first.path, first.sha256_before) if first.sha256_before else None
    after = kept(last.path, last.sha256_after) if last.sha256_after else None
    known = after is not None and (before is not None or not first.sha256_before)
    net = file_diff(last.path, before, after) if known and len(changes) > 1 else None
    diff = "".join(change.diff for change in changes) if net is None else net
    only_ends = not diff and before is not None and after is not None and b"\r" in before + after
    return f"{last.path}: line ends changed\n" if only_ends else diff
