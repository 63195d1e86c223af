import json
from typing import Any

from hypothesis import given, settings, strategies as st

from mendgraph.nodes.parse.answers import NOTHING_CHANGED, TurnFacts
from mendgraph.nodes.parse.reading import Reader, ReplyReading, read_reply
from mendgraph.nodes.parse.written_calls import cut_invented
from mendgraph.nodes.records import (
    Answer,
    CallError,
    EditForm,
    ExtractionError,
    ExtractionErrorType as Kind,
    FinishReason,
    ModelReply,
    Protocol,
    RawCall,
    Reading,
    ToolCall,
)
from tests.row_tables import rows
from tests.rules.parse.readings import BLOCKS, NATIVE, NATIVE_BLOCKS, TEXT, raw, read, reader

COUNT = {"type": "object", "required": ["count"]}
GOOD = 'tool: read_file({"path": "a.py"})'


def reading_file(call_id: str = "call_3_0", path: str = "a.py", line: int = 1, raw_text: str | None = None) -> ToolCall:
    return ToolCall(
        call_id=call_id,
        tool="read_file",
        arguments={"path": path, "start_line": 1, "limit": 0, "start_column": 1},
        raw_arguments=raw_text if raw_text is not None else json.dumps({"path": path}),
        line_number=line,
    )


def answering(call_id: str, answer: str, raw_text: str, value: Any = None) -> ToolCall:
    arguments = {"answer": answer, "value": value}
    return ToolCall(call_id=call_id, tool="final_answer", arguments=arguments, raw_arguments=raw_text)


def malformed(kind: Kind, content: str, details: str) -> ReplyReading:
    return ReplyReading(Reading.MALFORMED, [], [ExtractionError(kind, 0, content, details)])


CODE = "def add(a, b):\n    return a + b\n"


def editing(call_id: str, path: str, line: int) -> ToolCall:
    arguments = {"path": path, "content": CODE}
    return ToolCall(call_id=call_id, tool="edit_blocks", arguments=arguments, raw_arguments=CODE, line_number=line)


def implied(answer: str) -> ToolCall:
    arguments = {"answer": answer}
    return ToolCall(call_id="call_3_answer", tool="final_answer", arguments=arguments, raw_arguments="", implied=True)


def test_text_calls_are_read_in_order() -> None:
    text = f'Let me look.\n{GOOD}\ntool: read_file({{"path": "b.py"}})'
    items: list[ToolCall | CallError] = [reading_file(line=2), reading_file("call_3_1", "b.py", 3)]
    assert read(TEXT, text) == ReplyReading(Reading.CALLS, items, [])


def test_native_calls_are_read_in_order_and_keep_their_ids() -> None:
    calls = (raw("read_file", '{"filename": "a.py"}', "x"), raw("read_file", '{"path": "b.py"}'))
    items: list[ToolCall | CallError] = [
        reading_file("x", line=0, raw_text='{"filename": "a.py"}'),
        reading_file("call_3_1", "b.py", 0),
    ]
    assert read(NATIVE, "Look:", *calls) == ReplyReading(Reading.CALLS, items, [])
    assert read(TEXT, "Look:", *calls) == ReplyReading(Reading.CALLS, items, [])


def test_text_and_native_calls_of_one_reply_are_all_read() -> None:
    reading = read(TEXT, GOOD, raw("read_file", '{"path": "b.py"}'))
    items: list[ToolCall | CallError] = [reading_file("call_3_1"), reading_file("call_3_0", "b.py", 0)]
    assert reading == ReplyReading(Reading.CALLS, items, [])


def test_malformed_calls_keep_their_places() -> None:
    reading = read(TEXT, f'tool: reed_file({{}})\n{GOOD}\ntool: read_file({{"path": 1}})\ntool: read_file({{"path')
    assert (reading.reading, reading.errors, reading.answer) == (Reading.CALLS, [], None)
    assert [item.call_id for item in reading.items] == [f"call_3_{place}" for place in range(4)]
    assert [item.tool for item in reading.items] == ["reed_file", *["read_file"] * 3]
    kinds = [item.error.error_type if isinstance(item, CallError) else None for item in reading.items]
    assert kinds == [Kind.UNKNOWN_TOOL_NAME, None, Kind.INVALID_ARGUMENTS, Kind.MISSING_CLOSING_PAREN]


@rows(
    (FinishReason.LENGTH, Kind.TRUNCATED_REPLY, "The reply was cut at the token limit. Nothing was executed."),
    (FinishReason.REFUSAL, Kind.REFUSED_REPLY, "The model refused: I can't."),
    (FinishReason.CONTENT_FILTER, Kind.FILTERED_REPLY, "The endpoint's content filter stopped the reply."),
)
def test_truncated_refused_or_filtered_reply_runs_nothing(finish: FinishReason, kind: Kind, details: str) -> None:
    call = raw("read_file", '{"path": "a.py"}')
    reply = ModelReply(text=GOOD, calls=(call,), finish_reason=finish, refusal="I can't.")
    for how in (TEXT, NATIVE):
        assert read_reply(reply, 3, how) == malformed(kind, GOOD, details)


def test_unknown_tool_error_lists_the_offered_tools() -> None:
    [error] = read(TEXT._replace(offered=frozenset({"read_file", "final_answer"})), "tool: reed_file({})").errors
    assert error.details == "Unknown tool 'reed_file'. Available: ['final_answer', 'read_file']"


FINAL = '{"answer": "Done.", "value": {"count": 3}}'


def test_lone_final_answer_is_the_answer() -> None:
    call = answering("call_3_0", "Done.", FINAL, {"count": 3})
    expected = ReplyReading(Reading.ANSWER, [call], [], Answer(text="Done.", value={"count": 3}))
    assert read(reader(Protocol.NATIVE, schema=COUNT), "", raw("final_answer", FINAL)) == expected
    text = read(reader(schema=COUNT), f"tool: final_answer({FINAL})")
    assert text == expected._replace(items=[call.model_copy(update={"line_number": 1})])


ASK = "end with the tool final_answer, and put the value that was asked for into its argument `value`"


def test_text_is_not_an_answer_if_a_value_is_required() -> None:
    for how in (reader(schema=COUNT), reader(Protocol.NATIVE, schema=COUNT)):
        assert read(how, "It is 3.") == malformed(Kind.INVALID_ANSWER, "It is 3.", ASK)


BLOCK = f"calc.py\n```python\n{CODE}```"


def test_blocks_are_edits_and_the_text_around_them_is_the_answer() -> None:
    text = f"I fixed it.\n\n{BLOCK}\nb.py\n```\n{CODE}```\nBye."
    edits = [editing("call_3_0", "calc.py", 4), editing("call_3_1", "b.py", 9)]
    items: list[ToolCall | CallError] = [*edits, implied("I fixed it.\n\nBye.")]
    assert read(BLOCKS, text) == ReplyReading(Reading.CALLS, items, [])
    assert read(TEXT, text).reading is Reading.ANSWER


def test_unclosed_block_is_malformed_and_other_blocks_run() -> None:
    closed, cut = f"{BLOCK}\n", f"b.py\n```python\n{CODE}"
    details = "The block for b.py has no closing fence. Send it again, complete."
    error = ExtractionError(Kind.TRUNCATED_REPLY, 7, "b.py", details)
    item = CallError(call_id="call_3_1", tool="edit_blocks", raw_arguments="b.py", error=error)
    assert read(BLOCKS, closed + cut) == ReplyReading(Reading.CALLS, [editing("call_3_0", "calc.py", 2), item], [])
    assert read(BLOCKS, cut).reading is Reading.MALFORMED


def test_tool_line_changes_in_block_form_complete_the_work_too() -> None:
    arguments = {"path": "b.py", "old_str": "x", "new_str": "y", "replace_all": False}
    line = f"tool: edit_file({json.dumps(arguments)})"
    call = ToolCall(
        call_id="call_3_0", tool="edit_file", arguments=arguments, raw_arguments=json.dumps(arguments), line_number=1
    )
    assert read(BLOCKS, line) == ReplyReading(Reading.CALLS, [call, implied("")], [])
    assert read(TEXT, line) == ReplyReading(Reading.CALLS, [call], [])
    native = read(BLOCKS, "", raw("edit_file", json.dumps(arguments), "call_3_1"))
    assert [item.call_id for item in native.items] == ["call_3_1", "call_3_answer"]


REQUIRED = TurnFacts(change_required=True)
CHANGED = TurnFacts(changed=("calc.py",), change_required=True, checked=True)


ARGUMENTS = st.one_of(
    st.fixed_dictionaries({"path": st.text(max_size=5)}).map(json.dumps),
    st.dictionaries(st.sampled_from(["path", "answer", "value", "x"]), st.integers() | st.text(max_size=3)).map(
        json.dumps
    ),
    st.sampled_from(["", "{}", "[]", "null", "{", '{"path": "\\ud83d"}', '{"path": NaN}', '{"a": 1, "a": 2}']),
)
TOOLS = st.sampled_from(["read_file", "list_files", "final_answer", "edit_file", "nope"])
CALLS = st.lists(st.tuples(TOOLS, ARGUMENTS), min_size=1, max_size=5)

REPLIES = st.builds(
    ModelReply,
    text=st.text(max_size=40)
    | st.lists(
        st.sampled_from([GOOD, "calc.py", "```python", "```", "tool: (", '{"name": "read_file"', "def f():"])
    ).map("\n".join),
    calls=st.lists(
        st.builds(
            RawCall,
            call_id=st.sampled_from(["", "x", "y", "call_3_1", "\n"]),
            tool=TOOLS | st.text(max_size=5),
            arguments=ARGUMENTS | st.text(max_size=10),
        ),
        max_size=4,
    ).map(tuple),
    finish_reason=st.sampled_from(FinishReason),
)


def judged(reading: ReplyReading) -> list[tuple[str, str, Any]]:
    """The parts of each item that do not depend on the protocol."""
    return [
        (item.call_id, item.tool, item.arguments if isinstance(item, ToolCall) else item.error.error_type)
        for item in reading.items
    ]


def test_answer_without_a_required_change_or_refused_by_the_judge_is_malformed() -> None:
    refused = ExtractionError(Kind.INVALID_ANSWER, 0, "x", "this repeats what you were told instead of answering")
    for how in (TEXT, NATIVE):
        judged_by = how._replace(turn=REQUIRED, judge_answer=lambda text: refused if text == "x" else None)
        assert read(judged_by, "x") == ReplyReading(Reading.MALFORMED, [], [refused])
        assert read(judged_by, "Done.") == malformed(Kind.UNFOUNDED_CLAIM, "Done.", NOTHING_CHANGED)
        assert read(how._replace(turn=TurnFacts()), "I have fixed it.").reading is Reading.ANSWER
    [item] = read(TEXT._replace(turn=REQUIRED), 'tool: final_answer({"answer": "It adds."})').items
    error = ExtractionError(Kind.UNFOUNDED_CLAIM, 0, "It adds.", NOTHING_CHANGED)
    assert isinstance(item, CallError)
    assert (item.tool, item.error) == ("final_answer", error)


TURNS = st.sampled_from([TurnFacts(), REQUIRED, CHANGED])


NO_ARGUMENTS = {"": "{}", "null": "{}"}
"""How a native call says that it has none, and how a line does."""


@settings(max_examples=30)
@given(CALLS, TURNS)
def test_both_protocols_read_the_same_calls_alike(calls: list[tuple[str, str]], turn: TurnFacts) -> None:
    native = read(NATIVE._replace(turn=turn), "", *(raw(tool, arguments) for tool, arguments in calls))
    text = read(
        TEXT._replace(turn=turn),
        "\n".join(f"tool: {tool}({NO_ARGUMENTS.get(arguments, arguments)})" for tool, arguments in calls),
    )
    assert judged(text) == judged(native)
    assert (text.reading, text.answer) == (native.reading, native.answer)
    assert [error.error_type for error in text.errors] == [error.error_type for error in native.errors]


@settings(max_examples=30)
@given(REPLIES, st.sampled_from([TEXT, NATIVE, BLOCKS, NATIVE_BLOCKS, reader(schema=COUNT)]), TURNS)
def test_any_reply_can_be_read(reply: ModelReply, how: Reader, turn: TurnFacts) -> None:
    reading = read_reply(reply, 3, how._replace(turn=turn))
    assert len({item.call_id for item in reading.items}) == len(reading.items)
    good = [item for item in reading.items if isinstance(item, ToolCall)]
    assert (reading.reading is Reading.MALFORMED) is bool(reading.errors)
    assert (reading.reading is Reading.ANSWER) is (reading.answer is not None)
    foreign = bool(good) and all(item.format for item in good if not item.implied)
    assert (reading.reading is Reading.CALLS) is bool(good and reading.answer is None and not foreign)
    tools = [item.tool for item in reading.items]
    assert tools.count("run_checks") == turn.checked * (reading.reading is Reading.CALLS) * (
        "final_answer" in [item.tool for item in good]
    )
    cut = reply.finish_reason in (FinishReason.LENGTH, FinishReason.REFUSAL, FinishReason.CONTENT_FILTER)
    if reply.calls and not cut:
        calls = [
            (item.tool, item.raw_arguments)
            for item in reading.items
            if not (isinstance(item, ToolCall) and item.implied)
        ]
        native = calls[: len(reply.calls)] if how.profile.protocol is Protocol.NATIVE else calls[-len(reply.calls) :]
        assert native == [(call.tool.strip(), call.arguments) for call in reply.calls]
    if cut:
        assert (reading.reading, reading.items) == (Reading.MALFORMED, [])


DOCS = 'A call:\n\ntool: delete_file({"path": "a.py"})\n'


@rows("Document the calls in notes.md.", "What does notes.md say?")
def test_new_text_of_a_file_may_contain_a_call(request_text: str) -> None:
    how = reader(edit_form=EditForm.BLOCKS, shown_paths=("calc.py",), request=request_text)
    reading = read(how, f"notes.md\n```markdown\n{DOCS}```\n{GOOD}\nAnd\n```\n{GOOD}\n```")
    calls = [(item.tool, item.line_number) for item in reading.items if isinstance(item, ToolCall)]
    edits = [("edit_blocks", 2)] if "Document" in request_text else []
    assert calls == [*edits, ("read_file", 7), ("read_file", 10)]
    assert [item.raw_arguments for item in reading.items if item.tool == "edit_blocks"] == [DOCS] * len(edits)


def test_call_in_text_beside_native_calls_runs_once() -> None:
    text = 'It needs\n```json\n{"name": "read_file", "arguments": {"path": "a.py"}}\n```'
    other = raw("read_file", '{"path": "b.py"}', "x")
    reading = read(NATIVE, text, other)
    assert [(item.call_id, item.tool, type(item)) for item in reading.items] == [
        ("x", "read_file", ToolCall),
        ("call_3_0", "read_file", ToolCall),
    ]
    assert (reading.reading, reading.text) == (Reading.CALLS, "It needs")
    assert [item.call_id for item in read(NATIVE, text, raw("read_file", '{"path": "a.py"}', "x")).items] == ["x"]
    broken = read(NATIVE, text.replace('a.py"}}', 'a.py"'), other)
    assert [type(item) for item in broken.items] == [ToolCall, CallError]
    assert [item.call_id for item in read(NATIVE, f"{text}\nas well.", other).items] == ["x"]


@rows(
    ("calc.py", "", ["edit_blocks", "final_answer"]),
    ("seen.py", "Look at seen.py.", ["edit_blocks", "final_answer"]),
    ("other.py", "", ["read_file", "edit_blocks"]),
)
def test_read_call_for_a_shown_file_is_only_the_heading_of_its_block(
    path: str, request_: str, tools: list[str]
) -> None:
    turn = TurnFacts(changed=("x.txt",))
    how = reader(edit_form=EditForm.BLOCKS, shown_paths=("calc.py",), turn=turn, request=request_)
    line = f'tool: read_file({{"path": "{path}"}})'
    assert [item.tool for item in read(how, f"{line}\n{BLOCK}").items] == tools
    assert [item.tool for item in read(how, line).items] == ["read_file"]


def test_blocks_in_the_answer_to_a_question_are_quotations() -> None:
    how = reader(edit_form=EditForm.BLOCKS, shown_paths=("calc.py",), request="What does calc.py do?")
    text = f"It adds:\n{BLOCK}"
    assert read(how, text) == ReplyReading(Reading.ANSWER, [], [], Answer(text=text))
    assert [item.tool for item in read(how, f"{text}\n{GOOD}").items] == ["read_file"]
    for answer in (BLOCK, "calc.py", "`src/calc.py`"):
        assert read(how, answer) == malformed(Kind.INVALID_ANSWER, answer, "this shows a file instead of answering")
    assert read(how, "main.py").reading is read(how, "It is calc.py").reading is Reading.ANSWER
    assert read(TEXT._replace(turn=how.turn), BLOCK).reading is Reading.ANSWER


@rows("edit_blocks", "write_file", "read_file")
def test_call_that_only_names_the_file_is_the_heading_of_its_block(tool: str) -> None:
    edit, answer = read(BLOCKS, f'tool: {tool}({{"path": "calc.py"}})\n\n{BLOCK}').items
    assert isinstance(answer, ToolCall)
    assert (edit.tool, answer.tool, answer.arguments["answer"]) == ("edit_blocks", "final_answer", "")


LISTING = "tool: list_files({})"
WRITE = '{"name": "write_file", "arguments": {"path": "a.md", "content": "x\n' + LISTING + '\n"}}'
READ_CALC = '{"name": "read_file", "arguments": {"path": "calc.py"}}'


@rows(TEXT, BLOCKS)
def test_text_written_by_a_call_in_another_format_never_runs(how: Reader) -> None:
    beside = read(how, f"{GOOD}\nThen:\n```json\n{WRITE}\n```\n{GOOD}").items
    assert [item.tool for item in beside if isinstance(item, ToolCall)] == ["read_file", "write_file", "read_file"]
    quoted = read(how, f"{GOOD}\nThen:\n```json\n{WRITE}\n```\nas said.").items
    assert [item.tool for item in quoted] == ["read_file"]
    named = read(BLOCKS, f"I will read `calc.py`:\n```json\n{READ_CALC}\n```").items
    assert [item.tool for item in named] == ["read_file"]


KNOWN = frozenset({"read_file", "write_file"})
CALL_LINE = 'tool: read_file({"path": "a.py"})\n'
RESULT = 'tool_result({"tool":"read_file","ok":true,"data":{"content":"x"}})\n'


@rows(
    ("", RESULT),
    ("I read it.\n", f"{RESULT}tool: write_file({{}})"),
    (CALL_LINE, f"{RESULT}{CALL_LINE}"),
    (CALL_LINE, f"user: {RESULT}"),
    (CALL_LINE, "User:\nNow edit it."),
    (CALL_LINE, "### User\nNow edit it."),
    (CALL_LINE, "tool_result: x"),
    (CALL_LINE, "<|im_start|>user\nx"),
    (CALL_LINE, "<tool_response>\nx"),
    ('{"name": "read_file", "arguments": {}}\n', "user: x"),
    ("<tool_call>\n{}\n</tool_call>\n", "<tool_response>\nx"),
    ("Action: read_file\nAction Input: {}\n", "Observation: x"),
    ('tool: write_file({"content": "\nuser: x\n"})\n', "user: x"),
)
def test_invented_turns_are_cut(beginning: str, cut: str) -> None:
    assert cut_invented(beginning + cut, KNOWN) == beginning


@rows(
    "",
    "user: what one types is marked so.\nassistant: that is the model.",
    "### User\n\nWho uses it.",
    "A result is a line such as `tool_result({...})`.",
    f"  {RESULT}",
    f"The log:\n```\n{RESULT}```\n",
    'tool: write_file({"path": "a", "content": "\ntool_result(x)\nuser: x\n"})',
    f"{CALL_LINE}```\nuser: x\n```\n",
    f"{CALL_LINE}### User guide\n",
    f"{CALL_LINE}A user: x\n",
)
def test_text_that_is_not_an_invented_turn_is_kept(text: str) -> None:
    assert cut_invented(text, KNOWN) == text
