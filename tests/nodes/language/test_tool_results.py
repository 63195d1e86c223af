import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.language.text_protocol import MISSED, parse_text_results, render_native_result, render_text_results
from mendgraph.nodes.records import CallResult, ToolErrorCode, ToolResult


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


def test_a_native_result_is_the_envelope_alone() -> None:
    assert render_native_result(call_result("read_file", ABSENT)) == "{" + ABSENT_JSON


@pytest.mark.parametrize(
    ("content", "escaped"),
    [
        ("\ud83d", "\\ud83d"),
        ("\u2028\u2029\x85\x7f", "\\u2028\\u2029\\u0085\\u007f"),
        ("\x00\x1b[31m", "\\u0000\\u001b[31m"),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_what_breaks_lines_or_cannot_be_sent_is_escaped(content: str, escaped: str) -> None:
    rendered = render_native_result(call_result("t", ToolResult.success(text=content)))
    assert rendered == '{"ok":true,"data":{"text":"' + escaped + '"}}'
    assert rendered.encode().decode() == rendered


any_text = st.text(st.characters()) | st.text(alphabet='tool_result({"\n\r\u2028\ud800})', max_size=30)
any_result = st.dictionaries(any_text, any_text | st.integers() | st.lists(any_text, max_size=3), max_size=4).map(
    lambda data: ToolResult(ok=True, data=data)
) | st.builds(ToolResult.failure, st.sampled_from(ToolErrorCode), any_text, st.lists(any_text, max_size=3).map(tuple))


@settings(max_examples=30)
@given(st.lists(st.builds(call_result, any_text, any_result), max_size=5))
def test_results_are_read_back(results: list[CallResult]) -> None:
    rendered = render_text_results(results)
    assert len(rendered.splitlines()) == len(results)
    assert parse_text_results(rendered) == [{"tool": item.tool, **item.result.as_map()} for item in results]


def test_other_lines_are_passed_over() -> None:
    text = "Results:\ntool_result(oops)\ntool_result([1])\ntool_result(" + "[" * 100_000 + ')\ntool_result({"ok":true})'
    assert parse_text_results(text) == [{"ok": True}]


def test_a_value_that_is_no_json_is_shown_as_text() -> None:
    assert render_native_result(call_result("t", ToolResult.success(odd={1}))) == '{"ok":true,"data":{"odd":"{1}"}}'


CONFLICT = ToolResult.failure(ToolErrorCode.CONFLICT, f"{MISSED} 'a.py'")
