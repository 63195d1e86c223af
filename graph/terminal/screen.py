"""Shows a run on a terminal: the model's text as it arrives, a line for each tool, and the outcome.

Pure except for its streams. The answer (text, diff, outcome) goes to standard output. What happens
meanwhile goes there as well, so that it stands between the words, but to standard error with `--json`, `--json-lines`
and `--debug`. The status line, where there is one, stands below. Of a streamed reply the prose is shown, and not its
calls and edits.
"""

import re
from dataclasses import dataclass

from mendgraph.graph.machine.small_models import holds_edits
from mendgraph.graph.runs import events
from mendgraph.graph.terminal.answers import Line, Screen, as_json
from mendgraph.graph.terminal.output_lines import Account, compaction_words
from mendgraph.graph.terminal.status_line import StatusLine
from mendgraph.nodes.execute_tools.secrets.redact import redact
from mendgraph.nodes.language.display import count_of, error_words, one_line, result_words, target_of
from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.formats.recognition import recognise, starts_of
from mendgraph.nodes.language.text_protocol import TOOL_PREFIX, extract_in_order, format_extraction_errors
from mendgraph.nodes.records import CallError, CallResult, FileChange, JsonMap, ToolCall, ToolError, ToolErrorCode

_LINE_ENDS = frozenset("\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")
"""Characters that end a line (`str.splitlines`); a carriage return does so unless a line feed follows."""

_STARTS = (TOOL_PREFIX, "```", "~~~")
"""Beginnings of lines, after white space, with which a call or an edit may begin, beside the markers of formats."""

_MAYBE_PATH = re.compile(r"\s*+[*#]*+\s*+(?:[Ff]ile:?\s*+)?[*`]*+[\w@.+/-]*+[`*:]*+\s*+")


class VisibleText:
    """Filters the prose out of replies, up to their calls. `blocks`: edits are fenced blocks under a path.

    Prose is shown as it arrives. From the first line that may begin a call or an edit, the reply is withheld, and shown
    at its end if it holds none.
    """

    def __init__(self, known_tools: frozenset[str], *, blocks: bool = False) -> None:
        self._known_tools = known_tools
        self._blocks = blocks
        self._markers = starts_of(known_tools)
        self._restart()

    def _restart(self) -> None:
        self._text = ""
        self._shown = 0  # characters of `_text` that are shown
        self._in_line = False  # this line is shown as it arrives
        self._withholds = False  # text is shown at the end of the reply

    def feed(self, piece: str) -> str:
        """Add a piece of the reply; returns the text that can be shown now."""
        self._text += piece
        before = self._shown
        if self._withholds:
            return ""

        for line in self._text[before:].splitlines(keepends=True):
            complete = self._shown + len(line) < len(self._text) or line[-1] in _LINE_ENDS
            doubtful = not self._in_line and self._may_begin_a_call(line, complete)
            if not complete and (doubtful or not (self._in_line or line.strip())):
                break

            end = self._shown + len(line)
            place = self._markers.place_in(self._text, self._shown, end, complete=complete)
            self._withholds = doubtful or place < end

            if doubtful:
                passage = ""
            elif complete:
                passage = line
            else:
                passage = line.removesuffix("\r")

            passage = passage[: place - self._shown]
            if self._withholds and not complete and not doubtful:
                self._withholds = self._markers.begins(self._text, place)

            if not passage:
                break

            self._shown += len(passage)
            self._in_line = not complete

        return self._text[before : self._shown]

    def end(self) -> str:
        """The withheld text of a reply without a call or an edit, which has ended; the next piece begins another."""
        text = self._text
        pending = self._text[self._shown :]
        self._restart()
        edits = self._blocks and holds_edits(text)
        markups = recognise(text, ToolSchemas(self._known_tools))
        calls = extract_in_order(text, self._known_tools) or any(not markup.quoted for markup in markups)
        if edits or calls:
            return ""

        return pending

    def _may_begin_a_call(self, line: str, complete: bool) -> bool:
        start = "".join(line.split())
        if not start:
            return False
        if self._blocks and _MAYBE_PATH.fullmatch(line):
            return True
        if any(mark.startswith(start) or start.startswith(mark) for mark in _STARTS):
            return True

        return self._markers.may_begin_line(start, complete=complete)


_LONGEST_WARNING = 500
"""Characters: a warning ends in its remedy, which has to be there."""

PREFIX = "mendgraph: "
"""Stands before the first words of a turn. Source: spec 2, "Terminal output rules"."""

_REFUSALS = frozenset({ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.LOOP_OVERRIDE, ToolErrorCode.APPROVAL_REQUIRED})


_UNAVAILABLE = {
    "commands.unavailable": "no commands",
    "audit.unavailable": "no log of this run",
    "spending.unbooked": "not in the spending book",
    "notes.unread": "not told to the model",
    "memory.unavailable": "no memory",
    "permission.unkept": "allowed for this call alone",
}
"""What a run lacks, by the name of the event."""


def note_of(event: events.Event) -> Line | None:
    """The line for an event that every view shows alike; None for other events."""
    match event:
        case events.Waiting(seconds, reason):
            return Line(f"… {one_line(reason)} Trying again in {round(seconds, 1):g} s", "dim")
        case events.FellBack(model, following, reason):
            return Line(f"… {one_line(reason)} Asking {one_line(following)} instead of {one_line(model)}", "yellow")
        case events.Compacted():
            return Line(f"… {compaction_words(event)}", "dim")
        case events.Rescued():
            return Line("… that was a call in another form: it is read as it is", "dim")
        case events.HealingBegan(attempt, errors):
            reason = error_words(errors)
            return Line(f"… that reply cannot be used ({reason}): asking again, attempt {attempt}", "dim")
        case events.Alerted(message=message):
            return Line(f"! {one_line(message, _LONGEST_WARNING)}", "yellow")
        case events.LoopOverridden((*_, override)):
            what = one_line(f"{override.tool} {override.target}")
            return Line(f"↻ {what}: the same action {override.repeats} times, refused from now on", "yellow")
        case events.OfChild(place, _, events.ToolStarted(call)) if not call.implied:
            return Line(f"⤷ {place} {one_line(f'{call.tool} {target_of(call.arguments)}')}", "dim")
        case events.OfChild(place, _, events.Ended(outcome)):
            return Line(f"⤷ {place} {outcome.kind.value}: {one_line(outcome.message)}", "dim")
        case events.OfChild(place, _, inner):
            note = note_of(inner)
            return note and Line(f"⤷ {place} {note.text}", note.style)

    return None


def was_seen(answer: str, text: str) -> bool:
    """Whether all lines of the answer are among those of the `text` that was shown."""
    seen = {line.strip() for line in (*text.splitlines(), "")}
    return seen.issuperset(line.strip() for line in answer.splitlines())


@dataclass(frozen=True)
class Display:
    """The streams of a command: answers on `out`, everything else on `err`.

    With `as_json` one object is the answer; with `json_lines` as well, each event is a line before it. `live` is the
    status line of a terminal that has one.
    """

    out: Screen
    err: Screen
    as_json: bool = False
    debug: bool = False
    json_lines: bool = False
    live: StatusLine | None = None

    def write_object(self, event: str, value: JsonMap) -> None:
        """Write an object for programs on a line; with `json_lines` it has the name of its event."""
        if self.json_lines:
            value = {"event": event, **value}

        self.out.line(as_json(value))

    @property
    def notes(self) -> Screen:
        """The stream for the steps of a run."""
        if self.as_json or self.debug:
            return self.err

        return self.out


class RunView:
    """Shows the events of one session's turns. `changes` are those of the turn so far, `account` what it has used."""

    def __init__(self, display: Display, visible: VisibleText, root: str) -> None:
        self.display = display
        self._visible = visible
        self._root = root
        self._warned: set[str] = set()
        self.account = Account()
        self.begin()

    def begin(self) -> None:
        """Begin a turn."""
        self.changes: tuple[FileChange, ...] = ()
        self.refused: list[JsonMap] = []
        self._blocked: list[ToolError | None] = []  # refusals whose rules were shown
        self.account.begin()
        self._calls: dict[str, ToolCall | CallError] = {}
        self._shown_text = ""  # of the model, in this turn
        self._gap = ""  # line ends that are shown only if more text follows
        self._reply_begun = False

    def show(self, event: events.Event) -> None:
        """Show one event."""
        self.account.note(event)

        if isinstance(event, events.Text):
            self._say(self._visible.feed(event.text))
        elif isinstance(event, events.Traced):
            if event.name.startswith("sandbox."):
                self._debug(event.name, dict(event.payload))
            elif event.name in _UNAVAILABLE:
                self._warn(f"{_UNAVAILABLE[event.name]}: {event.payload.get('reason', '')}")
            elif event.name == "notes.read":
                for file in event.payload.get("files", ()):
                    self._show_notes_file(file)
        elif not isinstance(event, events.ToolStarted | events.Paid):
            self.end_reply()
            self._show_note(event)

    def _show_notes_file(self, file: JsonMap) -> None:
        words = f"{count_of(file['lines'], 'line')} of notes"
        if file.get("cut"):
            words += ", the rest left out"

        self._note(f"→ {one_line(file['path'])}  {words}", "dim")

    def end_reply(self) -> None:
        """End the reply: show its withheld text."""
        self._say(self._visible.end())
        self._gap = ""
        self._reply_begun = False

        if not self.display.as_json:
            self.display.out.end_line()

    def answer(self, text: str) -> None:
        """Show the final answer, unless all of its lines were shown already."""
        if not was_seen(text, self._shown_text):
            self._say(text)
            self.end_reply()

    def lines(self, *lines: Line) -> None:
        """Write lines on standard output."""
        for line in lines:
            self.display.out.line(*line)

    # --- Text of the model -----------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if self._reply_begun:
            text = self._gap + text
        else:
            text = text.lstrip()

        body = text.rstrip("\r\n")
        self._gap = text[len(body) :]

        if not body:
            return

        if not self.display.as_json:
            prefix = ""
            if not self._shown_text:
                prefix = PREFIX

            self.display.out.write(prefix + body)

        if not self._reply_begun:
            self._shown_text += "\n"

        self._shown_text += body
        self._reply_begun = True

    # --- Events ------------------------------------------------------------------------------------------

    def _show_note(self, event: events.Event) -> None:
        if (note := note_of(event)) is not None:
            self._note(*note)

        match event:
            case events.CallsRead(calls) | events.Rescued(calls):
                self._take(calls)
            case events.StepDone(results):
                for result in results:
                    self.changes += result.changes
                    self._show_result(result)
            case events.HealingBegan(attempt, errors):
                self._debug("reply.unusable", {"attempt": attempt, "errors": format_extraction_errors(errors)})
            case events.Denied():
                self._show_denial(event)

    def _take(self, calls: tuple[ToolCall | CallError, ...]) -> None:
        self._calls = {call.call_id: call for call in calls}

        for call in calls:
            if isinstance(call, ToolCall):
                self._debug("tool.call", {"tool": call.tool, "args": call.arguments})
            else:
                error = f"{call.error.error_type.name}: {call.error.details}"
                self._debug("tool.call", {"tool": call.tool, "args": call.raw_arguments, "error": error})

    def _show_denial(self, event: events.Denied) -> None:
        verdict = event.verdict
        self._debug("guard.denied", {"tool": event.tool, "root": self._root, **verdict.model_dump(mode="json")})
        for line in verdict.blocked.splitlines():
            self._note(line, "red")

        if verdict.blocked:
            self._blocked.append(verdict.error)

    def _show_result(self, result: CallResult) -> None:
        self._debug("tool.response", {"tool": result.tool, "response": result.result.as_map()})
        call = self._calls.get(result.call_id)
        error = result.result.error

        if isinstance(call, ToolCall) and call.implied:
            return

        target = ""
        if isinstance(call, ToolCall):
            target = target_of(call.arguments)

        what = one_line(f"{result.tool} {target}")

        if error is not None and error.code in _REFUSALS:
            failure = {"tool": result.tool, "target": target, "code": error.code.value, "message": error.message}
            self.refused.append(failure)
            if error not in self._blocked:
                self._note(f"⛔ {what}: {one_line(error.message, 300)}", "red")
        elif error is not None or result.tool != "final_answer":
            style = "cyan"
            if error:
                style = "yellow"

            self._note(f"→ {what}  {result_words(result.result)}", style)

    def _note(self, text: str, style: str) -> None:
        self.display.notes.line(text, style)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._note(f"! {one_line(text, _LONGEST_WARNING)}", "yellow")

    def _debug(self, name: str, payload: JsonMap) -> None:
        if self.display.debug:
            self.display.err.line(as_json(redact({"event": name, **payload})))
