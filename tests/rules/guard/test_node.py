from collections.abc import Callable, Mapping
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

from mendgraph.nodes.guard.approval_formats import response_schema
from mendgraph.nodes.guard.approvals import NO_PREVIEW, ApprovalPorts, GuardUpdate, Preview
from mendgraph.nodes.guard.file_rules import WorkspacePath, check_file_guardrails, format_guardrail_violations
from mendgraph.nodes.guard.node import GuardState, judge_step
from mendgraph.nodes.guard.permissions import Permission
from mendgraph.nodes.guard.policy import GuardConfig, Item, denied, judge_reply
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    JsonMap,
    LoopRecord,
    StopCause,
    StopReason,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
    Verdict,
    VerdictKind,
)
from tests.row_tables import rows

READ = ToolSpec(name="read", description="", parameters={}, effect=Effect.READ, path_fields=("path",))
WRITE = ToolSpec(name="write", description="", parameters={}, effect=Effect.WRITE, path_fields=("path",))
SPECS = {"read": READ, "write": WRITE}
AUTO = GuardConfig(mode="auto", root="/home/dev/project", leads_to=lambda path, _: path)
ASK = GuardConfig(mode="ask", root="/home/dev/project", leads_to=lambda path, _: path)
BLOCKED = "Blocked by rule 'env_file': Environment variable files (.env). Go on without this file."
ENV_DENIED = denied("env_file", ToolErrorCode.PERMISSION_DENIED, BLOCKED, path=".env")
BLOCK = format_guardrail_violations(check_file_guardrails(WorkspacePath(".env")))
CHANGE_DENIED = ENV_DENIED.model_copy(update={"blocked": BLOCK, "refused": "refused (environment variable files):"})
PERMISSION = Permission(rule="ask_before_write", tool="write", place="1")


def call(call_id: str, tool: str, path: str) -> ToolCall:
    return ToolCall(call_id=call_id, tool=tool, arguments={"path": path}, raw_arguments="")


def path_as_signature(item: ToolCall, _: ToolSpec) -> str:
    return str(item.arguments["path"])


def empty_previews(calls: Mapping[int, ToolCall]) -> Mapping[int, Preview]:
    return dict.fromkeys(calls, NO_PREVIEW)


def validated(_: str, arguments: JsonMap) -> JsonMap | list[str]:
    return arguments if set(arguments) == {"path"} else ["path: Field required"]


def judge(config: GuardConfig, *items: Item, state: GuardState | None = None) -> GuardUpdate:
    initial = GuardState(items=list(items)) if state is None else state
    overrides = initial.get("loop", LoopRecord()).overrides

    def verdicts(calls: list[Item]) -> list[Verdict]:
        return judge_reply(calls, config, SPECS, overrides, path_as_signature)

    def ports(ask: Callable[[Any], object]) -> ApprovalPorts:
        return ApprovalPorts(
            ask=ask,
            subject=lambda _: "",
            preview=empty_previews,
            validate=validated,
            judge=lambda call: verdicts([call])[0],
            thread="1",
            permissions=initial.get("permissions", []),
        )

    return judge_step(initial, verdicts, SPECS, ports)


def failure(call_id: str, tool: str, code: ToolErrorCode, message: str) -> CallResult:
    return CallResult(call_id=call_id, tool=tool, result=ToolResult.failure(code, message))


def test_every_call_has_a_result_if_none_may_run() -> None:
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


def test_granted_call_is_not_asked_about_again_unless_denied() -> None:
    state = GuardState(items=[call("1", "write", "a.py")], permissions=[PERMISSION])
    assert judge(ASK, state=state)["verdicts"] == [
        Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write", path="a.py")
    ]
    read_only = GuardConfig(mode="read-only", root="/home/dev/project", leads_to=lambda path, _: path)
    assert [verdict.rule for verdict in judge(read_only, state=state)["verdicts"]] == ["read_only"]
    denied_path = GuardState(items=[call("1", "write", ".env")], permissions=[PERMISSION])
    assert judge(ASK, state=denied_path)["verdicts"] == [CHANGE_DENIED]


class Run(TypedDict, total=False):
    items: list[Item]
    verdicts: list[Verdict]
    results: list[CallResult]
    permissions: list[Permission]
    stop: StopCause


def answered(answer: object) -> tuple[Any, dict[str, Any]]:
    """The question of a run with two writes, a read and a denied write, and its state after the answer."""
    builder = StateGraph(Run)
    builder.add_node("guard", lambda state: judge(ASK, state=state))
    builder.add_edge(START, "guard")
    builder.add_edge("guard", END)
    compiled = builder.compile(checkpointer=InMemorySaver())
    asked_for = [("write", "a.py"), ("read", "b.py"), ("write", "c.toml"), ("write", ".env")]
    items: list[Item] = [call(str(place), *what) for place, what in enumerate(asked_for, start=1)]
    thread: Any = {"configurable": {"thread_id": "1"}}
    [question] = compiled.invoke({"items": items}, thread)["__interrupt__"]
    return question, compiled.invoke(Command(resume=answer), thread)


def test_one_question_for_all_calls_sets_their_verdicts() -> None:
    question, after = answered(
        {"decisions": {"0": {"action": "approve_for_run"}, "2": {"action": "reject", "reason": "no"}}}
    )
    assert question.response_schema == response_schema()
    grant = "write on every file that no rule denies, except project configuration"
    assert [
        (request["index"], request["path"], request["rule"], request["choices"]) for request in question.value["calls"]
    ] == [
        (0, "a.py", "ask_before_write", {"approve_for_run": grant}),
        (2, "c.toml", "project_config", {}),
    ]
    refused = "A person did not approve this call: no. Do something else, or explain in your answer what is needed."
    rejected = denied("project_config", ToolErrorCode.PERMISSION_DENIED, refused, path="c.toml")
    assert (after["verdicts"], after["results"], after["permissions"], after.get("stop")) == (
        [
            Verdict(kind=VerdictKind.ALLOW, rule="ask_before_write", path="a.py"),
            Verdict(kind=VerdictKind.ALLOW, path="b.py"),
            rejected.model_copy(update={"refused": "you refused"}),
            CHANGE_DENIED,
        ],
        [],
        [PERMISSION],
        None,
    )


@rows(
    ({"path": ".env"}, "env_file", BLOCKED),
    ({"path": "a.py", "mode": 7}, "edited_arguments", "The arguments do not fit write: path: Field required"),
)
def test_forbidden_edit_of_a_call_is_refused(arguments: JsonMap, rule: str, problem: str) -> None:
    _, after = answered({"decisions": {"0": {"action": "edit", "arguments": arguments}, "2": "approve"}})
    verdict = after["verdicts"][0]
    assert (verdict.kind, verdict.rule) == (VerdictKind.DENY, rule)
    assert verdict.error.message.startswith(f"A person changed this call, but it may not run like that: {problem}")
    assert after["verdicts"][2].kind is VerdictKind.ALLOW


def test_edited_call_replaces_the_original() -> None:
    _, after = answered({"decisions": {"0": {"action": "edit", "arguments": {"path": "d.py"}}}})
    assert (after["items"][0], after["verdicts"][0].edited) == (call("1", "write", "d.py"), ("path",))


def test_stop_ends_the_run_with_a_result_for_every_call() -> None:
    _, after = answered("stop")
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
