from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.text_protocol import ArgumentProblem, ReadCall, decode_arguments
from mendgraph.nodes.parse.native_calls import read_native_calls
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, JsonMap, RawCall, ToolInvocation
from tests.row_tables import rows

INVALID = ExtractionErrorType.INVALID_JSON_SYNTAX


@rows(
    ("", "JSON parse error: Expecting value at position 0. JSON: ''"),
    (
        "{path: 1}",
        "JSON parse error: Expecting property name enclosed in double quotes at position 1. JSON: '{path: 1}'",
    ),
    ('{"a": 1} {}', "JSON parse error: Extra data at position 9. JSON: '{\"a\": 1} {}'"),
    ('{"a": 1, "b": x,}', 'JSON parse error: Expecting value at position 14. JSON: \'{"a": 1, "b": x,}\''),
    ("[1]", 'The arguments must be one JSON object such as {"param": "value"}, not an array.'),
    ("null", 'The arguments must be one JSON object such as {"param": "value"}, not null.'),
    ("1.5", 'The arguments must be one JSON object such as {"param": "value"}, not a number.'),
    (
        '{"old_str": "a", "b": 1, "old_str": "c"}',
        "Duplicate key 'old_str': write each key once, and one call for each change.",
    ),
    ('{"a": NaN}', "NaN is not a JSON value. Write a number, null or a string."),
    ('{"a": 1e999}', "The number 1e999 is too large. Send it as a string."),
    ('{"a": 18446744073709551616}', "The integer 18446744073709551616 does not fit in 64 bits. Send it as a string."),
    ('{"a": "\\ud83d"}', "A string holds half of a surrogate pair (\\ud800 to \\udfff). Write the whole character."),
    ('{"\ud83d": 1}', "A string holds half of a surrogate pair (\\ud800 to \\udfff). Write the whole character."),
    ('{"a": ' + "[" * 64 + "]" * 64 + "}", "The arguments are nested deeper than 64 levels. Send a flatter object."),
)
def test_arguments_that_are_not_a_json_object_are_a_typed_error(text: str, details: str) -> None:
    assert decode_arguments(text) == ArgumentProblem(INVALID, details)


TOOLS = ToolSchemas(
    frozenset({"read_file", "list_files"}), lambda tool: {"required": ["path"]} if tool == "read_file" else {}
)


def raw(call_id: str, tool: str = "list_files", arguments: str = "{}") -> RawCall:
    return RawCall(call_id=call_id, tool=tool, arguments=arguments)


PATH_A, PATH_B = '{"path": "a"}', '{"path": "b"}'
NO_OBJECT = 'The arguments must be one JSON object such as {"param": "value"}, not a number.'
UNTERMINATED = 'JSON parse error: Unterminated string starting at at position 9. JSON: \'{"path": "a\''
UNKNOWN = "Unknown tool 'reed_file'. Available: ['list_files', 'read_file']"


@rows(
    ("read_file", ' {"path": "a(b).py"} ', "read_file", {"path": "a(b).py"}),
    (" list_files ", "", "list_files", {}),
    ("list_files", "null", "list_files", {}),
    ("read_file", '"{\\"path\\": \\"a\\"}"', "read_file", {"path": "a"}),
    ("functions.read_file:0", PATH_A, "read_file", {"path": "a"}),
    ("default_api.read_file", PATH_A, "read_file", {"path": "a"}),
    ("read_file<|channel|>commentary", PATH_A, "read_file", {"path": "a"}),
    (" ", "{}", "", (ExtractionErrorType.EMPTY_TOOL_NAME, " ({})", "Tool name is empty")),
    ("reed_file", "{}", "reed_file", (ExtractionErrorType.UNKNOWN_TOOL_NAME, "reed_file({})", UNKNOWN)),
    ("read_file", '{"path": "a', "read_file", (INVALID, 'read_file({"path": "a)', UNTERMINATED)),
    ("read_file", "7", "read_file", (INVALID, "read_file(7)", NO_OBJECT)),
)
def test_native_call_is_an_invocation_or_a_typed_error(
    name: str, arguments: str, tool: str, expected: JsonMap | tuple[ExtractionErrorType, str, str]
) -> None:
    outcome: ToolInvocation | ExtractionError
    if isinstance(expected, tuple):
        kind, line, details = expected
        outcome = ExtractionError(kind, 0, line, details)
    else:
        outcome = ToolInvocation(tool, expected, 0)
    assert read_native_calls([raw("a", name, arguments)], TOOLS) == [ReadCall(tool, arguments, outcome, call_id="a")]


@rows(
    ("read_file", PATH_A + PATH_B, [("read_file", {"path": "a"}), ("read_file", {"path": "b"})]),
    ("read_file", f"{PATH_A}\n{PATH_B} ", [("read_file", {"path": "a"}), ("read_file", {"path": "b"})]),
    ("read_filelist_files", PATH_A + PATH_B, [("read_file", {"path": "a"}), ("list_files", {"path": "b"})]),
    ("read_fileread_file", PATH_A + PATH_B, [("read_file", {"path": "a"}), ("read_file", {"path": "b"})]),
    ("read_file", "{}" + PATH_A, [("read_file", {"path": "a"})]),
    ("list_files", "{}" + PATH_A, [("list_files", {}), ("list_files", {"path": "a"})]),
)
def test_calls_merged_by_an_endpoint_are_split(tool: str, arguments: str, calls: list[tuple[str, JsonMap]]) -> None:
    read = read_native_calls([raw("a", tool, arguments)], TOOLS, "call_4")
    assert [call.call_id for call in read] == ["a", "call_4_1"][: len(calls)]
    assert [call.outcome[:2] for call in read] == calls


@rows(
    ("read_file", PATH_A + '{"path"'),
    ("read_fileread", PATH_A + PATH_B),
    ("read_filelist_files", PATH_A),
    ("aaa", PATH_A + PATH_B),
    ("a" * 60, PATH_A * 60),
)
def test_merged_calls_that_cannot_be_split_uniquely_are_an_error(tool: str, arguments: str) -> None:
    tools = TOOLS._replace(names=TOOLS.names | {"a", "aa"})
    [broken] = read_native_calls([raw("a", tool, arguments)], tools)
    assert isinstance(broken.outcome, ExtractionError)


@rows(
    (["a", "b"], ["a", "b"]),
    (["a", "", "a"], ["a", "call_4_1", "call_4_2"]),
    (["", "call_4_0"], ["call_4_0_", "call_4_0"]),
    (["\ud83d", " ", "x\ny"], ["call_4_0", "call_4_1", "call_4_2"]),
)
def test_call_ids_are_made_unique(given_ids: list[str], expected: list[str]) -> None:
    calls = read_native_calls([raw(call_id) for call_id in given_ids], TOOLS, "call_4")
    assert [call.call_id for call in calls] == expected
