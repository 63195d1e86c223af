"""In: the messages as they came. Out: a turn at its start, or why the request cannot be worked on. No effect."""

from collections.abc import Callable, Iterable
from typing import Any

from langchain_core.messages import AnyMessage
from typing_extensions import TypedDict

from nodes.begin_turn.fresh_turn import FRESH_TURN
from nodes.begin_turn.named_files import Ahead, preload
from nodes.language.history import close_dangling_calls, is_request
from nodes.records import Plan, Profile, StopCause, StopReason

Update = dict[str, Any]


class BeginTurnState(TypedDict, total=False):
    """What the node reads."""

    messages: list[AnyMessage]
    plan: Plan


def begin_turn(
    state: BeginTurnState,
    profile: Profile,
    problem: str | None,
    exists: Callable[[str], bool],
    files: Callable[[], Iterable[tuple[str, int]]],
    ahead: Ahead,
    replace: Callable[[Any], Any],
) -> Update:
    """Forget the last turn's working state, close dangling calls, and prepare what is done before the model is asked.

    `problem` is what is wrong with the run's context; it ends the run here, as a missing request does. `files` lists
    the workspace with sizes in bytes. `replace` marks what takes a channel's place, instead of adding to it.
    """
    messages = state.get("messages") or []
    update: Update = {**FRESH_TURN, "changes": replace([]), "plan": state.get("plan") or Plan(), "profile": profile}
    update["files_read"] = {}  # adds nothing; snapshots of a channel are taken where it is written
    if not messages or not is_request(messages[-1]) or not messages[-1].text.strip():
        problem = problem or "There is no request: the last message has to be a person's, with text in it."
    if problem:
        return {**update, "stop": StopCause(reason=StopReason.INVALID_REQUEST, message=problem)}
    repaired = close_dangling_calls(messages)
    if repaired is not None:
        update["messages"] = replace(repaired)
    update["preload"] = preload(messages[-1].text, profile, ahead, exists, files)
    return update
