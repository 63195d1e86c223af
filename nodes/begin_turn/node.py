"""In: the messages as they came. Out: a turn at its start, or why the request cannot be worked on. No effect."""

from typing import Any

from mendgraph.nodes.begin_turn.turn_start import (
    FRESH_TURN,
    BeginTurnState,
    Made,
    TurnResources,
    close_step,
    cut_off_items,
    handed_on,
    is_answered,
    place_of_request,
    read_notes,
    scrubbed,
    without_refused_media,
)
from mendgraph.nodes.records import Plan, StopCause, StopReason


def begin_turn(state: BeginTurnState, using: TurnResources) -> dict[str, Any]:
    """Forget the last turn's work, close what it left open, and prepare what is done before the model is asked.

    A step that was cut off enters the history; a person's words lose their secrets.
    """
    given = state.get("messages") or []
    at = place_of_request(given)
    problem, messages = (using.problem, given) if using.problem else without_refused_media(given, using)
    messages = scrubbed(messages, using.scrub) or messages
    request = messages[at].text if at >= 0 else ""
    items = [] if using.problem else cut_off_items(state)
    call_results: Made = using.calls_made(items) if items and state.get("verdicts") else ({}, {})
    if items:
        messages = close_step(messages, state, call_results[0], using.specs, using.root)
    update: dict[str, Any] = {**FRESH_TURN, "changes": using.replace([]), "plan": state.get("plan") or Plan()}
    # The empty map adds nothing; snapshots of a channel are taken where it is written.
    update |= {"profile": using.profile, "files_read": dict(call_results[1])}
    if not request.strip() or is_answered(given, state.get("outcome")):
        problem = problem or "There is no request: send a person's message, with text in it."
    repaired = None if problem else handed_on(messages)
    if repaired is not None or messages is not given:
        update["messages"] = using.replace(messages if repaired is None else repaired)
    if state.get("structured_response") is not None:
        update["structured_response"] = None
    if problem or using.files is None:
        return {**update, "stop": StopCause(reason=StopReason.INVALID_REQUEST, message=str(problem))}
    relative, ended = request.replace(f"{using.root}/", ""), state.get("outcome")
    before = (*ended.changed_files, *ended.restored) if ended else ()
    if using.preload:
        update["preload"] = using.preload(relative, using.files, before)
    return update | read_notes(state.get("notes") or (), relative, using.files, using)
