"""A model in this process with a script for each of several tasks that run in parallel."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, ProviderFailure
from tests.doubles.call_model import CallModel
from tests.doubles.replies import Message
from tests.doubles.scripted_model import reply_of
from tests.doubles.tool_use import Use, message_of
from tests.vocabulary import Protocol


class TaskModel(CallModel):
    """What `build_graph(model=...)` takes. `lines` are the replies to the task whose first word is their key.

    A prompt that holds N replies is answered with line N. `before` is called with the task and N before each reply.
    """

    blocks: ClassVar[bool] = True

    def __init__(
        self, lines: Mapping[str, Sequence[Use | Message]], before: Callable[[str, int], None] = lambda _task, _n: None
    ) -> None:
        self._lines, self._before = lines, before
        self.calls: list[Call] = []

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        self.calls.append(call)
        messages = call.prompt.messages
        task = next(str(message["content"]).split()[0] for message in messages if message["role"] == "user")
        replies = sum(message["role"] == "assistant" for message in messages)
        self._before(task, replies)
        line = message_of(self._lines[task][replies], Protocol.NATIVE)
        on_text(line.text)
        return reply_of(line, replies + 1, call)
