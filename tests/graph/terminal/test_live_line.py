"""The status line of a terminal: it is there, it is gone, and what else is written stands as if it had never been."""

import io
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from graph.terminal.live_line import LEAST_REST_S, LiveLine, is_live, live_line
from graph.terminal.screen import Screen
from tests.graph.terminal.small_terminal import SmallTerminal


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
