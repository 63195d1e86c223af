"""The one reading of a run's events for people: the terminal, pipes, the status line and editors are made from it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from mendgraph.graph.runs import events
from mendgraph.graph.terminal.output import Line
from mendgraph.graph.terminal.visible_text import VisibleText
from mendgraph.nodes.language.display import count_of, error_words, one_line, result_words, target_of
from mendgraph.nodes.records import CallError, CallResult, FileChange, JsonMap, ToolCall, ToolError, ToolErrorCode

WAITING: Final = "waiting for the model"

_LONGEST_WARNING: Final = 500
"""Characters of a warning: its remedy stands at the end and has to be visible."""

_REFUSALS: Final = frozenset(
    {ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.LOOP_OVERRIDE, ToolErrorCode.APPROVAL_REQUIRED}
)

_COMPACTIONS: Final = {
    "cleared": "older results are no longer shown to the model",
    "summarised": "the model is shown a summary of the conversation's beginning",
    "slid": "the conversation's beginning is no longer shown to the model",
}

_UNAVAILABLE: Final = {
    "commands.unavailable": "no commands",
    "audit.unavailable": "no log of this run",
    "spending.unbooked": "not in the spending database",
    "notes.unread": "hidden from the model",
    "memory.unavailable": "no memory",
    "web_search.unavailable": "no web search",
    "hook.warned": "hooks",
    "permission.unkept": "allowed for this call only",
}
"""Trace events about something that the run lacks, and the beginning of the warning for each."""


@dataclass(frozen=True)
class Prose:
    """A piece of the model's visible text, and whether it is the first of its reply and of its turn."""

    text: str
    begins_reply: bool
    begins_turn: bool


@dataclass(frozen=True)
class FinishedCall:
    """A call with its result. `explained`: lines about its refusal were shown before."""

    result: CallResult
    target: str
    refused: bool
    explained: bool

    def lines(self) -> Iterator[Line]:
        """The line for the call, if it has one; a message that names the target stands behind the tool alone."""
        result = self.result.result
        name = one_line(f"{self.result.tool} {self.target}")
        if result.error is not None and self.target and repr(self.target) in result.error.message:
            name = self.result.tool

        if self.refused and result.error is not None:
            if not self.explained:
                yield Line(f"⛔ {name}: {one_line(result.error.message, 300)}", "red")
        elif result.error is not None:
            yield Line(f"→ {name}  {result_words(result)}", "yellow")
        elif self.result.tool != "final_answer":
            yield Line(f"→ {name}  {result_words(result)}", "cyan")


class Account:
    """The paid model calls and compactions of a turn, children included, and the models without a known price."""

    def __init__(self) -> None:
        self.paid: list[events.Paid] = []
        self.compactions: list[events.Compacted] = []
        self.unpriced: list[str] = []

    def begin_turn(self) -> None:
        """Forget the calls of the turn before; `unpriced` is kept for the session."""
        self.paid = []
        self.compactions = []

    def note(self, event: events.Event) -> None:
        """Add a paid call or a compaction; ignore other events."""
        if isinstance(event, events.OfChild):
            self.note(event.inner)
        elif isinstance(event, events.Compacted):
            self.compactions.append(event)
        elif isinstance(event, events.Paid):
            self.paid.append(event)
            if event.cost_usd is None and event.model not in self.unpriced:
                self.unpriced.append(event.model)

    def as_map(self) -> JsonMap:
        """Return `steps`, one for each try of a model call, and `compactions`, as JSON values."""
        return {"steps": [*map(asdict, self.paid)], "compactions": [*map(asdict, self.compactions)]}


class RunView:
    """The events of a session as prose, finished calls and lines, and what the turn so far has changed and used."""

    def __init__(self, visible: VisibleText) -> None:
        self.visible = visible
        self.account = Account()
        self._warnings: set[str] = set()
        self.begin_turn()

    def begin_turn(self) -> None:
        """Reset everything that belongs to one turn."""
        self.account.begin_turn()
        self.action = WAITING
        self.steps = 0
        self.changes: tuple[FileChange, ...] = ()
        self.refused: list[JsonMap] = []
        self.calls: dict[str, ToolCall | CallError] = {}
        self._explained: list[ToolError | None] = []
        self._text = ""  # of the model, in this turn
        self._line_ends = ""  # at the end of the reply so far, shown only if more text follows
        self.in_reply = False

    def read(self, event: events.Event) -> Iterator[Prose | FinishedCall | Line]:
        """Yield what the event adds to the view, in order."""
        self.account.note(event)
        self._note_action(event)

        if isinstance(event, events.Text):
            yield from self._prose(self.visible.feed(event.text))
        elif isinstance(event, events.Traced):
            yield from self._trace_lines(event)
        elif not isinstance(event, events.ToolStarted | events.Paid):
            yield from self.end_reply()
            if (note := note_of(event)) is not None:
                yield note

            yield from self._call_lines(event)

    def end_reply(self) -> Iterator[Prose]:
        """Yield the withheld text of the reply, which has ended."""
        yield from self._prose(self.visible.end())
        self._line_ends = ""
        self.in_reply = False

    def answer(self, text: str) -> Iterator[Prose]:
        """Yield the final answer, unless all of its lines were shown as they arrived."""
        seen = {line.strip() for line in (*self._text.splitlines(), "")}
        if not seen.issuperset(line.strip() for line in text.splitlines()):
            yield from self._prose(text)

        self.in_reply = False

    def _prose(self, text: str) -> Iterator[Prose]:
        if self.in_reply:
            text = self._line_ends + text
        else:
            text = text.lstrip()

        body = text.rstrip("\r\n")
        self._line_ends = text[len(body) :]

        if body:
            prose = Prose(body, begins_reply=not self.in_reply, begins_turn=not self._text)
            if prose.begins_reply:
                self._text += "\n"

            self._text += body
            self.in_reply = True
            yield prose

    def _trace_lines(self, event: events.Traced) -> Iterator[Line]:
        if event.name in _UNAVAILABLE:
            warning = f"{_UNAVAILABLE[event.name]}: {event.payload.get('reason', '')}"
            if warning not in self._warnings:
                self._warnings.add(warning)
                yield Line(f"! {one_line(warning, _LONGEST_WARNING)}", "yellow")

        if event.name == "notes.read":
            for file in event.payload.get("files", ()):
                words = f"{count_of(file['lines'], 'line')} of notes"
                if file.get("cut"):
                    words += ", the rest left out"

                yield Line(f"→ {one_line(file['path'])}  {words}", "dim")

    def _call_lines(self, event: events.Event) -> Iterator[FinishedCall | Line]:
        match event:
            case events.CallsRead(calls) | events.Rescued(calls):
                self.calls = {call.call_id: call for call in calls}
            case events.Denied(_, verdict) if verdict.blocked:
                self._explained.append(verdict.error)
                for line in verdict.blocked.splitlines():
                    yield Line(line, "red")
            case events.StepDone(results):
                for result in results:
                    yield from self._finished(result)

    def _finished(self, result: CallResult) -> Iterator[FinishedCall]:
        self.changes += result.changes
        call = self.calls.get(result.call_id)
        target = ""

        if isinstance(call, ToolCall):
            target = target_of(call.arguments)
            if call.implied:
                return

        error = result.result.error
        refused = error is not None and error.code in _REFUSALS
        if error is not None and refused:
            refusal = {"tool": result.tool, "target": target, "code": error.code.value, "message": error.message}
            self.refused.append(refusal)

        yield FinishedCall(result, target, refused, explained=error in self._explained)

    def _note_action(self, event: events.Event) -> None:
        match event:
            case events.Text():
                self.action = "the model is writing"
            case events.Waiting(seconds, _):
                self.action = f"trying again in {round(seconds, 1):g} s"
            case events.FellBack(_, following, _):
                self.action = f"asking {one_line(following, 40)}"
            case events.HealingBegan(attempt, _):
                self.action = f"asking again, attempt {attempt}"
            case events.ToolStarted(call):
                self.action = one_line(f"running {call.tool} {target_of(call.arguments)}", 60)
            case events.StepDone():
                self.action = WAITING
                self.steps += 1
            case events.Asked() | events.Ended():
                self.action = ""


def note_of(event: events.Event) -> Line | None:
    """Return the line for an event that is no text and no call, or None."""
    match event:
        case events.Waiting(seconds, reason):
            return Line(f"… {one_line(reason)} Trying again in {round(seconds, 1):g} s", "dim")
        case events.FellBack(model, following, reason):
            return Line(f"… {one_line(reason)} Asking {one_line(following)} instead of {one_line(model)}", "yellow")
        case events.Compacted(_, kind, before, after):
            effect = _COMPACTIONS.get(kind, "the model is shown less of the conversation")
            return Line(f"… {effect}: {before:,} -> {after:,} tokens", "dim")
        case events.Rescued():
            return Line("… the reply was a call in another format and is read as one", "dim")
        case events.HealingBegan(attempt, errors):
            return Line(f"… the reply is unusable ({error_words(errors)}): asking again, attempt {attempt}", "dim")
        case events.Alerted(message=message):
            return Line(f"! {one_line(message, _LONGEST_WARNING)}", "yellow")
        case events.LoopOverridden((*_, override)):
            name = one_line(f"{override.tool} {override.target}")
            return Line(f"↻ {name}: the same action {override.repeats} times, refused from now on", "yellow")
        case events.OfChild(place, _, events.ToolStarted(call)) if not call.implied:
            return Line(f"⤷ {place} {one_line(f'{call.tool} {target_of(call.arguments)}')}", "dim")
        case events.OfChild(place, _, events.Ended(outcome)):
            return Line(f"⤷ {place} {outcome.kind.value}: {one_line(outcome.message)}", "dim")
        case events.OfChild(place, _, inner):
            if (note := note_of(inner)) is not None:
                return Line(f"⤷ {place} {note.text}", note.style)

    return None
