"""A model that replies with the line that it was given last, and counts its calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, ProviderFailure
from tests.doubles.call_model import CallModel
from tests.doubles.replies import Message, Say
from tests.doubles.scripted_model import reply_of
from tests.machine.exploration.world import HIDDEN, SECRET, Fuse

ACCOUNT: Final = Say("What was done stands in the files.", usage=(100, 10))
"""The reply to calls that are none of the conversation's: summaries, and the account at the end."""


@dataclass(frozen=True)
class LineOfStep:
    """The line of one step: its `number` in the play, from 1, and what each try of the call gets; the last for ever."""

    number: int
    tries: tuple[Message | ProviderFailure, ...]
    name: str = ""


class LineModel(CallModel):
    """A user's own model. `calls` counts its calls; `heard` is what it was shown that nobody may show."""

    def __init__(self, fuse: Fuse) -> None:
        self.calls, self.heard = 0, list[str]()
        self._fuse = fuse
        self._lines: list[LineOfStep] = []
        self._tries = 0

    def say(self, *lines: LineOfStep) -> None:
        """Say these lines, one for each call of the conversation; the last one again and again."""
        self._lines, self._tries = list(lines), 0

    def begin_again(self) -> None:
        """A new process begins: replies that were not stored are given again."""
        self._tries = 0

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        self.calls += 1
        prompt_text = str(call.prompt.messages)
        self.heard += [word for word in (SECRET, HIDDEN) if word in prompt_text]
        self._fuse.burn("model")
        if call.quiet:
            return reply_of(ACCOUNT, 0, call)
        line = self._lines[0]
        reply = line.tries[min(self._tries, len(line.tries) - 1)]
        self._tries += 1
        if isinstance(reply, ProviderFailure):
            return reply
        if len(self._lines) > 1:
            self.say(*self._lines[1:])
        if reply.text:
            on_text(reply.text)
        return reply_of(reply, line.number, call)
