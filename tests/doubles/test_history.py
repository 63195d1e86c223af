"""The checker of histories, which all doubles of models call, notices what an endpoint would refuse."""

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage

from tests.doubles.history import history_problems
from tests.vocabulary import Protocol

ASK = HumanMessage("Read.")
ANSWER = AIMessage("Done.")
CALL = 'tool: read_file({"path": "a"})'
RESULT = 'tool_result({"tool":"read_file","ok":true,"data":{}})'


def native(*call_ids: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "read_file", "args": {}, "id": call_id} for call_id in call_ids])


def text_results(*lines: str) -> HumanMessage:
    return HumanMessage("\n".join(lines), name="tool_result")


A, B = ToolMessage("", tool_call_id="a"), ToolMessage("", tool_call_id="b")
HISTORIES: tuple[tuple[list[AnyMessage], str], ...] = (
    ([], ""),
    ([ASK, ANSWER], ""),
    ([ASK, native("a", "b"), A, B, ANSWER], ""),
    ([ASK, AIMessage(f"{CALL}\n{CALL}"), text_results(RESULT, RESULT), ANSWER, ASK, ANSWER], ""),
    ([ASK, AIMessage("a.py\n```\nx\n```"), text_results(RESULT), ANSWER], ""),
    ([ASK, AIMessage("Such as:\n```\nx\n```"), ASK], ""),
    ([ASK, AIMessage(CALL), text_results(RESULT), ASK], ""),
    ([ASK, native("a")], "no results of ['a']"),
    ([ASK, native("a"), ASK], "message 2 comes before the results of ['a']"),
    ([ASK, native("a", "b"), B, A], "message 2 answers ['b'] where ['a', 'b'] wait"),
    ([ASK, ANSWER, A], "message 2 answers ['a'] where [] wait"),
    (
        [ASK, AIMessage(f"{CALL}\n{CALL}"), text_results(RESULT)],
        "message 2 answers ['read_file', 'and no other'] where ['read_file', 'read_file'] wait",
    ),
    ([ASK, AIMessage(CALL), text_results("nothing")], "message 2 answers ['and no other'] where ['read_file'] wait"),
    ([ASK, ANSWER, ANSWER], "message 2 is a reply to nothing"),
    ([ASK, SystemMessage("Be good.")], "message 1 is a system message"),
)


def test_invalid_history_is_detected_and_a_valid_one_accepted() -> None:
    for messages, problem in HISTORIES:
        assert [*history_problems(messages, Protocol.TEXT), ""][0] == problem, messages
    assert history_problems([ASK, AIMessage(CALL), ASK], Protocol.NATIVE) == []
