"""The parts of a reply that its provider wants back: thinking blocks, signatures, encrypted items.

They go back byte for byte in the next request. Nobody is shown them, and no call or answer is read from them.

Source: Anthropic, "Extended thinking: preserving thinking blocks"; Google, "Thought signatures"; DeepSeek, "Thinking
mode: tool calls"; OpenRouter, "Preserving reasoning blocks"; OpenAI, "Reasoning items".
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
from langchain_core.messages import AIMessage, ToolCall as NativeToolCall

from mendgraph.nodes.records import JsonMap, ModelReply

REASONING: Final = "reasoning_content"
REASONING_DETAILS: Final = "reasoning_details"

EXTRA_FIELDS: Final = (REASONING, REASONING_DETAILS)
"""Fields beside `content` that OpenAI-compatible endpoints add to a message and want back with its tool calls."""

TOOL_CALL_EXTRAS: Final = "tool_call_extras"
"""The key of the fields that an endpoint adds to its tool calls, by the id of the call."""

_DROPPED_KWARGS: Final = frozenset({"refusal", "tool_calls", "function_call", "parsed", "audio"})
"""Entries of `additional_kwargs` that are stored elsewhere or not at all."""

_METADATA: Final = ("model_provider", "output_version")
"""Entries of `response_metadata` that a provider's package needs to send content blocks back."""

_OPAQUE: Final = frozenset({"signature", "thought_signature", "encrypted_content", "data"})
"""Fields that only the provider can read."""

_UNSCANNED: Final = _OPAQUE | {
    "id",
    "call_id",
    "type",
    "format",
    "index",
    "__gemini_function_call_thought_signatures__",
}
"""Fields that are not searched for secrets, because random values look like some."""

_ARGUMENTS: Final = frozenset({"input", "args", "arguments"})
"""Fields with the arguments of a call, in which every name is the tool's own."""

_THINKING_TYPES: Final = frozenset({"thinking", "reasoning", "redacted_thinking"})


def state_of(message: AIMessage) -> JsonMap:
    """Return the provider's state of a message; {} if there is none, or if it is not JSON."""
    state: JsonMap = {}

    content = message.content
    if not isinstance(content, str) and not all(_is_text(block) for block in content):
        state["content"] = _as_blocks(content)

    extras = {name: value for name, value in message.additional_kwargs.items() if name not in _DROPPED_KWARGS and value}
    if extras:
        state["additional_kwargs"] = extras

    if not state:
        return {}

    metadata = message.response_metadata
    state["response_metadata"] = {name: metadata[name] for name in _METADATA if name in metadata}
    try:
        restored: JsonMap = orjson.loads(orjson.dumps(state))
    except TypeError:
        return {}

    return restored


def _is_text(block: str | dict[str, Any]) -> bool:
    return not isinstance(block, str) and block.get("type") == "text"


def _as_blocks(content: Sequence[str | dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for block in content:
        if isinstance(block, str):
            blocks.append({"type": "text", "text": block})
        else:
            blocks.append(block)

    return blocks


def join_details(pieces: Iterable[JsonMap]) -> list[JsonMap]:
    """Join the pieces of `reasoning_details` in a stream: text of one index and type is concatenated.

    LangChain's merge would also repeat the `format` of each piece.
    """
    blocks: list[JsonMap] = []
    open_blocks: dict[Any, JsonMap] = {}

    for piece in pieces:
        index = piece.get("index")
        key = (index, piece.get("type"))

        if index is None or key not in open_blocks:
            block = dict(piece)
            blocks.append(block)
            if index is not None:
                open_blocks[key] = block
            continue

        block = open_blocks[key]
        for name, value in piece.items():
            if name in {"text", "summary", "data"} and isinstance(value, str):
                block[name] = (block.get(name) or "") + value
            elif value is not None:
                block[name] = value

    return blocks


def thoughts_of(message: AIMessage) -> str:
    """Return the readable reasoning of a message, "" if the provider does not show any."""
    texts: list[str] = []

    if not isinstance(message.content, str):
        for block in message.content:
            if isinstance(block, dict) and block.get("type") in _THINKING_TYPES:
                texts.append(str(block.get("thinking") or block.get("reasoning") or ""))

    field = message.additional_kwargs.get(REASONING) or message.additional_kwargs.get("reasoning")
    if isinstance(field, str):
        texts.append(field)

    return "".join(texts)


def with_state(reply: ModelReply, calls: list[NativeToolCall], changed: Mapping[str, JsonMap]) -> AIMessage:
    """Return the message of a reply for the history; `changed` maps call ids to the arguments that replace theirs.

    If the text differs from what the endpoint sent, because thoughts or invented results were removed, it becomes the
    only text block, after the thoughts that precede the first call.
    """
    state = reply.provider
    content: str | list[Any] = reply.text
    if "content" in state:
        content = _content(state["content"], reply.text, {call["id"] for call in calls}, changed)

    return AIMessage(
        content,
        id=reply.message_id,
        tool_calls=calls,
        additional_kwargs=state.get("additional_kwargs", {}),
        response_metadata=state.get("response_metadata", {}),
    )


def _content(
    blocks: list[JsonMap], text: str, ids: Collection[str | None], changed: Mapping[str, JsonMap]
) -> list[Any]:
    original_text = "".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    content: list[Any] = []
    first_call: int | None = None

    for block in blocks:
        if block.get("type") == "text":
            if original_text == text:
                content.append(block)
            continue

        call_id = _call_id(block)
        if call_id is None:
            content.append(block)
            continue

        if call_id not in changed and call_id not in ids:
            continue
        if first_call is None:
            first_call = len(content)
        if call_id in changed:
            content.append(_with_arguments(block, changed[call_id]))
        else:
            content.append(block)

    if text and original_text != text:
        if first_call is None:
            first_call = len(content)
        content.insert(first_call, {"type": "text", "text": text})

    return content


def _call_id(block: JsonMap) -> str | None:
    kind = block.get("type")
    if kind in {"tool_use", "tool_call", "tool_call_chunk"}:
        return str(block.get("id"))
    if kind == "function_call":
        return str(block.get("call_id"))
    return None


def _with_arguments(block: JsonMap, arguments: JsonMap) -> JsonMap:
    """Return a call's block with these arguments, as JSON text where the block holds text."""
    changed = dict(block)
    changed.pop("partial_json", None)

    for name in _ARGUMENTS & changed.keys():
        if isinstance(changed[name], str):
            changed[name] = json.dumps(arguments, ensure_ascii=False)
        else:
            changed[name] = arguments

    return changed


# --- Secrets in the state


def without_secrets(state: JsonMap, clean: Callable[[str], str], *, keep_opaque: bool = False) -> JsonMap:
    """Return the state with `clean` applied to its texts.

    A signed block whose text changes would be refused by the provider: it is dropped, or with `keep_opaque` unchanged.
    """
    if not state:
        return state

    cleaned = {**state}
    if "content" in state:
        cleaned["content"] = _clean_blocks(state["content"], clean, keep_opaque)

    if "additional_kwargs" in state:
        extras: JsonMap = {}
        for name, value in state["additional_kwargs"].items():
            if isinstance(value, list):
                extras[name] = _clean_blocks(value, clean, keep_opaque)
            elif name in _UNSCANNED:
                extras[name] = value
            else:
                extras[name] = _clean(value, clean, is_argument=name in _ARGUMENTS)
        cleaned["additional_kwargs"] = extras

    return cleaned


def _clean_blocks(blocks: list[Any], clean: Callable[[str], str], keep_opaque: bool) -> list[Any]:
    cleaned: list[Any] = []

    for block in blocks:
        new = _clean(block, clean)
        is_signed = isinstance(block, dict) and not _OPAQUE.isdisjoint(block)
        if not is_signed or new == block:
            cleaned.append(new)
        elif keep_opaque:
            cleaned.append(block)

    return cleaned


def _clean(value: Any, clean: Callable[[str], str], *, is_argument: bool = False) -> Any:
    """Return the value with `clean` applied to all texts; fields of `_UNSCANNED` count only outside of arguments."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_clean(item, clean, is_argument=is_argument) for item in value]
    if not isinstance(value, dict):
        return value

    cleaned = {}
    for key, item in value.items():
        if key in _UNSCANNED and not is_argument:
            cleaned[key] = item
        else:
            cleaned[key] = _clean(item, clean, is_argument=is_argument or key in _ARGUMENTS)

    return cleaned


# --- Reasoning that an endpoint sends as text


_THOUGHT: Final = re.compile(
    r"\s*+(?:<(?P<tag>(?:seed:)?think(?:ing)?|reasoning|thought)>(?P<tagged>.*?)(?:</(?P=tag)>|\Z)"
    r"|(?:\[THINK\]|(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>)(?P<bracketed>.*?)"
    r"(?:\[/THINK\]|<\|end\|>|\Z))",
    re.DOTALL,
)
_TEMPLATE_MARKS: Final = re.compile(
    r"\A\s*+(?:<\|start\|>assistant)?<\|channel\|>final<\|message\|>|<\|(?:im_end|eot_id|return|end|endoftext)\|>\s*+\Z"
)
"""Marks of a chat template around an answer."""
_THOUGHT_END: Final = re.compile(r"^(?:</think(?:ing)?>|\[/THINK\])[ \t\r]*+$", re.MULTILINE)


def without_thoughts(reply: ModelReply) -> ModelReply:
    """Move the thoughts at the start of the text to `reasoning`; return the same object if there are none.

    A thought without an end tag reaches to the end of the text. Where the chat template puts the start tag into the
    prompt, everything before an end tag on a line of its own, outside of code fences, is a thought.
    """
    text = reply.text
    thoughts: list[str] = []

    while thought := _THOUGHT.match(text):
        thoughts.append(thought["tagged"] or thought["bracketed"] or "")
        text = text[thought.end() :]

    if not thoughts:
        end = _THOUGHT_END.search(text)
        if end and text.count("```", 0, end.start()) % 2 == 0:
            thoughts = [text[: end.start()]]
            text = text[end.end() :]

    text = _TEMPLATE_MARKS.sub("", text)
    if text == reply.text:
        return reply

    parts = [reply.reasoning]
    parts += [thought.strip() for thought in thoughts]
    reasoning = "\n".join(part for part in parts if part)
    return reply.model_copy(update={"text": text.strip(), "reasoning": reasoning})
