from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from nodes.guard.node import GuardState, GuardUpdate, judge_step
from nodes.guard.policy import GuardConfig
from nodes.guard.verdicts import Item, denied
from nodes.records import (
    CallError,
    CallResult,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    LoopRecord,
    OverrideConstraint,
    StopCause,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
    Verdict,
    VerdictKind,
)

READ = ToolSpec(name="read", description="", parameters={}, effect=Effect.READ, path_fields=("path",))
WRITE = ToolSpec(name="write", description="", parameters={}, effect=Effect.WRITE, path_fields=("path",))
SPECS = {"read": READ, "write": WRITE}
AUTO = GuardConfig(mode="auto", root="/home/dev/project")
ASK = GuardConfig(mode="ask", root="/home/dev/project")
BLOCKED = "Blocked by rule 'env_file': Environment variable files (.env). Go on without this file."
ENV_DENIED = denied("env_file", ToolErrorCode.PERMISSION_DENIED, BLOCKED, path=".env")


def call(call_id: str, tool: str, path: str) -> ToolCall:
    return ToolCall(call_id=call_id, tool=tool, arguments={"path": path}, raw_arguments="")


def path_as_signature(item: ToolCall, _: ToolSpec) -> str:
    return str(item.arguments["path"])


def judge(config: GuardConfig, *items: Item, loop: LoopRecord | None = None) -> GuardUpdate:
    state = GuardState(items=list(items), loop=loop or LoopRecord())
    return judge_step(state, config, SPECS, path_as_signature)


def failure(call_id: str, tool: str, code: ToolErrorCode, message: str) -> CallResult:
    return CallResult(call_id=call_id, tool=tool, result=ToolResult.failure(code, message))


def test_where_some_call_may_run_its_room_settles_the_others() -> None:
    assert judge(AUTO, call("1", "read", "a.py"), call("2", "read", ".env")) == {
        "verdicts": [Verdict(kind=VerdictKind.ALLOW, path="a.py"), ENV_DENIED],
        "results": [],
    }


def test_where_nothing_may_run_every_call_has_its_result() -> None:
    error = ExtractionError(ExtractionErrorType.UNKNOWN_TOOL_NAME, 2, "tool: x({})", "There is no tool x.")
    broken = CallError(call_id="2", tool="x", raw_arguments="", error=error)
    message = "UNKNOWN_TOOL_NAME in line 2: There is no tool x."
    assert judge(AUTO, call("1", "read", ".env"), broken) == {
        "verdicts": [ENV_DENIED, denied("malformed", ToolErrorCode.UNKNOWN_TOOL, message)],
        "results": [
            failure("1", "read", ToolErrorCode.PERMISSION_DENIED, BLOCKED),
            failure("2", "x", ToolErrorCode.UNKNOWN_TOOL, message),
        ],
    }


def test_loop_controls_override_is_enforced() -> None:
    override = OverrideConstraint(signature="a.py", tool="read", target="a.py", repeats=3)
    update = judge(AUTO, call("1", "read", "a.py"), loop=LoopRecord(overrides=(override,)))
    assert [verdict.rule for verdict in update["verdicts"]] == ["loop_override"]


def test_an_empty_state_is_judged_as_nothing_to_run() -> None:
    assert judge_step(GuardState(), AUTO, SPECS, path_as_signature) == {"verdicts": [], "results": []}


class Run(TypedDict, total=False):
    items: list[Item]
    verdicts: list[Verdict]
    results: list[CallResult]
    stop: StopCause


Ask = Callable[[Any], dict[str, Any]]


@pytest.fixture
def ask() -> tuple[Any, Ask]:
    """The request of a run with two writes, a read and a denied write, and the way to answer it."""

    def guard(state: GuardState) -> GuardUpdate:
        return judge_step(state, ASK, SPECS, path_as_signature)

    builder = StateGraph(Run)
    builder.add_node("guard", guard)
    builder.add_edge(START, "guard")
    builder.add_edge("guard", END)
    compiled = builder.compile(checkpointer=InMemorySaver())
    asked_for = [("write", "a.py"), ("read", "b.py"), ("write", "c.toml"), ("write", ".env")]
    items: list[Item] = [call(str(place), *what) for place, what in enumerate(asked_for, start=1)]
    thread: Any = {"configurable": {"thread_id": "1"}}
    asked = compiled.invoke({"items": items}, thread)["__interrupt__"]

    def answer(value: Any) -> dict[str, Any]:
        return compiled.invoke(Command(resume=value), thread)

    return asked, answer


def test_all_calls_that_need_a_person_are_one_question(ask: tuple[Any, Ask]) -> None:
    (question,) = ask[0]
    assert question.value == {
        "kind": "approval",
        "calls": [
            {"index": 0, "tool": "write", "path": "a.py", "rule": "ask_before_write", "arguments": {"path": "a.py"}},
            {"index": 2, "tool": "write", "path": "c.toml", "rule": "project_config", "arguments": {"path": "c.toml"}},
        ],
    }


def test_the_answer_becomes_the_verdicts(ask: tuple[Any, Ask]) -> None:
    after = ask[1]({"decisions": {"0": {"action": "approve"}, "2": {"action": "reject", "reason": "leave it"}}})
    remedy = "Do something else, or explain in your answer what is needed."
    refused = f"A person did not approve this call: leave it. {remedy}"
    assert (after["verdicts"], after["results"], after.get("stop")) == (
        [
            Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write", path="a.py"),
            Verdict(kind=VerdictKind.ALLOW, path="b.py"),
            denied("project_config", ToolErrorCode.PERMISSION_DENIED, refused, path="c.toml"),
            ENV_DENIED,
        ],
        [],
        None,
    )


def test_a_stop_ends_the_run_with_a_result_for_every_call(ask: tuple[Any, Ask]) -> None:
    after = ask[1]("stop")
    stopped = "This call did not run: a person stopped the run."
    assert (after["results"], after["stop"]) == (
        [
            failure("1", "write", ToolErrorCode.CANCELLED, stopped),
            failure("2", "read", ToolErrorCode.CANCELLED, stopped),
            failure("3", "write", ToolErrorCode.CANCELLED, stopped),
            failure("4", "write", ToolErrorCode.PERMISSION_DENIED, BLOCKED),
        ],
        StopCause(
            reason=StopReason.CANCELLED,
            message="A person stopped the run instead of approving a call; nothing of this reply was run.",
        ),
    )
