import pytest

from nodes.language.tool_results import MISSED, is_miss, miss_advice
from nodes.records import ToolErrorCode, ToolResult

MISS = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, f"Edit 2 of 2 failed, so none was made: {MISSED} 'a.py'.")
OTHER = ToolResult.failure(ToolErrorCode.INVALID_ARGUMENT, "old_str occurs 2 times in 'a.py', at lines 1, 2.")
CONFLICT = ToolResult.failure(ToolErrorCode.CONFLICT, f"{MISSED} 'a.py'")


def test_what_is_a_miss() -> None:
    results = (MISS, OTHER, CONFLICT, ToolResult(ok=True, data={"path": "a.py"}))
    assert [is_miss(result.error) for result in results] == [True, False, False, False]


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
