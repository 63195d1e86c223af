"""How a run that was begun goes on: decided by its own state, never by what LangGraph would do next. Pure."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from langchain_core.messages import AIMessage

from graph.run_steps import CALLING
from nodes.records import OutcomeKind, StopReason

RETRIED = frozenset({StopReason.CANCELLED, StopReason.PROVIDER_FAILED, StopReason.STORE_FAILED})
"""Reasons that say nothing of the work: the call that did not happen is made again, as if nothing had been."""

TO_THE_CALL = "begin_turn"
"""The node in whose name a state is written that is to go to the model: its router sends it there."""

_AFRESH = "Your changes of the files were taken back since, so look at them anew. The task is: "
_GO_ON = "Go on with this task, which is not finished yet: "


class WayOn(StrEnum):
    """What a resumed run does.

    Its request never arrived: send it again. It was cut off: go on. It was stopped before a model call: go back to it.
    It ended early for another reason: begin a new turn. It has finished: nothing.
    """

    SEND_AGAIN, GO_ON, GO_BACK = "send_again", "go_on", "go_back"
    NEW_TURN, NOTHING = "new_turn", "nothing"


class Snapshot(Protocol):
    """A checkpoint as LangGraph shows it."""

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes that run next."""


Found = TypeVar("Found", bound=Snapshot)


def way_on(values: Mapping[str, Any], request_id: str, *, undone: bool = False) -> WayOn:
    """How to go on from the newest state; `request_id` is the message that began the turn, "" where nobody knows it.

    Where what the turn changed was `undone` since, its history tells what is not so any more: a new turn says that.
    """
    messages = values.get("messages") or []
    if request_id and all(message.id != request_id for message in messages):
        return WayOn.SEND_AGAIN
    outcome = values.get("outcome")
    if not messages or not isinstance(messages[-1], AIMessage):
        outcome = None  # that of the turn before
    if outcome is not None and outcome.kind is OutcomeKind.FINISHED:
        return WayOn.NOTHING
    if undone:
        return WayOn.NEW_TURN
    if outcome is None:
        return WayOn.GO_ON
    return WayOn.GO_BACK if outcome.reason in RETRIED else WayOn.NEW_TURN


def before_the_call(history: Iterable[Found]) -> Found | None:
    """The newest checkpoint at which a model call was next; None where none ever was. `history` is newest first."""
    return next((snapshot for snapshot in history if snapshot.next == CALLING), None)


def takes_up(request: str) -> bool:
    """Whether this is such a request of a task that is half done, so that there may be nothing left to change."""
    return request.startswith(_GO_ON)


def go_on_with(request: str, *, undone: bool = False) -> str:
    """What the model is told in the turn that takes an unfinished task up again."""
    task = request.removeprefix(_AFRESH).removeprefix(_GO_ON)
    return f"{_AFRESH if undone else _GO_ON}{task}"
