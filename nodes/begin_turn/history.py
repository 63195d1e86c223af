"""The history as a turn begins: without secrets, and with the step that was cut off before it.

What the calls of that step came to enters the history before the new request.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage
from typing_extensions import TypedDict

from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.history import NO_SPECS, settle_exchange
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
    ToolSpec,
    Verdict,
)

NOT_RUN = "The run was cut off before this call, which has not been made."


class CutOffState(TypedDict, total=False):
    """What tells of the turn before. Its `items` are empty once they are settled, its `outcome` None until it ends."""

    outcome: Outcome | None
    reading: Reading | None
    reply: ModelReply | None
    items: list[ToolCall | CallError]
    verdicts: list[Verdict]
    results: list[CallResult]
    profile: Profile


def cut_off_items(state: CutOffState) -> list[ToolCall | CallError]:
    """The calls of the last turn that are in no history yet, in the order of the reply."""
    waiting = state.get("outcome") is None and state.get("reading") is Reading.CALLS
    return state.get("items", []) if waiting else []


def close_step(
    messages: Sequence[AnyMessage],
    state: CutOffState,
    known: Mapping[int, CallResult],
    specs: Mapping[str, ToolSpec] = NO_SPECS,
    root: str = "",
) -> list[AnyMessage]:
    """The history with the cut-off step before the new request, which is the last message.

    `known` are the results of calls that were made, by their places; the others get a typed `cancelled` result.
    `specs` and `root` are those of `settle_exchange`.
    """
    items, settled = cut_off_items(state), state.get("results", [])
    results = [
        settled[place] if place < len(settled) else known.get(place) or _cancelled(item)
        for place, item in enumerate(items)
    ]
    reply, profile = state.get("reply") or ModelReply(), state.get("profile") or Profile()
    exchange = settle_exchange(reply, items, results, profile.protocol, specs, root) if items else []
    return [*messages[:-1], *exchange, *messages[-1:]]


def _cancelled(item: ToolCall | CallError) -> CallResult:
    return CallResult(call_id=item.call_id, tool=item.tool, result=ToolResult.failure(ToolErrorCode.CANCELLED, NOT_RUN))


def scrubbed(messages: Sequence[AnyMessage], text: Callable[[str], str]) -> list[AnyMessage] | None:
    """All messages with `text` applied to what people said, half characters replaced; None where nothing changes.

    What models and tools said was scrubbed when it came in.
    """
    clean = [_scrubbed(message, lambda said: text(storable(said))) for message in messages]
    return clean if any(new is not old for new, old in zip(clean, messages, strict=True)) else None


def _scrubbed(message: AnyMessage, text: Callable[[str], str]) -> AnyMessage:
    if not isinstance(message, HumanMessage):
        return message
    content = _scrubbed_content(message.content, text)
    return message if content == message.content else message.model_copy(update={"content": content})


def _scrubbed_content(content: Any, text: Callable[[str], str]) -> Any:
    if isinstance(content, str):
        return text(content)
    return [
        text(part)
        if isinstance(part, str)
        else {**part, "text": text(part["text"])}
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]
