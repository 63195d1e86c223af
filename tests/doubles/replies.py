"""The answers of a scripted endpoint as values, and the chat-completions documents made from them.

Nothing here touches a socket: `scripted_server` carries these documents over HTTP. Ids, times and token counts are
computed from the request, so that the same script gives the same bytes and cassettes stay as they are.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from tests.providers.wire import JsonMap

CREATED = 1_700_000_000
"""The `created` time of every reply, in seconds."""

CallScript = tuple[str, str] | tuple[str, str, str]
"""A native call: its tool, its argument text to the letter, and its id where the script names one."""


Usage = tuple[int, int] | JsonMap | None
"""(input tokens, output tokens); a map is told to the letter; None counts both from the lengths of the texts."""

NO_USAGE: Final[JsonMap] = {}
"""The endpoint does not say what a reply cost."""

FOR_EVER_S: Final = 600.0
"""Longer than any test waits; the server's end cuts it short."""


@dataclass(frozen=True)
class Message:
    """One assistant message; each scripted reply below is a named case of it.

    `reasoning` comes before everything else, in the field that `reasoning_field` names.
    """

    text: str = ""
    calls: tuple[CallScript, ...] = ()
    finish_reason: str | None = "stop"
    refusal: str = ""
    usage: Usage = None
    reasoning: str = ""
    reasoning_field: str = "reasoning_content"


class Say(Message):
    """Plain text."""

    def __init__(self, text: str, usage: Usage = None) -> None:
        super().__init__(text=text, usage=usage)


class Calls(Message):
    """Native tool calls, with text before them where given."""

    def __init__(self, calls: Sequence[CallScript], text: str = "", usage: Usage = None) -> None:
        super().__init__(text=text, calls=tuple(calls), finish_reason="tool_calls", usage=usage)


class Think(Message):
    """The thoughts and the text of a reasoning model; endpoints name the field of the thoughts differently."""

    def __init__(self, reasoning: str, text: str = "", field: str = "reasoning_content") -> None:
        super().__init__(text=text, reasoning=reasoning, reasoning_field=field)


class Cut(Message):
    """A reply that the token limit ended, in mid-text or in the arguments of its last call."""

    def __init__(self, text: str, calls: Sequence[CallScript] = ()) -> None:
        super().__init__(text=text, calls=tuple(calls), finish_reason="length")


class Empty(Message):
    """A reply that says nothing."""

    def __init__(self) -> None:
        super().__init__()


class Refuse(Message):
    """The model declines, in the field that the API has for it."""

    def __init__(self, text: str) -> None:
        super().__init__(refusal=text)


class Filtered(Message):
    """The endpoint's content filter ended the reply."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text=text, finish_reason="content_filter")


class NoFinish(Message):
    """A reply that ends cleanly without a finish reason; streamed, without usage and `[DONE]` too."""

    def __init__(self, text: str) -> None:
        super().__init__(text=text, finish_reason=None)


@dataclass(frozen=True)
class Status:
    """An HTTP status instead of a reply. A body of text is sent as it is, a map as JSON."""

    code: int
    body: JsonMap | str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def _unread() -> "Reply":
    return Chunked(Say("A reply that nobody will read to its end."), size=8)


@dataclass(frozen=True)
class Disconnect:
    """The connection breaks after `after_events` events of `reply`; after none of them, before any answer at all.

    It is closed or, where it is `reset`, torn down.
    """

    after_events: int = 0
    reply: "Reply" = field(default_factory=_unread)
    reset: bool = False


@dataclass(frozen=True)
class Stall:
    """A streamed `reply` that pauses for so many seconds after `after_events` events: after none, with its headers."""

    after_events: int = 0
    reply: "Reply" = field(default_factory=_unread)
    seconds: float = FOR_EVER_S


@dataclass(frozen=True)
class Drip:
    """After `after_events` events of a streamed `reply` only comments come, one every `seconds`, for ever."""

    after_events: int = 0
    reply: "Reply" = field(default_factory=_unread)
    seconds: float = 0.01


@dataclass(frozen=True)
class CutAt:
    """The first `at_byte` bytes of the body of `reply`, streamed or of a `Status`, and then the connection breaks.

    Where the cut is `clean`, the body ends as if it were whole: a proxy on the way gave up, and nothing tells of it.
    """

    at_byte: int
    reply: "Reply"
    clean: bool = False


@dataclass(frozen=True)
class Slow:
    """`reply`, after a wait in seconds that the server's end cuts short."""

    seconds: float
    reply: "Reply"


@dataclass(frozen=True)
class Chunked:
    """`reply`, streamed in pieces of `size` characters instead of one piece for each text."""

    reply: "Reply"
    size: int


Reply = Message | Status | Disconnect | Slow | Chunked | Stall | Drip | CutAt
Compute = Callable[[JsonMap], Reply]


class Fault(Enum):
    """What goes wrong while a body is sent."""

    NONE, BREAK, RESET = auto(), auto(), auto()
    PAUSE, COMMENTS = auto(), auto()


@dataclass(frozen=True)
class Delivery:
    """A reply with its wrappers taken off: what to send, and how.

    The `fault` comes after so many `events`, all of them where that is None, or after `at_byte` bytes; `seconds` pass
    before the answer begins, `pause_s` is the length of a pause.
    """

    content: Message | Status
    seconds: float = 0.0
    size: int = 0
    events: int | None = None
    fault: Fault = Fault.NONE
    pause_s: float = 0.0
    at_byte: int | None = None


def delivery(reply: Reply) -> Delivery:
    match reply:
        case Slow(seconds, inner):
            return replace(delivery(inner), seconds=seconds)
        case Chunked(inner, size):
            return replace(delivery(inner), size=size)
        case Disconnect(after_events, inner, reset):
            return replace(delivery(inner), events=after_events, fault=Fault.RESET if reset else Fault.BREAK)
        case Stall(after_events, inner, seconds):
            return replace(delivery(inner), events=after_events, fault=Fault.PAUSE, pause_s=seconds)
        case Drip(after_events, inner, seconds):
            return replace(delivery(inner), events=after_events, fault=Fault.COMMENTS, pause_s=seconds)
        case CutAt(at_byte, inner, clean):
            return replace(delivery(inner), at_byte=at_byte, fault=Fault.NONE if clean else Fault.BREAK)
        case _:
            return Delivery(reply)


def status_document(status: Status) -> str:
    """The body of a scripted status; an OpenAI error object where the script gives none."""
    if isinstance(status.body, str):
        return status.body
    fallback = {"error": {"message": f"scripted status {status.code}", "type": "scripted", "code": None}}
    return json.dumps(fallback if status.body is None else status.body, ensure_ascii=False)


def completion_document(message: Message, request: JsonMap, number: int) -> JsonMap:
    """The answer to request `number` (from 1) as one `chat.completion` document."""
    content: JsonMap = {"role": "assistant", "content": message.text or (None if message.calls else "")}
    if message.reasoning:
        content[message.reasoning_field] = message.reasoning
    if message.calls:
        content["tool_calls"] = _calls(message, number)
    if message.refusal:
        content["refusal"] = message.refusal
    choice = {"index": 0, "message": content, "finish_reason": message.finish_reason}
    return _envelope("chat.completion", request, number) | {"choices": [choice]} | _usage(message, request)


def stream_documents(message: Message, request: JsonMap, number: int, size: int) -> Iterator[JsonMap]:
    """The same answer as `chat.completion.chunk` documents, in the order in which OpenAI sends them."""
    envelope = _envelope("chat.completion.chunk", request, number)
    for delta in _deltas(message, number, size):
        yield envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    if message.finish_reason is None:
        return
    yield envelope | {"choices": [{"index": 0, "delta": {}, "finish_reason": message.finish_reason}]}
    usage = _usage(message, request)
    if usage and (request.get("stream_options") or {}).get("include_usage"):
        yield envelope | {"choices": []} | usage


def event_bytes(message: Message, request: JsonMap, number: int, size: int) -> list[bytes]:
    """The same answer as server-sent events, each in the bytes that travel."""
    documents = stream_documents(message, request, number, size)
    events = [json.dumps(document, ensure_ascii=False) for document in documents]
    if message.finish_reason is not None:
        events.append("[DONE]")
    return [f"data: {event}\n\n".encode() for event in events]


def _deltas(message: Message, number: int, size: int) -> Iterator[JsonMap]:
    yield {"role": "assistant", "content": ""}
    yield from ({message.reasoning_field: piece} for piece in _pieces(message.reasoning, size))
    yield from ({"content": piece} for piece in _pieces(message.text, size))
    yield from ({"refusal": piece} for piece in _pieces(message.refusal, size))
    for index, call in enumerate(_calls(message, number)):
        arguments = call["function"]["arguments"]
        head = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": head}]}
        for piece in _pieces(arguments, size):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str, size: int) -> list[str]:
    step = size or max(len(text), 1)
    return [text[start : start + step] for start in range(0, len(text), step)]


def _calls(message: Message, number: int) -> list[JsonMap]:
    return [
        {
            "id": call[2] if len(call) == 3 else f"call_{number}_{index}",
            "type": "function",
            "function": {"name": call[0], "arguments": call[1]},
        }
        for index, call in enumerate(message.calls, start=1)
    ]


def _usage(message: Message, request: JsonMap) -> JsonMap:
    if isinstance(message.usage, dict):
        return {"usage": message.usage} if message.usage else {}
    prompt = len(json.dumps(request.get("messages", []), ensure_ascii=False)) // 4
    texts = message.text + message.refusal + message.reasoning
    written = len(texts + "".join(name + text for name, text, *_ in message.calls)) // 4
    input_tokens, output_tokens = message.usage or (prompt, written)
    return {
        "usage": {
            "prompt_tokens": input_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": input_tokens + output_tokens,
        }
    }


def _envelope(kind: str, request: JsonMap, number: int) -> JsonMap:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": CREATED, "model": request.get("model", "scripted")}
