"""The figures in a reply of the server: tokens, finish reason and native calls. Pure.

llama.cpp sends `timings` with the last chunk of each reply, also in a stream without usage, so requests need no change.
For other servers, the figures are those of `usage`, if they send it.
Source: experiments with xllamacpp 2026.10: `cache_n` prompt tokens were cached, `prompt_n` were computed.
"""

import json
from collections.abc import Iterator
from typing import Any

from mendgraph.nodes.records import JsonMap, Record

END_OF_STREAM = b"data: [DONE]"


class ReplyFacts(Record):
    """The figures of one reply. `cached_tokens` are a part of `prompt_tokens`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    native_calls: int = 0


def is_complete(body: bytes, streamed: bool) -> bool:
    """Whether a reply is complete."""
    if streamed:
        return END_OF_STREAM in body[-200:]
    return bool(_document(body))


def read_facts(body: bytes) -> ReplyFacts:
    """Return the figures of a reply, streamed or not. Missing figures are 0."""
    facts: dict[str, Any] = {}
    calls: set[int] = set()
    for document in _documents(body):
        facts |= _tokens(document)
        for choice in document.get("choices") or ():
            message = choice.get("delta") or choice.get("message") or {}
            for position, call in enumerate(message.get("tool_calls") or ()):
                calls.add(int(call.get("index", position)))
            if choice.get("finish_reason"):
                facts["finish_reason"] = str(choice["finish_reason"])
    return ReplyFacts(**facts, native_calls=len(calls))


def _documents(body: bytes) -> Iterator[JsonMap]:
    """Yield the JSON documents of a reply: the chunks of a stream, or the complete body."""
    chunks = [line[6:] for line in body.splitlines() if line.startswith(b"data: {")]
    for text in chunks or [body]:
        if document := _document(text):
            yield document


def _document(text: bytes) -> JsonMap:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _tokens(document: JsonMap) -> dict[str, int]:
    timings, usage = document.get("timings"), document.get("usage")
    if isinstance(timings, dict):
        cached = int(timings.get("cache_n", 0))
        prompt, completion = cached + int(timings.get("prompt_n", 0)), int(timings.get("predicted_n", 0))
    elif isinstance(usage, dict):
        cached = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        prompt, completion = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
    else:
        return {}
    return {"prompt_tokens": prompt, "cached_tokens": cached, "completion_tokens": completion}
