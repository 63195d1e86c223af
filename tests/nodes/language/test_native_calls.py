import json

import pytest
from hypothesis import given, strategies as st

from nodes.language.json_arguments import NativeCall, read_native_calls
from nodes.records import ExtractionError, ExtractionErrorType, RawCall, ToolInvocation

KNOWN = frozenset({"read_file", "list_files"})


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
        (
            raw("a", " "),
            "",
            ExtractionError(ExtractionErrorType.EMPTY_TOOL_NAME, 0, " ({})", "Tool name is empty"),
        ),
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
            raw("a", "read_file", "null"),
            "read_file",
            ExtractionError(
                ExtractionErrorType.INVALID_JSON_SYNTAX,
                0,
                "read_file(null)",
                'The arguments must be one JSON object such as {"param": "value"}, not null.',
            ),
        ),
    ],
)
def test_one_call_is_an_invocation_or_a_typed_error(
    call: RawCall, tool: str, outcome: ToolInvocation | ExtractionError
) -> None:
    assert read_native_calls([call], KNOWN) == [NativeCall("a", tool, call.arguments, outcome)]


def test_several_edits_in_one_call_are_a_call_of_the_tool_for_them() -> None:
    arguments = '{"path": "a", "old_str": "1", "new_str": "2", "old_str": "3", "new_str": "4"}'
    edits = [{"old_str": "1", "new_str": "2"}, {"old_str": "3", "new_str": "4"}]
    outcome = ToolInvocation("multi_edit", {"path": "a", "edits": edits}, 0)
    calls = read_native_calls([raw("a", "edit_file", arguments)], frozenset({"edit_file", "multi_edit"}))
    assert calls == [NativeCall("a", "multi_edit", arguments, outcome)]


def test_a_trailing_comma_is_no_error() -> None:
    [call] = read_native_calls([raw("a", "read_file", '{"path": "a",}')], KNOWN)
    assert call == NativeCall("a", "read_file", '{"path": "a",}', ToolInvocation("read_file", {"path": "a"}, 0))


def test_oversized_arguments_are_quoted_in_part() -> None:
    [call] = read_native_calls([raw("a", "read_file", "x" * 1_000_001)], KNOWN)
    assert isinstance(call.outcome, ExtractionError)
    assert call.outcome.error_type is ExtractionErrorType.OVERSIZED_ARGUMENTS
    assert len(call.outcome.line_content) <= 200


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
    calls = read_native_calls([raw(call_id) for call_id in given_ids], KNOWN, "call_4")
    assert [call.call_id for call in calls] == expected


@given(
    st.lists(
        st.builds(
            raw,
            st.sampled_from(["", "a", "b", "call_0", "call_1", "call_1_"]),
            st.sampled_from(["read_file", "list_files", "", "nope"]),
            st.text(max_size=20) | st.dictionaries(st.text(), st.integers(0, 9), max_size=2).map(json.dumps),
        ),
        max_size=8,
    )
)
def test_no_call_is_dropped_moved_or_confused(calls: list[RawCall]) -> None:
    outcomes = read_native_calls(calls, KNOWN)
    assert [(call.tool, call.raw_arguments) for call in outcomes] == [(call.tool, call.arguments) for call in calls]
    assert len({call.call_id for call in outcomes}) == len(calls)
    assert outcomes == read_native_calls(calls, KNOWN)
