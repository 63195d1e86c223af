import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from mendgraph.nodes.language.history import (
    HANDOFF_MESSAGE_NAME,
    RESULT_MESSAGE_NAME,
    close_dangling_calls,
    is_request,
    person_requests,
    results_in,
    settle_exchange,
    task_message,
)
from mendgraph.nodes.language.text_protocol import parse_text_results
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    Effect,
    ExtractionError,
    ExtractionErrorType,
    JsonMap,
    ModelReply,
    Protocol,
    RawCall,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)
from tests.row_tables import rows

OK = ToolResult.success(n=1)
FAILED = ToolResult.failure(ToolErrorCode.NOT_FOUND, "There is no b.py.")
ENVELOPE = '{"ok":true,"data":{"n":1}}'
BROKEN = ExtractionError(ExtractionErrorType.INVALID_JSON_SYNTAX, 1, "", "bad")
ITEMS: list[ToolCall | CallError] = [
    ToolCall(call_id="x", tool="read_file", arguments={"path": "a.py"}, raw_arguments='{"filename": "a.py"}'),
    CallError(call_id="y", tool="read_file", raw_arguments='{"path": ', error=BROKEN),
    CallError(call_id="z", tool="", raw_arguments="", error=BROKEN),
]
RESULTS = [
    CallResult(call_id="x", tool="read_file", result=OK),
    CallResult(call_id="y", tool="read_file", result=FAILED),
    CallResult(call_id="z", tool="", result=FAILED),
]


def native(name: str, args: dict[str, Any], call_id: str | None) -> Any:
    return {"name": name, "args": args, "id": call_id, "type": "tool_call"}


def calling(*call_ids: str | None, text: str = "") -> AIMessage:
    return AIMessage(text, tool_calls=[native("f", {}, call_id) for call_id in call_ids])


def answer(call_id: str, content: str = ENVELOPE) -> ToolMessage:
    return ToolMessage(content, tool_call_id=call_id, name="f")


def cancelled(call_id: str) -> ToolMessage:
    content = (
        '{"ok":false,"error":{"code":"cancelled","message":"This call was cancelled before it ran.","suggestions":[]}}'
    )
    return ToolMessage(content, tool_call_id=call_id, name="f", status="error")


def test_text_results_are_one_message_after_the_reply() -> None:
    reply = ModelReply(text='Look:\ntool: read_file({"filename": "a.py"})\ntool: read_file({"path": \ntool: ()')
    message, answered = settle_exchange(reply, ITEMS, RESULTS, Protocol.TEXT)
    assert message == AIMessage(reply.text)
    assert (type(answered), answered.name) == (HumanMessage, RESULT_MESSAGE_NAME)
    assert parse_text_results(str(answered.text)) == [
        {"tool": result.tool, **result.result.as_map()} for result in RESULTS
    ]


def test_native_calls_in_a_text_turn_become_tool_lines() -> None:
    raw = [RawCall(call_id=item.call_id, tool=item.tool, arguments=item.raw_arguments) for item in ITEMS[:2]]
    message, _ = settle_exchange(ModelReply(text="Look:", calls=tuple(raw)), ITEMS[:2], RESULTS[:2], Protocol.TEXT)
    assert message == AIMessage('Look:\ntool: read_file({"filename": "a.py"})\ntool: read_file({"path": )')
    message, _ = settle_exchange(ModelReply(calls=tuple(raw[:1])), ITEMS[:1], RESULTS[:1], Protocol.TEXT)
    assert message == AIMessage('tool: read_file({"filename": "a.py"})')


OUTCOMES = st.lists(st.tuples(st.booleans(), st.sampled_from([OK, FAILED])), max_size=6)


@given(OUTCOMES, st.sampled_from(Protocol))
def test_every_call_has_one_result_in_order(outcomes: list[tuple[bool, ToolResult]], protocol: Protocol) -> None:
    items: list[ToolCall | CallError] = []
    for index, (fits, _) in enumerate(outcomes):
        call: ToolCall | CallError = (
            ToolCall(call_id=f"c{index}", tool="f", arguments={"n": index}, raw_arguments="{}")
            if fits
            else CallError(call_id=f"c{index}", tool="f", raw_arguments="{", error=BROKEN)
        )
        items.append(call)
    results = [
        CallResult(call_id=item.call_id, tool="f", result=result)
        for item, (_, result) in zip(items, outcomes, strict=True)
    ]
    messages = settle_exchange(ModelReply(text="hi"), items, results, protocol)
    assert close_dangling_calls([HumanMessage("Fix it."), *messages]) is None
    if protocol is Protocol.NATIVE:
        assert [m.tool_call_id for m in messages if isinstance(m, ToolMessage)] == [item.call_id for item in items]
    else:
        assert len(parse_text_results(str(messages[1].text))) == len(items)


@rows(
    (HumanMessage("Fix it."), True),
    (HumanMessage("Fix it.", name="Ada"), True),
    (HumanMessage("tool_result({})", name=RESULT_MESSAGE_NAME), False),
    (HumanMessage("Go on.", name=HANDOFF_MESSAGE_NAME), False),
    (AIMessage("Done."), False),
    (SystemMessage("Be brief."), False),
    (answer("x"), False),
)
def test_only_a_message_of_a_person_is_a_request(message: AnyMessage, expected: bool) -> None:
    assert is_request(message) is expected


ASK, NEXT = HumanMessage("Fix it."), HumanMessage("And now?")


@rows(
    ([], None),
    ([ASK, AIMessage("Done."), NEXT], None),
    ([ASK, calling("x", "y"), answer("x"), answer("y"), NEXT], None),
    ([ASK, calling("x"), answer("x", "1"), calling("x"), answer("x", "2"), NEXT], None),
    ([ASK, calling("x"), NEXT], [ASK, calling("x"), cancelled("x"), NEXT]),
    ([ASK, calling("x"), NEXT, answer("x")], [ASK, calling("x"), answer("x"), NEXT]),
    (
        [ASK, calling("x", "y"), answer("y"), answer("x"), NEXT],
        [ASK, calling("x", "y"), answer("x"), answer("y"), NEXT],
    ),
    ([ASK, calling("x", "y"), answer("y"), NEXT], [ASK, calling("x", "y"), cancelled("x"), answer("y"), NEXT]),
    ([ASK, answer("x"), NEXT], [ASK, NEXT]),
    ([answer("x"), calling("x"), NEXT], [calling("x"), cancelled("x"), NEXT]),
    ([calling("x"), answer("x", "1"), answer("x", "2"), NEXT], [calling("x"), answer("x", "1"), NEXT]),
    ([calling("x"), calling("x"), answer("x"), NEXT], [calling("x"), cancelled("x"), calling("x"), answer("x"), NEXT]),
    ([calling("x", "x"), answer("x", "1"), NEXT], [calling("x", "x"), answer("x", "1"), cancelled("x"), NEXT]),
    ([calling(None), NEXT], [calling(None), cancelled(""), NEXT]),
)
def test_dangling_call_gets_exactly_one_result(history: list[AnyMessage], repaired: list[AnyMessage] | None) -> None:
    assert close_dangling_calls(history) == repaired


IDS = st.sampled_from(["x", "y", "z"])
HISTORIES = st.lists(
    st.builds(HumanMessage, st.text(max_size=3))
    | st.builds(lambda ids: calling(*ids), st.lists(IDS | st.none(), max_size=3))
    | st.builds(answer, IDS, st.text(max_size=3)),
    max_size=10,
)


def is_valid(messages: Sequence[AnyMessage]) -> bool:
    """Whether each call is followed by its result, in order, and no result stands anywhere else."""
    expected: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if not expected or expected.pop(0) != message.tool_call_id:
                return False
            continue
        if expected:
            return False
        expected = [call["id"] or "" for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return not expected


@given(HISTORIES)
def test_repaired_history_is_valid_and_repair_is_idempotent(history: list[AnyMessage]) -> None:
    repaired = close_dangling_calls(history)
    assert (repaired is None) is is_valid(history)
    if repaired is not None:
        assert is_valid(repaired)
        assert close_dangling_calls(repaired) is None
        assert [m for m in repaired if not isinstance(m, ToolMessage)] == [
            m for m in history if not isinstance(m, ToolMessage)
        ]
        assert all(message in history or message.status == "error" for message in repaired if message.type == "tool")


CHECKS = ToolCall(call_id="b", tool="run_checks", arguments={}, raw_arguments='{"paths": ["calc.py"]}', implied=True)
ENDING = ToolCall(call_id="c", tool="final_answer", arguments={}, raw_arguments="", implied=True)
FOUND = ToolResult.failure(ToolErrorCode.CHECK_FAILED, "add(1, 2) gives -1.")
NOT_YET = ToolResult.failure(ToolErrorCode.CANCELLED, "Not taken as the final answer.")


def settled(protocol: Protocol, *pairs: tuple[ToolCall, ToolResult]) -> list[AnyMessage]:
    results = [CallResult(call_id=call.call_id, tool=call.tool, result=result) for call, result in pairs]
    return settle_exchange(ModelReply(text="Done."), [call for call, _ in pairs], results, protocol)


@rows(*Protocol)
def test_successful_implied_calls_add_no_message(protocol: Protocol) -> None:
    assert settled(protocol, (CHECKS, OK), (ENDING, OK)) == []
    assert settled(protocol, (CHECKS, NOT_YET)) == []


def test_failed_implied_checks_are_kept_with_the_answer() -> None:
    answer, result = settled(Protocol.TEXT, (CHECKS, FOUND), (ENDING, NOT_YET))
    assert (answer, result.text.count("tool_result(")) == (AIMessage("Done."), 1)
    answer, result = settled(Protocol.NATIVE, (CHECKS, FOUND), (ENDING, NOT_YET))
    assert answer == AIMessage("Done.", tool_calls=[native("run_checks", {"paths": ["calc.py"]}, "b")])
    assert isinstance(result, ToolMessage)
    assert (result.tool_call_id, result.status) == ("b", "error")


@rows(("functions.read file!", "functions_read_file_"), ("", "unknown"), ("x" * 99, "x" * 64))
def test_invented_tool_name_is_made_valid_for_endpoints(made_up: str, sent: str) -> None:
    call = ToolCall(call_id="a", tool=made_up, arguments={}, raw_arguments="{}")
    result = CallResult(call_id="a", tool=made_up, result=ToolResult.success(n=1))
    reply, answer = settle_exchange(ModelReply(), [call], [result], Protocol.NATIVE)
    assert isinstance(reply, AIMessage)
    assert isinstance(answer, ToolMessage)
    assert (reply.tool_calls[0]["name"], answer.name) == (sent, sent)


READ_SPEC = ToolSpec(name="read_file", description="", parameters={}, effect=Effect.READ, path_fields=("path",))
SPECS = {"read_file": READ_SPEC}


@rows(
    ('{"path":"/w s/é.py"}', {"path": "é.py"}),
    ('{"filename": "\\/w s\\/a.py", "note": "/w s/a.py"}', {"filename": "a.py", "note": "/w s/a.py"}),
    ('{"path": "/w s"}', {"path": "."}),
    ('{"path": "/w s//etc/../x"}', {"path": "etc/../x"}),
    ('{"path": "/w s/~/a"}', {"path": "./~/a"}),
    ('{"path": "/w sx/a.py"}', None),
    ('{"path":  "a.py", "note": "/w s/a.py"}', None),
    ('{"path": "/etc/hosts"}', None),
)
@rows(*Protocol)
def test_workspace_path_in_a_call_becomes_relative(protocol: Protocol, raw: str, relative: JsonMap | None) -> None:
    """Nothing else in a call changes, and nothing in a call without such a path. Source: spec 3."""
    sent = json.loads(raw)
    arguments = {"path": sent.get("path", sent.get("filename")), "note": sent.get("note", "")}
    call = ToolCall(call_id="x", tool="read_file", arguments=arguments, raw_arguments=raw)
    result = CallResult(call_id="x", tool="read_file", result=OK)
    block = {"type": "tool_use", "id": "x", "name": "read_file", "input": sent}
    text = f"I look at /w s/a.py.\ntool: read_file({raw})" if protocol is Protocol.TEXT else ""
    reply = ModelReply(text=text, provider={} if text else {"content": [block]})
    message = settle_exchange(reply, [call], [result], protocol, SPECS, "/w s")[0]
    assert isinstance(message, AIMessage)
    if protocol is Protocol.TEXT:
        raw_arguments = raw if relative is None else json.dumps(relative, ensure_ascii=False)
        assert message.text == f"I look at /w s/a.py.\ntool: read_file({raw_arguments})"
    else:
        assert message.tool_calls[0]["args"] == (relative or sent)
        assert message.content == [{**block, "input": relative or sent}]


def told_of(
    text: str, tool: str, arguments: JsonMap, raw: str, line: int, protocol: Protocol = Protocol.TEXT
) -> AIMessage:
    call = ToolCall(call_id="x", tool=tool, arguments=arguments, raw_arguments=raw, line_number=line)
    specs = {tool: READ_SPEC.model_copy(update={"name": tool})}
    result = CallResult(call_id="x", tool=tool, result=OK)
    message = settle_exchange(ModelReply(text=text), [call], [result], protocol, specs, "/w")[0]
    assert isinstance(message, AIMessage)
    return message


@rows("x = 1\n", '{"name": "/w/x"}\n', 'p = "/w/a.py"\n')
def test_block_under_an_absolute_path_keeps_its_text(body: str) -> None:
    text = f"I change /w/b.py.\n/w/a.py\n```\n{body}```\nDone."
    message = told_of(text, "edit_blocks", {"path": "/w/a.py", "content": body}, body, 3)
    assert message.text == text.replace("\n/w/a.py", "\na.py", 1)
    message = told_of(text, "edit_blocks", {"path": "/w/a.py", "content": body}, body, 3, Protocol.NATIVE)
    assert message.tool_calls[0]["args"] == {"path": "a.py", "content": body}


def test_path_becomes_relative_only_in_its_own_call() -> None:
    call = 'tool: read_file({"path": "/w/a.py"})'
    text = f'tool: write_file({{"path": "n.md"}})\n```\n{call}\n```\n{call}'
    message_text = told_of(text, "read_file", {"path": "/w/a.py"}, '{"path": "/w/a.py"}', 5).text
    assert message_text == f'{text.removesuffix(call)}tool: read_file({{"path": "a.py"}})'


@rows(
    ('File "/w/s/a.py", line 3', 'File "a.py", line 3'),
    ("rootdir: /w/s\n/w/s/.venv/bin/x /w/s.", "rootdir: .\n.venv/bin/x .."),
    ("/w/s/ /w/sx/a.py /w/s-2/a.py /w/s.old/a.py", "./ /w/sx/a.py /w/s-2/a.py /w/s.old/a.py"),
    ("/data/w/s/a.py ~/w/s/a.py file:///w/s/a.py", "/data/w/s/a.py ~/w/s/a.py file:///w/s/a.py"),
)
@rows(*Protocol)
def test_printed_path_becomes_relative(protocol: Protocol, printed: str, relative: str) -> None:
    """Source: spec 3, all paths that enter the context. The content of files is unchanged."""
    specs = {name: ToolSpec(name=name, description="", parameters={}, effect=effect)
             for name, effect in (("run", Effect.EXECUTE), ("read", Effect.READ))}  # fmt: skip
    output = ToolResult.success(stdout=printed, failed=[printed], exit_code=1)
    results = [
        CallResult(call_id="a", tool="run", result=output),
        CallResult(call_id="b", tool="run", result=ToolResult.failure(ToolErrorCode.TIMEOUT, printed)),
        CallResult(call_id="c", tool="read", result=ToolResult.success(content=printed)),
    ]
    calls = [ToolCall(call_id=result.call_id, tool=result.tool, arguments={}, raw_arguments="{}") for result in results]
    messages = settle_exchange(ModelReply(), calls, results, protocol, specs, "/w/s")[1:]
    envelopes = (
        parse_text_results(messages[0].text)
        if protocol is Protocol.TEXT
        else [json.loads(message.text) for message in messages]
    )
    assert (envelopes[0]["data"]["stdout"], envelopes[0]["data"]["failed"]) == (relative, [relative])
    assert (envelopes[1]["error"]["message"], envelopes[2]["data"]["content"]) == (relative, printed)


def test_task_of_a_child_is_not_a_request_of_a_person() -> None:
    task = task_message("Read a.py.", [HumanMessage("Fix it.")])
    envelope = {"ok": True, "data": "Read a.py.", "tool": "the task of this child"}
    assert ([*results_in([task])], person_requests([task])) == ([envelope], "Fix it.")
