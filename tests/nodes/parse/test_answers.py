from pathlib import Path
from typing import Any

import pytest

from mendgraph.nodes.parse.answers import (
    NOTHING_DONE,
    NOTHING_HAPPENED,
    TurnFacts,
    answer_problems,
    echoes,
    paths_to_check,
    schema_problem,
    unfounded,
)
from mendgraph.nodes.records import Answer

REMEDY = "Make the change now. If none can be made, say why in one sentence."
CLAIMED, IDLE = f"{NOTHING_HAPPENED} {REMEDY}", f"{NOTHING_DONE} {REMEDY}"
SHORT_CLAIMED, SHORT_IDLE = NOTHING_HAPPENED, NOTHING_DONE
"""What a small model is told: it would repeat each further sentence."""

ORDER, REPORT, QUESTION, TALK = "Fix calc.py.", "The sum in calc.py is wrong.", "Is calc.py right?", "Hello."
CLAIM, NO_CLAIM = "I have fixed calc.py.", "add returns the sum."


def turn(request: str, *, hindered: bool = False, first: bool = False, **facts: Any) -> TurnFacts:
    return TurnFacts(request=request, hindered=lambda: hindered, first=lambda: first, **facts)


@pytest.mark.parametrize(
    ("answer", "facts", "problem"),
    [
        (CLAIM, turn(ORDER), CLAIMED),
        (CLAIM, turn(REPORT), CLAIMED),
        (CLAIM, turn(ORDER, met=3, insistent=True), SHORT_CLAIMED),
        (CLAIM, turn(TALK), None),
        (CLAIM, turn(QUESTION), None),
        (CLAIM, turn(""), None),
        (NO_CLAIM, turn(ORDER), IDLE),
        (NO_CLAIM, turn(ORDER, met=1), None),
        (NO_CLAIM, turn(ORDER, met=1, insistent=True), SHORT_IDLE),
        (NO_CLAIM, turn(REPORT), None),
        (NO_CLAIM, turn(REPORT, insistent=True), SHORT_IDLE),
        (NO_CLAIM, turn(QUESTION, insistent=True), None),
        (NO_CLAIM, turn(TALK, insistent=True), None),
        (NO_CLAIM, turn(TALK, insistent=True, faulty=True), SHORT_IDLE),
        (NO_CLAIM, turn(TALK, faulty=True), None),
        (NO_CLAIM, turn(QUESTION, insistent=True, faulty=True), None),
        (CLAIM, turn(TALK, insistent=True, faulty=True), SHORT_IDLE),
        (CLAIM, turn(TALK, first=True), CLAIMED),
        ("The log was changed.", turn(TALK, first=True), None),
        ("I have written a short summary of app.py: it adds. I made sure of it.", turn(TALK, first=True), None),
        ("I have created a file notes.md.", turn(TALK, first=True), CLAIMED),
        ("I've written `notes.md`.", turn(TALK, first=True), CLAIMED),
        (CLAIM, turn(ORDER, acted=lambda: True, insistent=True), None),
        (CLAIM, turn(QUESTION, first=True), None),
        (CLAIM, turn(ORDER, hindered=True), f"{SHORT_CLAIMED} Say what was not done, and why."),
        (NO_CLAIM, turn(ORDER, hindered=True), None),
        (CLAIM, turn(ORDER, resumed=True), None),
    ],
)
def test_what_did_not_happen_speaks_against_an_answer(answer: str, facts: TurnFacts, problem: str | None) -> None:
    assert unfounded(answer, facts) == problem


@pytest.mark.parametrize(
    ("facts", "changing", "paths"),
    [
        (TurnFacts(request=ORDER), (), None),
        (TurnFacts(request=ORDER, changed=("a.py",)), ("b.py",), None),
        (TurnFacts(request=ORDER, checked=True, changed=("a.md", "b.json")), ("c.js",), ("a.md", "b.json", "c.js")),
        (TurnFacts(request=ORDER, checked=True, changed=("a.py",)), (), ("a.py",)),
        (TurnFacts(request=TALK, checked=True), ("a.pyi",), ("a.pyi",)),
        (TurnFacts(request=ORDER, checked=True, changed=("b.py", "a.md")), ("c.py", "b.py"), ("b.py", "a.md", "c.py")),
        (TurnFacts(request=ORDER, checked=True), (), None),
        (TurnFacts(request=ORDER, checked=True, configured=True), (), ()),
        (TurnFacts(request=QUESTION, checked=True, configured=True), (), None),
        (TurnFacts(request=TALK, configured=True), ("a.md",), None),
    ],
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


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            {"type": "numbr"},
            "response_format is not a JSON schema: 'numbr' is not valid under any of the given schemas",
        ),
        ({"pattern": "("}, "response_format is not a JSON schema: '(' is not a 'regex'"),
        (
            {"$ref": "#/x"},
            "response_format cannot be followed: PointerToNowhere: '/x' does not exist within {'$ref': '#/x'}",
        ),
        ({"$ref": "#"}, "response_format cannot be followed: maximum recursion depth exceeded"),
        (ELSEWHERE, "response_format cannot be followed: Unresolvable: file:///etc/hostname"),
    ],
)
def test_what_is_no_schema_is_refused_before_the_run(schema: dict[str, Any], problem: str) -> None:
    assert str(schema_problem(schema)).startswith(problem)


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
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
    ],
)
def test_what_is_wrong_with_an_answer(value: Any, schema: dict[str, Any] | None, expected: list[str]) -> None:
    assert problems(value, schema) == expected


def test_a_schema_that_no_checkpoint_can_hold_is_refused() -> None:
    problem = schema_problem({"type": "integer", "maximum": 10**40})
    assert problem is not None
    assert problem.startswith("response_format cannot be kept with the run: ")


def test_a_reference_to_a_file_of_this_machine_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}')
    schema = {"$ref": file.as_uri()}
    [problem] = answer_problems(Answer(text="", value="x"), schema)
    assert problem.startswith("response_format cannot be followed: ")
    assert str(schema_problem(schema)).startswith("response_format cannot be followed: ")


TOLD = ("The block has no closing fence.  Send it\nagain.", "Yes.", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The block has no closing fence. Send it again.", True),
        ("Well: the block? The block has no closing fence. Send it again. Done.", True),
        ("no closing fence", True),
        ("no closing fenc", False),
        ("", False),
        ("The block is closed. Send it again.", False),
    ],
)
def test_a_sentence_that_was_told_is_known_again(text: str, expected: bool) -> None:
    assert echoes(text, TOLD) is expected
