"""Tells what happens in a run as a sequence of entries, from public information alone.

The sources are the requests that reach the model's endpoint, the events of the session, its result after each turn,
and the files of the workspace.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from itertools import groupby
from typing import Any

from mendgraph import (
    Alerted,
    Asked,
    CallsRead,
    Compacted,
    Denied,
    Event,
    FellBack,
    HealingBegan,
    LoopOverridden,
    OfChild,
    Outcome,
    Paid,
    Rescued,
    RunResult,
    StepDone,
    ToolStarted,
    Waiting,
)
from mendgraph.nodes.records import CallError, CallResult, JsonMap, ToolCall, Verdict, Verification
from tests.doubles.replies import Reply
from tests.doubles.tool_use import Use
from tests.scenarios.conversation import SYSTEM_PROMPT, Conversation, RequestView, reply_text
from tests.scenarios.scenario import Decision, Turn
from tests.scenarios.values import fields, shortened
from tests.vocabulary import Protocol

FIRST_REQUEST = "first_request"
"""The transcript of what every run sends first."""


@dataclass(frozen=True)
class Entry:
    """One paragraph of a transcript, and the text that is quoted below it."""

    words: str
    text: str = ""


@dataclass
class _Step:
    """What is known of the calls of a reply until they have results: those read, started and denied, in order."""

    calls: tuple[ToolCall | CallError, ...] = ()
    started: set[str] = field(default_factory=set)
    denied: list[Verdict] = field(default_factory=list)


@dataclass
class _Thread:
    """The conversation of the run, or of a child of it, and its last request with its number."""

    conversation: Conversation
    step: _Step = field(default_factory=_Step)
    request: JsonMap | None = None
    number: int = 0


@dataclass
class Narrator:
    """Turns what a run shows into entries.

    Args:
        protocol: of the run.
        replies: the scripted replies of all turns.
        requests: those that the endpoint has received; it grows while the run works.
        usual: the first request of a run with default settings.
    """

    protocol: Protocol
    replies: Sequence[Use | Reply]
    requests: Sequence[JsonMap]
    usual: JsonMap
    entries: list[Entry] = field(default_factory=list)
    _narrated: int = 0
    _threads: dict[str, _Thread] = field(default_factory=dict)
    _child: str = ""

    def begin_turn(self, turn: Turn) -> None:
        """Tell what the person asks."""
        self._thread.conversation.tasks[turn.request] = "the person's request"
        self._add("The person asks:", turn.request if turn.request.strip() else repr(turn.request))

    def hear(self, event: Event) -> None:
        """Tell an event. Pieces of text, the trace and the end of a turn are told by other entries."""
        match event:
            case Paid():
                self._tell_request()
            case Waiting(reason=reason):
                self._add(f"The endpoint is asked again: {reason}")
            case FellBack(model, following, reason):
                self._add(f"The model {model} is given up for {following}: {reason}")
            case Compacted(kind=kind):
                self._add(f"The history is made smaller: {kind}.")
            case HealingBegan(attempt, errors):
                lines = [f"{error.error_type.name}: {error.details}" for error in errors]
                self._add(f"The reply cannot be used. Correction {attempt} is due:", "\n".join(lines))
            case Alerted(kind, message):
                self._add(f"Alert ({kind}): {message}")
            case OfChild(place, task, inner):
                self._hear_child(place, task, inner)
            case _:
                self._hear_of_calls(event)

    def tell_decision(self, decision: Decision) -> None:
        """Tell what a person decides on the calls that need an approval."""
        if isinstance(decision, str):
            self._add(f"The person decides: {decision}.")
        else:
            self._add("The person decides:", fields(decision))

    def end_turn(self, result: RunResult, diff: str) -> None:
        """Tell how a turn ends, and what it changes."""
        while self._narrated < len(self.requests):
            self._tell_request()

        outcome = result.outcome
        self._add(f"The turn ends: {outcome.kind.value} ({outcome.reason.value}).", _outcome_text(outcome))
        if not result.ok and result.messages:
            self._add("The last message of the thread:", result.messages[-1].text)
        if result.plan.steps:
            steps = "\n".join(f"[{step.status.value}] {step.title}" for step in result.plan.steps)
            self._add("The plan:", steps)

        self._add("The workspace has changed:" if diff else "The workspace is as it was before the turn.", diff)
        if result.diff != diff:
            self._add("The result has another diff:", result.diff)

    @property
    def _thread(self) -> _Thread:
        return self._threads.setdefault(self._child, _Thread(Conversation(self.protocol)))

    def _add(self, words: str, text: str = "") -> None:
        child = f"(child {self._child}) " if self._child else ""
        self.entries.append(Entry(child + words, text))

    def _hear_child(self, place: str, task: str, event: Event) -> None:
        self._child = place
        self._thread.conversation.tasks[task] = "the task"
        self.hear(event)
        self._child = ""

    # --- Requests

    def _tell_request(self) -> None:
        """Tell the next request and the reply to it."""
        if self._narrated == len(self.requests):
            self._add("A request is paid for that the endpoint has not received.")
            return
        thread, request = self._thread, self.requests[self._narrated]
        self._narrated += 1
        self._tell_messages(thread, thread.conversation.read(request["messages"]))
        self._tell_parameters(thread, request)
        thread.request, thread.number = request, self._narrated

        if self._narrated > len(self.replies):
            self._add(f"Reply {self._narrated} is not in the script.")
            return
        reply = self.replies[self._narrated - 1]
        self._add(f"Reply {self._narrated}:", reply_text(reply))
        thread.conversation.replies[self._narrated] = reply

    def _tell_messages(self, thread: _Thread, view: RequestView) -> None:
        request = f"Request {self._narrated}"
        names: list[str] = []
        quoted: list[Entry] = []
        for part in view.added:
            if part.name == SYSTEM_PROMPT:
                name, entries = self._system_prompt(part.text)
                names.append(name)
                quoted += entries
            else:
                names.append(part.name)
                quoted += [Entry(f"{part.name[0].upper()}{part.name[1:]}:", shortened(part.text))] if part.text else []

        sentences = [f"{request} is request {thread.number} once more."] if view.repeated else []
        sentences += [f"{request} no longer has {_listed(view.removed)}."] if view.removed else []
        sentences += [f"{request} adds {_listed(names)}."] if names else []
        self._add(" ".join(sentences))
        for entry in quoted:
            self._add(entry.words, entry.text)

    def _system_prompt(self, prompt: str) -> tuple[str, list[Entry]]:
        """Name a system prompt, and quote where it differs from the usual one."""
        usual = self.usual["messages"][0]["content"]
        if prompt == usual:
            return f"the [usual system prompt]({FIRST_REQUEST}.md)", []
        lines = unified_diff(usual.splitlines(), prompt.splitlines(), "usual", "this run", lineterm="", n=1)
        return "another system prompt", [Entry("The system prompt differs from the usual one:", "\n".join(lines))]

    def _tell_parameters(self, thread: _Thread, request: JsonMap) -> None:
        """Tell what a request has otherwise than the one before it, or than the usual one."""
        before, name = thread.request, f"request {thread.number}"
        if before is None:
            before, name = self.usual, f"the [usual one]({FIRST_REQUEST}.md)"
        if changes := _parameter_changes(before, request):
            self._add(f"Request {self._narrated} differs from {name}:", changes)

    # --- Calls and their results

    def _hear_of_calls(self, event: Event) -> None:
        match event:
            case CallsRead(calls):
                self._thread.step = _Step(calls)
            case Rescued(calls):
                self._thread.step = _Step(calls)
                lines = [f"{call.tool} {call.raw_arguments}" for call in calls]
                self._add("The reply is read as calls:", "\n".join(lines))
            case Denied(verdict=verdict):
                self._thread.step.denied.append(verdict)
            case Asked(request):
                self._add("A person is asked for approval:", _approval_text(request))
            case ToolStarted(call):
                self._thread.step.started.add(call.call_id)
            case StepDone(results):
                self._tell_results(results)
            case LoopOverridden(overrides):
                lines = [f"{override.tool} on {override.target!r}, {override.repeats} times" for override in overrides]
                self._add("The same call came too often and is refused from now on:", "\n".join(lines))
            case _:
                pass

    def _tell_results(self, results: Sequence[CallResult]) -> None:
        thread, denied = self._thread, iter(self._thread.step.denied)
        malformed = {call.call_id for call in thread.step.calls if isinstance(call, CallError)}
        for result in results:
            thread.conversation.results.append((result.tool, result.result.as_map()))
            verdict: Verdict | None = None
            if result.call_id in thread.step.started:
                words = "is allowed and runs"
            elif result.call_id in malformed:
                words = "is malformed and does not run"
            else:
                verdict = next(denied, None)
                words = _verdict_words(verdict)
            self._add(f"`{result.tool or 'no tool'}` {words}:", _result_text(result, verdict))


def file_diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Compare two states of a workspace, as one unified diff."""
    lines: list[str] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            source = "/dev/null" if old is None else f"a/{name}"
            target = "/dev/null" if new is None else f"b/{name}"
            lines += unified_diff((old or "").splitlines(True), (new or "").splitlines(True), source, target)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _listed(names: Sequence[str]) -> str:
    """Write names as a part of a sentence, and equal ones in a row once."""
    groups = [(name, len(list(group))) for name, group in groupby(names)]
    *others, last = [name if count == 1 else f"{name} ({count} times)" for name, count in groups]
    return f"{', '.join(others)} and {last}" if others else last


def _parameter_changes(before: JsonMap, request: JsonMap) -> str:
    """What a request has beside its messages that another one has not, or has otherwise."""
    names = [name for name in {**before, **request} if name != "messages"]
    changed = {name: request.get(name) for name in names if request.get(name) != before.get(name)}
    if "tools" in changed:
        changed["tools"] = _tool_changes(before.get("tools") or [], request.get("tools") or [])
    return fields(changed)


def _tool_changes(before: Sequence[JsonMap], tools: Sequence[JsonMap]) -> JsonMap:
    """The schemas of tools that are new or changed, and None for those that are missing."""
    old, new = ({tool["function"]["name"]: tool["function"] for tool in specs} for specs in (before, tools))
    changed = {name: new.get(name) for name in {**old, **new} if old.get(name) != new.get(name)}
    return {
        name: None if schema is None else {key: value for key, value in schema.items() if key != "name"}
        for name, schema in changed.items()
    }


def _approval_text(request: Mapping[str, Any]) -> str:
    calls = []
    for call in request["calls"]:
        values = {name: value for name, value in call.items() if value and name not in {"digest", "index"}}
        preview = {name: value for name, value in call["preview"].items() if value}
        calls.append(fields({**values, "preview": preview}))
    return "\n\n".join(calls)


def _verdict_words(verdict: Verdict | None) -> str:
    """What guard says of a call that did not run."""
    if verdict is None:
        return "is allowed and does not run"
    rule = f"by the rule `{verdict.rule}`" if verdict.rule else "without a rule"
    return f"is denied {rule}, on {verdict.path}" if verdict.path else f"is denied {rule}"


def _result_text(result: CallResult, verdict: Verdict | None) -> str:
    error = result.result.error
    values = {"ok": True, **result.result.data} if error is None else {"ok": False, **error.as_map()}
    if result.changes:
        values["changes"] = [f"{change.kind.value} {change.path}" for change in result.changes]
    if verdict is not None and verdict.blocked:
        values["shown to a person"] = verdict.blocked
    return fields(values)


def _outcome_text(outcome: Outcome) -> str:
    values = outcome.model_dump(mode="json", exclude={"kind", "reason", "usage", "verified"})
    entries = {name: value for name, value in values.items() if value}
    return fields({**entries, "verified": _verified_text(outcome.verified), "usage": _usage_text(outcome.usage)})


def _verified_text(verified: Verification) -> str:
    parts = [f"{verified.kind} ({verified.reason})" if verified.reason else verified.kind]
    parts += [f"ran {', '.join(verified.ran)}"] if verified.ran else []
    parts += [f"lines {', '.join(verified.lines)}"] if verified.lines else []
    return "; ".join(parts)


def _usage_text(usage: JsonMap) -> str:
    """The counts that are not 0. Those of the turn stand where they differ from those of the session."""
    counts = {name: value for name, value in usage.items() if value and not name.startswith("seconds")}
    for name in ("calls", "input_tokens", "output_tokens"):
        if usage.get(f"{name}_in_current_turn") == usage.get(f"total_{name}"):
            counts.pop(f"{name}_in_current_turn", None)
    return ", ".join(f"{name} {value}" for name, value in counts.items()) or "nothing"


def masked(entries: Iterable[Entry], mask: Callable[[str], str]) -> list[Entry]:
    """Replace what differs from run to run."""
    return [Entry(mask(entry.words), mask(entry.text)) for entry in entries]
