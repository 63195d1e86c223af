"""One event of a streamed chat completion, taken over into the reply that is put together."""

import json
from typing import Any

import orjson

from nodes.call_model.assembly import ReplyAssembly
from nodes.call_model.failures import StreamedError
from nodes.records import JsonMap


def read_event(data: bytes) -> JsonMap:
    """The document of one event.

    Raises:
        StreamedError: the endpoint says that it failed.
        ValueError, TypeError, RecursionError: it is no document of this kind.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        document = json.loads(data)  # which takes half a character, and numbers that are none
    if not isinstance(document, dict):
        raise TypeError(f"an event is {type(document).__name__}, not an object")
    if error := document.get("error"):
        raise StreamedError(error)
    return document


def take(document: JsonMap, assembly: ReplyAssembly) -> str:
    """Take one event over; gives the text in it that a person may read.

    Raises:
        TypeError, AttributeError, LookupError, ValueError: it is no chat completion.
    """
    text = ""
    if choices := document.get("choices"):
        choice = choices[0]
        if delta := choice.get("delta"):
            text = _take_delta(delta, assembly)
        if reason := choice.get("finish_reason"):
            assembly.finish_reason = str(reason)
    if model := document.get("model"):
        assembly.model = str(model)
    usage, timings = document.get("usage"), document.get("timings")
    if usage or timings:
        assembly.add_usage(usage or {}, timings or {})
    assembly.begun = True
    return text


def _take_delta(delta: JsonMap, assembly: ReplyAssembly) -> str:
    text, thought = said_and_thought(delta)
    if text:
        assembly.add_text(text)
    if thought:
        assembly.add_reasoning(thought)
    for part in delta.get("tool_calls") or ():
        function = part.get("function", {})
        assembly.add_call_part(
            part.get("index"), part.get("id"), function.get("name"), _text(function.get("arguments"))
        )
    if refusal := delta.get("refusal"):
        assembly.refusal += str(refusal)
    return text


def said_and_thought(delta: JsonMap) -> tuple[str, str]:
    """The text of one delta, and the reasoning in it.

    Raises:
        TypeError: one of them is no text.
    """
    text, thought = _texts(delta.get("content"))
    return text, thought + _text(delta.get("reasoning_content") or delta.get("reasoning"))


def _texts(content: Any) -> tuple[str, str]:
    """What is said and what is thought; some endpoints send a list of parts of both kinds."""
    if not isinstance(content, list):
        return _text(content), ""
    said = (_text(part.get("text")) for part in content if part.get("type") == "text")
    thinking = [part["thinking"] for part in content if part.get("type") == "thinking"]
    thought = (_texts(part)[0] if isinstance(part, list) else _text(part) for part in thinking)
    return "".join(said), "".join(thought)


def _text(value: Any) -> str:
    if not isinstance(value, str | None):
        raise TypeError(f"a text is {type(value).__name__}")
    return value or ""
