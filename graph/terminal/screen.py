"""Writes a run to the streams of a command: the model's text as it arrives, a line for each call, and the outcome.

At a terminal all of it goes to standard output. In a pipe standard output has the answers alone, and standard error all
of it; with `--json` and `--json-lines` it has objects alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mendgraph.graph.runs.events import Event
from mendgraph.graph.terminal.output import Line, Screen, as_json
from mendgraph.graph.terminal.run_view import FinishedCall, Prose, RunView
from mendgraph.graph.terminal.status_line import StatusLine
from mendgraph.nodes.records import JsonMap

PREFIX = "mendgraph: "
"""Stands before the first words of a turn. Source: spec 2, "Terminal output rules"."""


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

        self.out.line(as_json(value))

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


class RunScreen:
    """Writes the view of a session's turns to a display."""

    def __init__(self, display: Display, view: RunView) -> None:
        self.display = display
        self.view = view

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
            self.display.text.end_line()

    def _write_prose(self, prose: Prose) -> None:
        if self.display.as_json:
            return

        prefix = ""
        if prose.begins_turn:
            prefix = PREFIX

        self.display.text.write(prefix + prose.text)

    def _write_notes(self, lines: Iterable[Line]) -> None:
        for line in lines:
            self.display.text.end_line()
            self.display.notes.line(*line)
