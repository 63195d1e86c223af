"""The history of a conversation: how a reply and the results of its calls enter it, and what can be read from it.

A reply and the results of all its calls enter together. In the text protocol the results are one user message with a
`tool_result({...})` line for each call, and calls that the endpoint sent natively are kept as `tool:` lines. In the
native protocol each result is one tool message, in the order of the calls. A malformed call is kept with empty
arguments, because endpoints refuse a history with broken JSON. Paths below the workspace are kept relative to it.
Source: spec 3, "Path normalization".
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall as NativeToolCall, ToolMessage

from mendgraph.nodes.language.names import names_elsewhere
from mendgraph.nodes.language.prompt_files import command_texts, typed_text
from mendgraph.nodes.language.provider_state import with_state
from mendgraph.nodes.language.text_protocol import (
    decode_arguments,
    parse_text_results,
    render_native_result,
    render_text_results,
)
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

RESULT_MESSAGE_NAME: Final = "tool_result"
"""The name of user messages that hold results, not a person's words."""

HANDOFF_MESSAGE_NAME: Final = "mendgraph_handoff"
"""The name of the user message after which this model continues a conversation with other agents."""

READ_AHEAD: Final = "Before I begin, I look at what the request names."
"""The assistant's text in a native history for calls that the machine made itself."""

ADDED: Final = "I read what you add."
"""The assistant's text before a person's words that came while it worked."""

_AUTHOR_KEY: Final = "written_by"
"""The key in `response_metadata` of messages that mendgraph wrote. It is not sent to endpoints."""

_ADDED_KEY: Final = "added"
"""The key in `response_metadata` of a person's words that belong to the turn that was running."""

_REQUEST_KEY: Final = "asked"
"""The key in `response_metadata` of a child's task that holds the person's requests."""


def machine_message(text: str) -> AIMessage:
    """Return an assistant's message that mendgraph wrote, such as the reason why a run ended."""
    return AIMessage(text, response_metadata={_AUTHOR_KEY: "mendgraph"})


def is_machine_message(message: AnyMessage) -> bool:
    """Return whether mendgraph wrote the message, and no model."""
    return _AUTHOR_KEY in message.response_metadata


def added_messages(texts: Sequence[str]) -> list[AnyMessage]:
    """Return the messages for what a person adds behind the results of a step.

    The assistant's message stands between, because some endpoints refuse a person's message behind a result.
    """
    if not texts:
        return []

    words = HumanMessage("\n\n".join(texts), response_metadata={_ADDED_KEY: True})
    return [machine_message(ADDED), words]


# --- A reply and its results enter the history


def settle_exchange(
    reply: ModelReply,
    items: Sequence[ToolCall | CallError],
    results: Sequence[CallResult],
    protocol: Protocol,
    specs: Mapping[str, ToolSpec] = MappingProxyType({}),
    root: str = "",
) -> list[AnyMessage]:
    """Return the messages of a reply whose calls all have results, one result for each item, in order.

    An implied call is left out, because the reply does not hold it, unless it failed. If nothing is left, the list is
    empty: the reply is an answer. Calls that the machine made itself are kept as text in both protocols, because
    endpoints of reasoning models refuse native calls without their own signature.

    Args:
        reply: The reply.
        items: Its calls, well-formed or not.
        results: The results of the calls.
        protocol: How calls are written in this conversation.
        specs: The tools, which say which arguments are paths.
        root: The real path of the workspace, which paths and a program's output are made relative to.
    """
    kept_items: list[ToolCall | CallError] = []
    kept_results: list[CallResult] = []
    for item, result in zip(items, results, strict=True):
        if _is_shown(item, result):
            kept_items.append(item)
            kept_results.append(_with_relative_output(result, specs, root))

    if items and not kept_items:
        return []
    if reply.preloaded and protocol is Protocol.NATIVE:
        return [AIMessage(READ_AHEAD), _results_as_text(kept_results)]
    if protocol is Protocol.TEXT:
        return [_reply_as_text(reply, kept_items, specs, root), _results_as_text(kept_results)]

    return [_native_reply(reply, kept_items, specs, root), *map(_native_result, kept_results)]


def _is_shown(item: ToolCall | CallError, result: CallResult) -> bool:
    error = result.result.error
    return not _is_implied(item) or (error is not None and error.code is not ToolErrorCode.CANCELLED)


def _is_implied(item: ToolCall | CallError) -> bool:
    return isinstance(item, ToolCall) and item.implied


def _reply_as_text(
    reply: ModelReply, items: Sequence[ToolCall | CallError], specs: Mapping[str, ToolSpec], root: str
) -> AIMessage:
    written = [item for item in items if not _is_implied(item)]
    relative = [_with_relative_paths(item, specs, root) for item in written]

    text = reply.text
    for before, after in zip(reversed(written), reversed(relative), strict=True):  # the lines before keep their numbers
        if after is not before and isinstance(before, ToolCall) and isinstance(after, ToolCall):
            text = _replace_arguments(text, before, after)

    parts = [text]
    for item in relative[len(relative) - len(reply.calls) :]:
        parts.append(f"tool: {item.tool}({item.raw_arguments})")

    return AIMessage("\n".join(part for part in parts if part), id=reply.message_id)


def _results_as_text(results: Sequence[CallResult]) -> HumanMessage:
    """Return the message with a line for each result, followed by their images and files."""
    lines = render_text_results(results)
    media = [block for result in results for block in result.blocks or () if block.get("type") != "text"]

    content: Any = lines
    if media:
        content = [{"type": "text", "text": lines}, *media]

    return HumanMessage(content, name=RESULT_MESSAGE_NAME)


def _native_reply(
    reply: ModelReply, items: Sequence[ToolCall | CallError], specs: Mapping[str, ToolSpec], root: str
) -> AIMessage:
    calls: list[NativeToolCall] = []
    changed: dict[str, JsonMap] = {}

    for item in items:
        relative = _with_relative_paths(item, specs, root)
        arguments = _sent_arguments(relative)
        calls.append(
            NativeToolCall(name=_valid_tool_name(item.tool), args=arguments, id=item.call_id, type="tool_call")
        )
        if isinstance(item, CallError) or relative is not item:
            changed[item.call_id] = arguments

    return with_state(reply, calls, changed)


def _native_result(result: CallResult) -> ToolMessage:
    return ToolMessage(
        _native_content(result),
        artifact=result.artifact,
        tool_call_id=result.call_id,
        name=_valid_tool_name(result.tool),
        status="success" if result.result.ok else "error",
    )


def _native_content(result: CallResult) -> Any:
    """Return the content of the tool message: a LangChain tool's own blocks, if their text is the result's."""
    if result.blocks is None or not result.result.ok:
        return render_native_result(result)

    data = result.result.data
    if data.keys() == {"text"}:
        text = data["text"]
        original = "".join(str(block.get("text", "")) for block in result.blocks if block.get("type") == "text")
        if result.blocks and original == text:
            return list(result.blocks)
    else:
        text = render_native_result(result)

    media = [block for block in result.blocks if block.get("type") != "text"]
    if media:
        return [{"type": "text", "text": text}, *media]

    return text


def _valid_tool_name(tool: str) -> str:
    """Return the name as endpoints accept it: a model can invent a name with any characters."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", tool)[:64] or "unknown"


def _sent_arguments(item: ToolCall | CallError) -> JsonMap:
    """Return the arguments as the model wrote them, without the defaults that validation added."""
    if isinstance(item, CallError) or not item.raw_arguments.strip():
        return {}
    if _is_block(item):
        return item.arguments

    arguments = decode_arguments(item.raw_arguments)
    if isinstance(arguments, dict):
        return arguments

    return item.arguments


def _is_block(item: ToolCall) -> bool:
    """Return whether the call is a code block, whose raw arguments are the text of a file."""
    return bool(item.raw_arguments) and item.raw_arguments == item.arguments.get("content")


# --- Paths are kept relative to the workspace


def _with_relative_paths(item: ToolCall | CallError, specs: Mapping[str, ToolSpec], root: str) -> ToolCall | CallError:
    """Return the call with the paths below `root` relative to it; the same object if it names none of them."""
    if isinstance(item, CallError) or not root or item.tool not in specs:
        return item

    paths = {name: item.arguments.get(name) for name in specs[item.tool].path_fields}
    if all(_relative(path, root) == path for path in paths.values()):
        return item

    arguments = {**item.arguments}
    for name, path in paths.items():
        if path:
            arguments[name] = _relative(path, root)

    relative_arguments: JsonMap = {}
    for name, value in _sent_arguments(item).items():
        is_alias = name not in item.arguments and value in paths.values()
        if name in paths or is_alias:
            relative_arguments[name] = _relative(value, root)
        else:
            relative_arguments[name] = value

    raw_arguments = json.dumps(relative_arguments, ensure_ascii=False)
    return item.model_copy(update={"arguments": arguments, "raw_arguments": raw_arguments})


def _replace_arguments(text: str, before: ToolCall, after: ToolCall) -> str:
    """Replace the arguments of a call in the text; of a block only the path, which stands before the block."""
    lines_before = text.splitlines(keepends=True)[: max(0, before.line_number - 1)]
    start = sum(map(len, lines_before))

    if not _is_block(before):
        return text[:start] + text[start:].replace(before.raw_arguments, after.raw_arguments, 1)

    path = str(before.arguments["path"])
    block = text.find(before.raw_arguments, start)
    at = text.rfind(path, 0, block)
    if min(at, block) < 0:
        return text

    return f"{text[:at]}{after.arguments['path']}{text[at + len(path) :]}"


def _relative(value: object, root: str) -> object:
    if isinstance(value, list):
        return [_relative(item, root) for item in value]
    if value == root:
        return "."

    folder = root.rstrip("/")
    if not isinstance(value, str) or not value.startswith(f"{folder}/"):
        return value

    name = value[len(folder) :].lstrip("/") or "."
    if names_elsewhere(name):
        return f"./{name}"

    return name


def _with_relative_output(result: CallResult, specs: Mapping[str, ToolSpec], root: str) -> CallResult:
    """Make the paths below `root` relative in the output of a program; other results stay the same."""
    spec = specs.get(result.tool)
    if len(root) < 2 or spec is None or spec.effect is not Effect.EXECUTE:
        return result

    paths = re.compile(rf"(?<![\w./~-]){re.escape(root)}(?:/(?=[\w.])|(?![\w-]|\.\w))")

    def relative(value: object) -> object:
        if isinstance(value, str):
            return paths.sub(lambda match: "" if match[0].endswith("/") else ".", value)
        if isinstance(value, list):
            return [relative(item) for item in value]
        return value

    output = result.result
    error = output.error
    if error is not None:
        error = error.model_copy(update={"message": relative(error.message)})

    data = {name: relative(value) for name, value in output.data.items()}
    return result.model_copy(update={"result": output.model_copy(update={"data": data, "error": error})})


# --- Read the history


def is_request(message: AnyMessage) -> bool:
    """Return whether the message begins a turn of a person: no results, no hand-off, no words added to the turn."""
    return is_typed(message) and not is_added(message)


def is_added(message: AnyMessage) -> bool:
    """Return whether a person added the message while a turn was running."""
    return _ADDED_KEY in message.response_metadata


def is_typed(message: AnyMessage) -> bool:
    """Return whether this is a person's message, a request or added words, and not one with results or a hand-off."""
    if message.type in {"ai", "tool"}:  # faster than `isinstance`, for histories of hundreds of messages
        return False

    return isinstance(message, HumanMessage) and message.name not in (RESULT_MESSAGE_NAME, HANDOFF_MESSAGE_NAME)


def starts_work(message: AnyMessage) -> bool:
    """Return whether this model's turn starts after the message: a request or a hand-off from other agents."""
    return is_request(message) or message.name == HANDOFF_MESSAGE_NAME


def last_request(messages: Sequence[AnyMessage]) -> str:
    """Return the text of the last request, "" if there is none."""
    for message in reversed(messages):
        if is_request(message):
            return message.text

    return ""


def task_message(task: str, messages: Sequence[AnyMessage]) -> HumanMessage:
    """Return the request of a child: a task in the model's words, with the person's requests in its metadata."""
    return HumanMessage(task, response_metadata={_REQUEST_KEY: person_requests(messages)})


def person_requests(messages: Sequence[AnyMessage]) -> str:
    """Return everything that the person typed in this thread, also above a child's task.

    The text of a command's file is not the person's.
    """
    requests = []
    for message in messages:
        if is_typed(message):
            requests.append(typed_text(message.response_metadata.get(_REQUEST_KEY, message.text)))

    return "\n".join(requests)


def results_in(messages: Sequence[AnyMessage]) -> Iterator[JsonMap]:
    """Yield the results that the model has seen, in the form of `parse_text_results`.

    A child's task is one of them, and so is the text of a command's file.
    """
    for message in messages:
        if isinstance(message, ToolMessage):
            data = json_map(message.text) or {"data": message.text}
            yield {"ok": message.status != "error", **data, "tool": message.name}
        elif message.name == RESULT_MESSAGE_NAME:
            yield from parse_text_results(message.text)
        elif _REQUEST_KEY in message.response_metadata:
            yield {"ok": True, "data": message.text, "tool": "the task of this child"}
        elif is_typed(message):
            for text in command_texts(message.text):
                yield {"ok": True, "data": text, "tool": "the file of a command"}


def texts_in(value: Any) -> list[str]:
    """Return all strings in JSON values of any depth, without the keys of maps."""
    texts: list[str] = []
    pending = [value]

    while pending:
        part = pending.pop()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, Iterable):
            pending += part

    return texts


def json_map(text: str) -> JsonMap:
    """Return the JSON object in the text; {} if it is none."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}

    if isinstance(value, dict):
        return value

    return {}


# --- Repair a history from outside


def close_dangling_calls(messages: Sequence[AnyMessage]) -> list[AnyMessage] | None:
    """Give every tool call exactly one result directly after it, and drop results that answer no call.

    Returns the repaired history, or None if it was valid. A history can be invalid when a client was cut off between
    a call and its result, or edited a thread. A result answers the latest call with its id, because some endpoints
    use the same ids in every reply.
    """
    repaired: list[AnyMessage] = []
    unanswered: dict[str, list[int]] = {}

    for message in messages:
        if isinstance(message, ToolMessage):
            positions = unanswered.get(message.tool_call_id)
            if positions:
                repaired[positions.pop(0)] = message
            continue

        repaired.append(message)
        if isinstance(message, AIMessage):
            positions_of_reply: dict[str, list[int]] = {}
            for call in message.tool_calls:
                positions_of_reply.setdefault(call["id"] or "", []).append(len(repaired))
                repaired.append(_cancelled(call))
            unanswered |= positions_of_reply

    if repaired == list(messages):
        return None

    return repaired


def _cancelled(call: NativeToolCall) -> ToolMessage:
    failure = ToolResult.failure(ToolErrorCode.CANCELLED, "This call was cancelled before it ran.")
    result = CallResult(call_id=call["id"] or "", tool=call["name"], result=failure)
    return ToolMessage(render_native_result(result), tool_call_id=result.call_id, name=call["name"], status="error")
