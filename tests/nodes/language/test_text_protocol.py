import json
import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mendgraph.nodes.language import text_protocol
from mendgraph.nodes.language.text_protocol import (
    TextCall,
    extract_in_order,
    extract_tool_invocations_with_errors,
    format_extraction_errors,
    parse_tool_line,
)
from mendgraph.nodes.records import ExtractionError, ExtractionErrorType, ToolInvocation

KNOWN = frozenset({"read_file", "list_files", "edit_file"})
AVAILABLE = "Available: ['edit_file', 'list_files', 'read_file']"
E = ExtractionErrorType


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('tool: read_file({"path": "a.py"})', ToolInvocation("read_file", {"path": "a.py"}, 7)),
        ('  tool:read_file ( {"path": "a.py"} )  ', ToolInvocation("read_file", {"path": "a.py"}, 7)),
        ("tool: list_files({})", ToolInvocation("list_files", {}, 7)),
        ('tool: edit_file({"new_str": "f(x)) ("})', ToolInvocation("edit_file", {"new_str": "f(x)) ("}, 7)),
        (
            "read_file({})",
            ExtractionError(E.MISSING_TOOL_PREFIX, 7, "read_file({})", "Line does not start with 'tool:' prefix"),
        ),
        (
            "tool: read_file",
            ExtractionError(
                E.MISSING_OPENING_PAREN, 7, "tool: read_file", "Missing '(' in tool invocation: 'read_file'"
            ),
        ),
        ("tool: ({})", ExtractionError(E.EMPTY_TOOL_NAME, 7, "tool: ({})", "Tool name is empty")),
        (
            "tool: xyzzy({",
            ExtractionError(E.UNKNOWN_TOOL_NAME, 7, "tool: xyzzy({", f"Unknown tool 'xyzzy'. {AVAILABLE}"),
        ),
        (
            "tool: write_file({})",
            ExtractionError(
                E.UNKNOWN_TOOL_NAME,
                7,
                "tool: write_file({})",
                f"Unknown tool 'write_file'. {AVAILABLE}",
            ),
        ),
        (
            ' tool: read_file({"path": "a"}',
            ExtractionError(
                E.MISSING_CLOSING_PAREN,
                7,
                ' tool: read_file({"path": "a"}',
                "Missing closing ')' in: '{\"path\": \"a\"}'",
            ),
        ),
        (
            'tool: read_file({"path": "a"}) please',
            ExtractionError(
                E.MISSING_CLOSING_PAREN,
                7,
                'tool: read_file({"path": "a"}) please',
                "Missing closing ')' in: '{\"path\": \"a\"}) please'",
            ),
        ),
        (
            "tool: read_file( {path} )",
            ExtractionError(
                E.INVALID_JSON_SYNTAX,
                7,
                "tool: read_file( {path} )",
                "JSON parse error: Expecting property name enclosed in double quotes at position 1. JSON: '{path}'",
            ),
        ),
        (
            "tool: read_file([1])",
            ExtractionError(
                E.INVALID_JSON_SYNTAX,
                7,
                "tool: read_file([1])",
                'The arguments must be one JSON object such as {"param": "value"}, not an array.',
            ),
        ),
        (
            "tool: read_file()",
            ExtractionError(
                E.INVALID_JSON_SYNTAX,
                7,
                "tool: read_file()",
                "JSON parse error: Expecting value at position 0. JSON: ''",
            ),
        ),
    ],
)
def test_one_line_is_a_call_or_the_specs_error(line: str, expected: ToolInvocation | ExtractionError) -> None:
    assert parse_tool_line(line, 7, KNOWN) == expected


def test_details_quote_a_bounded_part() -> None:
    for line in ("tool: " + "x" * 9_000, "tool: " + "x" * 9_000 + "(", "tool: read_file(" + "x" * 9_000):
        outcome = parse_tool_line(line, 1, KNOWN)
        assert isinstance(outcome, ExtractionError)
        assert len(outcome.details) < 350


MULTI_LINE = 'tool: edit_file({\n  "path": "a.md",\n  "new_str": "```\ntool: list_files({})\n)\n"\n})'


@pytest.mark.parametrize(
    ("text", "calls", "error_kinds"),
    [
        pytest.param("", [], [], id="empty"),
        pytest.param("All done. Use tool: read_file({}) for more.", [], [], id="prose"),
        pytest.param(
            'First.\ntool: read_file({"path": "a"})\nThen\n  tool: list_files({})\n',
            [("read_file", {"path": "a"}, 2), ("list_files", {}, 4)],
            [],
            id="several in order",
        ),
        pytest.param(
            'tool: read_file({"path": "a"})\r\ntool: nope({})\r\n',
            [("read_file", {"path": "a"}, 1)],
            [(E.UNKNOWN_TOOL_NAME, 2)],
            id="windows line ends",
        ),
        pytest.param(
            MULTI_LINE + "\ntool: list_files({})",
            [("list_files", {}, 8)],
            [(E.MISSING_CLOSING_PAREN, 1)],
            id="beyond its line, with content that is no call",
        ),
        pytest.param(
            'tool: read_file(\n{"path": "a"}\n)', [], [(E.MISSING_CLOSING_PAREN, 1)], id="parentheses on own lines"
        ),
        pytest.param(
            'tool: edit_file({"path": "a", "old_str": "x"})\n```\ny\n```\n',
            [("edit_file", {"path": "a", "old_str": "x"}, 1)],
            [],
            id="no text after a call",
        ),
        pytest.param(
            "Example:\n```text\ntool: list_files({})\n```\nDone.", [("list_files", {}, 3)], [], id="in a fence"
        ),
        pytest.param("~~~\n```\ntool: list_files({})\n", [("list_files", {}, 3)], [], id="in an unclosed fence"),
        pytest.param("```tool: x```\ntool: list_files({})", [("list_files", {}, 2)], [], id="inline code is no fence"),
        pytest.param(
            'tool: read_file({"path": "a\ntool: read_file({"path": "b"})',
            [("read_file", {"path": "b"}, 2)],
            [(E.MISSING_CLOSING_PAREN, 1)],
            id="a forgotten quote costs one line",
        ),
        pytest.param(
            'tool: read_file({"path": "a"\ntool: list_files({})',
            [("list_files", {}, 2)],
            [(E.MISSING_CLOSING_PAREN, 1)],
            id="a forgotten brace costs one line",
        ),
        pytest.param(
            'tool: edit_file({"path": "a", "new_str": "# How\ntool: list_files({})\n',
            [],
            [(E.MISSING_CLOSING_PAREN, 1)],
            id="what stands in an unclosed string never runs",
        ),
        pytest.param(
            'tool: edit_file({"new_str": "a\nb"} and so on\ntool: list_files({})',
            [("list_files", {}, 3)],
            [(E.MISSING_CLOSING_PAREN, 1)],
            id="several lines and no parenthesis",
        ),
        pytest.param(
            'tool: edit_file({"a": "x\ny", "a": ""})\ntool: list_files({})',
            [("list_files", {}, 3)],
            [(E.MISSING_CLOSING_PAREN, 1)],
            id="duplicate keys over two lines",
        ),
        pytest.param('tool: nope({"a": "\ntool: list_files({})"})', [], [(E.UNKNOWN_TOOL_NAME, 1)], id="unknown, long"),
        pytest.param(
            "tool: read_file\n(\ntool: read_file(",
            [],
            [(E.MISSING_OPENING_PAREN, 1), (E.MISSING_CLOSING_PAREN, 3)],
            id="bare names",
        ),
    ],
)
def test_a_reply_gives_its_calls_and_errors(
    text: str, calls: list[tuple[str, dict[str, Any], int]], error_kinds: list[tuple[ExtractionErrorType, int]]
) -> None:
    invocations, errors = extract_tool_invocations_with_errors(text, KNOWN)
    assert invocations == [ToolInvocation(*call) for call in calls]
    assert [(error.error_type, error.line_number) for error in errors] == error_kinds


def test_the_ordered_form_keeps_places_and_raw_text() -> None:
    text = 'tool: list_files( {"path":\n"."} )\ntool: nope({"a":1})\ntool: read_file({"a"\ntool: list_files'
    unknown = f"Unknown tool 'nope'. {AVAILABLE}"
    assert extract_in_order(text, KNOWN) == [
        TextCall(1, "list_files", ' {"path":\n"."} ', ToolInvocation("list_files", {"path": "."}, 1), 2),
        TextCall(3, "nope", '{"a":1}', ExtractionError(E.UNKNOWN_TOOL_NAME, 3, 'tool: nope({"a":1})', unknown), 3),
        TextCall(
            4,
            "read_file",
            '{"a"',
            ExtractionError(E.MISSING_CLOSING_PAREN, 4, 'tool: read_file({"a"', "Missing closing ')' in: '{\"a\"'"),
            4,
        ),
        TextCall(
            5,
            "",
            "",
            ExtractionError(
                E.MISSING_OPENING_PAREN, 5, "tool: list_files", "Missing '(' in tool invocation: 'list_files'"
            ),
            5,
        ),
    ]


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
def test_calls_between_prose_are_read_back_whatever_they_hold(
    calls: list[tuple[str, dict[str, str], int | None]],
) -> None:
    """Strings keep their line breaks raw, as weak models write them."""
    text = "Prose.\n"
    for name, arguments, indent in calls:
        encoded = with_raw_line_breaks(json.dumps(arguments, indent=indent, ensure_ascii=False))
        text += f"tool: {name}({encoded})\n\nSo far.\n"
    found = [call.outcome for call in extract_in_order(text, KNOWN)]
    assert [outcome[:2] for outcome in found] == [(name, args) for name, args, _ in calls]


ONE_LINE = st.one_of(
    st.builds(
        lambda name, arguments, end: f"tool: {name}({json.dumps(arguments)}{end}",
        st.sampled_from([*sorted(KNOWN), "nope", ""]),
        st.dictionaries(st.text(), st.text() | st.integers(), max_size=3) | st.lists(st.text(), max_size=2),
        st.sampled_from([")", "", " ", ") and so on", "))"]),
    ),
    st.sampled_from(
        ["tool:", "tool: read_file", "tool: read_file()", "tool: read_file(path)", "  tool: list_files({})"]
    ),
    st.sampled_from(["Prose.", "", "```", "```python", "~~~"]),
)


@given(st.lists(ONE_LINE, max_size=8).map("\n".join))
def test_where_each_call_is_one_line_the_machine_reads_what_the_document_does(text: str) -> None:
    calls = [call.outcome for call in extract_in_order(text, KNOWN, {})]
    invocations, errors = extract_tool_invocations_with_errors(text, KNOWN)
    assert invocations == [outcome for outcome in calls if isinstance(outcome, ToolInvocation)]
    assert errors == [outcome for outcome in calls if isinstance(outcome, ExtractionError)]
    lines = [(line, number) for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith("tool:")]
    assert calls == [parse_tool_line(line, number, KNOWN) for line, number in lines]


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (MULTI_LINE, ToolInvocation("edit_file", {"path": "a.md", "new_str": "```\ntool: list_files({})\n)\n"}, 1)),
        ('tool: read_file(\n{"path": "a"}\n)', ToolInvocation("read_file", {"path": "a"}, 1)),
        ('tool: read_file({"path": "a\u2028b"})', ToolInvocation("read_file", {"path": "a\u2028b"}, 1)),
    ],
)
def test_the_machine_reads_on_beyond_the_line(text: str, outcome: ToolInvocation) -> None:
    assert [call.outcome for call in extract_in_order(text, KNOWN)] == [outcome]


def test_content_in_a_fence_and_fences_themselves_can_be_left_out() -> None:
    text = "a.md\n```\ntool: list_files({})\n```\n```\ntool: list_files({})\n```\ntool: list_files({})"
    block = (text.index("```"), text.index("```\n```") + 4)
    assert [call.line_number for call in extract_in_order(text, KNOWN, content=[block])] == [6, 8]
    assert [call.line_number for call in extract_in_order(text, KNOWN, fenced=False)] == [8]
    assert [call.fences for call in extract_in_order(text, KNOWN)] == [("```", "```"), ("```", "```"), ("", "")]


def test_an_error_shows_the_line_as_it_stands() -> None:
    outcome = parse_tool_line("  tool: read_file \n", 1, KNOWN)
    assert isinstance(outcome, ExtractionError)
    assert (outcome.line_content, outcome.details) == (
        "  tool: read_file \n",
        "Missing '(' in tool invocation: 'read_file'",
    )


class CountingPattern:
    """A pattern that adds up how many characters it has read."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self.pattern, self.work = pattern, 0

    def match(self, text: str, position: int) -> re.Match[str] | None:
        found = self.pattern.match(text, position)
        self.work += found.end() - position if found else 1
        return found


def scanning_work(text: str) -> int:
    names = ("_JSON_TOKEN", "_AFTER_STRING", "_CLOSING_PAREN", "_JSON_START", "_JSON_NEXT")
    counters = [CountingPattern(getattr(text_protocol, name)) for name in names]
    with pytest.MonkeyPatch.context() as patch:
        for name, counter in zip(names, counters, strict=True):
            patch.setattr(text_protocol, name, counter)
        extract_in_order(text, KNOWN, foreign=lambda _, head: head.startswith("{"))
    return sum(counter.work for counter in counters)


@pytest.mark.parametrize(
    "line",
    [
        'tool: x({"\n',
        'tool: x({"a":"\n',
        'tool: x({",":"\n',
        "tool: x({[\n",
        'tool: x({"\\\n',
        "tool: x(\n",
        "```\n{\n```\n",
        '```\n{":" : ",\n```\n',
        '```\n{"name": "write_file"}\n```\n```md\n```\n',
    ],
)
def test_many_broken_calls_cost_linear_work(line: str) -> None:
    text = line * (40_000 // len(line))
    assert scanning_work(text) <= 5 * len(text)


def test_errors_are_formatted_as_the_spec_says() -> None:
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
