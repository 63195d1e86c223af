"""The text of the status line, and its place on the screen."""

import asyncio
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from mendgraph.graph.runs.events import (
    Alerted,
    Asked,
    Compacted,
    Ended,
    Event,
    FellBack,
    HealingBegan,
    OfChild,
    Paid,
    StepDone,
    Text,
    ToolStarted,
    Waiting,
)
from mendgraph.graph.terminal.output import Screen
from mendgraph.graph.terminal.run_view import RunView
from mendgraph.graph.terminal.status_line import StatusLine, amount, is_live
from mendgraph.graph.terminal.visible_text import VisibleText
from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason, ToolCall
from tests.surfaces.terminal.played_terminal import TerminalFile

PAID = Paid(1, "reply", "gpt-x", 12_300, 1_100, 0, 0.02, 1.5)


def call(tool: str = "grep", **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool, arguments=arguments, raw_arguments="{}")


def console(file: io.StringIO, width: int = 200, **environment: str) -> Console:
    return Console(file=file, width=width, no_color=True, _environ={"TERM": "xterm", **environment})


class StatusDisplay:
    """A status line on a terminal whose clock a test sets."""

    def __init__(self, width: int = 200, **limits: Any) -> None:
        self.terminal, self.now_s, self.loads = TerminalFile(), 0.0, False
        self.line = StatusLine(
            console(self.terminal, width), RunLimits(**limits), lambda: self.loads, lambda: self.now_s
        )
        self.view = RunView(VisibleText(frozenset()))
        self.line.begin_turn(self.view, {})
        self.out, self.err = (Screen(console(self.terminal, width), self.line.write) for _ in range(2))

    def note(self, *events: Event) -> str:
        for event in events:
            list(self.view.read(event))
        return self.line.text(1_000)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, the line is shown; nothing refreshes it but what is written."""
        with asyncio.Runner() as runner, ExitStack() as stack:

            async def enter() -> None:
                stack.enter_context(self.line.visible())

            runner.run(enter())
            yield


def test_counts_are_shown_with_their_limits() -> None:
    display = StatusDisplay(max_cost_usd=0.5, max_seconds=300.0, max_steps=20)
    display.now_s = 41.7
    assert display.note(PAID, StepDone((), ()), ToolStarted(call(pattern="def add", path="src"))) == (
        "running grep 'def add' in src · 0:42/5:00 · calls 1/10 · $0.02/$0.50 · in 12.3k/100k · out 1.1k/50k"
        " · step 2/20"
    )


def test_cost_is_omitted_without_a_price_and_unknown_under_a_limit() -> None:
    words = "waiting for the model · 0:00 · calls 1/10 · in 12.3k/100k · out 1.1k/50k · step 1"
    assert StatusDisplay().note(replace(PAID, cost_usd=0.0)) == words
    assert StatusDisplay().note(replace(PAID, cost_usd=None)) == words
    assert " · $?/$2.00 · " in StatusDisplay(max_cost_usd=2.0).note(replace(PAID, cost_usd=None), PAID)
    assert " · $0.0004 · " in StatusDisplay().note(replace(PAID, cost_usd=0.0004))


def test_calls_of_a_child_count_for_the_turn() -> None:
    of_child = OfChild("1.1", "Find it.", PAID)
    nested = OfChild("1.1", "Find it.", Text("Hello"))
    words = StatusDisplay().note(PAID, of_child, nested)
    assert words == "waiting for the model · 0:00 · calls 2/10 · $0.04 · in 24.6k/100k · out 2.2k/50k · step 1"


AMOUNTS = {0: "0", 999: "999", 1_000: "1k", 12_345: "12.3k", 999_949: "999.9k", 1_000_000: "1M", 1_250_000: "1.2M"}
FINISHED = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.")
ACTIVITIES: tuple[tuple[Event, str], ...] = (
    (Text("Hello"), "the model is writing · 0:00 · "),
    (Waiting(3.2, "Busy."), "trying again in 3.2 s · 0:00 · "),
    (HealingBegan(2, ()), "asking again, attempt 2 · 0:00 · "),
    (FellBack("gpt-x", "local\x1b[2J", "Busy."), "asking local\\x1b[2J · 0:00 · "),
    (ToolStarted(call("run_command", argv=["make", "test"])), "running run_command make test · 0:00 · "),
    (StepDone((), ()), "waiting for the model · 0:00 · "),
    (Alerted("cost", "Dear.", 9.0, 3.0), "waiting for the model · 0:00 · "),
    (Compacted(1, "cleared", 9, 3), "waiting for the model · 0:00 · "),
    (Asked({}), "0:00 · "),
    (Ended(FINISHED), "0:00 · "),
)


def test_activity_is_shown_in_a_few_words() -> None:
    assert [event for event, words in ACTIVITIES if not StatusDisplay().note(event).startswith(words)] == []
    assert {number: amount(number) for number in AMOUNTS} == AMOUNTS
    display = StatusDisplay()
    display.loads = True
    assert display.note().startswith("loading the local model · 0:00 · ")
    assert display.note(Text("Hello")).startswith("the model is writing · 0:00 · ")


def test_nearest_limit_is_shown_and_a_resumed_turn_continues_its_counts() -> None:
    usage = {"total_calls": 95, "total_input_tokens": 60_000, "total_output_tokens": 2_000, "cost_usd": 0.25}
    turn = {"calls": 4, "input_tokens": 9_000, "output_tokens": 1_500, "steps": 3, "seconds": 12.5}
    usage |= {f"{name}_in_current_turn": value for name, value in turn.items()}
    display = StatusDisplay(max_output_tokens_per_turn=5_000)
    display.line.begin_turn(display.view, usage)
    assert display.note().endswith("0:00 · calls 95/100 · $0.25 · in 60k/100k · out 0/5k · step 1")
    display = StatusDisplay(api=APILimits(max_calls_per_session=200))
    display.line.begin_turn(display.view, usage, resumed=True)
    assert display.note().endswith("0:12 · calls 4/10 · $0.25 · in 60k/100k · out 2k/50k · step 4")


# --- Its place on the screen


def test_status_line_stays_below_the_output_and_is_removed_after_the_run() -> None:
    display = StatusDisplay()
    with display.at_work():
        (words,) = display.terminal.visible_lines
        assert words.startswith("waiting for the model · 0:00 · ")
        display.out.write("Hello")
        assert display.terminal.visible_lines == ["Hello"]
        display.now_s = 7
        display.err.line("! no log")
        assert display.terminal.visible_lines == ["Hello! no log", words.replace("0:00", "0:07")]
    display.out.write("After.")
    assert display.terminal.visible_lines == ["Hello! no log", "After."]


@pytest.mark.parametrize("width", [1, 20])
def test_status_line_fits_the_terminal_and_cannot_control_it(width: int) -> None:
    display = StatusDisplay(width)
    display.note(FellBack("a", "漢字 \x1b[2J\r\n of a long name", "b"))
    with display.at_work():
        (line,) = display.terminal.visible_lines or [""]
        assert (cell_len(line) < width, "\x1b[2J" in line) == (True, False)


def test_last_parts_are_omitted_if_the_line_does_not_fit() -> None:
    display = StatusDisplay()
    display.note(PAID)
    assert display.line.text(60) == "waiting for the model · 0:00 · calls 1/10 · $0.02"


def test_terminal_has_a_status_line_unless_it_is_dumb_or_turned_off() -> None:
    terminals: dict[tuple[str, str], bool] = {
        ("TERM", "xterm"): True,
        ("NO_COLOR", "1"): True,
        ("TERM", "dumb"): False,
        ("TTY_INTERACTIVE", "0"): False,
    }
    is_live_by_terminal = {
        (name, value): is_live(console(TerminalFile(), 200, **{name: value})) for name, value in terminals
    }
    assert is_live_by_terminal == terminals


def test_status_line_is_refreshed_during_a_turn_and_removed_after_an_interrupt() -> None:
    display = StatusDisplay()

    async def turn() -> None:
        with display.line.visible():
            display.now_s += 3.0
            while " · 0:03 · " not in "".join(display.terminal.visible_lines):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(turn())
    assert display.terminal.visible_lines == []
