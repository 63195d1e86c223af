"""Runs and their steps, for people and for programs."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from graph.context import AgentContext
from graph.runs import ListedRun, RunState, RunStep, StepKind
from graph.terminal.ending import Line, as_json
from graph.terminal.plain_text import plain
from graph.terminal.run_table import bytes_words, run_details, run_lines, run_object, step_object
from nodes.records import CallError, ExtractionError, ExtractionErrorType, ToolCall

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
    "answer": "It adds now.",
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


def test_a_pipe_gets_a_line_for_each_run_as_wide_as_it_takes() -> None:
    head, done, long = run_lines([DONE, LONG], None, NOW, UTC)
    assert head == Line("RUN       WHEN         STATE               TURNS  FILES  TASK", "bold")
    assert done == Line("3f2a9c01  today 10:05  finished            1      2      Mend add.")
    beginning = r"nightly   today 10:05  stopped: max steps  12     0      Look at all of\x1b[31m it and more and more "
    assert long.text.startswith(beginning)
    assert (long.style, long.text.endswith("...")) == ("yellow", True)


def test_a_terminal_gets_no_line_that_is_wider_than_it() -> None:
    *_, done, long = run_lines([DONE, LONG], 90, NOW, UTC)
    assert done.text == "3f2a9c01  today 10:05  finished            1      2      Mend add."
    assert long.text == r"nightly   today 10:05  stopped: max steps  12     0      Look at all of\x1b[31m it and..."


def test_a_narrow_terminal_gets_the_task_on_a_line_of_its_own() -> None:
    assert [line.text for line in run_lines([DONE], 50, NOW, UTC)] == [
        "RUN       WHEN         STATE     TURNS  FILES",
        "  TASK",
        "3f2a9c01  today 10:05  finished  1      2",
        "  Mend add.",
    ]


@given(st.text(), st.integers(min_value=1, max_value=120), st.sampled_from(RunState))
def test_no_task_makes_a_line_too_wide_or_another_line(task: str, width: int, standing: RunState) -> None:
    lines = run_lines([run(task=task, standing=standing)], width, NOW, UTC)
    assert len(lines) in {2, 4}
    assert [line.text for line in lines if cell_len(line.text) > width] == []
    assert [line.text for line in lines if plain(line.text) != line.text or "\n" in line.text] == []


@pytest.mark.parametrize(
    ("standing", "style"),
    [(RunState.WORKING, "bold cyan"), (RunState.FAILED, "red"), (RunState.FORKED, "yellow"), (RunState.FINISHED, "")],
)
def test_where_a_run_stands_has_a_colour(standing: RunState, style: str) -> None:
    assert run_lines([run(standing=standing)], None, NOW, UTC)[-1].style == style


# --- One run


def test_a_run_is_told_with_its_steps() -> None:
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


def test_a_run_as_an_object_has_all_that_is_known() -> None:
    shown = run_object(DONE)
    assert shown == {
        **{name: DEFAULTS[name] for name in DEFAULTS if name not in {"standing", "stored_context", "changed"}},
        "state": "finished",
        "can_go_on": False,
        "files": ["calc.py", "new.py"],
        "context": AgentContext(workspace="/w").model_dump(mode="json"),
    }
    assert as_json(shown).isascii()


def test_a_step_as_an_object_names_tools_and_targets() -> None:
    assert step_object(STEPS[1]) == {
        "step": 1,
        "turn": 1,
        "kind": "calls",
        "calls": [{"tool": "edit_file", "target": "a.py"}, {"tool": "", "target": ""}],
        "changed": ["a.py", "b\x1b.py"],
        "can_fork": True,
    }


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 byte"), (999, "999 bytes"), (1_234, "1.2 kB"), (5_600_000, "5.6 MB")]
)
def test_bytes(count: int, words: str) -> None:
    assert bytes_words(count) == words
