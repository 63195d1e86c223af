import pytest

from mendgraph.nodes.language.formats.call_format import ToolSchemas
from mendgraph.nodes.language.text_protocol import ArgumentProblem, ReadCall, decode_arguments
from mendgraph.nodes.parse.native_calls import read_native_calls
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, JsonMap, RawCall, ToolInvocation

INVALID = ExtractionErrorType.INVALID_JSON_SYNTAX


@pytest.mark.parametrize(
    ("text", "details"),
    [
        ("", "JSON parse error: Expecting value at position 0. JSON: ''"),
        (
            "{path: 1}",
            "JSON parse error: Expecting property name enclosed in double quotes at position 1. JSON: '{path: 1}'",
        ),
        ('{"a": 1} {}', "JSON parse error: Extra data at position 9. JSON: '{\"a\": 1} {}'"),
        ("[1]", 'The arguments must be one JSON object such as {"param": "value"}, not an array.'),
        ("null", 'The arguments must be one JSON object such as {"param": "value"}, not null.'),
        ("1.5", 'The arguments must be one JSON object such as {"param": "value"}, not a number.'),
        (
            '{"old_str": "a", "b": 1, "old_str": "c"}',
            "Duplicate key 'old_str': write each key once, and one call for each change.",
        ),
        ('{"a": NaN}', "NaN is not a JSON value. Write a number, null or a string."),
        ('{"a": 1e999}', "The number 1e999 is too large. Send it as a string."),
        (
            '{"a": 18446744073709551616}',
            "The integer 18446744073709551616 does not fit in 64 bits. Send it as a string.",
        ),
        (
            '{"a": "\\ud83d"}',
            "A string holds half of a surrogate pair (\\ud800 to \\udfff). Write the whole character.",
        ),
        ('{"\ud83d": 1}', "A string holds half of a surrogate pair (\\ud800 to \\udfff). Write the whole character."),
        (
            '{"a": ' + "[" * 64 + "]" * 64 + "}",
            "The arguments are nested deeper than 64 levels. Send a flatter object.",
        ),
    ],
)
def test_each_trap_is_a_typed_problem(text: str, details: str) -> None:
    assert decode_arguments(text) == ArgumentProblem(INVALID, details)


TOOLS = ToolSchemas(
    frozenset({"read_file", "list_files"}), lambda tool: {"required": ["path"]} if tool == "read_file" else {}
)


def raw(call_id: str, tool: str = "list_files", arguments: str = "{}") -> RawCall:
    return RawCall(call_id=call_id, tool=tool, arguments=arguments)


@pytest.mark.parametrize(
    ("call", "tool", "outcome"),
    [
        (
            raw("a", "read_file", ' {"path": "a(b).py"} '),
            "read_file",
            ToolInvocation("read_file", {"path": "a(b).py"}, 0),
        ),
        (raw("a", " list_files ", ""), "list_files", ToolInvocation("list_files", {}, 0)),
        (raw("a", " "), "", ExtractionError(ExtractionErrorType.EMPTY_TOOL_NAME, 0, " ({})", "Tool name is empty")),
        (
            raw("a", "reed_file"),
            "reed_file",
            ExtractionError(
                ExtractionErrorType.UNKNOWN_TOOL_NAME,
                0,
                "reed_file({})",
                "Unknown tool 'reed_file'. Available: ['list_files', 'read_file']",
            ),
        ),
        (
            raw("a", "read_file", '{"path": "a'),
            "read_file",
            ExtractionError(
                ExtractionErrorType.INVALID_JSON_SYNTAX,
                0,
                'read_file({"path": "a)',
                'JSON parse error: Unterminated string starting at at position 9. JSON: \'{"path": "a\'',
            ),
        ),
        (
            raw("a", "read_file", "7"),
            "read_file",
            ExtractionError(
                ExtractionErrorType.INVALID_JSON_SYNTAX,
                0,
                "read_file(7)",
                'The arguments must be one JSON object such as {"param": "value"}, not a number.',
            ),
        ),
        (raw("a", "list_files", "null"), "list_files", ToolInvocation("list_files", {}, 0)),
        (raw("a", "read_file", '"{\\"path\\": \\"a\\"}"'), "read_file", ToolInvocation("read_file", {"path": "a"}, 0)),
        *(
            (raw("a", name, '{"path": "a"}'), "read_file", ToolInvocation("read_file", {"path": "a"}, 0))
            for name in ("functions.read_file:0", "default_api.read_file", "read_file<|channel|>commentary")
        ),
    ],
)
def test_one_call_is_an_invocation_or_a_typed_error(
    call: RawCall, tool: str, outcome: ToolInvocation | ExtractionError
) -> None:
    assert read_native_calls([call], TOOLS) == [ReadCall(tool, call.arguments, outcome, call_id="a")]


PATH_A, PATH_B = '{"path": "a"}', '{"path": "b"}'


@pytest.mark.parametrize(
    ("tool", "arguments", "calls"),
    [
        ("read_file", PATH_A + PATH_B, [("read_file", {"path": "a"}), ("read_file", {"path": "b"})]),
        ("read_file", f"{PATH_A}\n{PATH_B} ", [("read_file", {"path": "a"}), ("read_file", {"path": "b"})]),
        ("read_filelist_files", PATH_A + PATH_B, [("read_file", {"path": "a"}), ("list_files", {"path": "b"})]),
        ("read_fileread_file", PATH_A + PATH_B, [("read_file", {"path": "a"}), ("read_file", {"path": "b"})]),
        ("read_file", "{}" + PATH_A, [("read_file", {"path": "a"})]),
        ("list_files", "{}" + PATH_A, [("list_files", {}), ("list_files", {"path": "a"})]),
    ],
)
def test_calls_that_an_endpoint_has_merged_into_one_are_several(
    tool: str, arguments: str, calls: list[tuple[str, JsonMap]]
) -> None:
    read = read_native_calls([raw("a", tool, arguments)], TOOLS, "call_4")
    assert [call.call_id for call in read] == ["a", "call_4_1"][: len(calls)]
    assert [call.outcome[:2] for call in read] == calls


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read_file", PATH_A + '{"path"'),
        ("read_fileread", PATH_A + PATH_B),
        ("read_filelist_files", PATH_A),
        ("aaa", PATH_A + PATH_B),
        ("a" * 60, PATH_A * 60),
    ],
)
def test_merged_calls_that_can_be_read_in_no_way_or_in_several_are_an_error(tool: str, arguments: str) -> None:
    tools = TOOLS._replace(names=TOOLS.names | {"a", "aa"})
    [broken] = read_native_calls([raw("a", tool, arguments)], tools)
    assert isinstance(broken.outcome, ExtractionError)


@pytest.mark.parametrize(
    ("given_ids", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "", "a"], ["a", "call_4_1", "call_4_2"]),
        (["", "call_4_0"], ["call_4_0_", "call_4_0"]),
        (["\ud83d", " ", "x\ny"], ["call_4_0", "call_4_1", "call_4_2"]),
    ],
)
def test_ids_become_unique(given_ids: list[str], expected: list[str]) -> None:
    calls = read_native_calls([raw(call_id) for call_id in given_ids], TOOLS, "call_4")
    assert [call.call_id for call in calls] == expected
