"""A run on a terminal: the model's words as they come, a line for each tool, and the end of it all.

Pure but for the streams that it is given. The answer (text, diff, outcome) goes to standard output. What happens
meanwhile goes there as well, so that it stands between the words, but to standard error with `--json`, `--json-lines`
and `--debug`. Below all that is the status line, where there is one. Of a streamed reply the prose is
shown, not the calls and edits that are for the machine.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mendgraph.graph.runs.events import (
    Alerted,
    CallsRead,
    Compacted,
    Denied,
    Event,
    FellBack,
    HealingBegan,
    LoopOverridden,
    Paid,
    Rescued,
    StepDone,
    Text,
    ToolStarted,
    Traced,
    Waiting,
)
from mendgraph.graph.terminal.answers import Line, Screen, as_json
from mendgraph.graph.terminal.output_lines import Account, compaction_words, notes_lines, refused_call
from mendgraph.graph.terminal.status_line import StatusLine
from mendgraph.nodes.execute_tools.secrets.redact import redact
from mendgraph.nodes.language.blocks import read_blocks
from mendgraph.nodes.language.dialects import looks_like_call
from mendgraph.nodes.language.display import error_words, one_line, result_words, target_of
from mendgraph.nodes.language.text_protocol import TOOL_PREFIX, extract_in_order, fence_after, format_extraction_errors
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    FileChange,
    JsonMap,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolInvocation,
)

_LINE_ENDS = frozenset("\n\v\f\x1c\x1d\x1e\x85\u2028\u2029")
"""What surely ends a line (`str.splitlines`); a carriage return does so when it is known what follows."""

_FOREIGN_STARTS = ("<tool", '{"name"', '{"tool"', '[{"name"', '[{"tool"')
_FOREIGN_WITHIN = 100
"""Characters of a text that show whether it begins like a call in another form."""

_FENCE_STARTS = frozenset({"`", "``", "```", "~", "~~", "~~~"})
_MAYBE_PATH = re.compile(r"\s*+[*#]*+\s*+(?:[Ff]ile:?\s*+)?[*`]*+[\w@.+/-]*+[`*:]*+\s*+")
_UNNAMED_FILE = "file.py"
"""Stands for the one file that was shown: a block of definitions without a path is meant for it."""


class _Passage(NamedTuple):
    """The next characters that are decided on, what is seen of them, and whether they are a code block."""

    length: int
    shown: str
    block: bool = False


class VisibleText:
    """Filters one reply after the other. `blocks` says that edits come as fenced blocks under the name of a file."""

    def __init__(self, known_tools: frozenset[str], *, blocks: bool = False) -> None:
        self._known_tools = known_tools
        self._blocks = blocks
        self._restart()

    def feed(self, piece: str) -> str:
        """What can be shown now that this piece has come."""
        undecided = len(self._held)
        self._held += piece
        if undecided > _FOREIGN_WITHIN and _LINE_ENDS.isdisjoint(piece):
            return ""  # a long call in one line costs linear time
        return "".join(self._decided(final=False))

    def end(self) -> str:
        """What was still held when the reply ended; the next piece begins another reply."""
        rest = "".join(self._decided(final=True))
        self._restart()
        return rest

    def _restart(self) -> None:
        self._held = ""  # from the start of a line, unless `_in_line`
        self._in_line = False  # the rest of this line is shown as it comes
        self._heading = ""  # the last line shown that was not blank

    def _decided(self, *, final: bool) -> Iterator[str]:
        while self._held:
            passage = self._next(final=final)
            if passage is None:
                return
            chunk, self._held = self._held[: passage.length], self._held[passage.length :]
            if passage.block:
                self._heading = ""
            elif self._in_line:
                self._heading += passage.shown
            elif passage.shown.strip():
                self._heading = passage.shown
            self._in_line = bool(passage.shown) and chunk[-1] not in {"\r", *_LINE_ENDS}
            yield passage.shown

    def _next(self, *, final: bool) -> _Passage | None:
        lines = self._held.splitlines(keepends=True)
        line, complete = lines[0], _is_complete(lines, 0, final=final)
        start = line.lstrip()
        prose = line if complete else line.removesuffix("\r")
        if self._in_line:
            return _Passage(len(prose), prose) if prose else None
        if not start:
            return _Passage(len(line), line) if complete else None
        if start.startswith(TOOL_PREFIX):
            return self._call(lines, final=final)
        if not complete and (TOOL_PREFIX.startswith(start) or start[:3] in _FENCE_STARTS):
            return None
        foreign = _is_foreign(self._held, final=final)
        if foreign is not False:
            return self._whole_reply() if final and foreign else None
        if fence_after(line, ""):
            return self._code_block(lines, 0, final=final)
        if self._blocks and _MAYBE_PATH.fullmatch(line):
            return self._under_path(lines, final=final) if complete else None
        return _Passage(len(prose), prose)

    def _call(self, lines: Sequence[str], *, final: bool) -> _Passage | None:
        """A call, to the end of the line in which it ends; what a malformed one is shows when the reply ends."""
        call = extract_in_order(self._held, self._known_tools)[0]
        ended = call.end_line
        if not isinstance(call.outcome, ToolInvocation):
            if not final:
                return None
            if ended == 1 and "(" in lines[0]:  # its end is not known: the next line that looks like one
                ends = (number for number, line in enumerate(lines, 1) if line.rstrip().endswith((")", "}")))
                ended = next(ends, len(lines))
        if not _is_complete(lines, ended - 1, final=final):
            return None
        return _Passage(sum(map(len, lines[:ended])), "")

    def _whole_reply(self) -> _Passage:
        is_call = looks_like_call(self._held, self._known_tools)
        return _Passage(len(self._held), "" if is_call else self._held)

    def _under_path(self, lines: Sequence[str], *, final: bool) -> _Passage | None:
        """A line that may name a file: it does so if a code block comes next."""
        for number, line in enumerate(lines[1:], 1):
            complete = _is_complete(lines, number, final=final)
            if complete and fence_after(line, ""):
                return self._code_block(lines, number, final=final)
            if not complete and (not line.strip() or line.strip()[:3] in _FENCE_STARTS):
                return None
            if line.strip():
                return _Passage(len(lines[0]), lines[0])
        return _Passage(len(lines[0]), lines[0]) if final else None

    def _code_block(self, lines: Sequence[str], at: int, *, final: bool) -> _Passage | None:
        fence = fence_after(lines[at], "")
        closing = (
            number
            for number, line in enumerate(lines[at + 1 :], at + 1)
            if fence in line and _is_complete(lines, number, final=final) and not fence_after(line, fence)
        )
        last = next(closing, len(lines) - 1 if final else None)
        if last is None:
            return None
        before, block = "".join(lines[:at]), "".join(lines[at : last + 1])
        return _Passage(len(before + block), self._seen_of_block(before, block), block=True)

    def _seen_of_block(self, before: str, block: str) -> str:
        """The block without calls; nothing where it is an edit or a call."""
        calls = extract_in_order(block, self._known_tools)
        if not calls and looks_like_call(block, self._known_tools):
            return before
        heading = "" if before else f"{self._heading.strip()}\n"
        reading = read_blocks(heading + before + block, (_UNNAMED_FILE,))
        if self._blocks and reading.outcomes:
            return before if before.strip() in reading.prose.splitlines() else ""
        hidden = {number for call in calls for number in range(call.line_number, call.end_line + 1)}
        shown = [line for number, line in enumerate(block.splitlines(keepends=True), 1) if number not in hidden]
        is_empty = not any(line.strip().strip("`~") for line in shown[1:])
        return before + ("" if calls and is_empty else "".join(shown))


def _is_complete(lines: Sequence[str], number: int, *, final: bool) -> bool:
    return final or number < len(lines) - 1 or lines[number][-1] in _LINE_ENDS


def _is_foreign(text: str, *, final: bool) -> bool | None:
    """Whether the text begins, white space apart, like a call in another form; None while that is open."""
    compact = "".join(text[:_FOREIGN_WITHIN].split())
    if compact.startswith(_FOREIGN_STARTS):
        return True
    return None if not final and any(each.startswith(compact) for each in _FOREIGN_STARTS) else False


_LONGEST_WARNING = 500
"""Characters: a warning ends in its remedy, which has to be there."""

PREFIX = "mendgraph: "
"""Stands before the first words of a turn. Source: spec 2, "Terminal output rules"."""

_REFUSALS = frozenset({ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.LOOP_OVERRIDE, ToolErrorCode.APPROVAL_REQUIRED})


_UNAVAILABLE = {
    "commands.unavailable": "no commands",
    "audit.unavailable": "no log of this run",
    "spending.unbooked": "not in the spending book",
}
"""What a run has to do without, by the event that says so."""


@dataclass(frozen=True)
class Display:
    """Where things are shown: answers on `out`, everything else on `err`.

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
        """An object for programs, on a line; among JSON lines it carries the name of its event."""
        self.out.line(as_json({"event": event, **value} if self.json_lines else value))

    @property
    def notes(self) -> Screen:
        """Where the run's steps are told."""
        return self.err if self.as_json or self.debug else self.out


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
        self._blocked: list[ToolError | None] = []  # refusals of which the rules were shown
        self.account.begin()
        self._calls: dict[str, ToolCall | CallError] = {}
        self._said = ""  # all that was seen of the model's text in this turn
        self._gap = ""  # line ends that are shown only if more text follows
        self._reply_begun = False

    def show(self, event: Event) -> None:
        """Show one event."""
        self.account.note(event)
        if isinstance(event, Text):
            self._say(self._visible.feed(event.text))
        elif isinstance(event, Traced):
            if event.name.startswith("sandbox."):
                self._debug(event.name, dict(event.payload))
            elif event.name in _UNAVAILABLE:
                self._warn(f"{_UNAVAILABLE[event.name]}: {event.payload.get('reason', '')}")
            for line in notes_lines(event.name, event.payload):
                self._note(line, "dim")
        elif not isinstance(event, ToolStarted | Paid):
            self.end_reply()
            self._show_note(event)

    def end_reply(self) -> None:
        """The reply is over: show what was held of it."""
        self._say(self._visible.end())
        self._gap, self._reply_begun = "", False
        if not self.display.as_json:
            self.display.out.end_line()

    def has_shown(self, text: str) -> bool:
        """Whether the turn's visible text holds every line of this."""
        said = {line.strip() for line in self._said.splitlines()}
        return all(line.strip() in said for line in text.splitlines() if line.strip())

    def answer(self, text: str) -> None:
        """Show the final answer, unless its words were seen as they came: calls that it quotes were not."""
        visible = self._visible.feed(text) + self._visible.end()
        if text.strip() and not (visible.strip() and self.has_shown(visible)):
            self._say(text)
            self.end_reply()

    def lines(self, *lines: Line) -> None:
        """Lines of their own on standard output."""
        for line in lines:
            self.display.out.line(*line)

    # --- What the model says -----------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        text = self._gap + text if self._reply_begun else text.lstrip()
        body = text.rstrip("\r\n")
        self._gap = text[len(body) :]
        if not body:
            return
        if not self.display.as_json:
            self.display.out.write(body if self._said else PREFIX + body)
        self._said += body if self._reply_begun else f"\n{body}"
        self._reply_begun = True

    # --- What happens ------------------------------------------------------------------------------------------

    def _show_note(self, event: Event) -> None:
        match event:
            case Waiting(seconds, reason):
                self._note(f"… {one_line(reason)} Trying again in {round(seconds, 1):g} s", "dim")
            case FellBack(model, following, reason):
                self._note(f"… {one_line(reason)} Asking {one_line(following)} instead of {one_line(model)}", "yellow")
            case Compacted():
                self._note(f"… {compaction_words(event)}", "dim")
            case CallsRead(calls):
                self._take(calls)
            case Rescued(calls):
                self._note("… that was a call in another form: it is read as it is", "dim")
                self._take(calls)
            case StepDone(results):
                for result in results:
                    self.changes += result.changes
                    self._show_result(result)
            case HealingBegan(attempt, errors):
                self._note(
                    f"… that reply cannot be used ({error_words(errors)}): asking again, attempt {attempt}", "dim"
                )
                self._debug("reply.unusable", {"attempt": attempt, "errors": format_extraction_errors(errors)})
            case Alerted(message=message):
                self._note(f"! {one_line(message, _LONGEST_WARNING)}", "yellow")
            case LoopOverridden((*_, override)):
                what = one_line(f"{override.tool} {override.target}")
                self._note(f"↻ {what}: the same action {override.repeats} times, refused from now on", "yellow")
            case Denied():
                self._show_denial(event)

    def _take(self, calls: tuple[ToolCall | CallError, ...]) -> None:
        self._calls = {call.call_id: call for call in calls}
        for call in calls:
            if isinstance(call, ToolCall):
                self._debug("tool.call", {"tool": call.tool, "args": call.arguments})
            else:
                error = f"{call.error.error_type.name}: {call.error.details}"
                self._debug("tool.call", {"tool": call.tool, "args": call.raw_arguments, "error": error})

    def _show_denial(self, event: Denied) -> None:
        verdict = event.verdict
        self._debug("guard.denied", {"tool": event.tool, "root": self._root, **verdict.model_dump(mode="json")})
        for line in verdict.blocked.splitlines():
            self._note(line, "red")
        if verdict.blocked:
            self._blocked.append(verdict.error)

    def _show_result(self, result: CallResult) -> None:
        self._debug("tool.response", {"tool": result.tool, "response": result.result.as_map()})
        call, error = self._calls.get(result.call_id), result.result.error
        if isinstance(call, ToolCall) and call.implied:
            return
        target = target_of(call.arguments) if isinstance(call, ToolCall) else ""
        what = one_line(f"{result.tool} {target}")
        if error is not None and error.code in _REFUSALS:
            self.refused.append(refused_call(result.tool, target, error))
            if error not in self._blocked:
                self._note(f"⛔ {what}: {one_line(error.message, 300)}", "red")
        elif error is not None or result.tool != "final_answer":
            self._note(f"→ {what}  {result_words(result.result)}", "yellow" if error else "cyan")

    def _note(self, text: str, style: str) -> None:
        self.display.notes.line(text, style)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._note(f"! {one_line(text, _LONGEST_WARNING)}", "yellow")

    def _debug(self, name: str, payload: JsonMap) -> None:
        if self.display.debug:
            self.display.err.line(as_json(redact({"event": name, **payload})))
