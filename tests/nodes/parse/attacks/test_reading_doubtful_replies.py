"""Replies that say nothing, that mean something else than they say, or that quote what they do not mean to do."""

import json

import pytest

from mendgraph.nodes.parse.answers import TurnFacts
from mendgraph.nodes.parse.reading import MOST_CALLS, Reader, ReplyReading, completed
from mendgraph.nodes.records import Answer, CallError, ExtractionError, ExtractionErrorType as Kind, Reading, ToolCall
from tests.nodes.parse.readings import (
    BLOCKS,
    CODE,
    EITHER,
    GOOD,
    NATIVE,
    TEXT,
    answering,
    editing,
    malformed,
    raw,
    read,
)

IDLE = TurnFacts(request="Fix calc.py.", change_required=True)

# --- Replies that say nothing, or end while they do


# --- What a call means


# --- Lines and blocks of one reply

BLOCK = f"calc.py\n```python\n{CODE}```"


@pytest.mark.parametrize(
    ("path", "request_", "tools"),
    [
        ("calc.py", "", ["edit_blocks", "final_answer"]),
        ("seen.py", "Look at seen.py.", ["edit_blocks", "final_answer"]),
        ("other.py", "", ["read_file", "edit_blocks"]),
    ],
    ids=["shown", "named by the request", "unknown"],
)
def test_to_read_what_is_known_is_but_the_heading_of_a_block(path: str, request_: str, tools: list[str]) -> None:
    how = BLOCKS._replace(turn=TurnFacts(request=request_, changed=("x.txt",)))
    line = f'tool: read_file({{"path": "{path}"}})'
    assert [item.tool for item in read(how, f"{line}\n{BLOCK}").items] == tools
    assert [item.tool for item in read(how, line).items] == ["read_file"]


def test_blocks_in_the_answer_to_a_question_are_quotations() -> None:
    how = BLOCKS._replace(turn=TurnFacts(request="What does calc.py do?"))
    text = f"It adds:\n{BLOCK}"
    assert read(how, text) == ReplyReading(Reading.ANSWER, [], [], Answer(text=text))
    both = read(how, f"{text}\n{GOOD}")
    assert [(item.call_id, item.tool) for item in both.items] == [("call_3_0", "read_file")]


def test_blocks_without_a_word_answer_no_question() -> None:
    how = BLOCKS._replace(turn=TurnFacts(request="What does calc.py do?"))
    assert read(how, BLOCK) == malformed(Kind.INVALID_ANSWER, BLOCK, "this shows a file instead of answering")
    assert read(TEXT._replace(turn=how.turn), BLOCK).reading is Reading.ANSWER


def test_name_of_the_file_that_was_asked_about_is_no_answer() -> None:
    how = BLOCKS._replace(turn=TurnFacts(request="What does calc.py do?"))
    for text in ("calc.py", "`src/calc.py`"):
        assert read(how, text) == malformed(Kind.INVALID_ANSWER, text, "this shows a file instead of answering")
    assert read(how, "main.py").reading is read(how, "It is calc.py").reading is Reading.ANSWER


# --- Calls in another form


def test_edits_beside_an_answer_may_still_make_it_true() -> None:
    edit = editing("call_3_0", "calc.py", 2)
    answer = answering("call_3_1", "I fixed it.", "{}")
    how = TEXT._replace(turn=IDLE)
    assert completed([edit, answer], "", 3, how) == [edit, answer]
    alone = completed([answer], "", 3, how)
    assert [type(item) for item in alone] == [CallError]


# --- More calls than one reply may hold


@EITHER
def test_of_a_reply_with_many_calls_the_first_ones_are_read_and_the_rest_is_told(how: Reader) -> None:
    count = 3 * MOST_CALLS
    arguments = [json.dumps({"path": f"{at}.py"}) for at in range(count)]
    calls = [raw("read_file", each, "same") for each in arguments] if how is NATIVE else []
    found = read(how, "" if calls else "\n".join(f"tool: read_file({each})" for each in arguments), *calls)
    assert (found.reading, len(found.items), len({item.call_id for item in found.items})) == (
        Reading.CALLS,
        count,
        count,
    )
    assert [item.raw_arguments for item in found.items] == arguments
    kept, rest = found.items[:MOST_CALLS], found.items[MOST_CALLS:]
    assert all(isinstance(item, ToolCall) for item in kept)
    details = "Not run: a reply may hold 64 calls at most. Send it again."
    error = ExtractionError(Kind.TOO_MANY_CALLS, 0, "", details)
    assert [item.error for item in rest if isinstance(item, CallError)] == [error] * len(rest)
