"""A model in this process whose reply depends only on the conversation, so that a resumed run gets the next one."""

from collections.abc import Callable, Sequence

from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.records import ModelReply, ProviderFailure
from tests.doubles.call_model import CallModel
from tests.doubles.replies import Say
from tests.doubles.scripted_model import Line, reply_of


class HistoryModel(CallModel):
    """What `build_graph(model=...)` takes. A prompt that holds N replies is answered with line N, the same each time.

    After the last line `then` is repeated. `calls` holds each call as it came. The ids of native calls depend on the
    line alone as well.
    """

    def __init__(self, lines: Sequence[Line], then: Line | None = None) -> None:
        self.calls: list[Call] = []
        self._lines = tuple(lines)
        self._then = then or Say("Done.")

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        self.calls.append(call)
        replies = sum(message["role"] == "assistant" for message in call.prompt.messages)
        line = self._lines[replies] if replies < len(self._lines) else self._then
        if isinstance(line, ProviderFailure):
            return line
        if line.text:
            on_text(line.text)
        return reply_of(line, replies + 1, call)
