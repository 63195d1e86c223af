import json
from typing import Any

import pytest
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from mendgraph.nodes.call_model.prompts.turn_view import FOUND_LIMIT, TurnView, view_turn
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, settle_exchange
from mendgraph.nodes.records import CallResult, ModelReply, Protocol, ToolCall, ToolErrorCode, ToolResult

TASK = HumanMessage("Fix calc.py")
LISTING = {"entries": ["calc.py", "src/"], "has_more": False}


def step(*results: ToolResult, protocol: Protocol = Protocol.TEXT) -> list[AnyMessage]:
    """One exchange whose calls came to these results."""
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
    return "run_checks" if result.error and result.error == found(result.error.message).error else "some_tool"


def read(path: str, content: str, **data: Any) -> ToolResult:
    return ToolResult.success(path=path, content=content, **data)


def edited(path: str, **data: Any) -> ToolResult:
    return ToolResult.success(path=path, action="merged", **data)


def failed(message: str, code: ToolErrorCode = ToolErrorCode.INVALID_ARGUMENT) -> ToolResult:
    return ToolResult.failure(code, message)


def found(message: str) -> ToolResult:
    return failed(message, ToolErrorCode.CHECK_FAILED)


def refused(message: str) -> ToolResult:
    """An edit with which a check would fail."""
    return ToolResult.failure(ToolErrorCode.CHECK_FAILED, message, ("a.py",))


def denied(message: str) -> ToolResult:
    return failed(message, ToolErrorCode.PERMISSION_DENIED)


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], TurnView()),
        ([[read("a.py", "x = 1\n"), read("b.py", "")]], TurnView(files={"a.py": "x = 1\n", "b.py": ""})),
        ([[read("a.py", "old")], [edited("a.py")]], TurnView(changed=("a.py",))),
        (
            [[edited("a.json", syntax="no longer parses as JSON: line 1")]],
            TurnView(changed=("a.json",), failures=("a.json no longer parses as JSON: line 1.",), failed_steps=1),
        ),
        (
            [[read("a.py", "x"), read("b.py", "y")], [read("a.py", "x")]],
            TurnView(
                files={"a.py": "x", "b.py": "y"}, failures=("a.py is shown above, as it is now.",), failed_steps=1
            ),
        ),
        (
            [[read("a.py", "old"), read("b.py", "b")], [edited("a.py")], [read("a.py", "new")]],
            TurnView(files={"b.py": "b", "a.py": "new"}, changed=("a.py",)),
        ),
        (
            [[read("a.py", "x")], [ToolResult.success(path="a.py", replacements=1)], [edited("b.py"), edited("a.py")]],
            TurnView(changed=("a.py", "b.py")),
        ),
        (
            [[ToolResult.success(matches=[{"path": "a.py", "line": 3, "text": "  def add():\n"}])]],
            TurnView(found=("a.py, line 3: def add():",)),
        ),
        (
            [[read("a.py", "x")], [read("a.py", "new", changed=False)]],
            TurnView(files={"a.py": "new"}, failures=("a.py is shown above: make the edit again.",), failed_steps=1),
        ),
        ([[ToolResult.success(text="x" * 3_000)]], TurnView(found=(json.dumps({"text": "x" * 3_000})[:FOUND_LIMIT],))),
        ([[failed("one")], [failed("two")]], TurnView(failures=("two",), failed_steps=2)),
        ([[failed("one")], [read("a.py", "x")]], TurnView(files={"a.py": "x"}, failures=("one",), failed_steps=1)),
        ([[failed("one")], [edited("a.py")]], TurnView(changed=("a.py",))),
        (
            [[failed("Do something else.", ToolErrorCode.LOOP_OVERRIDE)]],
            TurnView(failures=("This was tried before.",), failed_steps=1),
        ),
        ([[read("a.py", "x"), found("one"), found("two")]], TurnView(files={"a.py": "x"}, evidence=("one", "two"))),
        (
            [[read("a.py", "x"), found("one")], [found("two")]],
            TurnView(files={"a.py": "x"}, evidence=("one",), failures=("two",), failed_steps=1),
        ),
        ([[read("a.py", "x"), refused("one")]], TurnView(files={"a.py": "x"}, failures=("one",), failed_steps=1)),
        (
            [[edited("a.py"), ToolResult.success(checks="none")], [failed("one")]],
            TurnView(changed=("a.py",), failures=("one",), failed_steps=1),
        ),
        ([[denied("Not .env.")]], TurnView(failures=("Not .env.",), failed_steps=1, refused=True)),
        (
            [[failed("one"), failed("Not taken as the final answer.", ToolErrorCode.CANCELLED)]],
            TurnView(failures=("one",), failed_steps=1),
        ),
    ],
)
def test_turn_is_summed_up_from_its_results(
    steps: list[list[ToolResult]], expected: TurnView, protocol: Protocol
) -> None:
    history = [TASK, *(message for results in steps for message in step(*results, protocol=protocol))]
    assert view_turn(history) == expected


def test_only_this_turn_counts() -> None:
    history = [TASK, *step(read("a.py", "x"), failed("no")), AIMessage("Done."), HumanMessage("And now?")]
    assert view_turn(history) == TurnView()
    assert view_turn([]) == TurnView()


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"ok": true}', '{"ok": true, "data": {"action": "x"}}', '{"ok": false, "error": {}}']
)
def test_results_that_are_not_ours_do_no_harm(content: str) -> None:
    call = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "c", "type": "tool_call"}])
    view = view_turn([TASK, call, ToolMessage(content, tool_call_id="c")])
    assert (view.files, view.changed, view.failures) == ({}, (), ())
    line = HumanMessage(f"tool_result({content})", name=RESULT_MESSAGE_NAME)
    assert view_turn([TASK, AIMessage("tool: f({})"), line]) == view


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ok", "data", "error", "path", "content", "action", "message", "code", "x"]), inner
        )
    ),
    max_leaves=8,
)
