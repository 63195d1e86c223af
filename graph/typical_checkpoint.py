"""A checkpoint as most are: what the compression of a new database starts from. Pure."""

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from graph.context import AgentContext
from graph.routes import NODES
from graph.state import AgentState
from nodes.begin_turn.turn_start import FRESH_TURN
from nodes.call_model.ledger import Spending
from nodes.execute_tools.policy.alerts import Vitals
from nodes.records import (
    Answer,
    CallError,
    CallResult,
    ChangeKind,
    ExtractionError,
    ExtractionErrorType,
    FileChange,
    LoopRecord,
    ModelReply,
    Outcome,
    OutcomeKind,
    Plan,
    PlanStep,
    Profile,
    Protocol,
    RawCall,
    Reading,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)

_VERSION = "00000001"
_CALL = "call_1"
_DIFF = "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n"


def typical_checkpoint() -> Mapping[str, Any]:
    """The fields, channels and words that a checkpoint is made of, the frequent ones last: zlib finds those best."""
    branches = [f"branch:to:{node}" for node in NODES]
    return {
        "messages": [
            HumanMessage("", id="1"),
            ToolMessage("", tool_call_id=_CALL),
            AIMessage("", id="2", tool_calls=[{"name": "read_file", "args": {}, "id": _CALL}]),
        ],
        "channel_values": {**FRESH_TURN, **_after_a_step(), **_after_a_turn()},
        "channel_versions": dict.fromkeys(["__start__", *AgentState.__annotations__, *branches], _VERSION),
        "versions_seen": {"__input__": {}, **{node: {f"branch:to:{node}": _VERSION} for node in NODES}},
        "updated_channels": branches,
    }


def _after_a_step() -> dict[str, Any]:
    change = FileChange(path="a.py", kind=ChangeKind.EDITED, sha256_before="", sha256_after="", diff=_DIFF)
    malformed = ExtractionError(ExtractionErrorType.INVALID_ARGUMENTS, 0, "", "")
    done = ToolResult.success(path="a.py")
    failed = ToolResult.failure(ToolErrorCode.NOT_FOUND, "")
    return {
        "items": [
            CallError(call_id=_CALL, tool="", raw_arguments="", error=malformed),
            ToolCall(call_id=_CALL, tool="edit_file", arguments={"path": "a.py"}, raw_arguments='{"path": "a.py"}'),
        ],
        "verdicts": [Verdict(kind=VerdictKind.ALLOW)],
        "results": [
            CallResult(call_id=_CALL, tool="edit_file", result=failed),
            CallResult(call_id=_CALL, tool="edit_file", result=done, changes=(change,)),
        ],
        "plan": Plan(steps=(PlanStep(title="a"),)),
        "loop": LoopRecord(recent=(("",),)),
        "vitals": Vitals(tools=(True,) * 8, replies=(True,) * 8, costs=(0.0,) * 8, cost_unit="tokens"),
    }


def _after_a_turn() -> dict[str, Any]:
    message = "Answered."
    return {
        "context": AgentContext(),
        "profile": Profile(protocol=Protocol.NATIVE),
        "spending": Spending(),
        "reading": Reading.ANSWER,
        "reply": ModelReply(calls=(RawCall(call_id=_CALL, tool="edit_file", arguments="{}"),)),
        "answer": Answer(text=""),
        "outcome": Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message=message),
    }
