"""A line below a run's output that changes while the run is at work, and of which nothing stays.

It lives on interactive terminals alone, in the row below the cursor, which goes back to where it was: whatever is
written next stands where it would stand without it, and a terminal that wraps its lines anew takes cursor and line
along. Nothing is drawn where the cursor's place is not certain: at the right edge, and in a line with signs whose width
terminals disagree about, or that was begun in a terminal of another width. Pure but for the console that it is given.
"""

from collections.abc import Callable
from typing import IO, Final
from unicodedata import category, combining, east_asian_width

from rich.cells import cell_len, get_character_cell_size, set_cell_size
from rich.console import Console
from rich.style import Style

from graph.terminal.plain_text import one_line

LEAST_REST_S: Final = 0.1
"""How long the line stays away between two drawings that output causes."""

_TAB: Final = 8
_FEWEST_CELLS: Final = 8
"""Nothing useful fits into less."""

_DOWN, _UP, _KEEP_PLACE, _BACK = "\x1bD", "\x1bM", "\x1b7", "\x1b8"
_ERASE_ROW, _ERASE_REST, _ERASE_BELOW = "\x1b[2K", "\x1b[K", "\x1b[J"
"""Down (index) makes room where there is no row below, and like up it leaves the cursor in its column.
Source: the VT100's IND, RI, DECSC, DECRC, and ECMA-48's EL and ED, which every terminal in use knows."""

_DRAW: Final = f"{_DOWN}{_UP}{_KEEP_PLACE}{_DOWN}\r%s{_ERASE_BELOW}{_BACK}"
_CLEAR: Final = f"{_DOWN}{_ERASE_ROW}{_ERASE_BELOW}{_UP}"
_ANEW: Final = f"\r{_ERASE_REST}"
"""At the start of a line: what the keyboard has echoed there, such as ^C, is none of ours."""


def is_live(console: Console) -> bool:
    """Whether this console's stream is a terminal on which lines can be drawn anew.

    A pipe is none, whatever FORCE_COLOR says, and TERM=dumb is none; TTY_INTERACTIVE=0 turns it off (Rich's variable).
    """
    shown_to_a_person = console.is_interactive and console.is_terminal and console.file.isatty()
    return shown_to_a_person and not console.is_dumb_terminal and not console.legacy_windows


def live_line(out: Console, err: Console, clock: Callable[[], float]) -> "LiveLine | None":
    """The status line of this terminal; None where the answer goes elsewhere, or errors to a terminal without one."""
    if not is_live(out) or (err.file.isatty() and not is_live(err)):
        return None
    return LiveLine(out, clock)


class LiveLine:
    """The line. All that is written to the terminal has to pass `write`, whichever stream it goes to.

    `clock` gives seconds that never go back.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        """Nothing is drawn before `begin`."""
        self._console, self._clock = console, clock
        colours = console.color_system and not console.no_color
        self._style = Style(dim=True) if colours else Style.null()
        self._words: Callable[[int, float], str] | None = None
        self._drawn = ""
        self._drawn_s = 0.0
        self._in_line = False
        self._column, self._width = 0, 0  # where the cursor is in a terminal of this width
        self._certain = True

    def begin(self, words: Callable[[int, float], str]) -> None:
        """Show what `words` says from now on. It is asked with the cells that there are, and the time."""
        self._words = words
        self.refresh()

    def now(self) -> float:
        """The time of its clock, in seconds."""
        return self._clock()

    def end(self) -> None:
        """Take the line away."""
        self._clear()
        self._words = None

    def refresh(self) -> None:
        """Draw it, if it is not there or would say something else."""
        if self._words is None:
            return
        width = self._console.width
        self._measure(width)
        words = self._cut(self._words(width - 1, self._clock()), width - 1)
        if words == self._drawn or width <= _FEWEST_CELLS:
            return
        if self._certain and self._column < width:
            self._send(_DRAW % self._style.render(words))
            self._drawn, self._drawn_s = words, self._clock()

    def write(self, file: IO[str], text: str, rendered: str = "") -> None:
        """Write this to one of the terminal's streams; `rendered` is the text with its colours, if it has any."""
        if self._words is not None and text:
            if not self._fits(text):
                self._clear()
            if not self._in_line:
                self._send(_ANEW)
        file.write(rendered or text)
        file.flush()
        self._note(text)
        if self._words is not None and self._clock() - self._drawn_s >= LEAST_REST_S:
            self.refresh()

    def _clear(self) -> None:
        if self._drawn:
            self._send(_CLEAR)
            self._drawn = ""

    def _send(self, codes: str) -> None:
        self._console.file.write(codes)
        self._console.file.flush()

    def _fits(self, text: str) -> bool:
        """Whether the text goes on in this row, so that what stands below is left as it is."""
        if self._console.width != self._width:
            return False
        plain_words = self._certain and _is_certain(text) and "\n" not in text and "\t" not in text
        return plain_words and self._column + cell_len(text) < self._width

    def _note(self, text: str) -> None:
        self._measure(self._console.width)
        _, line_end, tail = text.rpartition("\n")
        if line_end:
            self._in_line, self._column, self._certain = False, 0, True
        if tail:
            self._in_line = True
            self._pass(tail)

    def _measure(self, width: int) -> None:
        """Take note of a terminal that has been made wider or narrower: some then wrap the line anew, some do not."""
        if width != self._width:
            self._width, self._certain = width, not self._in_line

    def _pass(self, text: str) -> None:
        """Move on behind this text. What a tab does at the right edge, terminals disagree about."""
        at_edge = "\t" in text and self._column + cell_len(text.expandtabs(_TAB)) + _TAB >= self._width
        self._certain = self._certain and _is_certain(text) and not at_edge
        self._column = self._after(text)

    def _after(self, text: str) -> int:
        """The column after this text; the terminal's width where it waits at the right edge."""
        column, width = self._column, self._width
        if text.isascii() and text.isprintable():
            column += len(text)
            return column if column <= width else (column - 1) % width + 1
        for character in text:
            if character == "\t":
                column = min((column // _TAB + 1) * _TAB, width - 1)
                continue
            cells = get_character_cell_size(character)
            column = column + cells if column + cells <= width else cells
        return column

    @staticmethod
    def _cut(words: str, cells: int) -> str:
        line = one_line(words, max(cells, 4))
        return line if cell_len(line) <= cells else set_cell_size(line, cells)


def _is_certain(text: str) -> bool:
    """Whether all terminals give these signs the same width."""
    return text.isascii() or all(map(_has_one_width, text))


def _has_one_width(character: str) -> bool:
    if character.isascii():
        return True
    known = east_asian_width(character) in {"Na", "W", "N"} and not combining(character)
    return known and category(character)[0] in "LNP"
