"""Which answers of a small model are contradicted by the facts of the turn."""

from typing import Any

from mendgraph.nodes.records import ExtractionErrorType as Kind
from mendgraph.nodes.small_model.answers import NOTHING_DONE, NOTHING_HAPPENED, AnswerFacts, answer_error
from tests.row_tables import rows

ORDER, REPORT, QUESTION, TALK = "Fix calc.py.", "The sum in calc.py is wrong.", "Is calc.py right?", "Hello."
CLAIM, NO_CLAIM = "I have fixed calc.py.", "add returns the sum."
HONESTLY = f"{NOTHING_HAPPENED} Say what was not done, and why."


def turn(request: str, **facts: Any) -> AnswerFacts:
    """The facts of a turn with this request."""
    return AnswerFacts(request, **facts)


def problem_of(answer: str, facts: AnswerFacts) -> str | None:
    """The text of the correction."""
    error = answer_error(answer, facts)
    assert error is None or error[:3] == (Kind.UNFOUNDED_CLAIM, 0, answer)
    return error.details if error else None


@rows(
    (CLAIM, turn(ORDER), NOTHING_HAPPENED),
    (CLAIM, turn(REPORT), NOTHING_HAPPENED),
    (CLAIM, turn(TALK), None),
    (CLAIM, turn(TALK, first=True), NOTHING_HAPPENED),
    (CLAIM, turn(TALK, checks_failed_before=True), NOTHING_DONE),
    (CLAIM, turn(QUESTION, first=True), None),
    (CLAIM, turn("", first=True), None),
    (CLAIM, turn(ORDER, change_was_blocked=True), HONESTLY),
    (CLAIM, turn(ORDER, settled=True), None),
    (NO_CLAIM, turn(ORDER), NOTHING_DONE),
    (NO_CLAIM, turn(REPORT), NOTHING_DONE),
    (NO_CLAIM, turn(QUESTION), None),
    (NO_CLAIM, turn(TALK), None),
    (NO_CLAIM, turn(TALK, checks_failed_before=True), NOTHING_DONE),
    (NO_CLAIM, turn(QUESTION, checks_failed_before=True), None),
    (NO_CLAIM, turn(ORDER, change_was_blocked=True), None),
    (NO_CLAIM, turn(ORDER, settled=True), None),
    ("The log was changed.", turn(TALK, first=True), None),
    ("I have written a short summary of app.py: it adds. I made sure of it.", turn(TALK, first=True), None),
    ("I have created a file notes.md.", turn(TALK, first=True), NOTHING_HAPPENED),
    ("I've written `notes.md`.", turn(TALK, first=True), NOTHING_HAPPENED),
)
def test_answer_is_compared_with_the_facts_of_its_turn(answer: str, facts: AnswerFacts, problem: str | None) -> None:
    assert problem_of(answer, facts) == problem


@rows(
    ("I have fixed the add function.", True),
    ("I've updated `calc.py`.", True),
    ("Fixed: add now adds.", True),
    ("The function has been successfully renamed.", True),
    ("The bug is now fixed.", True),
    ("Done.", True),
    ("add is implemented with a minus.", False),
    ("The done flag is never set.", False),
    ("I have not changed anything.", False),
    ("Approved, the edit would have fixed the bug.", False),
    ("No file was changed.", False),
    ("Nothing has been changed so far.", False),
    ("Use `it was changed` as the message.", False),
    ("", False),
)
def test_claim_of_completed_work_is_recognized(answer: str, claims: bool) -> None:
    assert problem_of(answer, turn(ORDER)) == (NOTHING_HAPPENED if claims else NOTHING_DONE)


def test_long_answer_is_quoted_up_to_200_characters() -> None:
    error = answer_error("x" * 300, turn(ORDER))
    assert error is not None
    assert error.line_content == "x" * 200
