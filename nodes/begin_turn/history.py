"""The history that a turn begins with.

It holds no secrets and no content that the model does not take. A step that was cut off before the new request has its
results, and where others spoke last, a message hands the turn to the model.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from mendgraph.nodes.begin_turn.turn import BeginTurnState, TurnResources
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.history import HANDOFF_MESSAGE_NAME, close_dangling_calls, is_request, settle_exchange
from mendgraph.nodes.language.media import media_problem, without_media
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ModelReply,
    Outcome,
    Profile,
    Reading,
    ToolCall,
    ToolErrorCode,
    ToolResult,
)

HANDED_ON = "This is handed to you now: work on the person's last request, with what was said since."
NOT_RUN = "The run was cut off before this call, which has not been made."


def index_of_request(messages: Sequence[AnyMessage]) -> int:
    """Return the index of the last request; -1 if there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if is_request(messages[index]):
            return index

    return -1


def is_answered(messages: Sequence[AnyMessage], outcome: Outcome | None) -> bool:
    """Return whether the last message is the one that ended the thread's last turn."""
    if outcome is None or not messages or not isinstance(messages[-1], AIMessage):
        return False

    text = messages[-1].text
    return text == (outcome.answer or "Done.") or text.startswith(f"{outcome.kind.value} (")


def cut_off_items(state: BeginTurnState) -> list[ToolCall | CallError]:
    """Return the calls of the last turn that are not in the history yet, in the order of the reply."""
    if state.get("outcome") is not None or state.get("reading") is not Reading.CALLS:
        return []
    return state.get("items", [])


def close_step(
    messages: Sequence[AnyMessage], state: BeginTurnState, resources: TurnResources
) -> tuple[Sequence[AnyMessage], Mapping[str, str]]:
    """Return the history with the cut-off step before the request, and the hashes of files that its calls used.

    Calls that were not made get a typed `cancelled` result.
    """
    items = cut_off_items(state)
    if not items:
        return messages, {}

    made: Mapping[int, CallResult] = {}
    files_read: Mapping[str, str] = {}
    if state.get("verdicts"):
        made, files_read = resources.calls_made(items)

    settled = state.get("results", [])
    results = []

    for place, item in enumerate(items):
        result = settled[place] if place < len(settled) else made.get(place)
        if result is None:
            not_run = ToolResult.failure(ToolErrorCode.CANCELLED, NOT_RUN)
            result = CallResult(call_id=item.call_id, tool=item.tool, result=not_run)

        results.append(result)

    reply = state.get("reply") or ModelReply()
    protocol = (state.get("profile") or Profile()).protocol
    exchange = settle_exchange(reply, items, results, protocol, resources.specs, resources.root)
    index = index_of_request(messages)
    return [*messages[:index], *exchange, *messages[index:]], files_read


def hand_over(messages: Sequence[AnyMessage]) -> Sequence[AnyMessage]:
    """Return the history with a result for each call, and a message that gives the model its turn if others spoke last.

    That message also ends what the others said.
    """
    repaired = close_dangling_calls(messages) or messages
    if is_request(repaired[-1]):
        return repaired
    return [*repaired, HumanMessage(HANDED_ON, name=HANDOFF_MESSAGE_NAME)]


def without_refused_media(messages: Sequence[AnyMessage], resources: TurnResources) -> tuple[str, Sequence[AnyMessage]]:
    """Return why the model cannot be shown the request ("" if it can), and the messages without such content.

    Otherwise one image would block its thread for good.
    """
    refused = [resources.refused_media(message) for message in messages]
    if not any(refused):
        return "", messages

    problem = media_problem(refused[index_of_request(messages)], resources.model_name())
    return problem or "", [without_media(message, kinds) for message, kinds in zip(messages, refused, strict=True)]


HIDDEN_NAME: Final = "redacted"
"""Replaces the name of a message that holds a secret: endpoints allow no spaces in one."""

_TEXT_KEYS: Final = frozenset({"text", "filename", "title"})
"""Keys of a content part that hold prose; the other values are data and identifiers."""


def scrub_requests(messages: Sequence[AnyMessage], scrub: Callable[[str], str]) -> list[AnyMessage]:
    """Return the messages with `scrub` applied to what people said, and with half characters replaced.

    What models and tools said was scrubbed when it came in. An unchanged message stays the same object.
    """
    return [_scrub_message(message, scrub) if isinstance(message, HumanMessage) else message for message in messages]


def _scrub_message(message: HumanMessage, scrub: Callable[[str], str]) -> HumanMessage:
    def clean(part: Any) -> Any:
        if isinstance(part, str):
            return scrub(storable(part))

        texts = {key: clean(part[key]) for key in _TEXT_KEYS & part.keys() if isinstance(part[key], str)}
        if isinstance(part.get("file"), dict):  # OpenAI's form of a file
            texts["file"] = clean(part["file"])

        return {**part, **texts}

    content = message.content
    if isinstance(content, str):
        content = clean(content)
    else:
        content = [clean(part) for part in content]

    name = message.name
    if name and clean(name) != name:
        name = HIDDEN_NAME

    if (content, name) == (message.content, message.name):
        return message

    return message.model_copy(update={"content": content, "name": name})
