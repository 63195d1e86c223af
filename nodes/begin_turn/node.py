"""In: the messages as they came. Out: a turn at its start, or why the request cannot be worked on. No effect."""

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AnyMessage

from mendgraph.nodes.begin_turn.history import (
    close_step,
    hand_over,
    index_of_request,
    is_answered,
    scrub_requests,
    without_refused_media,
)
from mendgraph.nodes.begin_turn.turn import BeginTurnState, TurnResources, files_of_last_turn, fresh_update, read_notes
from mendgraph.nodes.records import StopCause, StopReason

_NO_REQUEST = "There is no request: send a message of a person, with text."


def begin_turn(state: BeginTurnState, resources: TurnResources) -> dict[str, Any]:
    """Reset the channels of the last turn, settle what it left open, and prepare the first model call."""
    thread = state.get("messages") or []
    messages: Sequence[AnyMessage] = thread
    problem = resources.problem
    media_problem = ""
    if problem is None:
        media_problem, messages = without_refused_media(thread, resources)

    messages = scrub_requests(messages, resources.scrub)
    index = index_of_request(thread)
    request = messages[index].text if index >= 0 else ""
    files_read: Mapping[str, str] = {}
    if problem is None:
        messages, files_read = close_step(messages, state, resources)
        if media_problem:
            problem = StopCause(reason=StopReason.INVALID_REQUEST, message=media_problem)
        elif not request.strip() or is_answered(thread, state.get("outcome")):
            problem = StopCause(reason=StopReason.INVALID_REQUEST, message=_NO_REQUEST)
        else:
            messages = hand_over(messages)

    update = fresh_update(state, resources, files_read)
    if len(messages) != len(thread) or any(new is not old for new, old in zip(messages, thread, strict=True)):
        update["messages"] = resources.replace([*messages])

    files = resources.files
    if problem is not None or files is None:
        return {**update, "stop": problem}

    relative = request.replace(f"{resources.root}/", "")
    if resources.preload:
        update["preload"] = resources.preload(relative, files, files_of_last_turn(state))

    return update | read_notes(state.get("notes") or (), relative, files, resources)
