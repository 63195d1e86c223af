"""Replies that say nothing, that mean something else than they say, or that quote what they do not mean to do."""

import json

import pytest

from mendgraph.nodes.parse.answers import TurnFacts
from mendgraph.nodes.parse.reading import MOST_CALLS, Reader, ReplyReading, completed, read_reply
from mendgraph.nodes.records import (
    Answer,
    CallError,
    ExtractionError,
    ExtractionErrorType as Kind,
    FinishReason,
    ModelReply,
    Reading,
    ToolCall,
)
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

IDLE = TurnFacts(request="Fix calc.py.")
CHANGED = TurnFacts(request="Fix calc.py.", changed=("calc.py",), checked=True)

# --- Replies that say nothing, or end while they do


@EITHER
@pytest.mark.parametrize(
    ("text", "reasoning", "when"),
    [("", "Hm.", " while it was still thinking"), (" \n", "Hm.", " while it was still thinking"), ("It", "Hm.", "")],
)
def test_a_reply_that_was_cut_says_whether_it_was_still_thinking(
    how: Reader, text: str, reasoning: str, when: str
) -> None:
    reply = ModelReply(text=text, reasoning=reasoning, finish_reason=FinishReason.LENGTH)
    details = f"The reply was cut at the token limit{when}. Nothing was executed."
    assert read_reply(reply, 3, how) == malformed(Kind.TRUNCATED_REPLY, text, details)


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


def test_calls_of_the_text_and_native_ones_of_one_id_are_told_apart() -> None:
    found = read(TEXT, GOOD, raw("read_file", '{"path": "b.py"}', "call_3_0"))
    assert [item.call_id for item in found.items] == ["call_3_1", "call_3_0"]


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


def test_of_many_broken_calls_the_first_ones_are_asked_for_again() -> None:
    found = read(NATIVE, "", *(raw("read_file", "[1]", f"c{at}") for at in range(1_000)))
    assert (found.reading, len(found.items), len(found.errors)) == (Reading.MALFORMED, 1_000, MOST_CALLS + 1)
    assert [error.error_type for error in found.errors[-2:]] == [Kind.INVALID_JSON_SYNTAX, Kind.TOO_MANY_CALLS]


def test_an_answer_beyond_what_a_reply_may_hold_is_none() -> None:
    calls = [raw("read_file", '{"path": "a.py"}', f"c{at}") for at in range(MOST_CALLS)]
    found = read(NATIVE._replace(turn=CHANGED), "", *calls, raw("final_answer", '{"answer": "Done."}', "last"))
    assert (len(found.items), type(found.items[-1]), found.items[-1].call_id) == (MOST_CALLS + 1, CallError, "last")
