import pytest
from hypothesis import given, strategies as st

from nodes.execute_tools.tools.code_spans import LONGEST_CODE, Span, call_span, value_span


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("2.5, and", "2.5"),
        ("-1_000", "-1_000"),
        ("1e-3 ", "1e-3"),
        ("5.", "5"),
        ("5. Then", "5"),
        (".5 is", ".5"),
        ("5th", None),
        ("1.2.3", None),
        ("'a b' is", "'a b'"),
        ('"a\\"b"', '"a\\"b"'),
        ("b'raw' x", "b'raw'"),
        ("'open", None),
        ("'two\nlines'", None),
        ("[1, (2, ']')] x", "[1, (2, ']')]"),
        ("[1, 2)", None),
        ("{'a': [1]}", "{'a': [1]}"),
        ("true.", "True"),
        ("None", "None"),
        ("null", "None"),
        ("Fraction(1, 2) x", "Fraction(1, 2)"),
        ("f(1).g(2)[0] x", "f(1).g(2)[0]"),
        ("word", None),
        ("", None),
        (")", None),
    ],
)
def test_values(text: str, code: str | None) -> None:
    assert value_span(text, 0) == (
        None if code is None else Span(code, text.index(code) + len(code) if code in text else len(text.rstrip(".")))
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("f(1) gives", "f(1)"),
        ("f(1).", "f(1)"),
        ("f(1). Then", "f(1)"),
        ("f(1).x is", "f(1).x"),
        ("f(1).pop() is", "f(1).pop()"),
        ("f('(')[0] is", "f('(')[0]"),
        ("f(1", None),
    ],
)
def test_calls(text: str, code: str | None) -> None:
    assert call_span(text, 0, 1) == (None if code is None else Span(code, len(code)))


def test_long_code_is_left_alone() -> None:
    assert value_span("[" + "1," * LONGEST_CODE + "]", 0) is None
    assert value_span("'" + "a" * LONGEST_CODE + "'", 0) is None


@given(st.text(alphabet="f(1)[]{}'\"\\ .a\n", max_size=40))
def test_a_span_lies_inside_of_the_text(text: str) -> None:
    found = value_span(text, 0)
    assert found is None or 0 < found.end <= len(text)
