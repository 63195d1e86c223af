"""In: the messages as they came. Out: a turn at its start, or why the request cannot be worked on. No effect."""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage

from mendgraph.nodes.begin_turn.turn_start import (
    NO_REQUEST,
    BeginTurnState,
    TurnResources,
    close_step,
    files_of_last_turn,
    fresh_update,
    handed_on,
    is_answered,
    place_of_request,
    read_notes,
    scrubbed,
    without_refused_media,
)
from mendgraph.nodes.records import StopCause, StopReason


def begin_turn(state: BeginTurnState, using: TurnResources) -> dict[str, Any]:
    """Forget the last turn's work, close what it left open, and prepare what is done before the model is asked.

    A step that was cut off enters the history; a person's words lose their secrets.
    """
    thread = state.get("messages") or []
    place = place_of_request(thread)
    problem = using.problem
    messages: Sequence[AnyMessage] = thread
    if problem is None:
        problem, messages = without_refused_media(thread, using)

    messages = scrubbed(messages, using.scrub) or messages
    request = messages[place].text if place >= 0 else ""
    files_read: Mapping[str, str] = {}
    if using.problem is None:
        messages, files_read = close_step(messages, state, using)

    if problem is None and (not request.strip() or is_answered(thread, state.get("outcome"))):
        problem = NO_REQUEST

    if problem is None:
        messages = handed_on(messages) or messages

    update = fresh_update(state, using, files_read)
    if messages is not thread:
        update["messages"] = using.replace(messages)

    if problem is not None or using.files is None:
        return {**update, "stop": StopCause(reason=StopReason.INVALID_REQUEST, message=str(problem))}

    relative = request.replace(f"{using.root}/", "")
    if using.preload:
        update["preload"] = using.preload(relative, using.files, files_of_last_turn(state))

    return update | read_notes(state.get("notes") or (), relative, using.files, using)
