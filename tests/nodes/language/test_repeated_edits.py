import json

import pytest
from hypothesis import given, strategies as st

from nodes.language.json_arguments import (
    ArgumentProblem,
    DecodedCall,
    Pairs,
    RepeatedEdits,
    decode_call,
    join_edits,
    split_call,
)
from nodes.records import ExtractionErrorType, JsonMap

KNOWN = frozenset({"edit_file", "multi_edit", "other"})
TWICE = '{"path": "a.py", "old_str": "1", "new_str": "2", "old_str": "3", "new_str": "4"}'
EDITS = [{"old_str": "1", "new_str": "2"}, {"old_str": "3", "new_str": "4"}]


def duplicate(keys: str) -> ArgumentProblem:
    details = f"Duplicate key {keys}: write each key once, and one call for each change."
    return ArgumentProblem(ExtractionErrorType.INVALID_JSON_SYNTAX, details)


@pytest.mark.parametrize(
    ("tool", "text", "expected"),
    [
        ("edit_file", '{"path": "a", "old_str": "1", "new_str": "2"}', {"path": "a", "old_str": "1", "new_str": "2"}),
        ("other", "{}", {}),
    ],
)
def test_a_plain_call_is_decoded_as_it_is(tool: str, text: str, expected: JsonMap) -> None:
    assert decode_call(tool, text, KNOWN) == DecodedCall(tool, expected)


@pytest.mark.parametrize("tool", ["edit_file", "multi_edit"])
@pytest.mark.parametrize(
    "text",
    [
        TWICE,
        '{"old_str": "1", "new_str": "2", "path": "a.py", "old_str": "3", "new_str": "4"}',
        '{"new_str": "2", "old_str": "1", "new_str": "4", "old_str": "3", "path": "a.py",}',
    ],
)
def test_two_pairs_are_two_edits_in_order(tool: str, text: str) -> None:
    assert decode_call(tool, text, KNOWN) == DecodedCall("multi_edit", {"path": "a.py", "edits": EDITS})


def test_other_arguments_are_left_to_the_schema() -> None:
    text = TWICE.replace("}", ', "replace_all": true}')
    assert decode_call("edit_file", text, KNOWN) == DecodedCall(
        "multi_edit", {"path": "a.py", "replace_all": True, "edits": EDITS}
    )


@pytest.mark.parametrize(
    ("tool", "text", "problem"),
    [
        ("other", TWICE, duplicate("'old_str', 'new_str'")),
        ("edit_file", '{"old_str": "1", "new_str": "2", "old_str": "3"}', duplicate("'old_str'")),
        ("edit_file", TWICE.replace("}", ', "path": "b"}'), duplicate("'path', 'old_str', 'new_str'")),
        ("edit_file", '{"path": "a", "path": "b"}', duplicate("'path'")),
        ("edit_file", TWICE.replace('"4"', "4"), duplicate("'old_str', 'new_str'")),
        ("edit_file", TWICE.replace("}", ', "edits": []}'), duplicate("'old_str', 'new_str'")),
        ("edit_file", TWICE.replace('"a.py"', "{}"), duplicate("'old_str', 'new_str'")),
        ("multi_edit", f'{{"path": "a", "edits": [{TWICE}]}}', duplicate("'old_str', 'new_str'")),
        ("edit_file", f"[{TWICE}]", duplicate("'old_str', 'new_str'")),
    ],
)
def test_any_other_equal_keys_stay_a_problem(tool: str, text: str, problem: ArgumentProblem) -> None:
    assert decode_call(tool, text, KNOWN) == problem


def test_without_the_tool_for_several_edits_they_stay_a_problem() -> None:
    assert decode_call("edit_file", TWICE, frozenset({"edit_file"})) == duplicate("'old_str', 'new_str'")


def test_edits_out_of_place_split_nothing() -> None:
    repeated = RepeatedEdits(path="a.py", edits=EDITS)
    assert split_call("edit_file", repeated, KNOWN) == DecodedCall("multi_edit", {"path": "a.py", "edits": EDITS})
    assert split_call("other", {"x": [{"y": repeated}]}, KNOWN) is None
    assert split_call("other", {"x": [{"y": {}}]}, KNOWN) == DecodedCall("other", {"x": [{"y": {}}]})


@given(st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=5), st.text())
def test_no_edit_is_lost(edits: list[tuple[str, str]], path: str) -> None:
    pairs: Pairs = [("path", path)]
    for old, new in edits:
        pairs += [("old_str", old), ("new_str", new)]
    text = "{" + ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs) + "}"
    expected = {"path": path, "edits": [{"old_str": old, "new_str": new} for old, new in edits]}
    assert join_edits(pairs) == expected
    assert decode_call("edit_file", text, KNOWN) == DecodedCall("multi_edit", expected)
