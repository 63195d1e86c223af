"""Checks that an endpoint would accept a history: the third invariant of CONTRIBUTING.md, for both protocols."""

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from mendgraph.nodes.language.history import READ_AHEAD, RESULT_MESSAGE_NAME, is_typed
from mendgraph.nodes.language.text_protocol import extract_in_order, parse_text_results
from tests.vocabulary import Protocol

BLOCKS = "```"
CHECKS = "run_checks"


def history_problems(messages: Sequence[AnyMessage], protocol: Protocol) -> list[str]:
    """What is wrong with a history, one line each; nothing where every call has its one result, in order, right after.

    A reply follows a request or results. A request may come at any time: whoever asks anew gives up the old turn.
    """
    problems: list[str] = []
    waiting: list[str] = []
    may_reply = False
    for index, message in enumerate(messages):
        if waiting and not _is_result(message):
            problems.append(f"message {index} comes before the results of {waiting}")
            waiting = []
        if isinstance(message, AIMessage):
            if not may_reply:
                problems.append(f"message {index} is a reply to nothing")
            waiting = _calls(message, messages[index + 1 : index + 2], protocol)
        elif _is_result(message):
            answered = _answered(message, waiting)
            if waiting[: len(answered)] != answered or not answered:
                problems.append(f"message {index} answers {answered} where {waiting} wait")
            waiting = waiting[len(answered) :]
        elif not is_typed(message):
            problems.append(f"message {index} is a {message.type} message")
        may_reply = not isinstance(message, AIMessage)
    return [*problems, f"no results of {waiting}"] if waiting else problems


def _is_result(message: AnyMessage) -> bool:
    return isinstance(message, ToolMessage) or (
        isinstance(message, HumanMessage) and message.name == RESULT_MESSAGE_NAME
    )


def _calls(reply: AIMessage, following: Sequence[AnyMessage], protocol: Protocol) -> list[str]:
    """What waits for a result: the ids of native calls, or the tools of text calls.

    What the machine has read ahead is told as text in a native history too, by the tools of its results.
    A reply in block form has no `tool:` lines: it counts by the results that follow, of which there is at least one.
    So do calls in another form, and an answer without results may explain a call in a code fence.
    """
    if reply.text == READ_AHEAD and following and _is_result(following[0]):
        return [str(result["tool"]) for result in parse_text_results(following[0].text)]
    if reply.tool_calls or protocol is Protocol.NATIVE:
        return [str(call["id"]) for call in reply.tool_calls]
    has_results = bool(following) and _is_result(following[0])
    lines = [call.tool for call in extract_in_order(reply.text, known_tools=frozenset(), fenced=has_results)]
    results = [str(result["tool"]) for result in parse_text_results(following[0].text)] if has_results else []
    if results == [CHECKS] and not lines:
        return results  # the machine runs the checks itself when the model says that the work is done
    if not has_results or (not lines and BLOCKS not in reply.text):
        return lines
    if not lines:
        return results or ["edit_blocks"]
    for place, tool in enumerate(results):
        written = f'"name": "{tool}"' in reply.text or (tool == "edit_blocks" and BLOCKS in reply.text)
        if tool not in lines[place : place + 1] and written:
            lines.insert(place, tool)
    return lines


def _answered(message: AnyMessage, waiting: list[str]) -> list[str]:
    if isinstance(message, ToolMessage):
        return [message.tool_call_id]
    results = [str(result["tool"]) for result in parse_text_results(message.text)]
    # A text result names its tool; all of them stand in one message.
    return results if len(results) == len(waiting) else [*results, "and no other"]
