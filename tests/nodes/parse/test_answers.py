from pathlib import Path
from typing import Any

from mendgraph.nodes.parse.answers import TurnFacts, answer_problems, paths_to_check, schema_problem
from mendgraph.nodes.records import Answer
from tests.nodes.rows import rows


@rows(
    (TurnFacts(), (), None),
    (TurnFacts(changed=("a.py",)), ("b.py",), None),
    (TurnFacts(checked=True, changed=("a.md", "b.json")), ("c.js",), ("a.md", "b.json", "c.js")),
    (TurnFacts(checked=True, changed=("a.py",)), (), ("a.py",)),
    (TurnFacts(checked=True), ("a.pyi",), ("a.pyi",)),
    (TurnFacts(checked=True, changed=("b.py", "a.md")), ("c.py", "b.py"), ("b.py", "a.md", "c.py")),
    (TurnFacts(checked=True), (), None),
    (TurnFacts(), ("a.md",), None),
)
def test_checks_come_before_an_answer_where_they_can_tell_something(
    facts: TurnFacts, changing: tuple[str, ...], paths: tuple[str, ...] | None
) -> None:
    assert paths_to_check(facts, changing) == paths


COUNT = {"type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}, "required": ["count"]}
ASK = "end with the tool final_answer, and put the value that was asked for into its argument `value`"
ELSEWHERE = {"$ref": "file:///etc/hostname"}


def problems(value: Any, schema: dict[str, Any] | None) -> list[str]:
    return answer_problems(Answer(text="done", value=value), schema)


@rows(
    ({"type": "numbr"}, "response_format is not a JSON schema: 'numbr' is not valid under any of the given schemas"),
    ({"pattern": "("}, "response_format is not a JSON schema: '(' is not a 'regex'"),
    (
        {"$ref": "#/x"},
        "response_format cannot be followed: PointerToNowhere: '/x' does not exist within {'$ref': '#/x'}",
    ),
    ({"$ref": "#"}, "response_format cannot be followed: maximum recursion depth exceeded"),
    (ELSEWHERE, "response_format cannot be followed: Unresolvable: file:///etc/hostname"),
)
def test_what_is_no_schema_is_refused_before_the_run(schema: dict[str, Any], problem: str) -> None:
    assert str(schema_problem(schema)).startswith(problem)


@rows(
    (None, None, []),
    ({"count": 3}, COUNT, []),
    (None, {"type": ["integer", "null"]}, []),
    (None, COUNT, [ASK]),
    ({"count": 0}, COUNT, ["value.count: 0 is less than the minimum of 1"]),
    ({}, COUNT, ["value: 'count' is a required property"]),
    ([1, "b"], {"items": {"type": "integer"}}, ["value[1]: 'b' is not of type 'integer'"]),
    (
        {"x": 1},
        {"properties": {"x": ELSEWHERE}},
        ["response_format cannot be followed: Unresolvable: file:///etc/hostname"],
    ),
)
def test_what_is_wrong_with_an_answer(value: Any, schema: dict[str, Any] | None, expected: list[str]) -> None:
    assert problems(value, schema) == expected


def test_schema_that_no_checkpoint_can_hold_is_refused() -> None:
    problem = schema_problem({"type": "integer", "maximum": 10**40})
    assert problem is not None
    assert problem.startswith("response_format cannot be kept with the run: ")


def test_reference_to_a_file_of_this_machine_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}')
    schema = {"$ref": file.as_uri()}
    [problem] = answer_problems(Answer(text="", value="x"), schema)
    assert problem.startswith("response_format cannot be followed: ")
    assert str(schema_problem(schema)).startswith("response_format cannot be followed: ")
