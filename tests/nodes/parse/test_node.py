import pytest

from nodes.parse.node import ParseState, parse
from nodes.parse.reading import Reader
from nodes.records import (
    Answer,
    Correction,
    ExtractionError,
    ExtractionErrorType,
    ModelReply,
    Profile,
    Reading,
    ToolCall,
)

READER = Reader(Profile(), frozenset({"read_file"}), lambda _, arguments: arguments, lambda _: [])
CALL = ToolCall(
    call_id="call_4_0", tool="read_file", arguments={"path": "a"}, raw_arguments='{"path":"a"}', line_number=1
)
EMPTY = ExtractionError(ExtractionErrorType.EMPTY_REPLY, 0, "", "The reply was empty.")


@pytest.mark.parametrize(
    ("text", "update"),
    [
        ('tool: read_file({"path":"a"})', {"reading": Reading.CALLS, "items": [CALL], "errors": [], "answer": None}),
        ("Done.", {"reading": Reading.ANSWER, "items": [], "errors": [], "answer": Answer(text="Done.")}),
        ("", {"reading": Reading.MALFORMED, "items": [], "errors": [EMPTY], "answer": None}),
    ],
)
@pytest.mark.parametrize("corrections", [[], [Correction(reply="x", prompt="y")]])
def test_a_reply_that_can_be_used_closes_the_corrections(
    text: str, update: dict[str, object], corrections: list[Correction]
) -> None:
    state = ParseState(reply=ModelReply(text=text), step=4, corrections=corrections)
    healed = bool(corrections) and update["reading"] is not Reading.MALFORMED
    assert parse(state, READER) == {**update, **({"corrections": []} if healed else {})}


def test_without_a_reply_there_is_an_empty_one() -> None:
    expected = {"reading": Reading.MALFORMED, "items": [], "errors": [EMPTY], "answer": None}
    assert parse(ParseState(reply=None), READER) == parse(ParseState(), READER) == expected
