from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from nodes.execute_tools.clipping import LARGEST_RESULT, LONGEST_MESSAGE, clip
from nodes.records import ToolErrorCode, ToolResult


def size(result: ToolResult) -> int:
    return len(orjson.dumps(result.data))


@pytest.mark.parametrize("data", [{}, {"text": "x" * 60_000}, {"items": list(range(10_000))}])
def test_what_fits_is_left_alone(data: dict[str, Any]) -> None:
    result = ToolResult(ok=True, data=data)
    assert clip(result) is result


def test_a_long_string_keeps_head_and_tail() -> None:
    clipped = clip(ToolResult(ok=True, data={"text": "a" * 100_000 + "z" * 100_000, "n": 1}))
    assert clipped.data == {
        "text": f"{'a' * 8_192}\n[... 183616 characters left out ...]\n{'z' * 8_192}",
        "n": 1,
        "clipped": ["text: 183616 of 200000 characters left out"],
    }


def test_a_long_list_keeps_head_and_tail() -> None:
    clipped = clip(ToolResult(ok=True, data={"deep": {"hits": [f"{number:0100}" for number in range(5_000)]}}))
    hits = clipped.data["deep"]["hits"]
    assert (len(hits), int(hits[0]), int(hits[99]), int(hits[100]), int(hits[-1])) == (200, 0, 99, 4_900, 4_999)
    assert clipped.data["clipped"] == ["deep.hits: 4800 of 5000 items left out after item 100"]


def test_what_cannot_be_clipped_is_left_out_and_said() -> None:
    clipped = clip(ToolResult(ok=True, data={f"key{number}": "x" * 100 for number in range(10_000)}))
    assert clipped.data == {
        "clipped": ["the whole result (1128891 bytes of JSON) was left out; ask for less at a time"]
    }


def test_errors_are_bounded_as_well() -> None:
    error = clip(ToolResult.failure(ToolErrorCode.IO_ERROR, "m" * 100_000, ("s",) * 100)).error
    assert error is not None
    assert (len(error.message) < LONGEST_MESSAGE + 100, len(error.suggestions)) == (True, 20)
    short = ToolResult.failure(ToolErrorCode.NOT_FOUND, "m", ("s",))
    assert clip(short) == short


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=300),
    lambda children: st.lists(children, max_size=30) | st.dictionaries(st.text(max_size=10), children, max_size=5),
    max_leaves=30,
)


@settings(max_examples=50, deadline=None)
@given(data=st.dictionaries(st.text(max_size=5), JSON, max_size=10), largest=st.integers(200, 2_000))
def test_the_result_always_fits(data: dict[str, Any], largest: int) -> None:
    clipped = clip(ToolResult(ok=True, data=data), largest)
    assert size(clipped) <= largest
    assert ("clipped" in clipped.data) is (len(orjson.dumps(data)) > largest or "clipped" in data)
    assert largest <= LARGEST_RESULT
