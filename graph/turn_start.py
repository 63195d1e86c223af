"""How a turn starts: what the machine is given, and from which checkpoint on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from graph.events import EventReader
from graph.run_keeper import Begun
from nodes.language.history import is_request
from nodes.records import Outcome, StopCause, StopReason, ToolCall, VerdictKind

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


@dataclass(frozen=True)
class TurnStart:
    """What a turn gives to the machine, and from which checkpoint on; `ended` says that there is nothing to do."""

    request: Any
    config: RunnableConfig | None = None
    ended: Outcome | None = None

    @classmethod
    def answering(cls, decisions: object) -> Self:
        """A person's answer, as LangGraph takes it; what it would fail on, or take for none, is a rejection."""
        unclear = decisions is None or (isinstance(decisions, Mapping) and "decisions" not in decisions)
        return cls(Command(resume="reject" if unclear else decisions))


def request_message(begun: Begun) -> dict[str, Any]:
    """The input of a turn. The same request has the same id, so that sending it again adds nothing."""
    return {"messages": [HumanMessage(begun.request, id=begun.request_id or None)]}


def last_request(values: Mapping[str, Any]) -> str:
    """What a person asked last, "" where nobody did."""
    requests = [message.text for message in values.get("messages", ()) if is_request(message)]
    return requests[-1] if requests else ""


def reader_from(values: Mapping[str, Any]) -> EventReader:
    """A reader that knows what a turn that is taken up again has read and changed before."""
    judged = zip(values.get("items") or (), values.get("verdicts") or (), strict=False)
    waiting = [call for call, verdict in judged if isinstance(call, ToolCall) and verdict.kind is VerdictKind.ALLOW]
    return EventReader(tuple(values.get("changes") or ()), tuple(values.get("items") or ()), waiting)
