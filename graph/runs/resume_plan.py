"""How a turn starts, and how a run that was begun goes on: decided by its own state, never by what LangGraph would do.

Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self, TypeVar

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from mendgraph.graph.runs.events import EventReader
from mendgraph.nodes.language.history import is_request
from mendgraph.nodes.records import Outcome, OutcomeKind, StopCause, StopReason, ToolCall, VerdictKind

CALLING = ("call_model",)
"""What is next where a model call is due: everything before it is settled, so a run can begin there."""

TO_THE_CALL = "begin_turn"
"""The node in whose name a state is written that is to go to the model: its router sends it there."""

RETRIED = frozenset({StopReason.CANCELLED, StopReason.PROVIDER_FAILED, StopReason.STORE_FAILED})
"""Reasons that say nothing of the work: the call that did not happen is made again, as if nothing had been."""

NOTHING_BEGUN = StopCause(
    reason=StopReason.INVALID_REQUEST,
    message="There is nothing to go on with: this thread has no request yet. Send it one.",
)
"""Why a thread cannot be resumed."""

NOBODY_ASKED = StopCause(
    reason=StopReason.INVALID_REQUEST,
    message="Nobody is asked for anything in this thread: resume it, or send it a request.",
)
"""Why an answer cannot be taken."""


class ResumePlan(StrEnum):
    """What a resumed run does.

    Its request never arrived: send it again. It was cut off: go on. It was stopped before a model call: go back to it.
    It ended early for another reason: begin a new turn. It has finished: nothing.
    """

    SEND_AGAIN, GO_ON, GO_BACK = "send_again", "go_on", "go_back"
    NEW_TURN, NOTHING = "new_turn", "nothing"


class Snapshot(Protocol):
    """A checkpoint as LangGraph shows it."""

    @property
    def values(self) -> Mapping[str, Any]:
        """The state."""

    @property
    def next(self) -> tuple[str, ...]:
        """The nodes that run next."""


Found = TypeVar("Found", bound=Snapshot)


def resume_plan(values: Mapping[str, Any], request_id: str, *, undone: bool = False) -> ResumePlan:
    """How to go on from the newest state; `request_id` is the message that began the turn, "" where nobody knows it.

    Where what the turn changed was `undone` since, its history tells what is not so any more: a new turn says that.
    """
    messages = values.get("messages") or []
    if request_id and all(message.id != request_id for message in messages):
        return ResumePlan.SEND_AGAIN
    outcome = values.get("outcome")
    if not messages or not isinstance(messages[-1], AIMessage):
        outcome = None  # that of the turn before
    if outcome is not None and outcome.kind is OutcomeKind.FINISHED:
        return ResumePlan.NOTHING
    if undone:
        return ResumePlan.NEW_TURN
    if outcome is None:
        return ResumePlan.GO_ON
    return ResumePlan.GO_BACK if outcome.reason in RETRIED else ResumePlan.NEW_TURN


def before_the_call(history: Iterable[Found]) -> Found | None:
    """The newest checkpoint at which a model call was next; None where none ever was. `history` is newest first."""
    return next((snapshot for snapshot in history if snapshot.next == CALLING), None)


@dataclass(frozen=True)
class TurnStart:
    """What a turn gives to the machine, and from which checkpoint on; `ended` says that there is nothing to do."""

    request: Any
    config: RunnableConfig | None = None
    ended: Outcome | None = None

    @classmethod
    def asking(cls, request: str, request_id: str) -> Self:
        """A request. The same one has the same id, so that sending it again adds nothing."""
        return cls({"messages": [HumanMessage(request, id=request_id or None)]})

    @classmethod
    def answering(cls, decisions: object) -> Self:
        """A person's answer, as LangGraph takes it; what it would fail on, or take for none, is a rejection."""
        unclear = decisions is None or (isinstance(decisions, Mapping) and "decisions" not in decisions)
        return cls(Command(resume="reject" if unclear else decisions))


def requests_of(values: Mapping[str, Any]) -> list[Any]:
    """The messages in which a person asked for something, oldest first."""
    return [message for message in values.get("messages", ()) if is_request(message)]


def reader_from(values: Mapping[str, Any]) -> EventReader:
    """A reader that knows what a turn that is taken up again has read and changed before."""
    judged = zip(values.get("items") or (), values.get("verdicts") or (), strict=False)
    waiting = [call for call, verdict in judged if isinstance(call, ToolCall) and verdict.kind is VerdictKind.ALLOW]
    return EventReader(tuple(values.get("changes") or ()), tuple(values.get("items") or ()), waiting)
