"""Replies that say nothing, that mean something else than they say, or that quote what they do not mean to do."""

import json

import pytest

from mendgraph.nodes.parse.answers import TurnFacts
from mendgraph.nodes.parse.reading import (
    MOST_CALLS,
    Reader,
    ReplyReading,
    check_call,
    completed,
    foreign_calls,
    read_reply,
)
from mendgraph.nodes.records import (
    Answer,
    CallError,
    ExtractionError,
    ExtractionErrorType as Kind,
    FinishReason,
    ModelReply,
    Reading,
    ToolCall,
    ToolInvocation,
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
    implied,
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


@EITHER
def test_thoughts_alone_are_no_reply(how: Reader) -> None:
    details = "The reply was only thought: no answer and no tool call."
    assert read_reply(ModelReply(reasoning="Hm."), 3, how) == malformed(Kind.THOUGHT_ONLY_REPLY, "", details)
    assert read_reply(ModelReply(reasoning=" \n"), 3, how) == malformed(Kind.EMPTY_REPLY, "", "The reply was empty.")
    call = raw("read_file", '{"path": "a.py"}', "x")
    assert read_reply(ModelReply(reasoning="Hm.", calls=(call,)), 3, how).reading is Reading.CALLS


# --- What a call means


def test_a_placeholder_is_no_content_to_write() -> None:
    arguments = json.dumps({"path": "b.py", "content": " <content> "})
    details = "write_file: content '<content>' only stands for a text: write the text itself."
    error = ExtractionError(Kind.INVALID_ARGUMENTS, 1, arguments, details)
    item = CallError(call_id="call_3_0", tool="write_file", raw_arguments=arguments, error=error)
    line = f"tool: write_file({arguments})"
    assert read(TEXT, line) == ReplyReading(Reading.MALFORMED, [item], [error])
    assert read(TEXT._replace(writing_tools=frozenset()), line).reading is Reading.CALLS


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


def test_to_read_the_file_that_a_block_is_of_is_but_its_heading() -> None:
    line = 'tool: read_file({"path": "new.py"})'
    found = read(BLOCKS, f"{line}\n{BLOCK.replace('calc.py', 'new.py')}")
    assert [item.tool for item in found.items] == ["edit_blocks", "final_answer"]


def test_another_tool_on_a_known_file_is_no_heading() -> None:
    line = 'tool: outline({"path": "calc.py"})'
    assert len(read(BLOCKS, f"{line}\n{BLOCK}").items) == 2


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


def test_prose_beside_lines_and_blocks_is_no_answer() -> None:
    line = f"tool: write_file({json.dumps({'path': 'b.py', 'content': 'x'})})"
    found = read(BLOCKS, f"I changed both.\n{line}\n{BLOCK}")
    assert found.items[-1] == implied("Changed b.py, calc.py.")


def test_calls_of_the_text_and_native_ones_of_one_id_are_told_apart() -> None:
    found = read(TEXT, GOOD, raw("read_file", '{"path": "b.py"}', "call_3_0"))
    assert [item.call_id for item in found.items] == ["call_3_1", "call_3_0"]


def test_letters_of_any_script_are_kept_in_the_arguments_of_checks() -> None:
    found = read(TEXT._replace(turn=CHANGED._replace(changed=("é.py",))), "It is done.")
    assert [item.raw_arguments for item in found.items] == ['{"paths": ["é.py"]}', ""]


# --- Calls in another form


@pytest.mark.parametrize("text", ['read_file(path="a.py")', 'read_file("a.py")'])
def test_a_call_in_pythons_form_is_recognised_where_its_arguments_fit(text: str) -> None:
    found = foreign_calls(text, TEXT._replace(only_required={"read_file": "path"}))
    assert found is not None
    assert [(call.tool_name, call.args) for call in found.calls] == [("read_file", {"path": "a.py"})]


@pytest.mark.parametrize("text", ["read_file(path=1)", 'read_file("a.py")', 'nope(path="a.py")'])
def test_a_call_in_pythons_form_that_does_not_fit_is_not(text: str) -> None:
    assert foreign_calls(text, TEXT) is None


def test_edits_beside_an_answer_may_still_make_it_true() -> None:
    edit = editing("call_3_0", "calc.py", 2)
    answer = answering("call_3_1", "I fixed it.", "{}")
    how = TEXT._replace(turn=IDLE)
    assert completed([edit, answer], "", 3, how) == [edit, answer]
    alone = completed([answer], "", 3, how)
    assert [type(item) for item in alone] == [CallError]


def test_a_final_answer_is_checked_as_it_is_given() -> None:
    seen: list[Answer] = []

    def check_answer(answer: Answer) -> list[str]:
        seen.append(answer)
        return []

    how = TEXT._replace(check_answer=check_answer)
    check_call(ToolInvocation("final_answer", {"answer": "Done.", "value": 3}, 1), "x", "{}", how)
    assert seen == [Answer(text="Done.", value=3)]


def test_the_checks_come_after_an_edit_that_follows_the_answer() -> None:
    edit = json.dumps({"path": "b.py", "content": "x"})
    lines = f'tool: final_answer({{"answer": "Done."}})\ntool: write_file({edit})\n{GOOD}'
    tools = [item.tool for item in read(TEXT._replace(turn=CHANGED), lines).items]
    assert tools == ["final_answer", "write_file", "run_checks", "read_file"]


def test_what_a_reader_is_not_told_it_does_not_know() -> None:
    plain = Reader(TEXT.profile, TEXT.known_tools, TEXT.validate, TEXT.check_answer)
    assert (plain.writing_tools, plain.shown_files, plain.told, plain.turn) == (frozenset(), (), (), TurnFacts())
    assert dict(plain.only_required) == {}


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
