"""Asking a person: one request for all calls of a reply that need approval, and what the answer makes of them."""

from collections.abc import Mapping, Sequence
from typing import Literal

from typing_extensions import TypedDict

from nodes.guard.paths import shown
from nodes.guard.verdicts import Item, denied
from nodes.records import JsonMap, StopCause, StopReason, ToolCall, ToolErrorCode, Verdict, VerdictKind


class AskedCall(TypedDict):
    """One call that waits: its place in the reply, what it would do, and the rule that asks."""

    index: int
    tool: str
    path: str
    rule: str
    arguments: JsonMap


class ApprovalRequest(TypedDict):
    """What an interrupted run shows. It is answered in one of the ways that `read_decisions` describes."""

    kind: Literal["approval"]
    calls: list[AskedCall]


def waiting(verdicts: Sequence[Verdict]) -> dict[int, Verdict]:
    """The verdicts that ask a person, by the index of their call."""
    return {index: verdict for index, verdict in enumerate(verdicts) if verdict.kind is VerdictKind.ASK}


def approval_request(items: Sequence[Item], asked: Mapping[int, Verdict]) -> ApprovalRequest:
    """The request for these calls, as JSON values."""
    calls = [_asked_call(index, items[index], verdict) for index, verdict in asked.items()]
    return ApprovalRequest(kind="approval", calls=calls)


def read_decisions(answer: object, asked: Mapping[int, Verdict]) -> dict[int, Verdict]:
    """The person's verdict for each asked index.

    `answer` is "approve", "reject" or "stop" for all calls, or `{"decisions": {index: {"action": ..., "reason": ...}}}`
    where an index may be a number or its digits. What is missing or cannot be read is a rejection.
    """
    return {index: _decided(*_action_and_reason(answer, index), verdict) for index, verdict in asked.items()}


def settle(verdicts: Sequence[Verdict], decisions: Mapping[int, Verdict]) -> list[Verdict]:
    """All verdicts with the decisions in their places. Where one says stop, nothing of the reply may run."""
    settled = [decisions.get(index, verdict) for index, verdict in enumerate(verdicts)]
    if stop_asked_for(settled) is None:
        return settled
    return [verdict if verdict.kind is VerdictKind.DENY else _cancelled(verdict) for verdict in settled]


def stop_asked_for(verdicts: Sequence[Verdict]) -> StopCause | None:
    """Why the run ends here, if a person said so."""
    if any(verdict.error and verdict.error.code is ToolErrorCode.CANCELLED for verdict in verdicts):
        message = "A person stopped the run instead of approving a call; nothing of this reply was run."
        return StopCause(reason=StopReason.CANCELLED, message=message)
    return None


def _asked_call(index: int, item: Item, verdict: Verdict) -> AskedCall:
    arguments = item.arguments if isinstance(item, ToolCall) else {}
    return AskedCall(index=index, tool=item.tool, path=verdict.path, rule=verdict.rule, arguments=arguments)


def _action_and_reason(answer: object, index: int) -> tuple[object, object]:
    if not isinstance(answer, Mapping):
        return answer, ""
    decisions = answer.get("decisions")
    decision = decisions.get(index, decisions.get(str(index))) if isinstance(decisions, Mapping) else None
    return (decision.get("action"), decision.get("reason")) if isinstance(decision, Mapping) else (decision, "")


def _decided(action: object, reason: object, asked: Verdict) -> Verdict:
    if action == "approve":
        return asked.model_copy(update={"kind": VerdictKind.ALLOW})
    if action == "stop":
        return _cancelled(asked)
    if action != "reject":
        reason = "the answer was neither approve, reject nor stop"
    why = f": {shown(reason, 500)}" if isinstance(reason, str) and reason.strip() else ""
    message = f"A person did not approve this call{why}. Do something else, or explain in your answer what is needed."
    return denied(asked.rule, ToolErrorCode.PERMISSION_DENIED, message, path=asked.path)


def _cancelled(verdict: Verdict) -> Verdict:
    message = "This call did not run: a person stopped the run."
    return denied(verdict.rule, ToolErrorCode.CANCELLED, message, path=verdict.path)
