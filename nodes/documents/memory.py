"""Spec 4's Memory: the history of an agent in Python, and the part that fits the model's window."""

from collections.abc import Callable

from langchain_core.messages import AnyMessage

from mendgraph.nodes.call_model.compaction import Budget, Compacted, NeedsSummary, compact
from mendgraph.nodes.call_model.window import WHOLE, StandIns, shown
from mendgraph.nodes.language.chat_messages import as_map, size_of
from mendgraph.nodes.language.token_estimates import estimate_tokens
from mendgraph.nodes.records import JsonMap


class Memory:
    """The history of an agent in Python, with the window of the nodes. Source: spec 4.

    `messages` stays complete. The shown part fits `window_tokens` (None: all) with a reply of `reply_tokens`: old
    results are cleared first, then the beginning is replaced by the summary of `summarise`, or left out.
    """

    def __init__(
        self,
        window_tokens: int | None = None,
        *,
        reply_tokens: int = 1_024,
        summarise: Callable[[list[JsonMap]], str] | None = None,
    ) -> None:
        """`summarise` returns the model's reply to the messages of a request for a summary."""
        self.messages: list[AnyMessage] = []
        self.window = WHOLE
        self._tokens = window_tokens
        self._reply_tokens = reply_tokens
        self._summarise = summarise
        self._stand_ins: StandIns = {}

    def add(self, *messages: AnyMessage) -> None:
        """Append these messages; a message without an id gets one."""
        for message in messages:
            name = message.id or f"memory-{len(self.messages)}"
            self.messages.append(message.model_copy(update={"id": name}))

    def shown(self, besides: int = 0) -> list[AnyMessage]:
        """Return the messages for the next request, which has `besides` other tokens.

        The last request and exchange are included even if they do not fit.
        """
        budget = Budget(self._tokens, besides, self._reply_tokens)
        step = compact(self.messages, self.window, None, (), _tokens_of, budget, stand_ins=self._stand_ins)

        if isinstance(step, NeedsSummary) and self._summarise is not None:
            step = step.conclude(self._summarise([*step.messages]))
        elif isinstance(step, NeedsSummary):
            step = step.fallback

        if isinstance(step, Compacted):
            self.window = step.window

        return shown(self.messages, self.window, self._stand_ins)


def _tokens_of(message: AnyMessage) -> int:
    return estimate_tokens(size_of(as_map(message, native=False)), 1)
