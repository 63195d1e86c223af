"""The checker of histories notices what it is there for."""

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from mendgraph.nodes.records import Protocol
from tests.runs.history import history_problems

ASK = HumanMessage("Read.")
ANSWER = AIMessage("Done.")
CALL = 'tool: read_file({"path": "a"})'
RESULT = 'tool_result({"tool":"read_file","ok":true,"data":{}})'


def native(*call_ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "read_file", "args": {}, "id": each} for each in call_ids])


def text_results(*lines: str) -> HumanMessage:
    return HumanMessage("\n".join(lines), name="tool_result")


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [ASK, ANSWER],
        [ASK, native("a", "b"), ToolMessage("", tool_call_id="a"), ToolMessage("", tool_call_id="b"), ANSWER],
        [ASK, AIMessage(f"{CALL}\n{CALL}"), text_results(RESULT, RESULT), ANSWER, ASK, ANSWER],
        [ASK, AIMessage("a.py\n```\nx\n```"), text_results(RESULT), ANSWER],
        [ASK, AIMessage("Such as:\n```\nx\n```"), ASK],
        [ASK, AIMessage(CALL), text_results(RESULT), ASK],
    ],
)
def test_valid_histories_have_no_problems(messages: list[AnyMessage]) -> None:
    assert history_problems(messages, Protocol.TEXT) == []


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([ASK, native("a")], "no results of ['a']"),
        ([ASK, native("a"), ASK], "message 2 comes before the results of ['a']"),
        (
            [ASK, native("a", "b"), ToolMessage("", tool_call_id="b"), ToolMessage("", tool_call_id="a")],
            "message 2 answers ['b'] where ['a', 'b'] wait",
        ),
        ([ASK, ANSWER, ToolMessage("", tool_call_id="a")], "message 2 answers ['a'] where [] wait"),
        (
            [ASK, AIMessage(f"{CALL}\n{CALL}"), text_results(RESULT)],
            "message 2 answers ['read_file', 'and no other'] where ['read_file', 'read_file'] wait",
        ),
        (
            [ASK, AIMessage(CALL), text_results("nothing")],
            "message 2 answers ['and no other'] where ['read_file'] wait",
        ),
        ([ASK, ANSWER, ANSWER], "message 2 is a reply to nothing"),
        ([ASK, SystemMessage("Be good.")], "message 1 is a system message"),
    ],
)
def test_broken_history_is_noticed(messages: list[AnyMessage], problem: str) -> None:
    assert history_problems(messages, Protocol.TEXT)[0] == problem


def test_native_call_is_never_a_line_of_text() -> None:
    assert history_problems([ASK, AIMessage(CALL), ASK], Protocol.NATIVE) == []
