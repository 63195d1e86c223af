from collections import OrderedDict
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, SecretStr

from mendgraph.nodes.execute_tools.registry import ToolOutput
from mendgraph.nodes.execute_tools.tool_run import (
    LARGEST_RESULT,
    LONGEST_LINE,
    LONGEST_MESSAGE,
    clip,
    is_usable,
    plain_output,
)
from mendgraph.nodes.execute_tools.tools.read_file import MAX_LINE_CHARACTERS
from mendgraph.nodes.records import ToolError, ToolErrorCode, ToolResult

ERROR = ToolError(code=ToolErrorCode.NOT_FOUND, message="m")


class Found(BaseModel):
    at: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    key: SecretStr = SecretStr("s3cret")


@dataclass
class Counted:
    lines: int
    found: tuple[Found, ...] = ()


PLAIN_FOUND = {"at": "2026-01-02T00:00:00Z", "key": "**********"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ToolOutput.ok(a=(1, 2)), ToolOutput.ok(a=[1, 2])),
        (
            ToolOutput(ToolResult.success(code=ToolErrorCode.TIMEOUT), files_read={"a": "b"}),
            ToolOutput(ToolResult.success(code="timeout"), files_read={"a": "b"}),
        ),
        (ToolOutput.failed(ERROR), ToolOutput.failed(ERROR)),
        (ToolResult.success(a=1), ToolOutput.ok(a=1)),
        (ERROR, ToolOutput.failed(ERROR)),
        (OrderedDict(a=1), ToolOutput.ok(a=1)),
        (None, ToolOutput.ok(value="null")),
        (b"abc", ToolOutput.ok(value={"type": "bytes", "len": 3})),
        ("text", ToolOutput.ok(value="text")),
        ([1, None], ToolOutput.ok(value=[1, None])),
        (float("nan"), ToolOutput.ok(value=None)),
        (7, ToolOutput.ok(value=7)),
        (Found(), ToolOutput.ok(**PLAIN_FOUND)),
        ([Found()], ToolOutput.ok(value=[PLAIN_FOUND])),
        (Counted(3, (Found(),)), ToolOutput.ok(lines=3, found=[PLAIN_FOUND])),
        ({"a": Counted(3)}, ToolOutput.ok(a={"lines": 3, "found": []})),
    ],
)
def test_every_shape_becomes_one(value: object, expected: ToolOutput) -> None:
    assert plain_output(value) == expected


@pytest.mark.parametrize("value", [object(), {"a": {1: 2}}, "\ud800", 2**64, {"a": object()}, Counted])
def test_what_is_not_json_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError):
        plain_output(value)


@pytest.mark.parametrize(
    "fields",
    [
        {"result": None},
        {"changes": None},
        {"changes": ("a.py",)},
        {"files_read": None},
        {"files_read": {"a.py": object()}},
        {"plan": "junk"},
    ],
)
def test_an_output_with_a_field_of_another_type_is_refused(fields: dict[str, Any]) -> None:
    odd = replace(ToolOutput.ok(), **fields)
    assert not is_usable(odd)
    with pytest.raises(TypeError, match="a field of its ToolOutput is of the wrong type"):
        plain_output(odd)


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


class Kept:
    """Keeps texts in memory, under the longest reference that there is."""

    def __init__(self, most: int = 1_000) -> None:
        self.texts: list[str] = []
        self._most = most

    def keep(self, text: str) -> str | None:
        if len(self.texts) == self._most:
            return None
        self.texts.append(text)
        return f"@result/{999_000 + len(self.texts)}"


def test_what_fits_is_not_kept() -> None:
    kept = Kept()
    result = ToolResult(ok=True, data={"text": "x" * 60_000})
    assert clip(result, keep=kept.keep) is result
    assert kept.texts == []


def test_a_long_string_is_kept_whole() -> None:
    kept, text = Kept(), "line\n" * 40_000
    clipped = clip(ToolResult(ok=True, data={"stdout": text, "stderr": "e" * 100}), keep=kept.keep)
    assert clipped.data["clipped"] == [
        'stdout: 183616 of 200000 characters left out; all of it: read_file path="@result/999001"'
    ]
    assert (kept.texts, clipped.data["stderr"]) == ([text], "e" * 100)


def test_long_lines_are_folded_so_that_each_page_shows_them() -> None:
    kept = Kept()
    clipped = clip(ToolResult(ok=True, data={"text": "a" * 4_001 + "\n\n" + "b" * 100_000}), keep=kept.keep)
    lines = ["a" * 2_000, "a" * 2_000, "a", "", *["b" * 2_000] * 50]
    assert kept.texts == ["\n".join(lines)]
    assert clipped.data["clipped"][0].endswith('; all of it, long lines folded: read_file path="@result/999001"')
    assert LONGEST_LINE == MAX_LINE_CHARACTERS


def test_a_long_list_is_kept_with_one_item_on_a_line() -> None:
    kept, items = Kept(), [{"n": number, "text": "é" * 50} for number in range(5_000)]
    clipped = clip(ToolResult(ok=True, data={"deep": {"hits": items}}), keep=kept.keep)
    assert clipped.data["clipped"] == [
        'deep.hits: 4800 of 5000 items left out after item 100; all of it: read_file path="@result/999001"'
    ]
    assert [orjson.loads(line) for line in kept.texts[0].splitlines()] == items


def test_what_is_in_a_kept_list_is_not_kept_once_more() -> None:
    kept, items = Kept(), [["x" * 1_500, [str(number)] * 30] for number in range(100)]
    clipped = clip(ToolResult(ok=True, data={"items": items}), 12_500, keep=kept.keep)
    notes = clipped.data["clipped"]
    assert notes[1:3] == [
        "items[0][0]: 1244 of 1500 characters left out",
        "items[0][1]: 10 of 30 items left out after item 10",
    ]
    assert (len(notes), len(kept.texts)) == (20, 1)


def test_several_texts_are_kept_one_by_one_and_only_where_a_note_says_so() -> None:
    kept, texts = Kept(), {f"key{number}": f"{number:02}\n" * 1_000 for number in range(30)}
    clipped = clip(ToolResult(ok=True, data=texts), keep=kept.keep)
    assert len(clipped.data["clipped"]) == 20
    assert kept.texts == list(texts.values())[:20]


def test_the_notes_have_to_fit_as_well_before_anything_is_kept() -> None:
    kept, result = Kept(), ToolResult(ok=True, data=dict.fromkeys("abc", "x\n" * 9_000))
    just_enough = size(clip(result, 53_000))
    clipped = clip(result, just_enough, keep=kept.keep)
    assert size(clipped) <= just_enough
    assert kept.texts == ["x\n" * 9_000] * 3


def test_what_cannot_be_kept_is_clipped_and_said() -> None:
    kept = Kept(most=1)
    clipped = clip(ToolResult(ok=True, data={"a": "a\n" * 40_000, "b": "b\n" * 40_000}), keep=kept.keep)
    assert clipped.data["clipped"] == [
        'a: 63616 of 80000 characters left out; all of it: read_file path="@result/999001"',
        "b: 63616 of 80000 characters left out, and it could not be kept",
    ]


def test_a_result_of_many_small_parts_is_kept_as_a_whole() -> None:
    kept, data = Kept(), {f"key{number}": "x" * 100 for number in range(10_000)}
    clipped = clip(ToolResult(ok=True, data=data), keep=kept.keep)
    left_out = "the whole result (1128891 bytes of JSON) was left out"
    assert clipped.data == {"clipped": [f'{left_out}; all of it: read_file path="@result/999001"']}
    assert (orjson.loads(kept.texts[0]), len(kept.texts[0].splitlines())) == (data, 10_002)


def test_an_error_is_not_kept() -> None:
    kept = Kept()
    clip(ToolResult.failure(ToolErrorCode.IO_ERROR, "m" * 100_000), keep=kept.keep)
    assert kept.texts == []


@settings(max_examples=50, deadline=None)
@given(
    data=st.dictionaries(st.text(max_size=5), JSON, max_size=10),
    largest=st.integers(200, 2_000),
    most=st.sampled_from([None, 0, 1, 1_000]),
)
def test_the_result_always_fits(data: dict[str, Any], largest: int, most: int | None) -> None:
    kept = Kept(most or 0)
    clipped = clip(ToolResult(ok=True, data=data), largest, None if most is None else kept.keep)
    assert size(clipped) <= largest
    assert ("clipped" in clipped.data) is (len(orjson.dumps(data)) > largest or "clipped" in data)
    assert largest <= LARGEST_RESULT
    if len(orjson.dumps(data)) > largest:
        assert sum("@result/" in note for note in clipped.data["clipped"]) == len(kept.texts)
