import json
import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.language import text_protocol
from mendgraph.nodes.language.text_protocol import (
    extract_in_order,
    extract_tool_invocations_with_errors,
    format_extraction_errors,
    parse_text_results,
    parse_tool_line,
    render_native_result,
    render_text_results,
)
from mendgraph.nodes.records import (
    CallResult,
    ExtractionError,
    ExtractionErrorType,
    ToolErrorCode,
    ToolInvocation,
    ToolResult,
)
from tests.row_tables import rows

KNOWN = frozenset({"read_file", "list_files", "edit_file"})
E = ExtractionErrorType


@rows(
    ('tool: read_file({"path": "a.py"})', "read_file", {"path": "a.py"}),
    ('  tool:read_file ( {"path": "a.py"} )  ', "read_file", {"path": "a.py"}),
    ('tool: edit_file({"new_str": "f(x)) ("})', "edit_file", {"new_str": "f(x)) ("}),
)
def test_tool_line_is_read_as_a_call(line: str, tool: str, arguments: dict[str, Any]) -> None:
    assert parse_tool_line(line, 7, KNOWN) == ToolInvocation(tool, arguments, 7)


def test_line_without_the_prefix_is_an_error() -> None:
    details = "Line does not start with 'tool:' prefix"
    assert parse_tool_line("read_file({})", 7, KNOWN) == ExtractionError(
        E.MISSING_TOOL_PREFIX, 7, "read_file({})", details
    )


MULTI_LINE = 'tool: edit_file({\n  "path": "a.md",\n  "new_str": "```\ntool: list_files({})\n)\n"\n})'


READ_A, LIST = 'tool: read_file({"path": "a"', "tool: list_files({})"
UNCLOSED = [(E.MISSING_CLOSING_PAREN, 1)]


@rows(
    ("", [], []),
    ("All done. Use tool: read_file({}) for more.", [], []),
    (f"First.\n{READ_A}}})\nThen\n  {LIST}\n", [("read_file", {"path": "a"}, 2), ("list_files", {}, 4)], []),
    (f"{READ_A}}})\r\ntool: nope({{}})\r\n", [("read_file", {"path": "a"}, 1)], [(E.UNKNOWN_TOOL_NAME, 2)]),
    (f"{MULTI_LINE}\n{LIST}", [("list_files", {}, 8)], UNCLOSED),
    ('tool: edit_file({"path": "a"})\n```\ny\n```\n', [("edit_file", {"path": "a"}, 1)], []),
    (f"Example:\n```text\n{LIST}\n```\nDone.", [("list_files", {}, 3)], []),
    # A forgotten quote or brace costs one line, and text in an unclosed string never runs.
    ('tool: read_file({"path": "a\ntool: read_file({"path": "b"})', [("read_file", {"path": "b"}, 2)], UNCLOSED),
    (f"{READ_A}\n{LIST}", [("list_files", {}, 2)], UNCLOSED),
    (f'tool: edit_file({{"path": "a", "new_str": "# How\n{LIST}\n', [], UNCLOSED),
    (f'tool: edit_file({{"new_str": "a\nb"}} and so on\n{LIST}', [("list_files", {}, 3)], UNCLOSED),
    (f'tool: nope({{"a": "\n{LIST}"}})', [], [(E.UNKNOWN_TOOL_NAME, 1)]),
    ('tool: read_file({"path": "a",})', [], [(E.INVALID_JSON_SYNTAX, 1)]),
    ("tool: read_file\n(\ntool: read_file(", [], [(E.MISSING_OPENING_PAREN, 1), (E.MISSING_CLOSING_PAREN, 3)]),
)
def test_calls_and_errors_of_a_reply_are_listed(
    text: str, calls: list[tuple[str, dict[str, Any], int]], error_kinds: list[tuple[ExtractionErrorType, int]]
) -> None:
    invocations, errors = extract_tool_invocations_with_errors(text, KNOWN)
    assert invocations == [ToolInvocation(*call) for call in calls]
    assert [(error.error_type, error.line_number) for error in errors] == error_kinds


calls_of_any_content = st.lists(
    st.tuples(
        st.sampled_from(sorted(KNOWN)),
        st.dictionaries(st.text(), st.text() | st.text(alphabet='tool:read_fi(){}"\\\n`~', max_size=40), max_size=3),
        st.sampled_from([None, 1]),
    ),
    max_size=5,
)


def with_raw_line_breaks(encoded: str) -> str:
    return re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[0], encoded)


@settings(deadline=None)
@given(calls=calls_of_any_content)
def test_calls_between_prose_round_trip_with_any_arguments(
    calls: list[tuple[str, dict[str, str], int | None]],
) -> None:
    """Strings keep their line breaks raw, as weak models write them."""
    text = "Prose.\n"
    for name, arguments, indent in calls:
        encoded = with_raw_line_breaks(json.dumps(arguments, indent=indent, ensure_ascii=False))
        text += f"tool: {name}({encoded})\n\nSo far.\n"
    outcomes = [call.outcome for call in extract_in_order(text, KNOWN)]
    assert [outcome[:2] for outcome in outcomes] == [(name, args) for name, args, _ in calls]


def test_tool_lines_in_fences_can_be_ignored() -> None:
    text = "a.md\n```\ntool: list_files({})\n```\ntool: list_files({})"
    assert [call.line_number for call in extract_in_order(text, KNOWN)] == [3, 5]
    assert [call.line_number for call in extract_in_order(text, KNOWN, fenced=False)] == [5]


class CountingPattern:
    """A pattern that adds up how many characters it has read."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern, self.work = pattern, 0

    def match(self, text: str, position: int) -> re.Match[str] | None:
        match = self.pattern.match(text, position)
        self.work += match.end() - position if match else 1
        return match


def scanning_work(text: str) -> int:
    names = ("_JSON_TOKEN", "_AFTER_STRING", "_CLOSING_PAREN", "_JSON_START")
    counters = [CountingPattern(getattr(text_protocol, name)) for name in names]
    with pytest.MonkeyPatch.context() as patch:
        for name, counter in zip(names, counters, strict=True):
            patch.setattr(text_protocol, name, counter)
        extract_in_order(text, KNOWN)
    return sum(counter.work for counter in counters)


@rows('tool: x({"\n', 'tool: x({"a":"\n', 'tool: x({",":"\n', "tool: x({[\n", 'tool: x({"\\\n', "tool: x(\n")
def test_work_for_many_broken_calls_is_linear(line: str) -> None:
    text = line * (20_000 // len(line))
    assert scanning_work(text) <= 5 * len(text)


def test_errors_are_formatted_as_in_the_spec() -> None:
    errors = [
        ExtractionError(E.EMPTY_TOOL_NAME, 3, "tool: ({})", "Tool name is empty"),
        ExtractionError(E.MISSING_CLOSING_PAREN, 4, "x" * 100, "gone"),
    ]
    assert format_extraction_errors([]) == ""
    assert format_extraction_errors(errors) == "\n".join(
        [
            "Tool Extraction Errors:",
            "  Line 3: [EMPTY_TOOL_NAME]",
            "    Content: tool: ({})...",
            "    Details: Tool name is empty",
            "  Line 4: [MISSING_CLOSING_PAREN]",
            f"    Content: {'x' * 80}...",
            "    Details: gone",
        ]
    )


def call_result(tool: str, result: ToolResult) -> CallResult:
    return CallResult(call_id="c", tool=tool, result=result)


ABSENT = ToolResult.failure(ToolErrorCode.NOT_FOUND, "No such file: a.py", ("b.py",))
ABSENT_JSON = '"ok":false,"error":{"code":"not_found","message":"No such file: a.py","suggestions":["b.py"]}}'


def test_text_results_are_one_line_each_in_order() -> None:
    results = [call_result("read_file", ToolResult.success(text="é\n")), call_result("list_files", ABSENT)]
    assert render_text_results(results) == (
        'tool_result({"tool":"read_file","ok":true,"data":{"text":"é\\n"}})\n'
        'tool_result({"tool":"list_files",' + ABSENT_JSON + ")"
    )
    assert render_text_results([]) == ""


def test_native_result_is_only_the_envelope() -> None:
    assert render_native_result(call_result("read_file", ABSENT)) == "{" + ABSENT_JSON


@rows(
    ("\ud83d", "\\ud83d"),
    ("\u2028\u2029\x85\x7f", "\\u2028\\u2029\\u0085\\u007f"),
    ("\x00\x1b[31m", "\\u0000\\u001b[31m"),
    ("\U0001f600", "\U0001f600"),
)
def test_unprintable_characters_are_escaped(content: str, escaped: str) -> None:
    rendered = render_native_result(call_result("t", ToolResult.success(text=content)))
    assert rendered == '{"ok":true,"data":{"text":"' + escaped + '"}}'
    assert rendered.encode().decode() == rendered


any_text = st.text(st.characters()) | st.text(alphabet='tool_result({"\n\r\u2028\ud800})', max_size=30)
any_result = st.dictionaries(any_text, any_text | st.integers() | st.lists(any_text, max_size=3), max_size=4).map(
    lambda data: ToolResult(ok=True, data=data)
) | st.builds(ToolResult.failure, st.sampled_from(ToolErrorCode), any_text, st.lists(any_text, max_size=3).map(tuple))


@settings(max_examples=30)
@given(st.lists(st.builds(call_result, any_text, any_result), max_size=5))
def test_text_results_round_trip(results: list[CallResult]) -> None:
    rendered = render_text_results(results)
    assert len(rendered.splitlines()) == len(results)
    assert parse_text_results(rendered) == [{"tool": item.tool, **item.result.as_map()} for item in results]


def test_lines_that_are_not_results_are_ignored() -> None:
    text = "Results:\ntool_result(oops)\ntool_result([1])\ntool_result(" + "[" * 100_000 + ')\ntool_result({"ok":true})'
    assert parse_text_results(text) == [{"ok": True}]


def test_non_json_value_is_shown_as_text() -> None:
    assert render_native_result(call_result("t", ToolResult.success(odd={1}))) == '{"ok":true,"data":{"odd":"{1}"}}'
