import sys

from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.edits.python_text import PythonText, SyntaxProblem, read_python
from tests.row_tables import rows


def read(text: str) -> PythonText:
    found = read_python(text)
    assert isinstance(found, PythonText)
    return found


@rows(
    ("x = 1\r\ny = 2\r\n", ("x = 1\r\n", "y = 2\r\n")),
    ("x = 1\ry = 2", ("x = 1\r", "y = 2")),
    ('x = "\u2028"\n\x0cy = 2\n', ('x = "\u2028"\n', "\x0cy = 2\n")),
)
def test_lines_are_those_of_the_parser(text: str, lines: tuple[str, ...]) -> None:
    found = read(text)
    assert found.lines == lines
    assert [(unit.key, unit.first) for unit in found.units] == [("x", 1), ("y", 2)]


@rows(("x = 1\ndef f(:\n", "line 2: invalid syntax"), ("(" * 500, "line 1: too many nested parentheses"))
def test_problem_is_a_value(text: str, shown: str) -> None:
    problem = read_python(text)
    assert isinstance(problem, SyntaxProblem)
    assert str(problem) == shown


def test_text_that_only_the_tokenizer_rejects_has_no_units() -> None:
    found = read_python("\x0c\\\r\n")  # from Python 3.12 on the parser rejects it as well
    assert isinstance(found, SyntaxProblem) if sys.version_info >= (3, 12) else read("\x0c\\\r\n").units == ()


@given(st.text(alphabet="ab =:()\"'#\n\r\t\\@,;", max_size=40))
def test_no_text_makes_reading_raise(text: str) -> None:
    found = read_python(text)
    if isinstance(found, PythonText):
        assert "".join(found.lines) == text
        assert all(1 <= unit.first <= unit.last <= len(found.lines) for unit in found.units)
