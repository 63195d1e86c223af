"""Spec 4's Memory: which part of the history the model is shown, so that it fits the model's window.

The history itself stays complete. A `Window` says from where on it is shown, and holds the text that stands for what
was before. Between two compactions the view only grows at its end, so that endpoints can keep its prefix.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from nodes.call_model.cleared_results import is_result, without_results
from nodes.call_model.estimates import estimate_tokens
from nodes.call_model.shown_messages import as_map, size_of
from nodes.language.history import is_request
from nodes.records import JsonMap, Record

SizeOf = Callable[[AnyMessage], int]
"""(message) -> its tokens, estimated. Asked for each message of a view at each call, so it should know them again."""

StandIns = dict[str, tuple[AnyMessage, AnyMessage]]
"""What is shown in place of messages, by id, each with what it was made of: kept by a run, so each is made once."""

MOST_STAND_INS = 2_000

MOST_STAND_IN_CHARACTERS = 16 * 1024 * 1024
"""Of the messages that stand-ins were made of, which are kept with them: at most four bytes each."""


class Window(Record):
    """What is shown of a thread's history; the default shows all of it.

    `first` is the id of the first message that is shown as it is, `head` the text that stands for those before it, and
    `cleared` are the messages whose results are replaced by notes. An id that the history does not have hides nothing.
    `summary` is the model's own in the head, and `left_out` the number of exchanges that neither are in it nor shown.
    `useless_summaries` came in a row, `summarised_at` is the last message there was when the last one was asked for.
    `tokens` is the window as an endpoint named it when it refused a request.
    """

    first: str = ""
    head: str = ""
    cleared: tuple[str, ...] = ()
    compactions: int = 0
    summary: str = ""
    left_out: int = 0
    useless_summaries: int = 0
    summarised_at: str = ""
    tokens: int | None = None


WHOLE = Window()


def shown(history: Sequence[AnyMessage], window: Window, made: StandIns | None = None) -> list[AnyMessage]:
    """The messages that the model is shown; the same objects from call to call where `made` is the same.

    A head that would stand right before a request is one message with it: some endpoints take no two in a row.
    """
    start, made = first_shown(history, window), {} if made is None else made
    if not start and not window.cleared:
        return list(history)
    if len(made) > MOST_STAND_INS or sum(len(old.content) for old, _ in made.values()) > MOST_STAND_IN_CHARACTERS:
        made.clear()
    view = shown_after(history, window.cleared, start, made)
    if not start:
        return view
    if view and is_request(view[0]) and isinstance(view[0].content, str):
        return [_head(f"{window.head}\n\n{view[0].content}", made), *view[1:]]
    return [_head(window.head, made), *view]


def shown_after(history: Sequence[AnyMessage], cleared: Sequence[str], start: int, made: StandIns) -> list[AnyMessage]:
    """The messages from `start` on, with stand-ins for those that are cleared."""
    if not cleared:
        return list(history[start:])
    known = frozenset(cleared)
    return [stand_in(message, made) or message if message.id in known else message for message in history[start:]]


def first_shown(history: Sequence[AnyMessage], window: Window) -> int:
    """The place of the first message that is shown as it is; 0 where none is hidden."""
    if not window.first:
        return 0
    # From the end: what is shown is short, what is hidden may be long.
    return next((place for place in range(len(history) - 1, 0, -1) if history[place].id == window.first), 0)


def stand_in(message: AnyMessage, made: StandIns) -> AnyMessage | None:
    """The message without its results, made once; None where it carries none."""
    known = made.get(message.id or "")
    if known is not None and known[0] is message:
        return known[1]
    if known is not None and known[0] == message:
        cleared: AnyMessage | None = known[1]
    else:
        cleared = without_results(message)
    if cleared is not None:
        made[message.id or ""] = (message, cleared)
    return cleared


def _head(text: str, made: StandIns) -> AnyMessage:
    """The head as a message. Its id is made of its text, so that whoever remembers messages takes no other for it."""
    name = f"head-{sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"
    message = HumanMessage(text, id=name)
    return made.setdefault(name, (message, message))[1]


class Exchanges(NamedTuple):
    """Where a history may be cut: `starts` are the places of all messages but results, which stay with their call.

    `replies` are those of them that are the model's, `request` is the place of the last request, or -1.
    """

    starts: list[int]
    replies: list[int]
    request: int


def exchanges_of(messages: Sequence[AnyMessage]) -> Exchanges:
    """Find the places at which one exchange ends and the next begins."""
    starts = [place for place, message in enumerate(messages) if not is_result(message)]
    replies = [place for place in starts if isinstance(messages[place], AIMessage)]
    request = max((place for place in starts if is_request(messages[place])), default=-1)
    return Exchanges(starts, replies, request)


class Memory:
    """The history of an agent in Python, and what of it its model is shown: the nodes' own window. Source: spec 4.

    `messages` stays complete. What is shown fits `window_tokens` (None: all is shown) with a reply of `reply_tokens`:
    old results are cleared first, then what was first gives way to the summary of `summarise`, or slides out.
    """

    def __init__(
        self,
        window_tokens: int | None = None,
        *,
        reply_tokens: int = 1_024,
        summarise: Callable[[list[JsonMap]], str] | None = None,
    ) -> None:
        """`summarise` is given the messages of a request for a summary, and gives back the model's reply."""
        self.messages: list[AnyMessage] = []
        self.window = WHOLE
        self._tokens, self._reply_tokens, self._summarise = window_tokens, reply_tokens, summarise
        self._made: StandIns = {}

    def add(self, *messages: AnyMessage) -> None:
        """Remember these messages; one without an id gets one."""
        for message in messages:
            name = message.id or f"memory-{len(self.messages)}"
            self.messages.append(message.model_copy(update={"id": name}))

    def shown(self, besides: int = 0) -> list[AnyMessage]:
        """The messages for the next request, which has `besides` tokens of its own.

        Where not even the last request and exchange fit, they are shown all the same.
        """
        from nodes.call_model.compaction import Budget, Compacted, NeedsSummary, compact  # it stands on this module

        budget = Budget(self._tokens, besides, self._reply_tokens)
        found = compact(self.messages, self.window, None, (), _tokens_of, budget, made=self._made)
        if isinstance(found, NeedsSummary):
            found = found.conclude(self._summarise([*found.messages])) if self._summarise else found.fallback
        if isinstance(found, Compacted):
            self.window = found.window
        return shown(self.messages, self.window, self._made)


def _tokens_of(message: AnyMessage) -> int:
    return estimate_tokens(size_of(as_map(message, native=False)), 1)
