"""What a reply of the server says about itself: tokens, how it ended, native calls. Pure.

llama.cpp sends `timings` with the last chunk of each reply, also of a stream whose client asked for no usage, so that
requests need not be changed for the sake of counting. Other servers are counted by `usage`, where they send it.
Source: xllamacpp 2026.10, tried: `cache_n` tokens of the prompt were known, `prompt_n` were computed.
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
    """Whether a reply came to its end."""
    return END_OF_STREAM in body[-200:] if streamed else bool(_document(body))


def read_facts(body: bytes) -> ReplyFacts:
    """The figures of a reply, streamed or whole; zeros for what it does not say, or where it is no completion."""
    facts: dict[str, Any] = {}
    calls: set[int] = set()
    for document in _documents(body):
        facts |= _tokens(document)
        for choice in document.get("choices") or ():
            said = choice.get("delta") or choice.get("message") or {}
            calls |= {int(call.get("index", place)) for place, call in enumerate(said.get("tool_calls") or ())}
            if choice.get("finish_reason"):
                facts["finish_reason"] = str(choice["finish_reason"])
    return ReplyFacts(**facts, native_calls=len(calls))


def _documents(body: bytes) -> Iterator[JsonMap]:
    """The JSON documents of a reply: its chunks, or the one that it is."""
    lines = body.splitlines()
    streamed = [line[6:] for line in lines if line.startswith(b"data: {")]
    for text in streamed or [body]:
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
