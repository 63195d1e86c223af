import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from mendgraph.nodes.parse.answers import TurnFacts, answer_problems, paths_to_check, read_format, schema_problem
from mendgraph.nodes.parse.node import ParseState, parse
from mendgraph.nodes.parse.reading import Reader, ReplyReading
from mendgraph.nodes.records import (
    Answer,
    CallError,
    Correction,
    ExtractionError,
    ExtractionErrorType as Kind,
    FinishReason,
    JsonMap,
    ModelReply,
    Profile,
    RawCall,
    Reading,
    ToolCall,
)
from tests.row_tables import rows
from tests.rules.parse.readings import BLOCKS, NATIVE, NATIVE_BLOCKS, REGISTRY, raw

READER = Reader(Profile(), frozenset({"read_file"}), lambda _, arguments: arguments, lambda _: [])
CALL = ToolCall(
    call_id="call_4_0", tool="read_file", arguments={"path": "a"}, raw_arguments='{"path":"a"}', line_number=1
)
NO_RESULTS: JsonMap = {"verdicts": [], "results": []}
"""What new calls make it forget of the step before."""
EMPTY = ExtractionError(Kind.EMPTY_REPLY, 0, "", "The reply was empty.")


@rows(
    (
        'tool: read_file({"path":"a"})',
        {"reading": Reading.CALLS, "items": [CALL], "errors": [], "answer": None, **NO_RESULTS},
    ),
    ("Done.", {"reading": Reading.ANSWER, "items": [], "errors": [], "answer": Answer(text="Done.")}),
    ("", {"reading": Reading.MALFORMED, "items": [], "errors": [EMPTY], "answer": None}),
)
@rows([], [Correction(reply="x", prompt="y")])
def test_usable_reply_clears_the_corrections(
    corrections: list[Correction], text: str, update: dict[str, object]
) -> None:
    state = ParseState(reply=ModelReply(text=text), step=4, corrections=corrections)
    healed = bool(corrections) and update["reading"] is not Reading.MALFORMED
    assert parse(state, READER) == {**update, **({"corrections": []} if healed else {})}


def test_checks_come_after_every_edit_of_the_reply() -> None:
    turn = TurnFacts(checked=True)
    calls = (raw("final_answer", '{"answer": "Done."}'), raw("write_file", '{"path": "a.py", "content": ""}'))
    update = parse(
        ParseState(reply=ModelReply(calls=(*calls, raw("read_file", '{"path": "a.py"}')))), NATIVE._replace(turn=turn)
    )
    assert [item.tool for item in update["items"]] == ["final_answer", "write_file", "run_checks", "read_file"]


INVENTED = 'tool: read_file({"path":"a"})\ntool_result({"ok":true,"data":{"content":"x"}})\nDone.'
KEPT = 'tool: read_file({"path":"a"})'


@rows(FinishReason.STOP, FinishReason.LENGTH)
def test_invented_result_after_a_call_is_cut(finish: FinishReason) -> None:
    reply = ModelReply(text=INVENTED, finish_reason=finish, input_tokens=7)
    assert parse(ParseState(reply=reply, step=4), READER) == {
        "reading": Reading.CALLS,
        "items": [CALL],
        "errors": [],
        "answer": None,
        **NO_RESULTS,
        "reply": ModelReply(text=KEPT, input_tokens=7),
    }


THOUGHT_ONLY = ExtractionError(
    Kind.THOUGHT_ONLY_REPLY, 0, "", "The reply was only thought: no answer and no tool call."
)
CUT_THOUGHT = ExtractionError(
    Kind.TRUNCATED_REPLY,
    0,
    "",
    "The reply was cut at the token limit while it was still thinking. Nothing was executed.",
)


def thinking(text: str, finish: FinishReason = FinishReason.STOP) -> ParseState:
    return ParseState(reply=ModelReply(text=text, finish_reason=finish), step=4)


@rows(
    (thinking("<think>Hm.</think>\n"), THOUGHT_ONLY),
    (thinking(f"<think>Hm.\n{KEPT}"), THOUGHT_ONLY),
    (ParseState(reply=ModelReply(reasoning="Hm.")), THOUGHT_ONLY),
    (thinking("<think>\n\n</think>"), EMPTY),
    (ParseState(reply=ModelReply(reasoning=" ")), EMPTY),
    (thinking(f"<think>Hm.\n{KEPT}", FinishReason.LENGTH), CUT_THOUGHT),
    (ParseState(reply=ModelReply(reasoning="Hm.", finish_reason=FinishReason.LENGTH)), CUT_THOUGHT),
)
def test_reply_with_only_thoughts_is_malformed(state: ParseState, error: ExtractionError) -> None:
    update = parse(state, READER)
    update.pop("reply", None)
    assert update == {"reading": Reading.MALFORMED, "items": [], "errors": [error], "answer": None}


def parsed(how: Reader, text: str = "", *calls: RawCall) -> ReplyReading:
    """The node's reading of one reply."""
    update = parse(ParseState(reply=ModelReply(text=text, calls=calls), step=3), how)
    return ReplyReading(update["reading"], update["items"], update["errors"], update["answer"])


@rows(BLOCKS, NATIVE_BLOCKS)
@rows(
    ('I will read it:\n```json\n{"name": "read_file", "arguments": {"path": "a.py"}}\n```', "json", ["read_file"]),
    ('```python\nread_file(path="a.py")\n```', "tool_code", [""]),
    ('final_answer(answer="It adds.")', "tool_code", [""]),
)
def test_block_that_holds_a_call_in_another_format_is_not_an_edit(
    text: str, form: str, tools: list[str], how: Reader
) -> None:
    read = parsed(how, text)
    assert (read.reading, [item.tool for item in read.items]) == (Reading.MALFORMED, tools)
    assert [error.error_type for error in read.errors] == [Kind.MISSING_TOOL_PREFIX]
    assert f"the format '{form}'" in read.errors[0].details


def test_definition_with_the_name_of_a_tool_is_not_a_call() -> None:
    code = "def read_file(path):\n    return open(path).read()\n"
    [edit, _] = parsed(BLOCKS, f"```python\n{code}```").items
    assert isinstance(edit, ToolCall)
    assert (edit.tool, edit.arguments["path"]) == ("edit_blocks", "calc.py")


@rows(
    ("read_file", {"path": "a.py", "limit": None, "start_line": None}, {"path": "a.py"}),
    ("read_file", {"path": "a.py", "limit": "3"}, {"path": "a.py", "limit": 3}),
    ("read_file", {"arguments": {"path": "a.py"}}, {"path": "a.py"}),
    ("read_file", {"arguments": '{"path": "a.py"}'}, {"path": "a.py"}),
    ("run_command", {"argv": '["ls", "-l"]', "cwd": None}, {"argv": ["ls", "-l"]}),
    ("update_plan", {"steps": '[{"title": "look"}]'}, {"steps": [{"title": "look"}]}),
    ("read_file", {"path": None}, None),
    ("read_file", {"arguments": {"file": "a.py"}}, None),
    ("run_command", {"argv": "ls -l"}, None),
)
def test_arguments_are_read_in_the_one_shape_that_fits_the_schema(
    tool: str, arguments: JsonMap, fitting: JsonMap | None
) -> None:
    schemas = {spec.name: spec.parameters for spec in REGISTRY.specs()}
    how = NATIVE._replace(schema_of=schemas.__getitem__)
    [item] = parsed(how, "", raw(tool, json.dumps(arguments), "a")).items
    if fitting is None:
        assert isinstance(item, CallError)
        assert item.error.error_type is Kind.INVALID_ARGUMENTS
        return
    assert isinstance(item, ToolCall)
    assert item.arguments == REGISTRY.validate(tool, fitting)
    assert item.arguments == REGISTRY.validate(tool, json.loads(item.raw_arguments)) or "arguments" not in arguments


@rows(
    (TurnFacts(), (), None),
    (TurnFacts(changed=("a.py",)), ("b.py",), None),
    (TurnFacts(checked=True, changed=("a.md", "b.json")), ("c.js",), ("a.md", "b.json", "c.js")),
    (TurnFacts(checked=True, changed=("a.py",)), (), ("a.py",)),
    (TurnFacts(checked=True), ("a.pyi",), ("a.pyi",)),
    (TurnFacts(checked=True, changed=("b.py", "a.md")), ("c.py", "b.py"), ("b.py", "a.md", "c.py")),
    (TurnFacts(checked=True), (), None),
    (TurnFacts(), ("a.md",), None),
)
def test_checks_precede_an_answer_if_they_apply(
    facts: TurnFacts, changing: tuple[str, ...], paths: tuple[str, ...] | None
) -> None:
    assert paths_to_check(facts, changing) == paths


COUNT = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}, "required": ["count"]}
ASK = "end with the tool final_answer, and put the value that was asked for into its argument `value`"
ELSEWHERE = {"$ref": "file:///etc/hostname"}


def problems(value: Any, schema: dict[str, Any] | None) -> list[str]:
    return answer_problems(Answer(text="done", value=value), schema)


@rows(
    ({"type": "numbr"}, "response_format is not a JSON schema: 'numbr' is not valid under any of the given schemas"),
    ({"pattern": "("}, "response_format is not a JSON schema: '(' is not a 'regex'"),
    (
        {"$ref": "#/x"},
        "response_format cannot be followed: PointerToNowhere: '/x' does not exist within {'$ref': '#/x'}",
    ),
    ({"$ref": "#"}, "response_format cannot be followed: maximum recursion depth exceeded"),
    (ELSEWHERE, "response_format cannot be followed: Unresolvable: file:///etc/hostname"),
)
def test_invalid_response_format_is_refused_before_the_run(schema: dict[str, Any], problem: str) -> None:
    assert str(schema_problem(schema)).startswith(problem)


@rows(
    (None, None, []),
    ({"count": 3}, COUNT, []),
    (None, {"type": ["integer", "null"]}, []),
    (None, COUNT, [ASK]),
    ({"count": 0}, COUNT, ["value.count: 0 is less than the minimum of 1"]),
    ({}, COUNT, ["value: 'count' is a required property"]),
    ([1, "b"], {"items": {"type": "integer"}}, ["value[1]: 'b' is not of type 'integer'"]),
    (
        {"x": 1},
        {"properties": {"x": ELSEWHERE}},
        ["response_format cannot be followed: Unresolvable: file:///etc/hostname"],
    ),
)
def test_problems_of_an_answer_are_listed(value: Any, schema: dict[str, Any] | None, expected: list[str]) -> None:
    assert problems(value, schema) == expected


def upper(text: str) -> str:
    return {"a": "A"}[text]  # a key that is missing is an error that no validator may raise


@rows(
    ("a", []),
    (3, ["value: Input should be a valid string"]),
    ("b", ["value: KeyError: 'b'"]),
)
def test_validator_of_a_type_checks_the_value_and_may_raise(value: Any, expected: list[str]) -> None:
    built = read_format(Annotated[str, AfterValidator(upper)])
    assert answer_problems(Answer(text="done", value=value), built.json_schema, built) == expected


def test_schema_that_cannot_be_stored_is_refused() -> None:
    problem = schema_problem({"type": "integer", "maximum": 10**40})
    assert problem is not None
    assert problem.startswith("response_format cannot be kept with the run: ")


def test_schema_reference_to_a_local_file_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}')
    schema = {"$ref": file.as_uri()}
    [problem] = answer_problems(Answer(text="", value="x"), schema)
    assert problem.startswith("response_format cannot be followed: ")
    assert str(schema_problem(schema)).startswith("response_format cannot be followed: ")
