"""Where a call ends is said as soon as it is certain, and never taken back."""

import json

import pytest
from hypothesis import given, strategies as st

from graph.terminal.partial_call import LINE_ENDS, Unended, call_end, first_line, is_complete

CALL = 'tool: edit({"a": "}\\")\n", "b": [1, {"c": "("}]})'


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (f"{CALL} rest", len(CALL)),
        ('tool: read({"a": 1}\n) rest', 21),
        ('tool: read({"a": 1} rest', 19),
        ('tool: read({"a": 1}', Unended.OPEN),
        ("tool: read(", Unended.OPEN),
        ("tool: read( \n", Unended.OPEN),
        ("tool: read", Unended.OPEN),
        ("tool: read\n(", 11),
        ("tool: read(a=1)", Unended.OPEN),
        ("tool: read(a=1)\nrest", 16),
        ('tool: read({"a', Unended.OPEN),
        ('tool: read({"a"', Unended.OPEN),
        ('tool: read({"a" b', Unended.BROKEN),
        ('tool: read({"a": (', Unended.BROKEN),
        ('tool: read({"a": \\', Unended.BROKEN),
    ],
)
def test_the_end_of_a_call(text: str, end: int | Unended) -> None:
    assert call_end(text) == end


@given(st.text(alphabet='{}[]()",:\\ \na1', max_size=20), st.text(alphabet='{}[]()",:\\ \na1', max_size=10))
def test_what_is_certain_stays_true(arguments: str, more: str) -> None:
    text = f"tool: read({arguments}"
    end = call_end(text)
    assert end is Unended.OPEN or call_end(text + more) == end


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_json_of_any_content_ends_where_it_ends(value: object) -> None:
    call = f"tool: read({json.dumps([value], ensure_ascii=False)})"
    assert call_end(f"{call} and more (of it)") == len(call)


@given(st.text(alphabet=f"ab {LINE_ENDS}".replace("\r", "")))
def test_lines_are_those_of_the_text_protocol(text: str) -> None:
    lines, at = [], 0
    while line := first_line(text, at):
        lines.append(line)
        at += len(line)
    assert lines == text.splitlines(keepends=True)
    assert [is_complete(line) for line in lines[:-1]] == [True] * (len(lines) - 1)


def test_a_pair_of_line_ends_is_an_empty_line_more() -> None:
    assert [first_line("a\r\nb"), first_line("a\r\nb", 2), first_line("a\r\nb", 3)] == ["a\r", "\n", "b"]
