"""Writes a run to the streams of a command: the model's text as it arrives, a line for each call, and the outcome.

At a terminal all of it goes to standard output. In a pipe standard output has the answers alone, and standard error all
of it; with `--json` and `--json-lines` it has objects alone.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mendgraph.graph.runs.events import Event
from mendgraph.graph.terminal.output import Line, Screen, as_json
from mendgraph.graph.terminal.run_view import FinishedCall, Prose, RunView
from mendgraph.graph.terminal.status_line import StatusLine
from mendgraph.nodes.records import JsonMap

PREFIX = "mendgraph: "
"""Stands before the first words of a turn. Source: spec 2, "Terminal output rules"."""


_BLOCK: Final = re.compile(r"#|>|\||```|~~~|[-*+]\s|\d+[.)]\s")
"""Beginnings of Markdown blocks that have to begin a line. Source: CommonMark 0.31, "Leaf blocks"."""


@dataclass(frozen=True)
class Display:
    """The streams of a command, and what is written to them.

    `as_json`: one object is the answer; with `json_lines` as well, each event is a line before it. `piped`: standard
    output is no terminal. `live` is the status line of a terminal that has one.
    """

    out: Screen
    err: Screen
    as_json: bool = False
    debug: bool = False
    json_lines: bool = False
    live: StatusLine | None = None
    piped: bool = False

    def write_object(self, event: str, value: JsonMap) -> None:
        """Write an object for programs on a line; with `json_lines` it has the name of its event."""
        if self.json_lines:
            value = {"event": event, **value}

        self.out.line(as_json(value), verbatim=True)

    @property
    def notes(self) -> Screen:
        """The stream for the steps of a run."""
        if self.as_json or self.debug or self.piped:
            return self.err

        return self.out

    @property
    def text(self) -> Screen:
        """The stream for what the model says, and for the end of a run: its diff, outcome and usage."""
        if self.piped:
            return self.err

        return self.out


class MarkdownBlocks:
    """Splits streamed Markdown into blocks: at an empty line before a line that is not indented, outside of fences.

    A block is shown once it is complete, so nothing that stands on the screen is written again.
    """

    def __init__(self) -> None:
        self._text = ""

    def feed(self, piece: str) -> list[str]:
        """Add a piece of the text, and return the blocks that are complete now."""
        may_end = "\n" in piece or self._text.endswith("\n")
        self._text += piece
        blocks: list[str] = []
        fence = ""
        after_empty = False
        start = end = 0

        for line in self._text.splitlines(keepends=True) if may_end else ():
            if after_empty and not fence and line[0].strip():
                blocks.append(self._text[start:end])
                start = end

            mark = line.lstrip()[:3]
            if mark in {"```", "~~~"} and fence in {"", mark}:
                fence = "" if fence else mark

            after_empty = not line.strip()
            end += len(line)

        self._text = self._text[start:]
        return blocks

    def end(self) -> list[str]:
        """Return the last block, if there is one; the next piece begins another text."""
        text = self._text
        self._text = ""
        return [text] if text.strip() else []


class RunScreen:
    """Writes the view of a session's turns to a display; on a live terminal, prose is rendered as Markdown."""

    def __init__(self, display: Display, view: RunView) -> None:
        self.display = display
        self.view = view
        self._blocks = MarkdownBlocks()
        self._in_blocks = False  # a block of this text is shown

    def show(self, event: Event) -> None:
        """Write what an event adds."""
        self._write(self.view.read(event))

    def end_reply(self) -> None:
        """End the model's reply, and show its withheld text."""
        self._write(self.view.end_reply())

    def answer(self, text: str) -> None:
        """Show the final answer, unless it was shown as it arrived."""
        if not self.display.piped:
            self._write(self.view.answer(text))
        elif text:
            self.display.out.write(f"{text.strip()}\n")

    def summary(self, *lines: Line) -> None:
        """Write lines of the end of a run."""
        for line in lines:
            self.display.text.line(*line)

    def _write(self, items: Iterable[Prose | FinishedCall | Line]) -> None:
        for item in items:
            if isinstance(item, Prose):
                self._write_prose(item)
            elif isinstance(item, FinishedCall):
                self._write_notes(item.lines())
            else:
                self._write_notes([item])

        if not self.view.in_reply:
            self._end_prose()

    def _write_prose(self, prose: Prose) -> None:
        if self.display.as_json:
            return

        prefix = ""
        if prose.begins_turn:
            prefix = PREFIX

        if self.display.live is None:
            self.display.text.write(prefix + prose.text)
            return

        if prefix and _BLOCK.match(prose.text):
            prefix += "\n\n"

        self._write_blocks(self._blocks.feed(prefix + prose.text))

    def _write_blocks(self, blocks: Iterable[str]) -> None:
        for block in blocks:
            if self._in_blocks:
                self.display.text.line("")

            self._in_blocks = True
            self.display.text.markdown(block)

    def _end_prose(self) -> None:
        self._write_blocks(self._blocks.end())
        self._in_blocks = False
        self.display.text.end_line()

    def _write_notes(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self._end_prose()
            self.display.notes.line(*line)
