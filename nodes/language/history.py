"""How one exchange enters the history: the reply and the results of its calls, always together.

In the text protocol the results come back as one user message with a `tool_result({...})` line for each call, and
calls that an endpoint sent natively all the same are kept as `tool:` lines. In the native protocol they come back as
one tool message for each call id, right after the reply, in call order. A call that was malformed is kept with empty
arguments, because endpoints refuse a history with broken JSON in it. A path of the workspace is kept relative to it,
however the model spelled it. Source: spec 3, "Path normalization".
"""

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall as NativeToolCall, ToolMessage

from mendgraph.nodes.language.content_blocks import with_state
from mendgraph.nodes.language.names import names_elsewhere
from mendgraph.nodes.language.text_protocol import decode_arguments, render_native_result, render_text_results
from mendgraph.nodes.records import (
    CallError,
    CallResult,
    Effect,
    JsonMap,
    ModelReply,
    Protocol,
    ToolCall,
    ToolErrorCode,
    ToolResult,
    ToolSpec,
)

NO_SPECS: Final[Mapping[str, ToolSpec]] = MappingProxyType({})

RESULT_MESSAGE_NAME = "tool_result"
"""Marks the user messages that hold results, so that they are not taken for a person's."""

READ_AHEAD = "Before I begin, I look at what the request names."
"""What stands in a native history where the machine has made the first calls itself."""


def settle_exchange(
    reply: ModelReply,
    items: Sequence[ToolCall | CallError],
    results: Sequence[CallResult],
    protocol: Protocol,
    specs: Mapping[str, ToolSpec] = NO_SPECS,
    root: str = "",
) -> list[AnyMessage]:
    """Return the messages for a reply whose calls all have results, one result for each item, in order.

    What the machine has read ahead is told as text in either protocol: endpoints of models that think refuse native
    calls that carry no signature or reasoning of theirs.
    An implied call is left out: the reply does not hold it, so nothing waits for its result. One that failed is told,
    for the model has to mend what it found. Where nothing is to be told, the reply is the answer, which `stop` keeps.
    `specs` tell which arguments are paths; what lies below `root`, the workspace's real name, is kept relative to it,
    also where a program has printed it.
    """
    said = [(item, result) for item, result in zip(items, results, strict=True) if _is_told(item, result)]
    if items and not said:
        return []
    items, results = [item for item, _ in said], [_with_relative_output(result, specs, root) for _, result in said]
    if reply.preloaded and protocol is Protocol.NATIVE:
        return [AIMessage(READ_AHEAD), HumanMessage(render_text_results(results), name=RESULT_MESSAGE_NAME)]
    if protocol is Protocol.TEXT:
        items = [item for item in items if not _is_implied(item)]
        plain = [_with_relative_paths(item, specs, root) for item in items]
        text = reply.text
        for before, item in [*zip(items, plain, strict=True)][::-1]:  # so that the lines before keep their numbers
            if item is not before and isinstance(before, ToolCall) and isinstance(item, ToolCall):
                text = _rewritten(text, before, item)
        native = [f"tool: {item.tool}({item.raw_arguments})" for item in plain[len(plain) - len(reply.calls) :]]
        text = "\n".join(part for part in (text, *native) if part)
        return [AIMessage(text), HumanMessage(render_text_results(results), name=RESULT_MESSAGE_NAME)]
    written, items = items, [_with_relative_paths(item, specs, root) for item in items]
    calls = [
        NativeToolCall(name=_sendable(item.tool), args=_as_sent(item), id=item.call_id, type="tool_call")
        for item in items
    ]
    answers = [
        ToolMessage(
            render_native_result(result),
            tool_call_id=result.call_id,
            name=_sendable(result.tool),
            status="success" if result.result.ok else "error",
        )
        for result in results
    ]
    changed = {
        item.call_id: _as_sent(item)
        for item, before in zip(items, written, strict=True)
        if isinstance(item, CallError) or item is not before
    }
    return [with_state(reply.text, calls, reply.provider, changed), *answers]


def _with_relative_paths(item: ToolCall | CallError, specs: Mapping[str, ToolSpec], root: str) -> ToolCall | CallError:
    """The same object, or the call with its paths below `root` relative to it, if it names one by its full name."""
    fields = specs[item.tool].path_fields if root and item.tool in specs else ()
    named = {} if isinstance(item, CallError) else {name: item.arguments.get(name) for name in fields}
    if isinstance(item, CallError) or all(_relative(value, root) == value for value in named.values()):
        return item
    sent = _as_sent(item)
    other_names = sent.keys() - item.arguments.keys()
    paths = [*named, *(key for key in other_names if sent[key] in named.values())]
    plain = {key: _relative(value, root) if key in paths else value for key, value in sent.items()}
    arguments = {**item.arguments, **{name: _relative(value, root) for name, value in named.items() if value}}
    return item.model_copy(update={"arguments": arguments, "raw_arguments": json.dumps(plain, ensure_ascii=False)})


def _rewritten(text: str, before: ToolCall, item: ToolCall) -> str:
    """The reply with this call's arguments, from its line on. A block keeps its text: its path stands before that."""
    start = sum(map(len, text.splitlines(keepends=True)[: max(0, before.line_number - 1)]))
    if _is_block(before):
        end = text.find(before.raw_arguments, start)
        path = str(before.arguments["path"])
        at = text.rfind(path, 0, end)
        return text if min(at, end) < 0 else f"{text[:at]}{item.arguments['path']}{text[at + len(path) :]}"
    return text[:start] + text[start:].replace(before.raw_arguments, item.raw_arguments, 1)


def _is_block(item: ToolCall) -> bool:
    """Whether the call is a code block in the reply, of which the raw arguments are the text of a file."""
    return bool(item.raw_arguments) and item.raw_arguments == item.arguments.get("content")


def _relative(value: object, root: str) -> object:
    if isinstance(value, list):
        return [_relative(each, root) for each in value]
    if value == root:
        return "."
    if not isinstance(value, str) or not value.startswith(f"{root.rstrip('/')}/"):
        return value
    name = value[len(root.rstrip("/")) :].lstrip("/") or "."
    return f"./{name}" if names_elsewhere(name) else name


def _with_relative_output(result: CallResult, specs: Mapping[str, ToolSpec], root: str) -> CallResult:
    """The result of a program, in whose output the paths below `root` are relative to it; any other as it is."""
    spec = specs.get(result.tool)
    if len(root) < 2 or spec is None or spec.effect is not Effect.EXECUTE:
        return result
    paths = re.compile(rf"(?<![\w./~-]){re.escape(root)}(?:/(?=[\w.])|(?![\w-]|\.\w))")
    told = result.result

    def relative(value: object) -> object:
        if isinstance(value, str):
            return paths.sub(lambda found: "" if found[0].endswith("/") else ".", value)
        return [relative(each) for each in value] if isinstance(value, list) else value

    error = told.error and told.error.model_copy(update={"message": relative(told.error.message)})
    data = {name: relative(value) for name, value in told.data.items()}
    return result.model_copy(update={"result": told.model_copy(update={"data": data, "error": error})})


def _sendable(tool: str) -> str:
    """A tool's name as endpoints take it: one that a model made up may hold anything, and would be refused for ever."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64] or "unknown"


def _is_told(item: ToolCall | CallError, result: CallResult) -> bool:
    error = result.result.error
    return not _is_implied(item) or (error is not None and error.code is not ToolErrorCode.CANCELLED)


def _is_implied(item: ToolCall | CallError) -> bool:
    return isinstance(item, ToolCall) and item.implied


def _as_sent(item: ToolCall | CallError) -> JsonMap:
    """The arguments as the model wrote them, without the defaults that validation added where that is JSON at all."""
    if isinstance(item, CallError) or not item.raw_arguments.strip():
        return {}
    if _is_block(item):
        return item.arguments
    sent = decode_arguments(item.raw_arguments)
    return sent if isinstance(sent, dict) else item.arguments


def is_request(message: AnyMessage) -> bool:
    """Is this a person's message, and not one that carries results?"""
    return isinstance(message, HumanMessage) and message.name != RESULT_MESSAGE_NAME


def close_dangling_calls(messages: Sequence[AnyMessage]) -> list[AnyMessage] | None:
    """Give every tool call exactly one result right after it, and drop results that answer no call.

    Returns the repaired history, or None when it was valid. A history can come in broken from outside: a client that
    was cut off between a call and its result, or one that edits threads. A result answers the latest call before it
    that has its id, because some endpoints use the same ids in every reply.
    """
    repaired: list[AnyMessage] = []
    waiting: dict[str, list[int]] = {}
    for message in messages:
        if isinstance(message, ToolMessage):
            if free := waiting.get(message.tool_call_id):
                repaired[free.pop(0)] = message
            continue
        repaired.append(message)
        if isinstance(message, AIMessage):
            places: dict[str, list[int]] = {}
            for call in message.tool_calls:
                places.setdefault(call["id"] or "", []).append(len(repaired))
                repaired.append(_cancelled(call))
            waiting |= places
    return None if repaired == list(messages) else repaired


def _cancelled(call: NativeToolCall) -> ToolMessage:
    failure = ToolResult.failure(ToolErrorCode.CANCELLED, "This call was cancelled before it ran.")
    result = CallResult(call_id=call["id"] or "", tool=call["name"], result=failure)
    return ToolMessage(render_native_result(result), tool_call_id=result.call_id, name=call["name"], status="error")
