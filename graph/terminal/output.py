"""Output of commands: lines for people, or objects for programs."""

import json
import math
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import typer
from rich.color import ColorSystem
from rich.style import Style

from mendgraph.nodes.language.display import plain

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from rich.console import Console

LONGEST_LINE = 1_000
"""Characters of a line that names a problem, a setting or a path."""


class Line(NamedTuple):
    """One line of output, and its Rich style in a terminal with colours.

    A terminal wraps a `verbatim` line, such as one of a diff; other lines are wrapped between words.
    """

    text: str
    style: str = ""
    verbatim: bool = False


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return each row as a line, with aligned columns; the columns `right` are aligned right."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]

    lines = []
    for row in rows:
        cells = []
        for number, text in enumerate(row):
            gap = " " * (widths[number] - cell_len(text))
            cells.append(gap + text if number in right else text + gap)

        lines.append("  ".join(cells))

    return lines


_WORD: Final = re.compile(r"\s*(?:(?<=: )mendgraph .*|`[^`]*`|\S)+")
"""A word with the blanks before it. A command is one word: in backquotes, or after a colon at the end of the line."""


def wrapped(text: str, columns: int) -> str:
    """Return a line, wrapped between words if it has more than `columns` cells; further lines are indented.

    A word that is longer than a line is left to the terminal.
    """
    from rich.cells import cell_len

    if cell_len(text) <= columns:
        return text

    indent = " " * (len(text) - len(text.lstrip()) + 2)
    lines = [""]
    for word in _WORD.findall(text):
        fits_alone = len(indent) + cell_len(word.lstrip()) <= columns
        if fits_alone and cell_len(lines[-1] + word) > columns:
            lines.append(indent + word.lstrip())
        else:
            lines[-1] += word

    return "\n".join(lines)


def clock(seconds: float) -> str:
    """Return a duration as 0:05, 12:34 or 1:02:03."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{seconds_left:02}"

    return f"{minutes}:{seconds_left:02}"


class Screen:
    """One stream of the terminal. Control characters are written as escapes, so no text can steer the terminal.

    CRLF is a line end; a carriage return alone is escaped and overwrites nothing. `write` writes to a terminal with a
    status line; it takes the file, the text, and the text with colours.
    """

    def __init__(self, console: "Console", write: Callable[[IO[str], str, str], None] | None = None) -> None:
        self._console = console
        self._file = console.file
        self._write = write
        self._colours = None
        if console.color_system and not console.no_color:
            self._colours = ColorSystem.STANDARD

        self._in_line = False
        self._return = ""  # a carriage return: the next piece may begin with a line feed

    def write(self, text: str) -> None:
        """Write at once, without ending the line."""
        text = self._return + text
        self._return = ""
        if text.endswith("\r"):
            self._return = "\r"

        text = text.removesuffix("\r").replace("\r\n", "\n")
        self._put(plain(text))
        if text:
            self._in_line = not text.endswith("\n")

    def line(self, text: str, style: str = "", verbatim: bool = False) -> None:
        """Write a line of its own, as a `Line` says."""
        self.end_line()
        text_shown = plain(text.replace("\r\n", "\n").removesuffix("\r"))
        if self._file.isatty() and not verbatim and "\n" not in text_shown:
            text_shown = wrapped(text_shown, shutil.get_terminal_size().columns)

        if style:
            coloured = Style.parse(style).render(text_shown, color_system=self._colours)
        else:
            coloured = text_shown

        self._put(f"{text_shown}\n", f"{coloured}\n")

    def markdown(self, text: str) -> None:
        """Write a block of Markdown on lines of its own, as wide as the terminal."""
        from rich.console import Console
        from rich.markdown import Markdown  # it takes a moment

        console = self._console
        if self._colours is None:  # NO_COLOR alone leaves bold and italic
            console = Console(width=console.width, color_system=None)

        markdown = Markdown("", code_theme="ansi_dark", hyperlinks=False)
        markdown.parsed = _markdown_parser().parse(plain(text))

        for token in markdown.parsed:
            if token.type == "html_block":
                token.type = "code_block"

        self.end_line()
        with console.capture() as capture:
            console.print(markdown)

        block = "\n".join(line.rstrip() for line in capture.get().split("\n"))
        self._put(block.strip("\n") + "\n")

    def end_line(self) -> None:
        """End the line that was begun, if there is one."""
        if self._in_line or self._return:
            self.write("\n")

    def _put(self, text: str, coloured: str = "") -> None:
        if self._write is not None:
            self._write(self._file, text, coloured)
        else:
            self._file.write(coloured or text)
            self._file.flush()


def answer(value: Any, lines: Iterable[Line], *, as_json: bool) -> int:
    """Write the value for a program, or the lines for a person, and return exit code 0."""
    from rich.console import Console

    if as_json:
        return write_object(value)

    screen = Screen(Console())
    for line in lines:
        screen.line(*line)

    return 0


def write_object(value: Any) -> int:
    """Write the value as JSON on one line of standard output, and return exit code 0."""
    typer.echo(as_json(value))
    return 0


def terminal_width() -> int | None:
    """Return the width of the terminal in cells, or None if the output is no terminal."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        return console.width

    return None


def as_json(value: Any) -> str:
    """Return strict JSON (RFC 8259) in ASCII on one line.

    Numbers that are not finite become null, unpaired surrogates U+FFFD.
    """
    return json.dumps(_strict(value), ensure_ascii=True, default=str)


def _strict(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        if math.isfinite(value):
            return value

        return None
    if isinstance(value, Mapping):
        return {_strict(str(key)): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]

    return value


def _markdown_parser() -> "MarkdownIt":
    """Return a parser of Markdown that changes no code which stands outside of code marks.

    HTML, references, images, entities and escapes stay as they are, and so do `__init__` and `a*b*c`: only a star at
    the edge of a word is a mark.
    """
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import emphasis

    def tokenize_emphasis(state: "StateInline", silent: bool) -> bool:
        before = state.src[: state.pos][-1:]
        after = state.src[state.pos :].lstrip("*")[:1]
        if state.src[state.pos] != "*" or (before.isalnum() and after.isalnum()):
            return False

        return emphasis.tokenize(state, silent)

    parser = MarkdownIt().enable(["strikethrough", "table"])
    parser.disable(["html_inline", "autolink", "reference", "image", "entity", "escape"])
    parser.inline.ruler.at("emphasis", tokenize_emphasis)
    return parser
