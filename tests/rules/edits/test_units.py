from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.edits.python_text import SyntaxProblem
from mendgraph.nodes.execute_tools.edits.units import PythonSource, read_units
from tests.row_tables import rows


@rows("x = 1\r\ny = 2\r\n", "x = 1\ny = 2", 'x = "\u2028"\ny = 2\n', "x = 1\ry = 2\r")
def test_units_round_trip_unchanged(text: str) -> None:
    source = read_units(text)
    assert isinstance(source, PythonSource)
    assert [unit.key for unit in source.units] == ["x", "y"]
    assert source.code == text


@rows(
    ("x = 1\ndef f(:\n", "line 2: invalid syntax"),
    ("(" * 500, "line 1: too many nested parentheses"),
    ("x = 1\n\x0cy = 2\n", "it holds control characters that cannot be written again"),
)
def test_syntax_problem_is_a_value(text: str, message: str) -> None:
    problem = read_units(text)
    assert isinstance(problem, SyntaxProblem)
    assert str(problem) == message


@given(st.text(alphabet="ab =:()\"'#\n\r\t\\@,;", max_size=40))
def test_read_units_never_raises(text: str) -> None:
    source = read_units(text)
    if isinstance(source, PythonSource):
        assert source.code == text
