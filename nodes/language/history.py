"""How one exchange enters the history: the reply and the results of its calls, always together.

In the text protocol the results come back as one user message with a `tool_result({...})` line for each call; in the
native protocol as one tool message for each call id, right after the reply, in call order. A call that was malformed
is kept with empty arguments, because endpoints refuse a history with broken JSON in it.
"""

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall as NativeToolCall, ToolMessage

from nodes.language.json_arguments import decode_arguments
from nodes.language.tool_results import render_native_result, render_text_results
from nodes.records import CallError, CallResult, JsonMap, ModelReply, Protocol, ToolCall, ToolErrorCode, ToolResult

RESULT_MESSAGE_NAME = "tool_result"
"""Marks the user messages that hold results, so that they are not taken for a person's."""


def settle_exchange(
    reply: ModelReply, items: Sequence[ToolCall | CallError], results: Sequence[CallResult], protocol: Protocol
) -> list[AnyMessage]:
    """Return the messages for a reply whose calls all have results, one result for each item, in order."""
    if protocol is Protocol.TEXT:
        content = render_text_results(results)
        return [AIMessage(reply.text), HumanMessage(content, name=RESULT_MESSAGE_NAME)]
    calls = [
        NativeToolCall(
            name=item.tool or "unknown",
            args=_as_sent(item),
            id=item.call_id,
            type="tool_call",
        )
        for item in items
    ]
    answers = [
        ToolMessage(
            render_native_result(result),
            tool_call_id=result.call_id,
            name=result.tool or "unknown",
            status="success" if result.result.ok else "error",
        )
        for result in results
    ]
    return [AIMessage(reply.text, tool_calls=calls), *answers]


def _as_sent(item: ToolCall | CallError) -> JsonMap:
    """The arguments as the model wrote them, without the defaults that validation added."""
    sent = decode_arguments(item.raw_arguments) if isinstance(item, ToolCall) else {}
    return sent if isinstance(sent, dict) else {}


def is_request(message: AnyMessage) -> bool:
    """Is this a person's message, and not one that carries results?"""
    return isinstance(message, HumanMessage) and message.name != RESULT_MESSAGE_NAME


def close_dangling_calls(messages: Sequence[AnyMessage]) -> list[AnyMessage] | None:
    """Give every tool call exactly one result right after it, and drop results that answer no call.

    Returns the repaired history, or None when it was valid. A history can come in broken from outside: a client that
    was cut off between a call and its result, or one that edits threads.
    """
    repaired: list[AnyMessage] = []
    answers = {m.tool_call_id: m for m in messages if isinstance(m, ToolMessage)}
    for message in messages:
        if isinstance(message, ToolMessage):
            continue
        repaired.append(message)
        if isinstance(message, AIMessage):
            repaired += [_answer_to(call, answers) for call in message.tool_calls]
    return None if repaired == list(messages) else repaired


def _answer_to(call: NativeToolCall, answers: dict[str, ToolMessage]) -> ToolMessage:
    call_id = call["id"] or ""
    return answers.pop(call_id) if call_id in answers else _cancelled(call)


def _cancelled(call: NativeToolCall) -> ToolMessage:
    failure = ToolResult.failure(ToolErrorCode.CANCELLED, "This call was cancelled before it ran.")
    result = CallResult(call_id=call["id"] or "", tool=call["name"], result=failure)
    return ToolMessage(render_native_result(result), tool_call_id=result.call_id, name=call["name"], status="error")
