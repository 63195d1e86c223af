"""What the status line says: what is going on, and what is used of each limit, in as many cells as there are."""

import asyncio
import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len
from rich.console import Console

from graph.events import (
    Alerted,
    Asked,
    CallsRead,
    Compacted,
    Ended,
    Event,
    FellBack,
    HealingBegan,
    Paid,
    StepDone,
    Text,
    ToolStarted,
    Waiting,
)
from graph.terminal import status_line as live_status
from graph.terminal.screen import Screen
from graph.terminal.status_line import LEAST_REST_S, LiveLine, LiveStatus, Status, amount, is_live, live_line
from nodes.call_model.budget import APILimits
from nodes.call_model.limits import RunLimits
from nodes.records import Outcome, OutcomeKind, StopReason, ToolCall
from tests.graph.terminal.small_terminal import SmallTerminal

PAID = Paid(1, "reply", "gpt-x", 12_300, 1_100, 0, 0.02, 1.5)
ENDED = Ended(Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done."))


def call(tool: str = "grep", **arguments: Any) -> ToolCall:
    return ToolCall(call_id="1", tool=tool, arguments=arguments, raw_arguments="{}")


def status(*events: Event, at_s: float = 0.0, **limits: Any) -> Status:
    begun = Status(RunLimits(**limits))
    begun.begin(0.0, {})
    for event in events:
        begun.note(event, at_s)
    return begun


def test_it_tells_each_count_against_its_limit() -> None:
    limits = {"max_cost_usd": 0.5, "max_seconds": 300.0, "max_steps": 20}
    told = status(PAID, StepDone((), ()), ToolStarted(call(pattern="def add", path="src")), **limits)
    assert told.words(200, 41.7) == (
        "step 2/20 · calls 1/10 · in 12.3k/100k · out 1.1k/50k · $0.02/$0.50 · 41 s/300 s"
        " · running grep 'def add' in src"
    )


def test_what_has_no_limit_and_no_price_is_told_as_far_as_it_goes() -> None:
    free = status(replace(PAID, cost_usd=0.0))
    assert free.words(200, 41.0) == "step 1 · calls 1/10 · in 12.3k/100k · out 1.1k/50k · 41 s · waiting for the model"
    unknown = status(replace(PAID, cost_usd=None), max_cost_usd=2.0)
    assert " · $?/$2.00 · " in unknown.words(200, 0)
    assert "$" not in status(replace(PAID, cost_usd=None)).words(200, 0)
    assert " · $0.0004 · " in status(replace(PAID, cost_usd=0.0004)).words(200, 0)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (99, "step 1 · calls 1/10 · in 12.3k/100k · out 1.1k/50k · $0.02 · 41 s/300 s · running read_file src/ca…"),
        (79, "calls 1/10 · in 12.3k/100k · $0.02 · 41 s/300 s · running read_file src/calcul…"),
        (39, "41 s/300 s · running read_file src/cal…"),
        (19, "running read_file…"),
        (9, "running…"),
        (1, "…"),
    ],
)  # fmt: skip
def test_what_matters_less_goes_first_where_there_is_less_room(cells: int, words: str) -> None:
    told = status(PAID, ToolStarted(call("read_file", path="src/calculator.py")), max_seconds=300.0)
    assert told.words(cells, 41.0) == words


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Text("Hello"), "the model is writing"),
        (Waiting(3.2, "Busy."), "trying again in 3 s"),
        (HealingBegan(2, ()), "asking again, attempt 2"),
        (FellBack("gpt-x", "local\x1b[2J", "Busy."), "asking local\\x1b[2J"),
        (CallsRead(()), "looking at the calls"),
        (ToolStarted(call("run_checks")), "running the checks"),
        (ToolStarted(call("final_answer", answer="x")), "looking at the answer"),
        (ToolStarted(call("run_command", argv=["make", "test"])), "running run_command make test"),
        (StepDone((), ()), "waiting for the model"),
        (Alerted("cost", "Dear.", 9.0, 3.0), "waiting for the model"),
        (Compacted(1, "cleared", 9, 3), "waiting for the model"),
    ],
)
def test_it_says_what_is_going_on(event: Event, words: str) -> None:
    assert status(event).words(200, 0).endswith(f" · 0 s · {words}")


@pytest.mark.parametrize("event", [Asked({}), ENDED])
def test_where_nothing_is_going_on_nothing_is_said_of_it(event: Event) -> None:
    assert status(event).words(200, 0).endswith(" · 0 s")


def test_a_wait_is_counted_down_until_something_happens() -> None:
    told = status(Waiting(3.2, "Busy."), at_s=1.0)
    assert told.words(200, 2.0).endswith("trying again in 2 s")
    assert told.words(200, 9.0).endswith("trying again in 0 s")
    told.note(Text("Hi"), 9.0)
    assert told.words(200, 9.0).endswith("the model is writing")


def test_the_local_model_is_being_loaded_while_the_call_waits_for_it() -> None:
    loading = [True]
    told = Status(RunLimits(), loading=lambda: loading[0])
    told.begin(0.0, {})
    assert told.words(200, 0).endswith("loading the local model")
    loading.clear()
    loading.append(False)
    assert told.words(200, 0).endswith("waiting for the model")


def test_a_reply_that_is_coming_counts_by_its_length_until_it_is_settled() -> None:
    told = status(Text("x" * 400))
    assert "out 100/50k" in told.words(200, 0)
    told.note(PAID, 0)
    assert "out 1.1k/50k" in told.words(200, 0)
    again = status(Text("x" * 400), Waiting(1.0, "It broke off."))
    assert "out 0/50k" in again.words(200, 0)


def test_a_run_that_is_to_stop_says_so_whatever_happens_next() -> None:
    told = status()
    told.stopping()
    told.note(ToolStarted(call()), 0)
    assert told.words(200, 0).endswith("stopping after the running step")


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


def test_the_limit_that_is_nearer_is_told() -> None:
    told = Status(RunLimits(max_output_tokens_per_turn=5_000))
    told.begin(0.0, USED)
    assert told.words(200, 0) == (
        "step 1 · calls 95/100 · in 60k/100k · out 0/5k · $0.25 · 0 s · waiting for the model"
    )


def test_a_turn_that_is_taken_up_goes_on_counting() -> None:
    told = Status(RunLimits(api=APILimits(max_calls_per_session=200)))
    told.begin(100.0, USED, same_turn=True)
    assert told.words(200, 101.0) == (
        "step 4 · calls 4/10 · in 60k/100k · out 2k/50k · $0.25 · 13 s · waiting for the model"
    )
    told.begin(200.0, USED)
    assert told.words(200, 200.0).startswith("step 1 · calls 0/10 · in 60k/100k")


def test_the_time_in_which_a_person_is_asked_is_not_the_runs() -> None:
    told = status()
    told.pause(10.0)
    assert " · 10 s · " in told.words(200, 50.0)
    told.go_on(60.0)
    assert " · 12 s · " in told.words(200, 62.0)
    told.go_on(70.0)
    assert " · 1:20 min · " in told.words(200, 130.0)
    assert " · 2:46:40 h · " in told.words(200, 10_050.0)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "0"), (999, "999"), (1_000, "1k"), (1_100, "1.1k"), (12_345, "12.3k"), (99_949, "99.9k"), (99_950, "100k"),
        (100_000, "100k"), (999_499, "999k"), (999_500, "1M"), (1_234_567, "1.2M"), (2**53, "9007199255M"),
    ],
)  # fmt: skip
def test_counts_are_short(number: int, words: str) -> None:
    assert amount(number) == words


TARGETS = st.text(alphabet="ab漢é ./", max_size=60)


@given(TARGETS, st.integers(1, 200), st.integers(0, 10**7), st.floats(0, 10**6))
def test_it_is_never_wider_than_its_room(path: str, cells: int, tokens: int, now_s: float) -> None:
    paid = replace(PAID, input_tokens=tokens, output_tokens=tokens)
    told = status(paid, ToolStarted(call("read_file", path=path)), max_cost_usd=0.5)
    assert cell_len(told.words(cells, now_s)) <= cells


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Shown:
    """A terminal with a status line, and the two screens that write to it."""

    def __init__(self, width: int = 20, height: int = 6) -> None:
        self.terminal, self.clock = SmallTerminal(width, height), Clock()
        self.console = _console(self.terminal)
        self.live = LiveLine(self.console, self.clock)
        self.out, self.err = Screen(self.console, self.live), Screen(self.console, self.live)

    def begin(self, words: str = "working") -> None:
        self.live.begin(lambda cells, now_s: f"{words} {now_s:g}"[:cells])

    def write(self, text: str) -> list[str]:
        self.clock.now_s += LEAST_REST_S * 2
        self.out.write(text)
        return self.terminal.shown


def _console(terminal: SmallTerminal, **options: Any) -> Console:
    environment: dict[str, str] = options.pop("environment", {"TERM": "xterm"})
    file = cast("Any", terminal)
    return Console(file=file, width=terminal.width, height=terminal.height, _environ=environment, **options)


def test_it_stands_below_what_is_written_and_goes_when_the_run_is_over() -> None:
    shown = Shown()
    shown.begin()
    assert shown.terminal.shown == ["", "working 0"]
    assert shown.write("Hello") == ["Hello", "working 0.2"]
    assert shown.write(", you.") == ["Hello, you.", "working 0.4"]
    assert shown.write("\nNext line\n") == ["Hello, you.", "Next line", "", "working 0.6"]
    shown.live.end()
    assert shown.terminal.shown == ["Hello, you.", "Next line"]
    assert shown.write("After.") == ["Hello, you.", "Next line", "After."]


def test_before_it_begins_and_after_its_end_there_is_nothing_to_draw() -> None:
    shown = Shown()
    shown.live.refresh()
    assert shown.terminal.shown == []
    shown.begin()
    shown.live.end()
    shown.live.refresh()
    assert shown.terminal.shown == []


def test_words_that_wrap_take_its_place() -> None:
    shown = Shown()
    shown.begin()
    shown.write("a word and another")
    assert shown.write(" one") == ["a word and another o", "ne", "working 0.4"]


def test_at_the_right_edge_it_waits_for_the_next_word() -> None:
    shown = Shown()
    shown.begin()
    assert shown.write("x" * 20) == ["x" * 20]
    assert shown.write("y") == ["x" * 20, "y", "working 0.4"]


@pytest.mark.parametrize("odd", ["\U0001f469\u200d\U0001f467", "e\u0301", "\u2026", "\u263a\ufe0f"])
def test_it_keeps_away_from_signs_whose_width_terminals_disagree_about(odd: str) -> None:
    shown = Shown()
    shown.begin()
    assert "working" not in "".join(shown.write(f"so {odd}"))
    assert shown.write("\n")[-1] == "working 0.4"


def test_it_leaves_the_bottom_row_to_the_words() -> None:
    shown = Shown(height=2)
    shown.begin()
    for number in range(4):
        shown.write(f"line {number}\n")
    shown.write("words")
    shown.live.end()
    assert shown.terminal.shown == ["line 0", "line 1", "line 2", "line 3", "words"]


def test_errors_and_answers_share_it() -> None:
    shown = Shown()
    shown.begin()
    shown.write("Half a")
    shown.clock.now_s += 1
    shown.err.line("! no log")
    assert shown.terminal.shown == ["Half a! no log", "", "working 1.2"]


def test_it_is_drawn_anew_only_when_it_says_something_else() -> None:
    shown = Shown()
    shown.begin()
    before = len(_written(shown))
    shown.live.refresh()
    assert len(_written(shown)) == before
    shown.clock.now_s = 7
    shown.live.refresh()
    assert shown.terminal.shown == ["", "working 7"]


def test_fast_output_does_not_draw_it_each_time() -> None:
    shown = Shown()
    shown.begin()
    sent = _written(shown)
    for _ in range(50):
        shown.out.write("word\n")
    assert "".join(sent).count("working") == 0
    shown.clock.now_s = LEAST_REST_S
    shown.out.write("word\n")
    assert "".join(sent).count("working") == 1


def test_in_a_terminal_that_is_made_narrower_it_waits_for_the_next_line() -> None:
    shown = Shown(width=30)
    shown.begin()
    shown.write("twenty-five cells of text")
    shown.terminal.width = shown.console.width = 10
    sent = _written(shown)
    shown.write("!")
    assert sent == ["\x1bD\x1b[2K\x1b[J\x1bM", "!"]  # what is below the cursor goes, however it was wrapped
    shown.write("\n")
    assert "working 0" in "".join(sent)


@pytest.mark.parametrize("width", [1, 5, 8])
def test_where_there_is_no_room_there_is_no_line(width: int) -> None:
    shown = Shown(width=width)
    shown.begin()
    assert shown.terminal.shown == []


def test_control_characters_do_not_get_into_it() -> None:
    shown = Shown(width=40)
    shown.begin("evil \x1b[2J\r\n name")
    assert shown.terminal.shown == ["", "evil \\x1b[2J name 0"]


@pytest.mark.parametrize("echoed", ["^C", "type-ahead"])
def test_what_the_keyboard_echoes_at_the_start_of_a_line_does_not_stay(echoed: str) -> None:
    shown = Shown(width=40)
    shown.begin()
    shown.terminal.write(echoed)
    assert shown.write("stopping\n")[0] == "stopping"


def test_a_line_that_is_typed_meanwhile_leaves_nothing_of_it() -> None:
    shown = Shown(width=40)
    shown.begin()
    shown.terminal.write("go on\n")
    shown.write("words\n")
    shown.live.end()
    assert shown.terminal.shown == ["go on", "words"]


def _written(shown: Shown) -> list[str]:
    """What is written to the terminal from now on."""
    sent: list[str] = []
    write = shown.terminal.write

    def note(text: str) -> int:
        sent.append(text)
        return write(text)

    cast("Any", shown.terminal).write = note
    return sent


PIECES = st.one_of(
    st.text(alphabet="ab \t\n漢é", max_size=30),
    st.sampled_from(["\r\n", "\U0001f600", "e\u0301", "word " * 9, "tool → 3 lines\n"]),
    st.just(None),
)


@given(st.lists(PIECES, max_size=25), st.integers(9, 40), st.integers(2, 7), st.sampled_from([0.0, 0.05, 0.3]))
def test_what_is_written_stands_as_if_it_had_never_been_there(
    pieces: list[str | None], width: int, height: int, step_s: float
) -> None:
    with_line, without = Shown(width, height), Shown(width, height)
    with_line.begin("a status that says a lot more than fits")
    for piece in pieces:
        with_line.clock.now_s += step_s
        if piece is None:
            with_line.live.refresh()
            continue
        for screen in (with_line.out, without.out):
            screen.write(piece)
    with_line.live.end()
    for screen in (with_line.out, without.out):
        screen.write("|")
    assert with_line.terminal.shown == without.terminal.shown


# --- Where it is


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "TTY_INTERACTIVE": "0"}, False),
        ({"TERM": "xterm", "TTY_COMPATIBLE": "0"}, False),
    ],
)
def test_terminals_have_one_unless_they_cannot_or_do_not_want_it(environment: dict[str, str], expected: bool) -> None:
    assert is_live(_console(SmallTerminal(40), environment=environment)) is expected


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}])
def test_a_pipe_has_none_whatever_it_is_coloured_with(environment: dict[str, str]) -> None:
    assert not is_live(Console(file=io.StringIO(), _environ={"TERM": "xterm", **environment}))


def test_both_streams_have_to_be_fit_for_it() -> None:
    terminal, dumb = _console(SmallTerminal(40)), _console(SmallTerminal(40), environment={"TERM": "dumb"})
    pipe = Console(file=io.StringIO(), _environ={})
    assert live_line(terminal, terminal, Clock()) is not None
    assert live_line(terminal, pipe, Clock()) is not None
    assert [live_line(out, err, Clock()) for out, err in ((pipe, terminal), (pipe, pipe), (terminal, dumb))] == [
        None
    ] * 3


def test_without_colours_it_is_plain() -> None:
    terminal = SmallTerminal(40)
    live = LiveLine(_console(terminal, environment={"TERM": "xterm", "NO_COLOR": "yes"}), Clock())
    sent: list[str] = []
    cast("Any", terminal).write = sent.append
    live.begin(lambda *_: "working")
    assert "".join(sent) == "\x1bD\x1bM\x1b7\x1bD\rworking\x1b[J\x1b8"


GREP = ToolStarted(ToolCall(call_id="1", tool="grep", arguments={"pattern": "x"}, raw_arguments="{}"))


class Scene:
    """A status on a terminal whose clock stands still unless a test moves it."""

    def __init__(self) -> None:
        self.terminal, self.now_s = SmallTerminal(100), 0.0
        console = Console(file=cast("Any", self.terminal), width=100, _environ={"TERM": "xterm"})
        self.live = LiveLine(console, lambda: self.now_s)
        self.status = LiveStatus(self.live, RunLimits(), lambda: False)

    @property
    def shown(self) -> str:
        return "|".join(self.terminal.shown)


def test_it_is_there_while_a_turn_is_at_work() -> None:
    scene = Scene()
    scene.status.begin(dict)

    async def turn() -> None:
        with scene.status.shown():
            assert scene.shown.endswith("0 s · waiting for the model")
            scene.status.note(GREP)
            scene.live.refresh()
            assert scene.shown.endswith("0 s · running grep 'x'")
        assert scene.shown == ""

    asyncio.run(turn())


def test_it_is_drawn_anew_as_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_status, "LOOK_S", 0.001)
    scene = Scene()
    scene.status.begin(dict)

    async def turn() -> None:
        drawn = asyncio.Event()
        write = scene.terminal.write

        def note(text: str) -> int:
            if " · 5 s · " in text:
                drawn.set()
            return write(text)

        with scene.status.shown():
            scene.now_s = 5.0
            monkeypatch.setattr(scene.terminal, "write", note)
            async with asyncio.timeout(60):
                await drawn.wait()

    asyncio.run(turn())
    assert scene.shown == ""


def test_the_time_between_two_parts_of_a_turn_is_a_persons() -> None:
    scene = Scene()
    scene.status.begin(dict)

    async def part() -> str:
        with scene.status.shown():
            scene.now_s += 3.0
            scene.live.refresh()
            return scene.shown

    assert " · 3 s · " in asyncio.run(part())
    scene.now_s += 100.0
    assert " · 6 s · " in asyncio.run(part())


def test_it_goes_when_a_turn_is_cut_off() -> None:
    scene = Scene()
    scene.status.begin(dict)

    async def turn() -> None:
        with scene.status.shown():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(turn())
    assert scene.shown == ""


def test_a_person_who_wants_it_to_stop_is_told_so() -> None:
    scene = Scene()
    scene.status.begin(dict)

    async def turn() -> None:
        with scene.status.shown():
            scene.status.stopping()
            scene.live.refresh()
            assert scene.shown.endswith("stopping after the running step")

    asyncio.run(turn())


def test_a_terminal_that_is_gone_needs_nothing_taken_away() -> None:
    scene = Scene()
    scene.status.begin(dict)
    scene.live.begin(lambda *_: "working")

    def gone(_: str) -> int:
        raise OSError

    cast("Any", scene.terminal).write = gone
    scene.status.end()


def test_without_a_terminal_nothing_is_asked_and_nothing_is_done() -> None:
    status = LiveStatus(None, RunLimits(), lambda: False)

    def usage() -> Mapping[str, Any]:
        raise AssertionError

    status.begin(usage)
    status.note(GREP)
    status.stopping()
    status.end()
    with status.shown():  # outside of any event loop, too
        pass
