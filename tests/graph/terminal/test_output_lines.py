"""The end of a run, as lines and as JSON."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Compacted, OfChild, Paid, Text, ToolStarted, Traced
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.runs.runs import ListedRun, RunState, RunStep, StepKind
from mendgraph.graph.terminal.answers import Line, as_json, clock
from mendgraph.graph.terminal.output_lines import (
    Account,
    commit_message,
    compaction_words,
    diff_lines,
    event_as_map,
    outcome_lines,
    pull_request,
    run_details,
    run_lines,
    session_line,
    usage_block,
    usage_lines,
)
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.graph.terminal.turns import run_once
from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.ledger import Price, Spending, Used, begin_turn, charge, priced, usage_report
from mendgraph.nodes.records import (
    CallError,
    ExtractionError,
    ExtractionErrorType,
    Outcome,
    OutcomeKind,
    Plan,
    StopReason,
    ToolCall,
)
from tests.doubles.replies import Say
from tests.graph.terminal.played_terminal import READ, Terminal

DIFF = "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n same\n--- old\n+++ new\n\\ No newline at end of file\n"


def test_diff_is_coloured_by_its_signs() -> None:
    assert [line.style for line in diff_lines([DIFF])] == ["bold", "bold", "cyan", "", "red", "green", "dim"]
    assert "\n".join(line.text for line in diff_lines([DIFF, DIFF])) == (DIFF + DIFF).removesuffix("\n")


def test_finished_run_says_what_changed() -> None:
    done = Outcome(
        kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="No file was changed.", answer="It is."
    )
    changed = done.model_copy(update={"message": "Changed a.py; 2 tests pass.", "value": {"é": 1}})
    assert list(outcome_lines(done)) == [Line("FINISHED (answered): No file was changed.", "bold green")]
    assert list(outcome_lines(changed)) == [
        Line('value: {"é": 1}'),
        Line("FINISHED (answered): Changed a.py; 2 tests pass.", "bold green"),
    ]


def test_run_that_did_not_finish_says_why_and_how_to_go_on() -> None:
    stopped = Outcome(
        kind=OutcomeKind.SYSTEM_ERROR,
        reason=StopReason.LOOP_PERSISTED,
        message="It went\nround.",
        diagnostics=("one\ntwo", "three"),
        changed_files=("a.py",),
        how_to_go_on="Take another model.",
    )
    assert list(outcome_lines(stopped)) == [
        Line("SYSTEM_ERROR (loop_persisted): It went round.", "bold red"),
        Line("  - one two", "dim"),
        Line("  - three", "dim"),
        Line("How to go on: Take another model."),
    ]
    budget = stopped.model_copy(update={"kind": OutcomeKind.BUDGET_STOP, "changed_files": ()})
    assert [line.style for line in outcome_lines(budget)] == ["bold yellow", "dim", "dim", ""]


LIMITS = APILimits()
PRICE = Price(input=1.0, output=10.0, cached_input=0.1)
USAGE = {
    "calls_in_current_turn": 3,
    "input_tokens_in_current_turn": 12_345,
    "output_tokens_in_current_turn": 67,
    "seconds_in_current_turn": 8.91,
    "total_calls": 3,
    "cached_tokens": 0,
    "cost_usd": 0.0,
}
LINE = "usage: 3/10 calls, 12,345 tokens in, 67 out, 8.9 s"


def paid(input_tokens: int = 1_000, cached_tokens: int = 0, cost_usd: float | None = 0.0, model: str = "m") -> Paid:
    return Paid(
        1, "reply", model, input_tokens, 10, cached_tokens, cost_usd, 0.5, reasoning_tokens=cached_tokens // 100
    )


def account(*events: Paid) -> Account:
    noted = Account()
    for event in events:
        noted.note(event)
    return noted


def second_turn() -> dict[str, Any]:
    """The report of a session whose first turn had 40,000 tokens, and whose second had 1,000."""
    one = Used(calls=1, input_tokens=40_000, output_tokens=100, cached_tokens=30_000, reasoning_tokens=90, seconds=3.0)
    two = Used(calls=1, input_tokens=1_000, output_tokens=10, cached_tokens=600, reasoning_tokens=6, seconds=0.5)
    first = charge(Spending(), priced(one, PRICE))
    second = charge(begin_turn(first), priced(two, PRICE))
    return usage_report(second)


def test_later_turn_has_its_own_cost_beside_the_session_s() -> None:
    assert [line.text for line in usage_lines(second_turn(), LIMITS, account(paid(1_000, 600, 0.00056)))] == [
        "usage: 1/10 calls, 1,000 tokens in, 10 out, 0.5 s",
        "session: 2/100 calls, 41,000 tokens in (30,600 cached), 110 out (96 reasoning), 0.0146 USD",
    ]


def test_price_that_is_not_known_is_said_with_its_model() -> None:
    noted = account(paid(1_000, cost_usd=None, model="a"), paid(0, cost_usd=None, model="b"), paid(0, cost_usd=0.5))
    unknown = "cost unknown: no price for a, b (see prices.toml)"
    _, session = usage_lines({**second_turn(), "cost_usd": None}, LIMITS, noted)
    assert session.text.endswith(f"110 out (96 reasoning), {unknown}")


def test_block_is_that_of_the_specification() -> None:
    report = second_turn()
    assert "\n".join(line.text for line in usage_block(report, LIMITS)) == (
        "API Usage Stats:\n  Calls: 2/100\n  Turn Calls: 1/10\n  Input Tokens: 41000/100000\n  Output Tokens: 110/50000"
    )
    assert session_line({}, LIMITS, Account()).text.startswith("session: 0/100 calls, 0 tokens in, 0 out")


def test_calls_of_a_child_are_calls_of_the_account() -> None:
    noted = Account()
    compacted = Compacted(1, "cleared", 9, 3)
    for event in (paid(cost_usd=None, model="a"), compacted, paid(cost_usd=None, model="b"), Text("Hello")):
        noted.note(OfChild("1.1", "Find it.", event))
    assert noted.paid == [paid(cost_usd=None, model="a"), paid(cost_usd=None, model="b")]
    assert (noted.compactions, noted.unpriced) == ([compacted], ["a", "b"])
    noted.begin()
    assert noted.as_map() == {"steps": [], "compactions": []}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cleared", "older results are no longer shown to the model"),
        ("summarised", "the model is shown a summary of the conversation's beginning"),
        ("slid", "the conversation's beginning is no longer shown to the model"),
        ("other", "the model is shown less of the conversation"),
    ],
)
def test_compaction_is_told_by_what_it_did(kind: str, words: str) -> None:
    assert compaction_words(Compacted(1, kind, 13_400, 6_900)) == f"{words}: 13,400 -> 6,900 tokens"


def test_argument_under_the_name_of_a_secret_is_in_no_event() -> None:
    started = ToolStarted(call("http_get", api_key="abc", path="a.py"))
    traced = Traced("tool.invoke.ok", {"password": "abc", "tool_name": "x"}, "run", "1", 7)
    shown = [event_as_map(each, str) for each in (started, traced, OfChild("1.1", "abc", started))]
    assert shown[0]["call"]["arguments"] == {"api_key": "***", "path": "a.py"}
    assert shown[1] == {
        "event": "traced",
        "name": "tool.invoke.ok",
        "run_id": "run",
        "step_id": "1",
        "ms": 7,
        "payload": {"password": "***", "tool_name": "x"},
    }
    assert (shown[2]["task"], shown[2]["inner"]) == ("abc", shown[0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": float("nan"), "b": [float("inf"), -float("inf"), 1.5]}, '{"a": null, "b": [null, null, 1.5]}'),
        ("half \ud83d and \x1b[2J", r'"half \ufffd and \u001b[2J"'),
        ({"\ud83d": ("é", True, None, 7)}, r'{"\ufffd": ["\u00e9", true, null, 7]}'),
        (Path("/w"), '"/w"'),
    ],
)
def test_json_for_programs_is_strict_and_ascii(value: Any, text: str) -> None:
    assert as_json(value) == text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0:00"), (5.4, "0:05"), (59.6, "1:00"), (754, "12:34"), (3_600, "1:00:00"), (3_723, "1:02:03")],
)
def test_clock_has_hours_where_there_are_some(seconds: float, words: str) -> None:
    assert clock(seconds) == words


# --- What a forge reads


def ended(message: str = "Limit reached.", answer: str = "", **more: Any) -> RunResult:
    outcome = Outcome(kind=OutcomeKind.BUDGET_STOP, reason=StopReason.MAX_STEPS, message=message, answer=answer)
    return RunResult(outcome=outcome.model_copy(update=more), messages=(), changes=(), plan=Plan(), thread_id="run-1")


@pytest.mark.parametrize(
    ("task", "subject"),
    [
        ("\n  \nFix add.\nAnd more.", "Fix add."),
        ("Ask @somebody", "Ask (at)somebody"),
        ("Fixes #12 and # 3", "Fixes no. 12 and # 3"),
        ("Closes GH-12 and gh-13", "Closes GH 12 and GH 13"),
        ("[skip ci] and <!-- x -->", "(skip ci) and (!-- x --)"),
        ("See https://a.test/b", "See https:a.test/b"),
        ("x" * 73, "x" * 69 + "..."),
    ],
)
def test_subject_of_a_commit_starts_nothing_at_a_forge(task: str, subject: str) -> None:
    message = commit_message(task, ended(f"About {task}"), ["m-1", "m-2"])
    assert message.splitlines()[:2] == [subject, ""]
    assert "@" not in message
    assert "#1" not in message
    assert message.endswith("Run run-1 of mendgraph, by m-1, m-2.\n")
    assert max(map(len, message.splitlines())) <= 72


def test_pull_request_quotes_whatever_others_said() -> None:
    evil = "```\n# A heading of mine\n@somebody\n````\x1b[2J"
    used = [Line("usage: 1/10 calls")]
    text = pull_request(evil, "abc123", ["--model", "m"], ended(answer=evil), ["a.py", evil], used)
    assert "\x1b" not in text
    fence = ""
    outside = []
    for line in text.splitlines():
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = line.rstrip("abcdefghijklmnopqrstuvwxyz")
        elif line:
            outside.append(line)
    assert outside == [
        "## What was asked",
        "## What was changed",
        "## How it ended, and what was checked",
        "## What the model says",
        "## What it used",
        "## How to do it again",
        "Made by mendgraph, unattended, in run run-1.",
    ]


def test_pull_request_has_a_part_for_what_was_refused() -> None:
    refused = ("refused (a test; not named by the user): edit_file test_a.py",)
    text = pull_request("Fix a.py", "abc123", [], ended(answer="Done.", refused=refused), [], [])
    assert f"## What was refused\n\n```text\n{refused[0]}\n```" in text


def test_text_in_a_pull_request_is_cut_at_eight_thousand_characters() -> None:
    text = pull_request("x" * 8_000, "abc123", [], ended(answer="y" * 8_001), [], [])
    assert "x" * 8_000 in text
    assert "y" * 7_997 + "..." in text
    assert "y" * 7_998 not in text


# --- At the terminal

PRICED = {"model": "gpt-4o", "evidence": False}


def test_json_has_a_row_for_each_call(tmp_path: Path) -> None:
    script = [Say(READ, (400, 20)), Say("It adds.", (400, 20))]
    terminal = Terminal(tmp_path, script, context=PRICED, as_json=True)
    assert run_once(terminal.setup, "Does it add?") is ExitCode.FINISHED
    shown = json.loads(terminal.out)
    one = {"purpose": "reply", "model": "gpt-4o", "input_tokens": 400, "output_tokens": 20}
    one |= {"cached_tokens": 0, "reasoning_tokens": 0, "cache_write_tokens": 0}
    assert [{**step, "seconds": 0} for step in shown["steps"]] == [
        {"step": number, **one, "seconds": 0, "cost_usd": pytest.approx(0.0012)} for number in (1, 2)
    ]
    assert (shown["compactions"], shown["usage"]["cost_usd"]) == ([], pytest.approx(0.0024))


def test_compaction_is_a_line_and_an_object(tmp_path: Path) -> None:
    looks = [f'tool: read_file({{"path": "calc.py", "start_line": {line}}})' for line in range(1, 9)]
    context = {**PRICED, "window_tokens": 4_096, "max_output_tokens_per_call": 256}
    terminal = Terminal(tmp_path, [*looks, "It adds."], context=context, as_json=True)
    terminal.calc.write_text("".join(f"number_{line} = {line} * {line}\n" for line in range(120)), encoding="utf-8")
    assert run_once(terminal.setup, "Does it add?") is ExitCode.FINISHED
    told = [line.rpartition(": ")[2] for line in terminal.err.splitlines() if " -> " in line]
    saved = [(each["tokens_before"], each["tokens_after"]) for each in json.loads(terminal.out)["compactions"]]
    assert told == [f"{was:,} -> {now:,} tokens" for was, now in saved] != []


NOW = datetime(2026, 11, 20, 11, tzinfo=UTC)
DEFAULTS: dict[str, Any] = {
    "run_id": "3f2a9c01" + "0" * 24,
    "task": "Mend add.",
    "created": "2026-11-20T09:00:00.000+00:00",
    "updated": "2026-11-20T10:05:00.000+00:00",
    "turns": 1,
    "request": "Mend add.",
    "state": "ended",
    "kind": "FINISHED",
    "reason": "answered",
    "message": "",
    "answer": "",
    "changed": ("calc.py",),
    "stored_context": AgentContext(workspace="/w").model_dump_json(),
    "durability": "sync",
    "parent": "",
    "forked_at": None,
    "standing": RunState.FINISHED,
    "files": ("calc.py", "new.py"),
}


def run(**more: Any) -> ListedRun:
    return ListedRun(**{**DEFAULTS, **more})


DONE = run()
LONG = run(
    run_id="nightly",
    standing=RunState.STOPPED,
    reason="max_steps",
    turns=12,
    files=(),
    task="Look at\n\tall of\x1b[31m it " + "and more " * 40,
)


def call(tool: str, **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool, arguments=arguments, raw_arguments="{}")


BROKEN = CallError(
    call_id="2",
    tool="",
    raw_arguments="{",
    error=ExtractionError(ExtractionErrorType.INVALID_JSON_SYNTAX, 1, "{", "no"),
)
STEPS = (
    RunStep(0, StepKind.START, 1, can_fork=True),
    RunStep(1, StepKind.CALLS, 1, (call("edit_file", path="a.py"), BROKEN), ("a.py", "b\x1b.py"), can_fork=True),
    RunStep(2, StepKind.ANSWER, 1, can_fork=True),
    RunStep(10, StepKind.UNUSABLE, 2),
)


# --- All runs


def test_pipe_gets_a_line_for_each_run_as_wide_as_it_takes() -> None:
    head, done, long = run_lines([DONE, LONG], None, NOW, UTC)
    assert head == Line("RUN       WHEN         STATE               TURNS  FILES  TASK", "bold")
    assert done == Line("3f2a9c01  today 10:05  finished            1      2      Mend add.")
    beginning = r"nightly   today 10:05  stopped: max steps  12     0      Look at all of\x1b[31m it and more and more "
    assert long.text.startswith(beginning)
    assert (long.style, long.text.endswith("...")) == ("yellow", True)


def test_terminal_gets_no_line_that_is_wider_than_it() -> None:
    *_, done, long = run_lines([DONE, LONG], 90, NOW, UTC)
    assert done.text == "3f2a9c01  today 10:05  finished            1      2      Mend add."
    assert long.text == r"nightly   today 10:05  stopped: max steps  12     0      Look at all of\x1b[31m it and..."


@pytest.mark.parametrize(
    ("standing", "style"),
    [
        (RunState.WORKING, "bold cyan"),
        (RunState.ASKS, "bold cyan"),
        (RunState.CUT_OFF, "yellow"),
        (RunState.FORKED, "yellow"),
        (RunState.STOPPED, "yellow"),
        (RunState.FAILED, "red"),
        (RunState.FINISHED, ""),
    ],
)
def test_run_has_the_colour_of_its_state(standing: RunState, style: str) -> None:
    _, line = run_lines([run(standing=standing, reason="")], None, NOW, UTC)
    assert line.style == style
    assert f"  {standing}  " in line.text


# --- One run


def test_run_is_told_with_its_steps() -> None:
    assert [line.text for line in run_details(DONE, STEPS, NOW, UTC)] == [
        f"run {DONE.run_id}",
        "task: Mend add.",
        "state: finished",
        "begun: today 09:00, at work: today 10:05",
        "folder: /w",
        "",
        "STEP  FORK  CALLS AND FILES",
        "   0  yes   (the start)",
        "   1  yes   edit_file a.py",
        "            a malformed call",
        "            changed: a.py",
        r"            changed: b\x1b.py",
        "   2  yes   (the answer)",
        "            (request 2)",
        "  10  -     (a reply that could not be used)",
    ]


def test_what_is_not_as_usual_is_told_too() -> None:
    context = AgentContext(workspace="/w", mode="ask", max_calls_per_turn=3).model_dump_json()
    odd = run(
        request="And now?",
        message="Limit reached.",
        standing=RunState.STOPPED,
        reason="max_steps",
        parent="a" * 32,
        forked_at=4,
        stored_context=context,
        durability="exit",
    )
    lines = [line.text for line in run_details(odd, (), NOW, UTC)]
    assert lines == [
        f"run {DONE.run_id}",
        "task: Mend add.",
        "state: stopped: max steps",
        "last request: And now?",
        "end: Limit reached.",
        "begun: today 09:00, at work: today 10:05",
        "forked from: run aaaaaaaa after step 4",
        "folder: /w",
        'context: mode="ask", max_calls_per_turn=3, durability=exit',
        "",
        "No step of it is kept: it has made none yet, or was kept with --durability exit.",
    ]


# --- For programs
