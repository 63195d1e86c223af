"""In: why the run ends. Out: the outcome, set exactly once, and the last message. No effect."""

from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage
from typing_extensions import TypedDict

from mendgraph.nodes.language.history import machine_message
from mendgraph.nodes.records import (
    Answer,
    CallResult,
    FileChange,
    JsonMap,
    LoopRecord,
    ModelReply,
    OutcomeKind,
    Plan,
    StopCause,
)
from mendgraph.nodes.stop.report import FAILED_WORK, finished, stopped, wrap_up


class StopState(TypedDict, total=False):
    """What the terminals read."""

    answer: Answer | None
    reply: ModelReply | None
    stop: StopCause | None
    plan: Plan
    changes: list[FileChange]
    results: list[CallResult]
    loop: LoopRecord


def finish(state: StopState, usage: JsonMap, *, checking: bool = True, changing: bool = True) -> dict[str, Any]:
    """End with the final answer, which becomes the thread's last message. The options are those of `finished`."""
    answer = state.get("answer") or Answer(text="")
    loop = state.get("loop") or LoopRecord()
    outcome = finished(answer, state.get("changes", []), usage, loop, checking=checking, changing=changing)
    if not answer.text:
        return {"outcome": outcome, "messages": [machine_message(outcome.answer or "Done.")]}
    reply = state.get("reply") or ModelReply()
    is_reply = not reply.calls and reply.text.strip() == answer.text
    return {"outcome": outcome, "messages": [AIMessage(answer.text, id=reply.message_id if is_reply else None)]}


def is_failed_work(state: StopState) -> bool:
    """Return whether the run has changed files and ends because its edits or checks failed."""
    cause = state.get("stop")
    return cause is not None and cause.reason in FAILED_WORK and bool(state.get("changes"))


def give_up(
    state: StopState, kind: OutcomeKind, cause: StopCause, usage: JsonMap, restored: Sequence[str] = ()
) -> dict[str, Any]:
    """End early; the last message of the thread says what was done and what is left."""
    plan = state.get("plan") or Plan()
    outcome = stopped(kind, cause, plan, state.get("changes", []), usage, state.get("loop") or LoopRecord(), restored)
    return {"outcome": outcome, "messages": [machine_message(wrap_up(outcome, plan, state.get("results", [])))]}
