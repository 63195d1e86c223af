"""Parts of a stream become events, in order, and nothing is lost or told twice."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from mendgraph.graph.runs.events import (
    Alerted,
    Asked,
    CallsRead,
    Compacted,
    Denied,
    Ended,
    Event,
    EventReader,
    FellBack,
    HealingBegan,
    LoopOverridden,
    Paid,
    Rescued,
    StepDone,
    Text,
    ToolStarted,
    Traced,
    Waiting,
)
from mendgraph.nodes.heal.corrective_prompt import HealingAttempt
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    ChangeKind,
    ExtractionError,
    ExtractionErrorType,
    FileChange,
    LoopRecord,
    LoopVerdict,
    Outcome,
    OutcomeKind,
    OverrideConstraint,
    StopReason,
    ToolCall,
    ToolError,
    ToolErrorCode,
    ToolResult,
    Verdict,
    VerdictKind,
)


def call(number: int, tool: str = "read_file") -> ToolCall:
    return ToolCall(call_id=f"c{number}", tool=tool, arguments={"path": f"{number}.py"}, raw_arguments="{}")


def result(number: int, tool: str = "read_file") -> CallResult:
    return CallResult(call_id=f"c{number}", tool=tool, result=ToolResult(ok=True))


def trace(name: str, **payload: Any) -> tuple[str, Any]:
    part = {"type": "trace", "name": name, "payload": payload, "run_id": "t", "step_id": "1", "ms": 5}
    return "custom", part


def traced(name: str, **payload: Any) -> Traced:
    return Traced(name, payload, run_id="t", step_id="1", ms=5)


def step(node: str, **update: Any) -> tuple[str, Any]:
    return "updates", {node: update}


ERROR = ExtractionError(ExtractionErrorType.INVALID_JSON_SYNTAX, 1, "tool: x(", "broken")
BROKEN = CallError(call_id="c9", tool="read_file", raw_arguments="(", error=ERROR)
ALLOW = Verdict(kind=VerdictKind.ALLOW)
REFUSAL = ToolError(code=ToolErrorCode.PERMISSION_DENIED, message="No.")
DENY = Verdict(kind=VerdictKind.DENY, rule="env_file", error=REFUSAL)
CHANGE = FileChange(path="a.py", kind=ChangeKind.EDITED, sha256_before="0", sha256_after="1", diff="")
OVERRIDE = OverrideConstraint(signature="f", tool="read_file", target="a.py", repeats=3)
OUTCOME = Outcome(kind=OutcomeKind.FINISHED, reason=StopReason.ANSWERED, message="Done.")
ATTEMPTS = [HealingAttempt(0, "x", [ERROR], "again"), HealingAttempt(1, "y", [ERROR, ERROR], "again")]


def read(parts: Iterable[tuple[str, Any]]) -> list[Event]:
    reader = EventReader()
    return [event for mode, part in parts for event in reader.read(mode, part)]


def test_step_is_told_from_its_calls_to_its_results() -> None:
    parts = [
        step("parse", items=[call(1), call(2, "write_file"), BROKEN, call(3)]),
        step("guard", verdicts=[ALLOW, DENY, DENY, ALLOW]),
        trace("tool.invoke.start", tool_name="read_file"),
        trace("tool.invoke.start", tool_name="read_file"),
        step("execute_tools", results=[result(1), result(3)], changes=[CHANGE]),
    ]
    start = traced("tool.invoke.start", tool_name="read_file")
    assert read(parts) == [
        CallsRead((call(1), call(2, "write_file"), BROKEN, call(3))),
        Denied("write_file", DENY),
        ToolStarted(call(1)),
        start,
        ToolStarted(call(3)),
        start,
        StepDone((result(1), result(3)), (CHANGE,)),
    ]


PARTS: tuple[tuple[tuple[str, Any], list[Event]], ...] = (
    (("custom", {"type": "text", "text": "Hel"}), [Text("Hel")]),
    (("custom", {"type": "something else"}), []),
    (("custom", {"type": "waiting", "seconds": 0.5, "reason": "Busy."}), [Waiting(0.5, "Busy.")]),
    (
        ("custom", {"type": "alert", "kind": "cost", "message": "Dear.", "value": 9.0, "threshold": 3.0}),
        [Alerted("cost", "Dear.", 9.0, 3.0)],
    ),
    (step("begin_turn", outcome=None, changes=[]), []),
    (step("call_model", reply=None), []),
    (step("parse", items=[call(1), BROKEN]), [CallsRead((call(1), BROKEN))]),
    (step("parse", items=[]), []),
    (step("heal", corrections=[], healing_attempts=ATTEMPTS), [HealingBegan(2, (ERROR, ERROR))]),
    (step("heal", items=[call(1)], errors=[]), [Rescued((call(1),))]),
    (step("heal", stop=None), []),
    (step("loop_check", loop=LoopRecord()), []),
    (
        step("loop_check", loop=LoopRecord(overrides=(OVERRIDE,), verdict=LoopVerdict.OVERRIDE)),
        [LoopOverridden((OVERRIDE,))],
    ),
    (step("loop_check", loop=LoopRecord(overrides=(OVERRIDE,), verdict=LoopVerdict.FRESH)), []),
    (step("FINISHED", outcome=OUTCOME), [Ended(OUTCOME)]),
    (("updates", {"__interrupt__": (SimpleNamespace(value={"kind": "approval"}),)}), [Asked({"kind": "approval"})]),
    (("updates", {"heal": None}), []),
    (trace("cache.miss", tool_name="read_file"), [traced("cache.miss", tool_name="read_file")]),
)
USED = {"purpose": "reply", "model": "gpt-x", "input_tokens": 1_200, "output_tokens": 30, "cached_tokens": 1_000}
SPENT = {"cost_usd": None, "seconds": 1.5, "reasoning_tokens": 20, "cache_write_tokens": 100}
TYPED: dict[str, tuple[dict[str, Any], Event]] = {
    "model.usage": ({**USED, **SPENT}, Paid(1, "reply", "gpt-x", 1_200, 30, 1_000, None, 1.5, 20, 100)),
    "context.compacted": (
        {"kind": "cleared", "tokens_before": 900, "tokens_after": 400},
        Compacted(1, "cleared", 900, 400),
    ),
    "model.fallback": (
        {"model": "gpt-x", "following": "local", "reason": "Too many requests."},
        FellBack("gpt-x", "local", "Too many requests."),
    ),
}


def test_part_of_a_stream_becomes_events() -> None:
    assert [read([part]) for part, _ in PARTS] == [events for _, events in PARTS]
    for name, (payload, event) in TYPED.items():
        assert read([trace(name, **payload)]) == [event, traced(name, **payload)]
