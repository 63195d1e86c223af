"""The end of a run, as lines and as JSON."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.events import Compacted, OfChild, Paid, Text
from mendgraph.graph.runs.run_result import RunResult
from mendgraph.graph.runs.runs import ListedRun, RunState
from mendgraph.graph.terminal.outcome_lines import outcome_lines, run_lines, usage_block, usage_lines
from mendgraph.graph.terminal.output import Line, clock, wrapped
from mendgraph.graph.terminal.process_end import ExitCode
from mendgraph.graph.terminal.run_view import Account
from mendgraph.graph.terminal.turns import run_once
from mendgraph.graph.terminal.unattended_output import commit_message, pull_request
from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.ledger import Spending, Used, begin_turn, charge, priced, usage_report
from mendgraph.nodes.call_model.prices import Price
from mendgraph.nodes.records import Outcome, OutcomeKind, Plan, StopReason
from tests.doubles.replies import Say
from tests.surfaces.terminal.played_terminal import READ, Terminal


def test_outcome_is_shown_in_lines() -> None:
    done = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Changed a.py.", value={"é": 1})
    assert list(outcome_lines(done)) == [
        Line('value: {"é": 1}', verbatim=True),
        Line("FINISHED (answered): Changed a.py.", "bold green"),
    ]
    failed = {"reason": StopReason.LOOP_PERSISTED, "message": "It went\nround.", "value": None}
    more = {"diagnostics": ("one\ntwo", "three"), "how_to_go_on": "Take another model."}
    for kind, style in ((OutcomeKind.SYSTEM_ERROR, "bold red"), (OutcomeKind.BUDGET_STOP, "bold yellow")):
        assert list(outcome_lines(done.model_copy(update={"kind": kind, **failed, **more}))) == [
            Line(f"{kind.value} (loop_persisted): It went round.", style),
            Line("  - one two", "dim"),
            Line("  - three", "dim"),
            Line("How to continue: Take another model."),
        ]


def test_long_line_is_wrapped_between_words_and_keeps_commands_whole() -> None:
    told = "FINISHED (answered): Changed calc.py and cart.py; 2 tests pass."
    assert wrapped(told, 63) == told
    assert wrapped(told, 40) == "FINISHED (answered): Changed calc.py and\n  cart.py; 2 tests pass."
    assert wrapped("  - 名前を変える fails", 16) == "  - 名前を変える\n    fails"
    resume = "mendgraph resume 3f2a9c01 --max-calls N"
    assert wrapped(f"Continue with `{resume}`, or stop.", 50) == f"Continue with\n  `{resume}`, or\n  stop."
    assert wrapped(f"run 3f2a9c01; continue with: {resume}", 50) == f"run 3f2a9c01; continue with:\n  {resume}"
    assert wrapped(f"folder: /{'x' * 50}", 50) == f"folder: /{'x' * 50}"


LIMITS = APILimits()
PRICE = Price(input=1.0, output=10.0, cached_input=0.1)


def paid_call(
    input_tokens: int = 1_000, cached_tokens: int = 0, cost_usd: float | None = 0.0, model: str = "m"
) -> Paid:
    return Paid(
        1, "reply", model, input_tokens, 10, cached_tokens, cost_usd, 0.5, reasoning_tokens=cached_tokens // 100
    )


def second_turn() -> dict[str, Any]:
    """The report of a session whose first turn had 40,000 tokens, and whose second had 1,000."""
    one = Used(calls=1, input_tokens=40_000, output_tokens=100, cached_tokens=30_000, reasoning_tokens=90, seconds=3.0)
    two = Used(calls=1, input_tokens=1_000, output_tokens=10, cached_tokens=600, reasoning_tokens=6, seconds=0.5)
    first = charge(Spending(), priced(one, PRICE))
    second = charge(begin_turn(first), priced(two, PRICE))
    return usage_report(second)


def test_usage_of_a_later_turn_is_shown_beside_the_sessions() -> None:
    report, noted, nested = second_turn(), Account(), Account()
    noted.note(paid_call(1_000, 600, 0.00056))
    assert [line.text for line in usage_lines(report, LIMITS, noted)] == [
        "usage: 1/10 calls, 1,000 tokens in, 10 out, 0.5 s",
        "session: 2/100 calls, 41,000 tokens in (30,600 cached), 110 out (96 reasoning), 0.0146 USD",
    ]
    assert "\n".join(line.text for line in usage_block(report, LIMITS)) == (
        "API Usage Stats:\n  Calls: 2/100\n  Turn Calls: 1/10\n  Input Tokens: 41000/100000\n  Output Tokens: 110/50000"
    )
    compacted = Compacted(1, "cleared", 9, 3)
    for event in (paid_call(cost_usd=None, model="a"), compacted, paid_call(cost_usd=None, model="b"), Text("Hello")):
        nested.note(OfChild("1.1", "Find it.", event))
    assert nested.paid == [paid_call(cost_usd=None, model="a"), paid_call(cost_usd=None, model="b")]
    assert (nested.compactions, nested.unpriced) == ([compacted], ["a", "b"])
    _, session = usage_lines({**report, "cost_usd": None}, LIMITS, nested)
    assert session.text.endswith("110 out (96 reasoning), cost unknown: prices.toml has no price for a, b")
    nested.begin_turn()
    assert nested.as_map() == {"steps": [], "compactions": []}


CLOCKS = {0: "0:00", 5.4: "0:05", 59.6: "1:00", 754: "12:34", 3_600: "1:00:00", 3_723: "1:02:03"}


def test_duration_is_shown_as_a_clock() -> None:
    assert {seconds: clock(seconds) for seconds in CLOCKS} == CLOCKS


# --- Commit messages and pull requests


def ended_run(message: str = "Limit reached.", answer: str = "", **more: Any) -> RunResult:
    outcome = Outcome(kind=OutcomeKind.BUDGET_STOP, reason=StopReason.MAX_STEPS, message=message, answer=answer)
    return RunResult(outcome=outcome.model_copy(update=more), messages=(), changes=(), plan=Plan(), thread_id="run-1")


SUBJECTS = {
    "\n  \nFix add.\nAnd more.": "Fix add.",
    "Ask @somebody": "Ask (at)somebody",
    "Fixes #12 and # 3": "Fixes no. 12 and # 3",
    "Closes GH-12 and gh-13": "Closes GH 12 and GH 13",
    "[skip ci] and <!-- x -->": "(skip ci) and (!-- x --)",
    "See https://a.test/b": "See https:a.test/b",
    "x" * 73: "x" * 69 + "...",
}


def test_commit_message_contains_no_mention_or_issue_reference() -> None:
    for task, subject in SUBJECTS.items():
        message = commit_message(task, ended_run(f"About {task}"), ["m-1", "m-2"])
        assert message.splitlines()[:2] == [subject, ""]
        assert ("@" in message, "#1" in message) == (False, False)
        assert message.endswith("Run run-1 of mendgraph, by m-1, m-2.\n")
        assert max(map(len, message.splitlines())) <= 72


def test_pull_request_quotes_all_text_of_others() -> None:
    evil = "```\n# A heading of mine\n@somebody\n````\x1b[2J"
    usage = [Line("usage: 1/10 calls")]
    text = pull_request(evil, "abc123", ["--model", "m"], ended_run(answer=evil), ["a.py", evil], usage)
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


def test_pull_request_names_refused_calls_and_truncates_long_texts() -> None:
    refused = ("refused (a test; not named by the user): edit_file test_a.py",)
    text = pull_request("x" * 8_000, "abc123", [], ended_run(answer="y" * 8_001, refused=refused), [], [])
    assert f"## What was refused\n\n```text\n{refused[0]}\n```" in text
    assert ("x" * 8_000 in text, "y" * 7_997 + "..." in text, "y" * 7_998 in text) == (True, True, False)


PRICED = {"model": "gpt-4o", "evidence": False}


def test_json_has_a_row_for_each_call(tmp_path: Path) -> None:
    script = [Say(READ, (400, 20)), Say("It adds.", (400, 20))]
    terminal = Terminal(tmp_path, script, context=PRICED, as_json=True)
    assert run_once(terminal.setup, "Does it add?") is ExitCode.FINISHED
    result = json.loads(terminal.out)
    one = {"purpose": "reply", "model": "gpt-4o", "input_tokens": 400, "output_tokens": 20}
    one |= {"cached_tokens": 0, "reasoning_tokens": 0, "cache_write_tokens": 0}
    assert [{**step, "seconds": 0} for step in result["steps"]] == [
        {"step": number, **one, "seconds": 0, "cost_usd": pytest.approx(0.0012)} for number in (1, 2)
    ]
    assert (result["compactions"], result["usage"]["cost_usd"]) == ([], pytest.approx(0.0024))


NOW = datetime(2026, 11, 20, 11, tzinfo=UTC)
DONE = ListedRun(
    run_id="3f2a9c01" + "0" * 24,
    task="Mend add.",
    created="2026-11-20T09:00:00.000+00:00",
    updated="2026-11-20T10:05:00.000+00:00",
    turns=1,
    request="Mend add.",
    state="ended",
    kind="FINISHED",
    reason="answered",
    message="",
    answer="",
    changed=("calc.py",),
    stored_context=AgentContext(workspace="/w").model_dump_json(),
    durability="sync",
    parent="",
    forked_at=None,
    standing=RunState.FINISHED,
    files=("calc.py", "new.py"),
)


def run(**more: Any) -> ListedRun:
    return replace(DONE, **more)


LONG = run(
    run_id="nightly",
    standing=RunState.STOPPED,
    reason="max_steps",
    turns=12,
    files=(),
    task="Look at\n\tall of\x1b[31m it " + "and more " * 40,
)


STYLES = {
    RunState.WORKING: "bold cyan",
    RunState.ASKS: "bold cyan",
    RunState.CUT_OFF: "yellow",
    RunState.FORKED: "yellow",
    RunState.STOPPED: "yellow",
    RunState.FAILED: "red",
    RunState.FINISHED: "",
}


def test_table_of_runs_is_not_wider_than_the_terminal() -> None:
    head, done, long = run_lines([DONE, LONG], None, NOW, UTC)
    assert head == Line("RUN       WHEN         STATE               FILES  TASK", "bold")
    assert done == Line("3f2a9c01  today 10:05  finished            2      Mend add.")
    beginning = r"nightly   today 10:05  stopped: max steps  0      Look at all of\x1b[31m it and"
    assert (long.text.startswith(f"{beginning} more and more "), long.text.endswith("...")) == (True, True)
    *_, narrow, cut = run_lines([DONE, LONG], 83, NOW, UTC)
    assert (narrow.text, cut.text) == (done.text, f"{beginning}...")
    lines = {standing: run_lines([run(standing=standing, reason="")], None, NOW, UTC)[1] for standing in STYLES}
    assert {standing: line.style for standing, line in lines.items()} == STYLES
    assert [standing for standing, line in lines.items() if f"  {standing}  " not in line.text] == []
