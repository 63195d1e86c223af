"""How one exchange enters the history: the reply and the results of its calls, always together.

In the text protocol the results come back as one user message with a `tool_result({...})` line for each call, and
calls that an endpoint sent natively all the same are kept as `tool:` lines. In the native protocol they come back as
one tool message for each call id, right after the reply, in call order. A call that was malformed is kept with empty
arguments, because endpoints refuse a history with broken JSON in it. A path of the workspace is kept relative to it,
however the model spelled it. Source: spec 3, "Path normalization".

What an endpoint wants to see again of a message that it sent (thinking blocks, signatures, encrypted items) goes back
as it came, byte for byte, and is of no other use: nobody is shown it, and no call or answer is read from it. Source:
Anthropic, "Extended thinking: preserving thinking blocks"; Google, "Thought signatures"; DeepSeek, "Thinking mode: tool
calls"; OpenRouter, "Preserving reasoning blocks"; OpenAI, "Reasoning items".
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import orjson
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    ToolCall as NativeToolCall,
    ToolMessage,
    convert_to_openai_messages,
)

from mendgraph.nodes.language.names import names_elsewhere
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

RESULT_MESSAGE_NAME = "tool_result"
"""Marks the user messages that hold results, so that they are not taken for a person's."""

HANDOFF_MESSAGE_NAME = "mendgraph_handoff"
"""Marks the user message that ends what other agents have said since a request: now the model works on it."""

READ_AHEAD = "Before I begin, I look at what the request names."
"""What stands in a native history where the machine has made the first calls itself."""


_WRITER = "written_by"
"""What `response_metadata` has of a message that mendgraph has written itself. No endpoint is sent it."""


def written_here(text: str) -> AIMessage:
    """An assistant's message whose words are not a model's: what was changed, or why a run ended early."""
    return AIMessage(text, response_metadata={_WRITER: "mendgraph"})


def is_written_here(message: AnyMessage) -> bool:
    """Whether no model has said this."""
    return _WRITER in message.response_metadata


def settle_exchange(
    reply: ModelReply,
    items: Sequence[ToolCall | CallError],
    results: Sequence[CallResult],
    protocol: Protocol,
    specs: Mapping[str, ToolSpec] = MappingProxyType({}),
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
    pairs = [(item, result) for item, result in zip(items, results, strict=True) if _is_told(item, result)]
    if items and not pairs:
        return []
    items, results = [item for item, _ in pairs], [_with_relative_output(result, specs, root) for _, result in pairs]
    if reply.preloaded and protocol is Protocol.NATIVE:
        return [AIMessage(READ_AHEAD), _in_text(results)]
    if protocol is Protocol.TEXT:
        items = [item for item in items if not _is_implied(item)]
        plain = [_with_relative_paths(item, specs, root) for item in items]
        text = reply.text
        for before, item in [*zip(items, plain, strict=True)][::-1]:  # so that the lines before keep their numbers
            if item is not before and isinstance(before, ToolCall) and isinstance(item, ToolCall):
                text = _rewritten(text, before, item)
        native = [f"tool: {item.tool}({item.raw_arguments})" for item in plain[len(plain) - len(reply.calls) :]]
        text = "\n".join(part for part in (text, *native) if part)
        return [AIMessage(text, id=reply.message_id), _in_text(results)]
    written, items = items, [_with_relative_paths(item, specs, root) for item in items]
    calls = [
        NativeToolCall(name=_sendable(item.tool), args=_as_sent(item), id=item.call_id, type="tool_call")
        for item in items
    ]
    answers = [
        ToolMessage(
            _native_content(result),
            artifact=result.artifact,
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
    return [with_state(reply, calls, changed), *answers]


def _in_text(results: Sequence[CallResult]) -> HumanMessage:
    """The message of the results, whose images and files come after the lines."""
    lines = render_text_results(results)
    media = [block for result in results for block in result.blocks or () if block.get("type") != "text"]
    content: Any = [{"type": "text", "text": lines}, *media] if media else lines
    return HumanMessage(content, name=RESULT_MESSAGE_NAME)


def _native_content(result: CallResult) -> Any:
    """What the tool message holds: that of a tool of LangChain's is as it gave it, where nothing was added or cut."""
    if result.blocks is None or not result.result.ok:
        return render_native_result(result)
    data = result.result.data
    is_text_only = data.keys() == {"text"}
    said = "".join(str(block.get("text", "")) for block in result.blocks if block.get("type") == "text")
    if result.blocks and is_text_only and said == data["text"]:
        return list(result.blocks)
    text = data["text"] if is_text_only else render_native_result(result)
    media = [block for block in result.blocks if block.get("type") != "text"]
    return [{"type": "text", "text": text}, *media] if media else text


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
        return [_relative(item, root) for item in value]
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
    tool_result = result.result

    def relative(value: object) -> object:
        if isinstance(value, str):
            return paths.sub(lambda match: "" if match[0].endswith("/") else ".", value)
        return [relative(item) for item in value] if isinstance(value, list) else value

    error = tool_result.error and tool_result.error.model_copy(update={"message": relative(tool_result.error.message)})
    data = {name: relative(value) for name, value in tool_result.data.items()}
    return result.model_copy(update={"result": tool_result.model_copy(update={"data": data, "error": error})})


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
    """Is this a person's message, and not one that carries results or hands the conversation on?"""
    is_answer = message.type in {"ai", "tool"}  # a long turn has hundreds of them, which isinstance is slow with
    names = (RESULT_MESSAGE_NAME, HANDOFF_MESSAGE_NAME)
    return not is_answer and isinstance(message, HumanMessage) and message.name not in names


def last_request(messages: Sequence[AnyMessage]) -> str:
    """What the person asked for last, "" where nobody did."""
    return next((message.text for message in reversed(messages) if is_request(message)), "")


_ASKED: Final = "asked"


def task_of(task: str, messages: Sequence[AnyMessage]) -> HumanMessage:
    """The request of a child: the words of a model, with those of the person, which `asked_in` gives instead."""
    return HumanMessage(task, response_metadata={_ASKED: asked_in(messages)})


def asked_in(messages: Sequence[AnyMessage]) -> str:
    """All that the person has asked for in this thread."""
    return "\n".join(message.response_metadata.get(_ASKED, message.text) for message in messages if is_request(message))


def results_in(messages: Sequence[AnyMessage]) -> Iterator[JsonMap]:
    """What the model was shown of tools, as `parse_text_results` has it; the task of a child is such a result."""
    for message in messages:
        if isinstance(message, ToolMessage):
            data = loads(message.text) or {"data": message.text}
            yield {"ok": message.status != "error", **data, "tool": message.name}
        elif message.name == RESULT_MESSAGE_NAME:
            yield from parse_text_results(message.text)
        elif _ASKED in message.response_metadata:
            yield {"ok": True, "data": message.text, "tool": "the task of this child"}


def texts_in(value: Any) -> list[str]:
    """All texts in a JSON value or in several, such as the contents of the results that a model was shown."""
    texts: list[str] = []
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, Iterable):
            waiting += part
    return texts


def loads(text: str) -> JsonMap:
    """The map that a native result is, {} for any other text."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def begins_work(message: AnyMessage) -> bool:
    """Is it our model's turn after this message: a request, or the end of what others have said since?"""
    return is_request(message) or message.name == HANDOFF_MESSAGE_NAME


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


# --- What an endpoint wants to see again, and content beside text


REASONING, REASONING_DETAILS = "reasoning_content", "reasoning_details"

EXTRA_FIELDS: Final = (REASONING, REASONING_DETAILS)
"""Fields beside `content` that OpenAI-compatible endpoints add to a message and want back with its tool calls."""

TOOL_CALL_EXTRAS: Final = "tool_call_extras"
"""Where the fields that an endpoint adds to its tool calls are kept, by the id of the call."""

_NOT_KEPT: Final = frozenset({"refusal", "tool_calls", "function_call", "parsed", "audio"})
"""Parts of `additional_kwargs` that are kept elsewhere or nowhere."""

_METADATA: Final = ("model_provider", "output_version")
"""What a provider's package needs to know to send content blocks back."""

_SEALED: Final = frozenset({"signature", "thought_signature", "encrypted_content", "data"})
"""Fields that hold no words: opaque to everybody but the provider."""

_WHOLE: Final = _SEALED | {"id", "call_id", "type", "format", "index", "__gemini_function_call_thought_signatures__"}
"""Fields in which nothing is looked for that merely looks like a secret."""

_ARGUMENTS: Final = frozenset({"input", "args", "arguments"})
"""What a model gives a tool, under names of the tool's own."""

_THOUGHTS: Final = frozenset({"thinking", "reasoning", "redacted_thinking"})


def state_of(message: AIMessage) -> JsonMap:
    """What is to be kept of a message beside its text and calls; {} where that is nothing, or is no JSON."""
    state: JsonMap = {}
    content = message.content
    if not isinstance(content, str) and any(isinstance(block, str) or block.get("type") != "text" for block in content):
        state["content"] = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    extras = {name: value for name, value in message.additional_kwargs.items() if name not in _NOT_KEPT and value}
    if extras:
        state["additional_kwargs"] = extras
    if not state:
        return {}
    metadata = {name: message.response_metadata[name] for name in _METADATA if name in message.response_metadata}
    try:
        restored: JsonMap = orjson.loads(orjson.dumps({**state, "response_metadata": metadata}))
    except TypeError:
        return {}
    return restored


def joined_details(pieces: Iterable[JsonMap]) -> list[JsonMap]:
    """The blocks of `reasoning_details` that a stream sent in pieces: words of one index and type are joined.

    LangChain's own joining would also repeat what each piece says of its format.
    """
    joined: list[JsonMap] = []
    places: dict[Any, JsonMap] = {}
    for piece in pieces:
        key = (piece.get("index"), piece.get("type"))
        position = places.get(key) if piece.get("index") is not None else None
        if position is None:
            position = places[key] = dict(piece)
            joined.append(position)
            continue
        for name, value in piece.items():
            if name in {"text", "summary", "data"} and isinstance(value, str):
                position[name] = (position.get(name) or "") + value
            elif value is not None:
                position[name] = value
    return joined


def thoughts_of(message: AIMessage) -> str:
    """The words of a message that are thoughts, as far as it tells them."""
    content = message.content
    blocks = [] if isinstance(content, str) else [block for block in content if isinstance(block, dict)]
    texts = [
        str(block.get("thinking") or block.get("reasoning") or "") for block in blocks if block.get("type") in _THOUGHTS
    ]
    field = message.additional_kwargs.get(REASONING) or message.additional_kwargs.get("reasoning")
    return "".join([*texts, field if isinstance(field, str) else ""])


def with_state(reply: ModelReply, calls: list[NativeToolCall], changed: Mapping[str, JsonMap]) -> AIMessage:
    """The message of a reply for the history. `changed` are the arguments, by id, that go back in place of the written.

    Where the text is not what the endpoint sent, because thoughts or invented results were cut off, it is the one text
    block of the message, behind the thoughts that came before its calls.
    """
    text, state = reply.text, reply.provider
    blocks: list[Any] | None = state.get("content")
    return AIMessage(
        text if blocks is None else _content(blocks, text, {call["id"] for call in calls}, changed),
        id=reply.message_id,
        tool_calls=calls,
        additional_kwargs=state.get("additional_kwargs", {}),
        response_metadata=state.get("response_metadata", {}),
    )


def _content(
    blocks: list[JsonMap], text: str, ids: Collection[str | None], changed: Mapping[str, JsonMap]
) -> list[Any]:
    said = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    blocks_kept: list[Any] = []
    for block in blocks:
        if block.get("type") == "text" and said != text:
            continue
        call_id = _call_id(block)
        if call_id is None:
            blocks_kept.append(block)
        elif call_id in changed:
            blocks_kept.append(_with_arguments(block, changed[call_id]))
        elif call_id in ids:
            blocks_kept.append(block)
    if text and said != text:
        first_call = next(
            (place for place, block in enumerate(blocks_kept) if _call_id(block) is not None), len(blocks_kept)
        )
        blocks_kept.insert(first_call, {"type": "text", "text": text})
    return blocks_kept


def _call_id(block: JsonMap) -> str | None:
    kind = block.get("type")
    if kind in {"tool_use", "tool_call", "tool_call_chunk"}:
        return str(block.get("id"))
    return str(block.get("call_id")) if kind == "function_call" else None


def _with_arguments(block: JsonMap, arguments: JsonMap) -> JsonMap:
    """A call's block with these arguments, as text where they were text."""
    text = json.dumps(arguments, ensure_ascii=False)
    return {
        name: value if name not in _ARGUMENTS else text if isinstance(value, str) else arguments
        for name, value in block.items()
        if name != "partial_json"
    }


def without_secrets(state: JsonMap, clean: Callable[[str], str], *, keep_sealed: bool = False) -> JsonMap:
    """The state with `clean` applied to its words.

    A sealed block whose words that changes is invalid, and dropped, or with `keep_sealed` stays as it is.
    """
    if not state:
        return state
    cleaned = {**state}
    if "content" in state:
        cleaned["content"] = _clean_list(state["content"], clean, keep_sealed)
    if "additional_kwargs" in state:
        cleaned["additional_kwargs"] = {
            name: _clean_list(value, clean, keep_sealed)
            if isinstance(value, list)
            else _cleaned({name: value}, clean)[name]
            for name, value in state["additional_kwargs"].items()
        }
    return cleaned


def _clean_list(values: list[Any], clean: Callable[[str], str], keep_sealed: bool) -> list[Any]:
    cleaned: list[Any] = []
    for value in values:
        new, is_sealed = _cleaned(value, clean), isinstance(value, dict) and not _SEALED.isdisjoint(value)
        if not is_sealed or new == value:
            cleaned.append(new)
        elif keep_sealed:
            cleaned.append(value)
    return cleaned


def _cleaned(value: Any, clean: Callable[[str], str], whole: Collection[str] = _WHOLE) -> Any:
    """The value with `clean` applied to all texts but those under the names of `whole`."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item, clean, whole) for item in value]
    if isinstance(value, dict):
        return {
            key: item if key in whole else _cleaned(item, clean, () if key in _ARGUMENTS else whole)
            for key, item in value.items()
        }
    return value


MEDIA: dict[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("file", "document", "input_file", "pdf"), "file"),
    **dict.fromkeys(("audio", "input_audio"), "audio"),
}
"""What blocks of a message hold, by the types that providers give them."""


def media_of(message: AnyMessage) -> tuple[str, ...]:
    """What a person's message or a result holds beside text, such as an image: each kind once, in order."""
    if isinstance(message.content, str) or not isinstance(message, HumanMessage | ToolMessage):
        return ()
    blocks = (block for block in message.content if isinstance(block, dict))
    return tuple(dict.fromkeys(kind for kind in map(_kind, blocks) if kind != "text"))


def in_openai_form(message: AnyMessage) -> list[JsonMap] | None:
    """The blocks of such a message as OpenAI's; None where one of them, such as a video, has no such form."""
    try:
        openai_blocks: list[JsonMap] = convert_to_openai_messages([message], text_format="block")[0]["content"]
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    return openai_blocks


def without_media(message: AnyMessage, kinds: Collection[str]) -> AnyMessage:
    """The message with a note in place of each block of these kinds; the message itself where it has none."""
    if not kinds or isinstance(message.content, str):
        return message
    content = [
        block if isinstance(block, str) or _kind(block) not in kinds else _note(block) for block in message.content
    ]
    return message.model_copy(update={"content": content})


def _kind(block: JsonMap) -> str:
    named = str(block.get("type", "block"))
    return MEDIA.get(named, named)


def _note(block: JsonMap) -> JsonMap:
    return {"type": "text", "text": f"[{_kind(block)}, not shown: the model does not take it]"}


def media_problem(kinds: Sequence[str], model: str) -> str:
    """Why a request with these kinds of content cannot be worked on; "" where there are none."""
    if not kinds:
        return ""
    media = " and ".join(f"content of the kind {kind!r}" for kind in kinds)
    named = model or "the model"
    return f"The request holds {media}, which {named} does not take: say it in words, or choose a model that does."


# --- Thoughts that an endpoint sends as text


_THOUGHT: Final = re.compile(
    r"\s*+(?:<(?P<tag>(?:seed:)?think(?:ing)?|reasoning|thought)>(?P<said>.*?)(?:</(?P=tag)>|\Z)"
    r"|(?:\[THINK\]|(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>)(?P<words>.*?)"
    r"(?:\[/THINK\]|<\|end\|>|\Z))",
    re.DOTALL,
)
_LEFTOVERS: Final = re.compile(
    r"\A\s*+(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>|<\|(?:im_end|eot_id|return|end|endoftext)\|>\s*+\Z"
)
"""Marks of a chat template around an answer."""
_END: Final = re.compile(r"^(?:</think(?:ing)?>|\[/THINK\])[ \t\r]*+$", re.MULTILINE)


def without_thoughts(reply: ModelReply) -> ModelReply:
    """The reply with the thoughts that it begins with moved from `text` to `reasoning`; the same object without any.

    A thought that is not closed goes on to the end. Where a template wrote the opening tag into the prompt, all that
    comes before a closing tag on a line of its own, outside of code fences, is a thought.
    """
    text, thoughts = reply.text, list[str]()
    while thought := _THOUGHT.match(text):
        thoughts.append(thought["said"] or thought["words"] or "")
        text = text[thought.end() :]
    if not thoughts and (end := _END.search(text)) and text.count("```", 0, end.start()) % 2 == 0:
        thoughts, text = [text[: end.start()]], text[end.end() :]
    text = _LEFTOVERS.sub("", text)
    if text == reply.text:
        return reply
    reasoning = "\n".join(filter(None, [reply.reasoning, *map(str.strip, thoughts)]))
    return reply.model_copy(update={"text": text.strip(), "reasoning": reasoning})
