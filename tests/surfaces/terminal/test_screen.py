"""How a run is shown: text once, a line for each call, no JSON of calls, and no control characters."""

import io
from collections.abc import Iterable
from typing import Any

from hypothesis import given, strategies as st
from rich.console import Console

from mendgraph.graph.runs.events import (
    Alerted,
    Asked,
    CallsRead,
    Compacted,
    Denied,
    Ended,
    Event,
    FellBack,
    HealingBegan,
    LoopOverridden,
    OfChild,
    Rescued,
    StepDone,
    Text,
    ToolStarted,
    Traced,
    Waiting,
)
from mendgraph.graph.terminal.output import Line, Screen
from mendgraph.graph.terminal.run_view import RunView
from mendgraph.graph.terminal.screen import Display, RunScreen
from mendgraph.graph.terminal.visible_text import VisibleText
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ExtractionError,
    ExtractionErrorType,
    Outcome,
    OutcomeKind,
    OverrideConstraint,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)
from tests.surfaces.terminal.played_terminal import TerminalFile

READ = ToolCall(call_id="1", tool="read_file", arguments={"path": "calc.py"}, raw_arguments="{}")
EDIT = ToolCall(call_id="2", tool="edit_file", arguments={"path": ".env", "token": "s3cret-value"}, raw_arguments="{}")
ANSWER = ToolCall(call_id="3", tool="final_answer", arguments={"answer": "Done."}, raw_arguments="{}")
PAREN = ExtractionError(ExtractionErrorType.MISSING_CLOSING_PAREN, 1, "tool: x(", "Missing ')'")
BROKEN = CallError(call_id="4", tool="x", raw_arguments="{", error=PAREN)
BLOCKED = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="Blocked by rule 'env_file': secrets.")
ENDED = Ended(Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done."))


def result(call: ToolCall | CallError, error: ToolError | None = None, **data: Any) -> CallResult:
    return CallResult(call_id=call.call_id, tool=call.tool, result=ToolResult(ok=error is None, data=data, error=error))


class ScreenOutput:
    """A view on two streams, and what it wrote there."""

    def __init__(self, **options: Any) -> None:
        colours = options.pop("colours", None)
        self._files = (io.StringIO(), io.StringIO())
        out, err = (
            Screen(Console(file=file, force_terminal=bool(colours), color_system=colours)) for file in self._files
        )
        self.view = RunView(VisibleText(frozenset({"read_file"})))
        self.screen = RunScreen(Display(out, err, **options), self.view)

    def show(self, *events: Event) -> "ScreenOutput":
        for event in events:
            self.screen.show(event)
        return self

    @property
    def out(self) -> str:
        return self._files[0].getvalue()

    @property
    def err(self) -> str:
        return self._files[1].getvalue()


TURN = (
    Text("I lo"),
    Text('ok.\n\ntool: read_file({"path": "calc.py"})'),
    CallsRead((READ, EDIT, BROKEN)),
    Denied("edit_file", Verdict(kind=VerdictKind.DENY, rule="env_file", error=BLOCKED, path=".env")),
    ToolStarted(READ),
    Traced("sandbox.refused", {"root": "/work", "path": "../x"}, "run", "1", 0),
    Traced("tool.invoke.ok", {"tool_name": "read_file"}, "run", "1", 0),
    StepDone((result(READ, lines_shown=2), result(EDIT, BLOCKED), result(BROKEN, BLOCKED)), ()),
    Text("\n\nNow it is "),
    Text("clear.\n"),
    CallsRead((ANSWER,)),
    StepDone((result(ANSWER, answer="Done."),), ()),
    ENDED,
)


def test_turn_has_one_prefix_and_a_line_for_each_call() -> None:
    output = ScreenOutput().show(*TURN)
    assert output.out == (
        "mendgraph: I look.\n"
        "→ read_file calc.py  2 lines\n"
        "⛔ edit_file .env: Blocked by rule 'env_file': secrets.\n"
        "⛔ x: Blocked by rule 'env_file': secrets.\n"
        "Now it is clear.\n"
    )
    assert output.err == ""


def test_denied_change_is_shown_with_its_rules() -> None:
    blocked = "\u26d4 FILE EDIT BLOCKED - Security Guardrail Triggered:\n  Rule: env_file"
    verdict = Verdict(kind=VerdictKind.DENY, rule="env_file", error=BLOCKED, path=".env", blocked=blocked)
    output = ScreenOutput().show(
        CallsRead((EDIT,)), Denied("edit_file", verdict), StepDone((result(EDIT, BLOCKED),), ())
    )
    assert output.out == f"{blocked}\n"


EVIL = st.text(alphabet="ab \n\x1b[2J\x07\r\u202e\u2028\ud800é", max_size=30)


def _evil(text: str) -> Iterable[Event]:
    call = ToolCall(call_id="1", tool="read_file", arguments={"path": text, "pattern": text}, raw_arguments=text)
    error = ToolError(code=ToolErrorCode.NOT_FOUND, message=text, suggestions=(text,))
    yield Text(text)
    yield CallsRead((call,))
    yield StepDone((result(call, error),), ())
    yield LoopOverridden((OverrideConstraint(signature="s", tool="x", target=text, repeats=3),))
    yield Traced("sandbox.refused", {"path": text}, "run", "1", 0)


@given(EVIL)
def test_no_shown_text_can_control_the_terminal(text: str) -> None:
    output = ScreenOutput(debug=True).show(*_evil(text))
    output.screen.answer(f"answer {text}")
    output.screen.summary(Line(text, ""))
    assert output.out.count("\r") == 0  # nor does a carriage return overwrite a line
    assert set("\x1b\x07\r\u202e\u2028\ud800").isdisjoint(output.out + output.err)


SAVED = ": 13,400 -> 6,900 tokens"
REPEATED = OverrideConstraint(signature="s", tool="read_file", target="a.py", repeats=3)
ENDING = READ.model_copy(update={"tool": "final_answer", "implied": True})
LINES: tuple[tuple[Event, str], ...] = (
    (
        HealingBegan(2, (PAREN,)),
        "… the reply is unusable (MISSING_CLOSING_PAREN in line 1): asking again, attempt 2\n",
    ),
    (Waiting(0.35753, "Busy."), "… Busy. Trying again in 0.4 s\n"),
    (Waiting(0.5, "It says:\ntoo many requests."), "… It says: too many requests. Trying again in 0.5 s\n"),
    (
        FellBack("gpt-x at llm.test", "local", "The endpoint:\nbusy."),
        "… The endpoint: busy. Asking local instead of gpt-x at llm.test\n",
    ),
    (Compacted(1, "cleared", 13_400, 6_900), f"… older results are no longer shown to the model{SAVED}\n"),
    (
        Compacted(1, "summarised", 13_400, 6_900),
        f"… the model is shown a summary of the conversation's beginning{SAVED}\n",
    ),
    (
        Compacted(1, "slid", 13_400, 6_900),
        f"… the conversation's beginning is no longer shown to the model{SAVED}\n",
    ),
    (Rescued((READ,)), "… the reply was a call in another format and is read as one\n"),
    (LoopOverridden((REPEATED,)), "↻ read_file a.py: the same action 3 times, refused from now on\n"),
    (LoopOverridden(()), ""),
    (CallsRead((ENDING,)), ""),
    (Asked({"kind": "approval", "calls": []}), ""),
    (ENDED, ""),
    (OfChild("1.2", "Find it.", ToolStarted(READ)), "⤷ 1.2 read_file calc.py\n"),
    (OfChild("1.2", "Find it.", ToolStarted(ENDING)), ""),
    (OfChild("1.2", "Find it.", ENDED), "⤷ 1.2 FINISHED: Done.\n"),
    (OfChild("1.2", "Find it.", Waiting(0.5, "Busy.")), "⤷ 1.2 … Busy. Trying again in 0.5 s\n"),
    (OfChild("1.2", "Find it.", OfChild("3.1", "Look.", ToolStarted(READ))), "⤷ 1.2 ⤷ 3.1 read_file calc.py\n"),
    (OfChild("1.2", "Find it.", Text("Hello")), ""),
)


def test_other_event_is_at_most_one_line() -> None:
    outputs = [ScreenOutput().show(Text("Hm"), event).out for event, _ in LINES]
    assert outputs == [f"mendgraph: Hm\n{line}" for _, line in LINES]


FENCED = "So:\n```\ntool: x({})\n```\nso."
SAID = (
    ("Fixed\nit.", "Fixed\nit.", "mendgraph: Fixed\nit.\n"),
    ("  Fixed it.\n", "Fixed it.", "mendgraph: Fixed it.\n"),
    ("Fixed it.", "Fixed it.\nAnd more.", "mendgraph: Fixed it.\nFixed it.\nAnd more.\n"),
    ("", "Fixed it.", "mendgraph: Fixed it.\n"),
    ("Fixed it.", "", "mendgraph: Fixed it.\n"),
    (FENCED, FENCED, f"mendgraph: So:\n{FENCED}\n"),
)


def test_answer_is_shown_unless_it_was_streamed() -> None:
    for text, answer, out in SAID:
        output = ScreenOutput().show(Text(text), ENDED)
        output.screen.answer(answer)
        assert (text, answer, output.out) == (text, answer, out)


def test_pipe_gets_only_the_answer() -> None:
    output = ScreenOutput(piped=True).show(*TURN)
    output.screen.answer("Now it is clear.")
    output.screen.summary(Line("FINISHED"))
    assert output.out == "Now it is clear.\n"
    assert output.err == (
        "mendgraph: I look.\n"
        "→ read_file calc.py  2 lines\n"
        "⛔ edit_file .env: Blocked by rule 'env_file': secrets.\n"
        "⛔ x: Blocked by rule 'env_file': secrets.\n"
        "Now it is clear.\n"
        "FINISHED\n"
    )
    stopped = ScreenOutput(piped=True).show(Text("I look."), ENDED)
    stopped.screen.answer("")
    assert (stopped.out, stopped.err) == ("", "mendgraph: I look.\n")


def test_error_that_names_its_file_is_shown_with_the_file_once() -> None:
    error = ToolError(code=ToolErrorCode.NOT_FOUND, message="There is no file 'calc.py'.")
    output = ScreenOutput().show(CallsRead((READ,)), StepDone((result(READ, error),), ()))
    assert output.out == "→ read_file  not found: There is no file 'calc.py'.\n"


def test_refused_call_is_distinguished_from_a_failed_one() -> None:
    refusals = {ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.LOOP_OVERRIDE, ToolErrorCode.APPROVAL_REQUIRED}
    for code in ToolErrorCode:
        error = ToolError(code=code, message="No.")
        output = ScreenOutput().show(CallsRead((READ,)), StepDone((result(READ, error),), ()))
        assert output.out.startswith("⛔ read_file calc.py: No." if code in refusals else "→ read_file calc.py  ")
        refused = [{"tool": "read_file", "target": "calc.py", "code": code.value, "message": "No."}]
        assert output.view.refused == (refused if code in refusals else [])
        output.view.begin_turn()
        assert output.view.refused == []


# --- Warnings about missing parts

LACKS = {
    "commands.unavailable": "no commands",
    "audit.unavailable": "no log of this run",
    "spending.unbooked": "not in the spending database",
    "notes.unread": "hidden from the model",
    "memory.unavailable": "no memory",
    "web_search.unavailable": "no web search",
    "hook.warned": "hooks",
    "permission.unkept": "allowed for this call only",
}


def unavailable(name: str, reason: str) -> Traced:
    return Traced(name, {"reason": reason}, "run", "1", 0)


def test_warning_is_shown_once_with_its_remedy() -> None:
    output = ScreenOutput().show(*(unavailable(name, "It is\nfull.") for name in (*LACKS, *LACKS)))
    assert output.out == "".join(f"! {words}: It is full.\n" for words in LACKS.values())
    reason = "why " * 100 + "Install it."
    output = ScreenOutput().show(unavailable("commands.unavailable", reason), Alerted("cost", reason, 9.0, 3.0))
    assert output.out == f"! no commands: {reason}\n! {reason}\n"
    endless = ScreenOutput().show(unavailable("audit.unavailable", "x" * 900), Alerted("cost", "x" * 900, 9.0, 3.0))
    assert [len(line) for line in endless.out.splitlines()] == [502, 502]


def test_notes_that_were_read_are_shown() -> None:
    files = [{"path": "AGENTS.md", "lines": 34, "cut": False}, {"path": "a\x1b/AGENTS.md", "lines": 1, "cut": True}]
    output = ScreenOutput().show(Traced("notes.read", {"files": files}, "run", "1", 0))
    assert output.out == ("→ AGENTS.md  34 lines of notes\n→ a\\x1b/AGENTS.md  1 line of notes, the rest left out\n")


LITERAL = """I replaced <Foo> by <Bar attr=1> in List<int>, see <https://a.example> and ![a plan](plan.png).

<config>
  <a>1</a>
</config>

[foo]: https://b.example
"""


CODE = r"__init__.py has a*b*c, *args, **kwargs, f(*args), &lt; and \\_a_; x_y_z stays."


def test_markdown_keeps_all_text_and_has_no_escape_codes_without_colors() -> None:
    file = TerminalFile()
    screen = Screen(Console(file=file, width=120, no_color=True, force_terminal=True))
    screen.markdown(f"It is **bold**, *slanted* and `code`.\n\n{CODE}\n\n{LITERAL}")
    text = file.getvalue()
    assert "\x1b" not in text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert lines == [
        "It is bold, slanted and code.",
        CODE,
        "I replaced <Foo> by <Bar attr=1> in List<int>, see <https://a.example> and !a plan (plan.png).",
        "<config>",
        "<a>1</a>",
        "</config>",
        "[foo]: https://b.example",
    ]
