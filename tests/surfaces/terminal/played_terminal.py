"""A terminal for tests: a workspace with a bug, a scripted model, and everything that is shown."""

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.runs.run_words import command_line
from mendgraph.graph.terminal.output import Screen
from mendgraph.graph.terminal.screen import Display
from mendgraph.graph.terminal.turns import Setup
from mendgraph.nodes.records import ProviderFailure
from tests.doubles.replies import Message, Say
from tests.doubles.scripted_model import ScriptedModel

BUG = "def add(a, b):\n    return a - b\n"
READ = 'tool: read_file({"path": "calc.py"})'
FIX = 'tool: edit_file({"path": "calc.py", "old_str": "a - b", "new_str": "a + b"})'

FIRST_LINE = re.compile(r"mendgraph: .*mode (auto|ask|read-only)(, sandbox \w+)?(; at most .*)?\n")
"""What a session writes first on standard error."""


class Terminal:
    """A workspace with a bug, and everything that the terminal shows."""

    def __init__(self, root: Path, script: Sequence[Message | ProviderFailure | str], **options: Any) -> None:
        self.calc, self.thread_id = root / "calc.py", root.name
        self.resume = command_line(str(root), "resume", root.name)
        self.chat = command_line(str(root), "chat", "--run", root.name)
        self.calc.write_text(BUG, encoding="utf-8")
        self._files = (io.StringIO(), io.StringIO())
        out, err = (Screen(Console(file=file)) for file in self._files)
        kind = options.pop("model", ScriptedModel)
        lines: Iterator[str] = iter(options.pop("lines", ()))
        answer = options.pop("answer", None)
        self.prompts: list[str] = []
        self.setup = Setup(
            context=AgentContext(workspace=str(root), protocol="text", **options.pop("context", {})),
            display=Display(out, err, **options),
            next_line=lambda prompt: self._read(prompt, lines),
            ask=None if answer is None else lambda prompt: self._read(prompt, iter([answer])),
            session_options={
                "model": kind([Say(line) if isinstance(line, str) else line for line in script]),
                "thread_id": self.thread_id,
            },
        )

    def _read(self, prompt: str, lines: Iterator[str]) -> str:
        self.prompts.append(prompt)
        for line in lines:
            return line
        raise EOFError

    @property
    def out(self) -> str:
        return self._files[0].getvalue()

    @property
    def err(self) -> str:
        """Standard error without the first line of a session, which names the sandbox."""
        return FIRST_LINE.sub("", self.whole_err, count=1)

    @property
    def whole_err(self) -> str:
        return self._files[1].getvalue()


class TerminalFile(io.StringIO):
    """A terminal; a carriage return and the erasing of its line are all that it has to know."""

    def isatty(self) -> bool:
        return True

    @property
    def visible_lines(self) -> list[str]:
        """The visible lines."""
        lines = [line.rpartition("\r\x1b[K")[2] for line in self.getvalue().split("\n")]
        return lines if lines[-1] else lines[:-1]
