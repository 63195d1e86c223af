import sys

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.edits.python_text import PythonText, SyntaxProblem, Unit, parse, read_python

CODE = '''\
#!/usr/bin/env python
"""Shapes."""
import math; import os
from x import (
    y,
)

LIMIT: int = 3
a, b = 1, 2

# above
@cache
# between
@other.thing
def area(r):
    """Area.

    Of a circle.
    """
    return """
raw
"""
    # trailing


class Circle:
    @property
    def size(self): ...

    @size.setter
    def size(self, value): ...

    @overload
    def grow(self): ...


class Short: pass
if __name__ == "__main__":
    area(2)
'''


def read(text: str) -> PythonText:
    found = read_python(text)
    assert isinstance(found, PythonText)
    return found


def told(units: tuple[Unit, ...]) -> list[tuple[str, str, int, int]]:
    return [(unit.key, unit.kind.value, unit.first, unit.last) for unit in units]


def test_units_are_named_and_know_their_lines() -> None:
    assert told(read(CODE).units) == [
        ("the docstring", "statement", 2, 2),
        ("", "other", 3, 3),
        ("", "import", 4, 6),
        ("LIMIT", "statement", 8, 8),
        ("", "other", 9, 9),
        ("area", "function", 12, 22),
        ("Circle", "class", 26, 34),
        ("Short", "class", 37, 37),
        ("if __name__", "statement", 38, 39),
    ]


def test_comments_around_a_unit_belong_to_it() -> None:
    text = read(CODE)
    area = text.units[5]
    assert (text.head(area), text.tail(area)) == (11, 23)
    assert text.comments == {1: "#!/usr/bin/env python", 11: "# above", 13: "# between", 23: "# trailing"}


def test_lines_inside_strings_are_frozen_but_for_docstrings() -> None:
    assert read(CODE).frozen == {21, 22}


def test_an_indented_text_is_shown_with_its_indent() -> None:
    text = read_python('    # a\n    def f(self):\n        return """\n    raw"""\n', indented=True)
    assert isinstance(text, PythonText)
    assert told(text.units) == [("f", "function", 2, 4)]
    assert (text.units[0].indent, text.lines[1]) == ("    ", "    def f(self):\n")
    assert text.frozen == {4}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("x = 1\r\ny = 2\r\n", ("x = 1\r\n", "y = 2\r\n")),
        ("x = 1\ry = 2", ("x = 1\r", "y = 2")),
        ('x = "\u2028"\n\x0cy = 2\n', ('x = "\u2028"\n', "\x0cy = 2\n")),
    ],
)
def test_lines_are_those_of_the_parser(text: str, lines: tuple[str, ...]) -> None:
    found = read(text)
    assert found.lines == lines
    assert [(unit.key, unit.first) for unit in found.units] == [("x", 1), ("y", 2)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("x = 1\ndef f(:\n", "line 2: invalid syntax"), ("(" * 500, "line 1: too many nested parentheses")],
)
def test_a_problem_is_a_value(text: str, shown: str) -> None:
    problem = read_python(text)
    assert isinstance(problem, SyntaxProblem)
    assert str(problem) == shown


def test_a_text_that_only_the_tokenizer_rejects_has_its_units() -> None:
    text = "\x0c\\\r\n"  # from Python 3.12 on the parser rejects it as well
    found = read_python(text)
    assert isinstance(found, SyntaxProblem) if sys.version_info >= (3, 12) else told(read(text).units) == []


@pytest.mark.parametrize("text", ["x\x00", "-" * 100_000 + "1", "x" + "[1" * 5000])
def test_no_text_makes_the_parser_raise(text: str) -> None:
    assert isinstance(parse(text), SyntaxProblem)


def test_warnings_of_the_parser_are_silent() -> None:
    assert not isinstance(parse('x = "\\d"'), SyntaxProblem)


@given(st.text(alphabet="ab =:()\"'#\n\r\t\\@,;", max_size=40))
def test_no_text_makes_reading_raise(text: str) -> None:
    found = read_python(text)
    if isinstance(found, PythonText):
        assert "".join(found.lines) == text
        assert all(1 <= unit.first <= unit.last <= len(found.lines) for unit in found.units)
