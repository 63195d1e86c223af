"""Replies and failures of a model as an OpenAI-compatible endpoint sends them: SSE for the one, a status for the other.

Pure. Ids and times are the same each time, so that the same reply gives the same bytes.
"""

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from nodes.records import FinishReason, JsonMap, ModelReply, ProviderErrorKind, StopCause

CREATED: Final = 1_700_000_000
"""The `created` time of every reply, in seconds."""

NEVER_S: Final = 3_600
"""A wish for the next try, in seconds, that no run waits for."""

_STATUSES: Final = {
    ProviderErrorKind.RATE_LIMITED: 429,
    ProviderErrorKind.TIMEOUT: 503,
    ProviderErrorKind.CONNECTION: 503,
    ProviderErrorKind.SERVER_ERROR: 503,
    ProviderErrorKind.AUTHENTICATION: 401,
    ProviderErrorKind.BAD_REQUEST: 400,
    ProviderErrorKind.CONTEXT_OVERFLOW: 400,
    ProviderErrorKind.MODEL_UNAVAILABLE: 404,
}
"""What each kind of failure is said with. A file holds no silence and no broken connection: 503 stands for both."""

_KINDS: Final = {kind.value: kind for kind in ProviderErrorKind}
_TOLD = re.compile(r"(?:^|: )([a-z_ ]+?)(?: \((\d+) tries\))?$")
"""How a stop cause's evidence names the last failure; see `nodes.call_model.paid_call` and `fallbacks.in_words`."""


class Said(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes


class Failed(NamedTuple):
    """How an endpoint failed at the end of a turn: in which way, in how many tries, and its own words."""

    kind: ProviderErrorKind
    tries: int
    detail: str


def reply_said(reply: ModelReply, model: str, number: int) -> Said:
    """The reply as a stream of events; `number` counts the exchanges from 1."""
    events = [_event(document, reply.model or model, number) for document in _documents(reply)]
    return Said(200, {"content-type": "text/event-stream"}, "".join([*events, "data: [DONE]\n\n"]).encode())


def failure_said(failed: Failed, model: str, number: int, *, last: bool) -> Said:
    """The failure; after the `last` one no further try is made, before it the next one need not be waited for."""
    if failed.kind is ProviderErrorKind.INCOMPLETE_STREAM:
        begun = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        return Said(200, {"content-type": "text/event-stream"}, _event(begun, model, number).encode())
    overflow = failed.kind is ProviderErrorKind.CONTEXT_OVERFLOW
    code = "context_length_exceeded" if overflow else None
    error = {"error": {"message": failed.detail, "type": failed.kind.value, "code": code}}
    headers = {"content-type": "application/json", "retry-after": str(NEVER_S if last else 0)}
    return Said(_STATUSES[failed.kind], headers, json.dumps(error, ensure_ascii=False).encode())


def failed(stop: StopCause) -> Failed:
    """The failure that a run ended with, read from its evidence."""
    for diagnostic in reversed(stop.diagnostics):
        found = _TOLD.search(diagnostic.rpartition(";")[2].strip())
        word = found[1].strip().replace(" ", "_") if found else ""
        kind = _KINDS.get(word)
        if found and kind:
            return Failed(kind, int(found[2] or 1), _detail(stop.message))
    return Failed(ProviderErrorKind.BAD_REQUEST, 1, _detail(stop.message))


def _detail(message: str) -> str:
    """The endpoint's own words, which our message quotes in brackets."""
    begin, end = message.find("("), message.rfind(")")
    return message[begin + 1 : end] if 0 <= begin < end - 1 else message


def _documents(reply: ModelReply) -> Iterator[JsonMap]:
    yield _choice({"role": "assistant", "content": ""})
    if reply.reasoning:
        yield _choice({"reasoning_content": reply.reasoning})
    if reply.text:
        yield _choice({"content": reply.text})
    if reply.refusal:
        yield _choice({"refusal": reply.refusal})
    for index, call in enumerate(reply.calls):
        function = {"name": call.tool, "arguments": call.arguments}
        yield _choice({"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": function}]})
    refused = reply.finish_reason is FinishReason.REFUSAL
    yield _choice({}, FinishReason.STOP.value if refused else reply.finish_reason.value)
    if reply.input_tokens or reply.output_tokens:
        usage: JsonMap = {
            "prompt_tokens": reply.input_tokens,
            "completion_tokens": reply.output_tokens,
            "total_tokens": reply.input_tokens + reply.output_tokens,
        }
        details = {"cached_tokens": reply.cached_tokens, "cache_write_tokens": reply.cache_write_tokens}
        if told := {name: count for name, count in details.items() if count}:
            usage["prompt_tokens_details"] = told
        if reply.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": reply.reasoning_tokens}
        yield {"choices": [], "usage": usage}


def _choice(delta: JsonMap, finish: str | None = None) -> JsonMap:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def _event(document: JsonMap, model: str, number: int) -> str:
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": CREATED, "model": model}
    return f"data: {json.dumps({**head, **document}, ensure_ascii=False)}\n\n"
