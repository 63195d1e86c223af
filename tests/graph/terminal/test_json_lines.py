"""Events as JSON lines: each with its name and fields, and no secret."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from graph import cli
from graph.events import Asked, CallsRead, Event, FellBack, Paid, Text, ToolStarted, Traced
from graph.terminal.ending import as_json
from graph.terminal.json_lines import event_as_map, event_name
from nodes.execute_tools.secrets.redact import Redactor
from nodes.records import CallError, ExtractionError, ExtractionErrorType, ToolCall
from tests.doubles.replies import Say
from tests.doubles.scripted_model import ScriptedModel
from tests.graph.terminal.played_terminal import BUG

SECRET = "hunter2-hunter2"  # noqa: S105 - a made-up one
SCRUB = Redactor((SECRET,)).text
CALL = ToolCall(
    call_id="1",
    tool="read_file",
    arguments={"path": "a.py", "token": "s3cret-value", SECRET: [SECRET]},
    raw_arguments=f'{{"path": "{SECRET}"}}',
)


def test_each_event_has_a_name_of_its_own() -> None:
    names = [event_name(kind) for kind in get_args(Event)]
    assert names[:3] == ["text", "waiting", "fell_back"]
    assert (event_name(ToolStarted), len(set(names))) == ("tool_started", len(names))


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (Text("Hi"), {"event": "text", "text": "Hi"}),
        (
            FellBack("a", "b", f"said {SECRET}"),
            {"event": "fell_back", "model": "a", "following": "b", "reason": "said [redacted secret]"},
        ),
        (
            Paid(1, "reply", "gpt-x", 10, 2, 0, None, 0.5),
            {
                "event": "paid",
                "step": 1,
                "purpose": "reply",
                "model": "gpt-x",
                "input_tokens": 10,
                "output_tokens": 2,
                "cached_tokens": 0,
                "cost_usd": None,
                "seconds": 0.5,
                "reasoning_tokens": 0,
                "cache_write_tokens": 0,
            },
        ),
        (
            Traced("model.usage", {"input_tokens": 10, "api_key": "k", "odd": {1, 2}}, "run", "1", 3),
            {
                "event": "traced",
                "name": "model.usage",
                "payload": {"input_tokens": 10, "api_key": "***", "odd": [1, 2]},
                "run_id": "run",
                "step_id": "1",
                "ms": 3,
            },
        ),
    ],
)
def test_an_event_is_its_name_and_its_fields(event: Event, expected: object) -> None:
    assert event_as_map(event, SCRUB) == expected


def test_arguments_are_shown_without_what_stands_under_a_secrets_name() -> None:
    shown = event_as_map(ToolStarted(CALL), SCRUB)["call"]
    assert shown["arguments"] == {"path": "a.py", "token": "***", "[redacted secret]": ["[redacted secret]"]}
    assert SECRET not in as_json(shown)


def test_calls_and_malformed_ones_stand_side_by_side() -> None:
    error = ExtractionError(ExtractionErrorType.MISSING_CLOSING_PAREN, 1, "tool: x(", "Missing ')'")
    broken = CallError(call_id="2", tool="x", raw_arguments="{", error=error)
    shown = event_as_map(CallsRead((CALL, broken)), SCRUB)["calls"]
    assert [each["tool"] for each in shown] == ["read_file", "x"]
    assert shown[1]["error"]["line_number"] == 1


def test_what_is_no_value_of_json_is_told_by_its_type() -> None:
    shown = event_as_map(Asked({"calls": [object()], "kind": None}), SCRUB)
    assert shown == {"event": "asked", "request": {"calls": ["<object>"], "kind": None}}


def test_what_no_json_can_say_is_said_in_words() -> None:
    shown = event_as_map(Traced("x", {"what": object, "half": "\ud83d", "much": float("inf")}, "run", "1", 0), str)
    assert as_json(shown).isascii()
    assert "Infinity" not in as_json(shown)


# --- The option

FIX = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'
FIXED = BUG.replace("-", "+")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command on a model that fixes a bug in the current folder: exit code, standard output and error."""
    (tmp_path / "calc.py").write_text(BUG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    model = ScriptedModel([Say(FIX), Say("It adds now.")])
    monkeypatch.setattr(cli, "_session_options", lambda: {"model": model})

    def called(*words: str) -> tuple[int, str, str]:
        code = cli.main([*words, "--protocol", "text"])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return called


@pytest.mark.parametrize("command", [["-"], ["chat"]])
def test_the_input_may_have_the_line_ends_of_windows(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Fix it\r\n")))
    code, out, _ = run(*command, "--json-lines")
    assert (code, (tmp_path / "calc.py").read_text()) == (0, FIXED)
    assert "\\r" not in out


def test_json_lines_are_events_and_at_last_the_result(run: Run) -> None:
    code, out, _ = run("--json-lines", "Fix it")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, lines[0]["event"], lines[-1]["event"]) == (0, "text", "ended")
    assert lines[-1]["result"]["outcome"]["kind"] == "FINISHED"
    assert {"text", "calls_read", "tool_started", "step_done", "paid"} <= {each["event"] for each in lines}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json", "--json-lines", "Fix it"], "--json and --json-lines exclude each other"),
        (["--json-lines", "runs"], "--json-lines is for what works on a task"),
        (["--json-lines", "--nope", "Fix it"], "No such option: --nope"),
    ],
)
def test_what_is_wrong_with_the_command_is_the_last_json_line(run: Run, words: list[str], message: str) -> None:
    code, out, err = run(*words)
    (line,) = [json.loads(each) for each in out.splitlines()]
    assert (code, line["event"], line["error"]["code"]) == (2, "error", "usage_error")
    assert line["error"]["message"].startswith(message)
    assert err.startswith(f"mendgraph: {message}")


def test_a_run_that_is_not_known_is_the_last_json_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["--root", str(tmp_path), "--json-lines", "resume", "nosuch"])
    line = json.loads(capsys.readouterr().out)
    assert (code, line["event"], line["error"]["code"]) == (2, "error", "not_found")
