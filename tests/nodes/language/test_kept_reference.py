import pytest
from hypothesis import given, strategies as st

from nodes.language.names import (
    LARGEST_NUMBER,
    is_reference,
    number_of,
    only_read,
    reference_of,
    unknown_reference,
)
from nodes.records import ToolError, ToolErrorCode


@given(st.integers(1, LARGEST_NUMBER))
def test_a_reference_says_its_number(number: int) -> None:
    assert number_of(reference_of(number)) == number
    assert is_reference(reference_of(number))


@pytest.mark.parametrize(
    "path",
    [
        *("", "@result", "@result/", "@result/0", "@result/01", "@result/-1", "@result/1000000", "@result/x"),
        *("./@result/1", "/@result/1", "@result/1/", "@result/1/../.env", "@result/../.env", "@RESULT/1", "a@result/1"),
        *("@result/1\n", "@result/1 ", "@result/\u0661", "@result/1.txt", "result/1"),
    ],
)
def test_every_other_spelling_is_a_path_of_the_workspace(path: str) -> None:
    assert (is_reference(path), number_of(path)) == (False, None)


def test_a_tool_that_looks_at_directories_says_who_reads_it() -> None:
    assert only_read("@result/3") == '@result/3 is a kept result, not a directory: read_file path="@result/3" reads it.'


@pytest.mark.parametrize(
    ("numbers", "message", "suggestions"),
    [
        (
            (2, 10, 1, 9),
            "No kept result is called @result/7. The latest are @result/10, @result/9, @result/2.",
            ("@result/10", "@result/9", "@result/2"),
        ),
        ((), "No kept result is called @result/7. None was kept in this run: make the call again.", ()),
    ],
)
def test_an_unknown_reference(numbers: tuple[int, ...], message: str, suggestions: tuple[str, ...]) -> None:
    assert unknown_reference("@result/7", numbers) == ToolError(
        code=ToolErrorCode.NOT_FOUND, message=message, suggestions=suggestions
    )
