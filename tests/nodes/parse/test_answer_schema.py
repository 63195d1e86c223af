from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodes.parse.answers import MAX_PROBLEMS, answer_problems, schema_problem
from nodes.records import Answer

COUNT = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}, "required": ["count"]}
ASK = "end with the tool final_answer, and put the value that was asked for into its argument `value`"
ELSEWHERE = {"$ref": "file:///etc/hostname"}


def problems(value: Any, schema: dict[str, Any] | None) -> list[str]:
    return answer_problems(Answer(text="done", value=value), schema)


@pytest.mark.parametrize("schema", [{}, COUNT, {"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"}])
def test_a_schema_is_a_schema(schema: dict[str, Any]) -> None:
    assert schema_problem(schema) is None


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "numbr"}, "answer_schema is not a JSON schema: 'numbr' is not valid under any of the given schemas"),
        ({"pattern": "("}, "answer_schema is not a JSON schema: '(' is not a 'regex'"),
        (
            {"$ref": "#/x"},
            "answer_schema cannot be followed: PointerToNowhere: '/x' does not exist within {'$ref': '#/x'}",
        ),
        ({"$ref": "#"}, "answer_schema cannot be followed: maximum recursion depth exceeded"),
        (ELSEWHERE, "answer_schema cannot be followed: Unresolvable: file:///etc/hostname"),
        (
            {"allOf": [{"$ref": "http://127.0.0.1:9/x"}]},
            "answer_schema cannot be followed: Unresolvable: http://127.0.0.1:9/x",
        ),
    ],
)
def test_what_is_no_schema_is_refused_before_the_run(schema: dict[str, Any], problem: str) -> None:
    assert str(schema_problem(schema)).startswith(problem)


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("anything", None, []),
        (None, None, []),
        ({"count": 3}, COUNT, []),
        (None, {"type": ["integer", "null"]}, []),
        (None, {}, []),
        (None, COUNT, [ASK]),
        ({"count": 0}, COUNT, ["value.count: 0 is less than the minimum of 1"]),
        ({}, COUNT, ["value: 'count' is a required property"]),
        ([1, "b"], {"items": {"type": "integer"}}, ["value[1]: 'b' is not of type 'integer'"]),
        (
            {"x": 1},
            {"properties": {"x": ELSEWHERE}},
            ["answer_schema cannot be followed: Unresolvable: file:///etc/hostname"],
        ),
    ],
)
def test_what_is_wrong_with_an_answer(value: Any, schema: dict[str, Any] | None, expected: list[str]) -> None:
    assert problems(value, schema) == expected


def test_only_the_first_problems_are_told_in_order_of_place() -> None:
    told = problems(["x"] * 9, {"items": {"type": "integer"}})
    assert told == [f"value[{index}]: 'x' is not of type 'integer'" for index in range(MAX_PROBLEMS)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.sampled_from(["type", "properties", "items", "$ref", "enum", "required", "anyOf", "pattern", "const", "not"])
VALUES = st.sampled_from(["object", "array", "#", "#/properties", "http://127.0.0.1:9/", "("]) | JSON
SCHEMAS = st.dictionaries(WORDS, VALUES | st.dictionaries(WORDS, VALUES, max_size=2), max_size=3)


@given(SCHEMAS, JSON)
def test_any_schema_and_any_value_give_sentences(schema: dict[str, Any], value: Any) -> None:
    if schema_problem(schema) is None:
        assert all(isinstance(problem, str) for problem in problems(value, schema))


def test_a_schema_that_no_checkpoint_can_hold_is_refused() -> None:
    problem = schema_problem({"type": "integer", "maximum": 10**40})
    assert problem is not None
    assert problem.startswith("answer_schema cannot be kept with the run: ")


def test_five_problems_are_told() -> None:
    schema = {"items": {"type": "string"}}
    assert MAX_PROBLEMS == 5
    assert len(answer_problems(Answer(text="", value=[1] * 6), schema)) == 5


def test_a_reference_to_a_file_of_this_machine_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}')
    schema = {"$ref": file.as_uri()}
    [problem] = answer_problems(Answer(text="", value="x"), schema)
    assert problem.startswith("answer_schema cannot be followed: ")
    assert str(schema_problem(schema)).startswith("answer_schema cannot be followed: ")
