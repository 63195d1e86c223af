import json
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, settle_exchange
from mendgraph.nodes.records import CallResult, ModelReply, Protocol, ToolCall, ToolErrorCode, ToolResult
from mendgraph.nodes.small_model.turn_view import FOUND_LIMIT, TurnView, view_turn
from tests.row_tables import rows

TASK = HumanMessage("Fix calc.py")


def step(*results: ToolResult, protocol: Protocol = Protocol.TEXT) -> list[AnyMessage]:
    """One exchange whose calls have these results."""
    items = [
        ToolCall(call_id=f"c{index}", tool=tool_of(result), arguments={}, raw_arguments="{}")
        for index, result in enumerate(results)
    ]
    done = [
        CallResult(call_id=item.call_id, tool=item.tool, result=result)
        for item, result in zip(items, results, strict=True)
    ]
    return settle_exchange(ModelReply(text="tool: some_tool({})"), items, done, protocol)


def tool_of(result: ToolResult) -> str:
    """The checks have a result of their own, so it tells them from the others."""
    return "run_checks" if result.error and result.error == findings(result.error.message).error else "some_tool"


def read(path: str, content: str, **data: Any) -> ToolResult:
    return ToolResult.success(path=path, content=content, **data)


def edited(path: str, **data: Any) -> ToolResult:
    return ToolResult.success(path=path, action="merged", **data)


def failed(message: str, code: ToolErrorCode = ToolErrorCode.INVALID_ARGUMENT) -> ToolResult:
    return ToolResult.failure(code, message)


def findings(message: str) -> ToolResult:
    return failed(message, ToolErrorCode.CHECK_FAILED)


def refused(message: str) -> ToolResult:
    """An edit with which a check would fail."""
    return ToolResult.failure(ToolErrorCode.CHECK_FAILED, message, ("a.py",))


def failing(*messages: str, steps: int = 1, **fields: Any) -> TurnView:
    return TurnView(failures=messages, failed_steps=steps, **fields)


A, B = read("a.py", "x"), read("b.py", "y")
HIT = ToolResult.success(matches=[{"path": "a.py", "line": 3, "text": "  def add():\n"}])
REPLACED, UNCHECKED = ToolResult.success(path="a.py", replacements=1), ToolResult.success(checks="none")
LONG = {"text": "x" * 3_000}
LOOP = failed("Do something else.", ToolErrorCode.LOOP_OVERRIDE)
DENIED, UNTAKEN = failed("Not .env.", ToolErrorCode.PERMISSION_DENIED), failed("Not taken.", ToolErrorCode.CANCELLED)
KEPT, NEW = read("a.py", "new", changed=False), read("a.py", "new")
BROKEN = edited("a.json", syntax="no longer parses as JSON: line 1")
ONLY_A, BOTH = {"a.py": "x"}, {"a.py": "x", "b.py": "y"}


@rows(
    ([], TurnView()),
    ([[A, B]], TurnView(files=BOTH)),
    ([[A], [edited("a.py")]], TurnView(changed=("a.py",))),
    ([[BROKEN]], failing("a.json no longer parses as JSON: line 1.", changed=("a.json",))),
    ([[A, B], [A]], failing("a.py is shown above, as it is now.", files=BOTH)),
    (
        [[A, B], [edited("a.py")], [read("a.py", "new")]],
        TurnView(files={"b.py": "y", "a.py": "new"}, changed=("a.py",)),
    ),
    ([[A], [REPLACED], [edited("b.py"), edited("a.py")]], TurnView(changed=("a.py", "b.py"))),
    ([[HIT]], TurnView(found=("a.py, line 3: def add():",))),
    ([[A], [KEPT]], failing("a.py is shown above: make the edit again.", files={"a.py": "new"})),
    ([[ToolResult.success(**LONG)]], TurnView(found=(json.dumps(LONG)[:FOUND_LIMIT],))),
    ([[failed("one")], [failed("two")]], failing("two", steps=2)),
    ([[failed("one")], [A]], failing("one", files=ONLY_A)),
    ([[failed("one")], [edited("a.py")]], TurnView(changed=("a.py",))),
    ([[LOOP]], failing("This was tried before.")),
    ([[A, findings("one"), findings("two")]], TurnView(files=ONLY_A, evidence=("one", "two"))),
    ([[A, findings("one")], [findings("two")]], failing("two", files=ONLY_A, evidence=("one",))),
    ([[A, refused("one")]], failing("one", files=ONLY_A)),
    ([[edited("a.py"), UNCHECKED], [failed("one")]], failing("one", changed=("a.py",))),
    ([[DENIED]], failing("Not .env.", refused=True)),
    ([[failed("one"), UNTAKEN]], failing("one")),
)
def test_turn_is_summarized_from_its_results(steps: list[list[ToolResult]], expected: TurnView) -> None:
    for protocol in Protocol:
        history = [TASK, *(message for results in steps for message in step(*results, protocol=protocol))]
        assert view_turn(history) == expected


def test_only_the_current_turn_counts() -> None:
    history = [TASK, *step(read("a.py", "x"), failed("no")), AIMessage("Done."), HumanMessage("And now?")]
    assert view_turn(history) == TurnView()
    assert view_turn([]) == TurnView()


@rows("", "[1]", '{"ok": true}', '{"ok": true, "data": {"action": "x"}}', '{"ok": false, "error": {}}')
def test_foreign_results_are_ignored(content: str) -> None:
    call = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "c", "type": "tool_call"}])
    view = view_turn([TASK, call, ToolMessage(content, tool_call_id="c")])
    assert (view.files, view.changed, view.failures) == ({}, (), ())
    line = HumanMessage(f"tool_result({content})", name=RESULT_MESSAGE_NAME)
    assert view_turn([TASK, AIMessage("tool: f({})"), line]) == view
