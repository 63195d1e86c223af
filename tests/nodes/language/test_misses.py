import pytest

from nodes.language.misses import MISSED, is_miss, miss_advice, misses_on
from nodes.records import CallResult, ToolErrorCode, ToolResult

MISS = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, f"Edit 2 of 2 failed, so none was made: {MISSED} 'a.py'.")
OTHER = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, "old_str occurs 2 times in 'a.py', at lines 1, 2.")
CONFLICT = ToolResult.failure(ToolErrorCode.CONFLICT, f"{MISSED} 'a.py'")


def call(result: ToolResult) -> CallResult:
    return CallResult(call_id="c", tool="edit_file", result=result)


def test_what_is_a_miss() -> None:
    results = (MISS, OTHER, CONFLICT, ToolResult(ok=True, data={"path": "a.py"}))
    assert [is_miss(result.error) for result in results] == [True, False, False, False]


def test_misses_are_counted_by_file() -> None:
    steps = [("a.py", call(MISS)), ("b.py", call(MISS)), ("a.py", call(OTHER)), ("a.py", call(MISS))]
    assert [misses_on(path, steps) for path in ("a.py", "b.py", "c.py")] == [2, 1, 0]


@pytest.mark.parametrize(
    ("misses", "advice"),
    [
        (0, ""),
        (1, ""),
        (
            2,
            (
                "That is miss 2 on a.py in this turn: read_file it, then give its whole new text with write_file"
                " instead of old_str and new_str."
            ),
        ),
    ],
)
def test_the_whole_file_form_is_offered_from_the_second_miss_on(misses: int, advice: str) -> None:
    assert miss_advice("a.py", misses) == advice
