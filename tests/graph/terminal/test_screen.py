"""How a run looks: words once, a line for each call, nothing of the calls' JSON, and nothing that steers the screen."""

import io
import json
from collections.abc import Iterable
from typing import Any

import pytest
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
from mendgraph.graph.terminal.answers import Line, Screen
from mendgraph.graph.terminal.screen import Display, RunView, VisibleText
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

READ = ToolCall(call_id="1", tool="read_file", arguments={"path": "calc.py"}, raw_arguments="{}")
EDIT = ToolCall(call_id="2", tool="edit_file", arguments={"path": ".env", "token": "s3cret-value"}, raw_arguments="{}")
ANSWER = ToolCall(call_id="3", tool="final_answer", arguments={"answer": "Done."}, raw_arguments="{}")
PAREN = ExtractionError(ExtractionErrorType.MISSING_CLOSING_PAREN, 1, "tool: x(", "Missing ')'")
BROKEN = CallError(call_id="4", tool="x", raw_arguments="{", error=PAREN)
BLOCKED = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="Blocked by rule 'env_file': secrets.")
ENDED = Ended(Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done."))


def result(call: ToolCall | CallError, error: ToolError | None = None, **data: Any) -> CallResult:
    return CallResult(call_id=call.call_id, tool=call.tool, result=ToolResult(ok=error is None, data=data, error=error))


class Shown:
    """A view on two streams, and what it wrote there."""

    def __init__(self, **options: Any) -> None:
        colours = options.pop("colours", None)
        self._files = (io.StringIO(), io.StringIO())
        out, err = (
            Screen(Console(file=file, force_terminal=bool(colours), color_system=colours)) for file in self._files
        )
        self.view = RunView(Display(out, err, **options), VisibleText(frozenset({"read_file"})), "/work")

    def show(self, *events: Event) -> "Shown":
        for event in events:
            self.view.show(event)
        return self

    @property
    def out(self) -> str:
        return self._files[0].getvalue()

    @property
    def err(self) -> str:
        return self._files[1].getvalue()

    @property
    def debug(self) -> list[Any]:
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]


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
    shown = Shown().show(*TURN)
    assert shown.out == (
        "mendgraph: I look.\n"
        "→ read_file calc.py  2 lines\n"
        "⛔ edit_file .env: Blocked by rule 'env_file': secrets.\n"
        "⛔ x: Blocked by rule 'env_file': secrets.\n"
        "Now it is clear.\n"
    )
    assert shown.err == ""


def test_change_that_file_rules_deny_is_shown_with_its_rules_in_place_of_its_result() -> None:
    blocked = "\u26d4 FILE EDIT BLOCKED - Security Guardrail Triggered:\n  Rule: env_file"
    verdict = Verdict(kind=VerdictKind.DENY, rule="env_file", error=BLOCKED, path=".env", blocked=blocked)
    shown = Shown().show(CallsRead((EDIT,)), Denied("edit_file", verdict), StepDone((result(EDIT, BLOCKED),), ()))
    assert shown.out == f"{blocked}\n"


def test_debug_tells_calls_results_and_refused_paths_as_json_without_secrets() -> None:
    shown = Shown(debug=True).show(*TURN)
    assert shown.out == "mendgraph: I look.\nNow it is clear.\n"
    assert [(each["event"], each.get("tool")) for each in shown.debug] == [
        ("tool.call", "read_file"),
        ("tool.call", "edit_file"),
        ("tool.call", "x"),
        ("guard.denied", "edit_file"),
        ("sandbox.refused", None),
        ("tool.response", "read_file"),
        ("tool.response", "edit_file"),
        ("tool.response", "x"),
        ("tool.call", "final_answer"),
        ("tool.response", "final_answer"),
    ]
    assert shown.debug[0] == {"event": "tool.call", "tool": "read_file", "args": {"path": "calc.py"}}
    assert shown.debug[1]["args"] == {"path": ".env", "token": "***"}
    assert shown.debug[2]["error"] == "MISSING_CLOSING_PAREN: Missing ')'"
    assert shown.debug[3]["rule"] == "env_file"
    assert shown.debug[4] == {"event": "sandbox.refused", "root": "/work", "path": "../x"}
    assert shown.debug[5]["response"] == {"ok": True, "data": {"lines_shown": 2}}


CLEARED = "older results are no longer shown to the model"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            HealingBegan(2, (PAREN,)),
            "… that reply cannot be used (MISSING_CLOSING_PAREN in line 1): asking again, attempt 2",
        ),
        (Waiting(0.35753, "Busy."), "… Busy. Trying again in 0.4 s"),
        (Waiting(0.5, "It says:\ntoo many requests."), "… It says: too many requests. Trying again in 0.5 s"),
        (
            FellBack("gpt-x at llm.test", "local", "The endpoint:\nbusy."),
            "… The endpoint: busy. Asking local instead of gpt-x at llm.test",
        ),
        (Compacted(1, "cleared", 13_400, 6_900), f"… {CLEARED}: 13,400 -> 6,900 tokens"),
        (Rescued((READ,)), "… that was a call in another form: it is read as it is"),
        (
            LoopOverridden((OverrideConstraint(signature="s", tool="read_file", target="a.py", repeats=3),)),
            "↻ read_file a.py: the same action 3 times, refused from now on",
        ),
        (LoopOverridden(()), ""),
        (Asked({"kind": "approval", "calls": []}), ""),
        (ENDED, ""),
    ],
)
def test_other_events_are_a_line_at_most(event: Event, line: str) -> None:
    assert Shown().show(Text("Hm"), event).out == f"mendgraph: Hm\n{line}\n".replace("\n\n", "\n")


def test_implied_call_is_not_shown() -> None:
    ending = READ.model_copy(update={"call_id": "z", "tool": "final_answer", "implied": True})
    late = ToolResult.failure(ToolErrorCode.CANCELLED, "Not taken as the final answer.")
    done = CallResult(call_id="z", tool="final_answer", result=late)
    assert Shown().show(CallsRead((ending,)), StepDone((done,), ())).out == ""


@pytest.mark.parametrize(
    ("said", "answer", "out"),
    [
        ("Fixed\nit.", "Fixed\nit.", "mendgraph: Fixed\nit.\n"),
        ("  Fixed it.\n", "Fixed it.", "mendgraph: Fixed it.\n"),
        ("Fixed it.", "Fixed it.\nAnd more.", "mendgraph: Fixed it.\nFixed it.\nAnd more.\n"),
        ("", "Fixed it.", "mendgraph: Fixed it.\n"),
        ("Fixed it.", "", "mendgraph: Fixed it.\n"),
        (
            "So:\n```\ntool: x({})\n```\nso.",
            "So:\n```\ntool: x({})\n```\nso.",
            "mendgraph: So:\nSo:\n```\ntool: x({})\n```\nso.\n",
        ),
    ],
)
def test_answer_is_shown_unless_it_was_seen_as_it_came(said: str, answer: str, out: str) -> None:
    shown = Shown().show(Text(said), ENDED)
    shown.view.answer(answer)
    assert shown.out == out


def test_colours_are_for_terminals() -> None:
    shown = Shown(colours="standard").show(*TURN[2:8])
    shown.view.lines(Line("Done.", "bold green"))
    assert "\x1b[36m→ read_file calc.py  2 lines\x1b[0m\n" in shown.out
    assert "\x1b[31m⛔ edit_file" in shown.out
    assert shown.out.endswith("\x1b[1;32mDone.\x1b[0m\n")


@pytest.mark.parametrize(
    ("pieces", "out"),
    [
        (["One\r\nTwo\r\n"], "One\nTwo\n"),
        (["One\r", "\nTwo"], "One\nTwo"),
        (["50 %\r", "100 %\n"], "50 %\\r100 %\n"),
        (["One\r\r\n"], "One\\r\n"),
        (["One\r", "", "\n"], "One\n"),
    ],
)
def test_line_ends_of_windows_are_line_ends_and_no_other_return_overwrites_a_line(pieces: list[str], out: str) -> None:
    file = io.StringIO()
    screen = Screen(Console(file=file))
    for piece in pieces:
        screen.write(piece)
    assert file.getvalue() == out


def test_what_was_refused_is_kept_for_programs() -> None:
    shown = Shown(as_json=True).show(*TURN)
    assert [(each["tool"], each["target"], each["code"]) for each in shown.view.refused] == [
        ("edit_file", ".env", "permission_denied"),
        ("x", "", "permission_denied"),
    ]
    shown.view.begin()
    assert shown.view.refused == []


@pytest.mark.parametrize("code", ToolErrorCode)
def test_refused_call_is_told_apart_from_one_that_failed(code: ToolErrorCode) -> None:
    refusals = {ToolErrorCode.PERMISSION_DENIED, ToolErrorCode.LOOP_OVERRIDE, ToolErrorCode.APPROVAL_REQUIRED}
    error = ToolError(code=code, message="No.")
    shown = Shown().show(CallsRead((READ,)), StepDone((result(READ, error),), ()))
    assert shown.out.startswith("⛔ read_file calc.py: No." if code in refusals else "→ read_file calc.py  ")
    refused = [{"tool": "read_file", "target": "calc.py", "code": code.value, "message": "No."}]
    assert shown.view.refused == (refused if code in refusals else [])


@pytest.mark.parametrize(
    ("inner", "line"),
    [
        (ToolStarted(READ), "⤷ 1.2 read_file calc.py"),
        (ToolStarted(READ.model_copy(update={"implied": True})), ""),
        (ENDED, "⤷ 1.2 FINISHED: Done."),
        (Waiting(0.5, "Busy."), "⤷ 1.2 … Busy. Trying again in 0.5 s"),
        (OfChild("3.1", "Look.", ToolStarted(READ)), "⤷ 1.2 ⤷ 3.1 read_file calc.py"),
        (Text("Hello"), ""),
    ],
)
def test_what_happens_in_a_child_is_a_line_with_its_place(inner: Event, line: str) -> None:
    assert Shown().show(OfChild("1.2", "Find it.", inner)).out == (f"{line}\n" if line else "")


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
def test_nothing_that_is_shown_steers_the_terminal(text: str) -> None:
    shown = Shown(debug=True).show(*_evil(text))
    shown.view.answer(f"answer {text}")
    shown.view.lines(Line(text, ""))
    assert set("\x1b\x07\r\u202e\u2028\ud800").isdisjoint(shown.out + shown.err)


def unavailable(name: str, reason: str = "there is no bubblewrap") -> Traced:
    return Traced(name, {"reason": reason}, "run", "1", 0)


def test_what_a_run_has_to_do_without_is_told_once() -> None:
    commands, audit = unavailable("commands.unavailable"), unavailable("audit.unavailable", "it lies\ninside")
    files = [{"path": "AGENTS.md", "lines": 34, "cut": False}, {"path": "a\x1b/AGENTS.md", "lines": 1, "cut": True}]
    notes = Traced("notes.read", {"files": files}, "run", "1", 0)
    shown = Shown().show(commands, audit, commands, unavailable("audit.unavailable", "another"), notes, ENDED)
    assert shown.out == (
        "! no commands: there is no bubblewrap\n! no log of this run: it lies inside\n! no log of this run: another\n"
        "→ AGENTS.md  34 lines of notes\n→ a\\x1b/AGENTS.md  1 line of notes, the rest left out\n"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("commands.unavailable", "no commands"),
        ("audit.unavailable", "no log of this run"),
        ("spending.unbooked", "not in the spending book"),
        ("notes.unread", "not told to the model"),
        ("memory.unavailable", "no memory"),
        ("permission.unkept", "allowed for this call alone"),
    ],
)
def test_what_a_run_lacks_is_named(name: str, words: str) -> None:
    assert Shown().show(unavailable(name, "It is full.")).out == f"! {words}: It is full.\n"


def test_warning_is_shown_down_to_its_remedy() -> None:
    reason = "why " * 100 + "Install it."
    shown = Shown().show(unavailable("commands.unavailable", reason), Alerted("cost", reason, 9.0, 3.0))
    assert shown.out == f"! no commands: {reason}\n! {reason}\n"
    endless = Shown().show(unavailable("audit.unavailable", "x" * 900), Alerted("cost", "x" * 900, 9.0, 3.0))
    assert [len(line) for line in endless.out.splitlines()] == [502, 502]
