"""Guard's node: the calls of a reply come in, one verdict for each goes out. Its only effect is to ask a person.

Nothing may happen before the question: LangGraph runs the node again from its start when the answer arrives.
"""

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import TypedDict

from nodes.guard.approvals import approval_request, read_decisions, settle, stop_asked_for, waiting
from nodes.guard.policy import GuardConfig, SignatureOf, judge_reply
from nodes.guard.verdicts import Item, results_of_denied
from nodes.records import CallResult, LoopRecord, StopCause, ToolSpec, Verdict, VerdictKind


class GuardState(TypedDict, total=False):
    """What guard reads."""

    items: list[Item]
    loop: LoopRecord


class GuardUpdate(TypedDict, total=False):
    """What guard writes: verdicts aligned with the items; results only where no call may run; a person's stop."""

    verdicts: list[Verdict]
    results: list[CallResult]
    stop: StopCause


def judge_step(
    state: GuardState,
    config: GuardConfig,
    specs: Mapping[str, ToolSpec],
    signature_of: SignatureOf,
    scrub: Callable[[Any], Any] = lambda answer: answer,
) -> GuardUpdate:
    """Judge every call of the reply, and ask one question for all that need a person.

    `signature_of` names an action for loop control, `scrub` takes secrets out of what a person answers. The update
    carries `stop` when the person ends the run.
    """
    items = state.get("items", [])
    overrides = state.get("loop", LoopRecord()).overrides
    verdicts = judge_reply(items, config, specs, overrides, signature_of)
    if asked := waiting(verdicts):
        from langgraph.types import interrupt

        answer = interrupt(approval_request(items, asked))
        verdicts = settle(verdicts, read_decisions(scrub(answer), asked))
    may_run = any(verdict.kind is VerdictKind.ALLOW for verdict in verdicts)
    settled = [] if may_run else results_of_denied(items, verdicts)
    update = GuardUpdate(verdicts=verdicts, results=[result for result in settled if result])
    if cause := stop_asked_for(verdicts):
        update["stop"] = cause
    return update
