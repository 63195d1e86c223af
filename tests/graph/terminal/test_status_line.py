"""What the status line says, and where it stands."""

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
from mendgraph.graph.terminal import status_line
from mendgraph.graph.terminal.answers import Screen
from mendgraph.graph.terminal.status_line import StatusLine, amount, is_live
from mendgraph.nodes.call_model.budget import APILimits
from mendgraph.nodes.call_model.ledger import RunLimits
from mendgraph.nodes.records import Outcome, OutcomeKind, StopReason, ToolCall
from tests.graph.terminal.played_terminal import TerminalFile

PAID = Paid(1, "reply", "gpt-x", 12_300, 1_100, 0, 0.02, 1.5)
ENDED = Ended(Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done."))


def call(tool: str = "grep", **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool, arguments=arguments, raw_arguments="{}")


def console(file: io.StringIO, width: int = 200, **environment: str) -> Console:
    return Console(file=file, width=width, no_color=True, _environ={"TERM": "xterm", **environment})


class Shown:
    """A status line on a terminal whose clock stands still unless a test moves it."""

    def __init__(self, width: int = 200, **limits: Any) -> None:
        self.terminal, self.now_s, self.loads = TerminalFile(), 0.0, False
        self.line = StatusLine(
            console(self.terminal, width), RunLimits(**limits), lambda: self.loads, lambda: self.now_s
        )
        self.out, self.err = (Screen(console(self.terminal, width), self.line.write) for _ in range(2))

    def note(self, *events: Event) -> str:
        for event in events:
            self.line.note(event)
        return self.line.words()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, the line is shown; nothing refreshes it but what is written."""
        with asyncio.Runner() as runner, ExitStack() as shown:

            async def enter() -> None:
                shown.enter_context(self.line.shown())

            runner.run(enter())
            yield


def test_it_shows_each_count_against_its_limit() -> None:
    shown = Shown(max_cost_usd=0.5, max_seconds=300.0, max_steps=20)
    shown.now_s = 41.7
    assert shown.note(PAID, StepDone((), ()), ToolStarted(call(pattern="def add", path="src"))) == (
        "running grep 'def add' in src · 0:42/5:00 · calls 1/10 · $0.02/$0.50 · in 12.3k/100k · out 1.1k/50k"
        " · step 2/20"
    )


def test_what_has_no_limit_and_no_price_is_left_out() -> None:
    words = "waiting for the model · 0:00 · calls 1/10 · in 12.3k/100k · out 1.1k/50k · step 1"
    assert Shown().note(replace(PAID, cost_usd=0.0)) == words
    assert Shown().note(replace(PAID, cost_usd=None)) == words
    assert " · $?/$2.00 · " in Shown(max_cost_usd=2.0).note(replace(PAID, cost_usd=None))
    assert " · $0.0004 · " in Shown().note(replace(PAID, cost_usd=0.0004))


def test_calls_of_a_child_count_as_calls_of_the_turn() -> None:
    of_child = OfChild("1.1", "Find it.", PAID)
    nested = OfChild("1.1", "Find it.", Text("Hello"))
    words = Shown().note(PAID, of_child, nested)
    assert words == "waiting for the model · 0:00 · calls 2/10 · $0.04 · in 24.6k/100k · out 2.2k/50k · step 1"


def test_cost_stays_unknown_after_one_call_without_a_price() -> None:
    assert " · $?/$2.00 · " in Shown(max_cost_usd=2.0).note(replace(PAID, cost_usd=None), PAID)


@pytest.mark.parametrize("event", [Asked({}), ENDED])
def test_line_says_no_activity_while_nothing_runs(event: Event) -> None:
    assert Shown().note(Text("Hello"), event).startswith("0:00 · ")


def test_line_says_that_the_local_model_is_loading_only_while_a_reply_is_awaited() -> None:
    shown = Shown()
    shown.loads = True
    assert shown.note().startswith("loading the local model · 0:00 · ")
    assert shown.note(Text("Hello")).startswith("the model is writing · 0:00 · ")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1k"),
        (12_345, "12.3k"),
        (999_949, "999.9k"),
        (1_000_000, "1M"),
        (1_250_000, "1.2M"),
    ],
)
def test_amount_is_written_in_few_characters(number: int, words: str) -> None:
    assert amount(number) == words


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Text("Hello"), "the model is writing"),
        (Waiting(3.2, "Busy."), "trying again in 3.2 s"),
        (HealingBegan(2, ()), "asking again, attempt 2"),
        (FellBack("gpt-x", "local\x1b[2J", "Busy."), "asking local\\x1b[2J"),
        (ToolStarted(call("run_command", argv=["make", "test"])), "running run_command make test"),
        (StepDone((), ()), "waiting for the model"),
        (Alerted("cost", "Dear.", 9.0, 3.0), "waiting for the model"),
        (Compacted(1, "cleared", 9, 3), "waiting for the model"),
    ],
)
def test_it_says_what_is_going_on(event: Event, words: str) -> None:
    assert Shown().note(event).startswith(f"{words} · 0:00 · ")


USED = {
    "total_calls": 95,
    "calls_in_current_turn": 4,
    "total_input_tokens": 60_000,
    "input_tokens_in_current_turn": 9_000,
    "total_output_tokens": 2_000,
    "output_tokens_in_current_turn": 1_500,
    "steps_in_current_turn": 3,
    "seconds_in_current_turn": 12.5,
    "cost_usd": 0.25,
}


def test_limit_that_is_nearer_is_shown() -> None:
    shown = Shown(max_output_tokens_per_turn=5_000)
    shown.line.begin(USED)
    assert shown.line.words().endswith("0:00 · calls 95/100 · $0.25 · in 60k/100k · out 0/5k · step 1")


def test_turn_that_is_taken_up_goes_on_counting() -> None:
    shown = Shown(api=APILimits(max_calls_per_session=200))
    shown.line.begin(USED, same_turn=True)
    assert shown.line.words().endswith("0:12 · calls 4/10 · $0.25 · in 60k/100k · out 2k/50k · step 4")
    shown.line.begin(USED)
    assert " · calls 0/10 · $0.25 · in 60k/100k" in shown.line.words()


# --- Where it stands


def test_it_stands_below_what_is_written_and_goes_when_the_run_is_over() -> None:
    shown = Shown()
    with shown.at_work():
        (words,) = shown.terminal.shown
        assert words.startswith("waiting for the model · 0:00 · ")
        shown.out.write("Hello")
        assert shown.terminal.shown == ["Hello"]
        shown.now_s = 7
        shown.err.line("! no log")
        assert shown.terminal.shown == ["Hello! no log", words.replace("0:00", "0:07")]
    shown.out.write("After.")
    assert shown.terminal.shown == ["Hello! no log", "After."]


@pytest.mark.parametrize("width", [1, 2, 9, 20])
def test_it_is_never_wider_than_the_terminal_and_nothing_in_it_steers_the_screen(width: int) -> None:
    shown = Shown(width)
    shown.note(FellBack("a", "漢字 \x1b[2J\r\n of a long name", "b"))
    with shown.at_work():
        (line,) = shown.terminal.shown or [""]
        assert cell_len(line) < width
        assert "\x1b[2J" not in line


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, True), ({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, False), ({"TTY_INTERACTIVE": "0"}, False)],
)
def test_terminals_have_one_unless_they_cannot_or_do_not_want_it(environment: dict[str, str], expected: bool) -> None:
    assert is_live(console(TerminalFile(), 200, **environment)) is expected


def test_it_is_there_while_a_turn_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_line, "REFRESH_S", 0.001)
    shown = Shown()

    async def part(until: str) -> None:
        with shown.line.shown():
            shown.now_s += 3.0
            while until not in "".join(shown.terminal.shown):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0)

    asyncio.run(part(" · 0:03 · "))
    assert shown.terminal.shown == []


def test_it_goes_when_a_turn_is_cut_off_and_where_the_terminal_is_gone() -> None:
    shown = Shown()

    async def turn() -> None:
        with shown.line.shown():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(turn())
    assert shown.terminal.shown == []
