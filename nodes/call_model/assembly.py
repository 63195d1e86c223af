"""Putting a streamed reply together, with the raw text of every argument kept to the letter.

LangChain's own aggregation quietly closes truncated JSON, which turns half a file into a valid call; here nothing is
parsed. Calls are told apart by index, and by a new id where a server reuses one index for several calls.
Source: facts measured on langchain-openai 1.7, section 2.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.records import FinishReason, ModelReply, RawCall

_FINISH = {
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "length": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}


@dataclass
class _GrowingCall:
    call_id: str = ""
    tool: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass
class ReplyAssembly:
    """A reply as it grows. `reply()` gives None until the endpoint has said why it ended."""

    finish_reason: str = ""
    model: str = ""
    refusal: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    _text: list[str] = field(default_factory=list)
    _calls: list[_GrowingCall] = field(default_factory=list)
    _open: dict[int, _GrowingCall] = field(default_factory=dict)

    def add_text(self, text: str) -> None:
        """Append what the model says."""
        self._text.append(text)

    def add_call_part(self, index: int | None, call_id: str | None, tool: str | None, arguments: str | None) -> None:
        """Append a part of a call; a part without an index belongs to the latest call unless it brings a new id."""
        key = index if index is not None else max(len(self._calls) - 1, 0)
        growing = self._open.get(key)
        if growing is None or (call_id and growing.call_id and call_id != growing.call_id):
            growing = _GrowingCall()
            self._calls.append(growing)
            self._open[key if index is not None else len(self._calls) - 1] = growing
        growing.call_id = growing.call_id or call_id or ""
        growing.tool = growing.tool or tool or ""
        growing.arguments.append(arguments or "")

    def add_usage(self, usage: Mapping[str, Any]) -> None:
        """Take over the endpoint's own count of tokens."""
        self.input_tokens = int(usage.get("input_tokens") or 0)
        self.output_tokens = int(usage.get("output_tokens") or 0)
        self.cached_tokens = int((usage.get("input_token_details") or {}).get("cache_read") or 0)

    def reply(self, seconds: float) -> ModelReply | None:
        """The whole reply, or None when the stream ended before the endpoint said that it was complete."""
        if not self.finish_reason:
            return None
        finish = FinishReason.REFUSAL if self.refusal else _FINISH.get(self.finish_reason, FinishReason.STOP)
        return ModelReply(
            text=_storable("".join(self._text)),
            calls=tuple(
                RawCall(
                    call_id=_storable(call.call_id),
                    tool=_storable(call.tool),
                    arguments=_storable("".join(call.arguments)),
                )
                for call in self._calls
            ),
            finish_reason=finish,
            refusal=_storable(self.refusal),
            model=self.model,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            seconds=seconds,
        )


def _storable(text: str) -> str:
    """Replace half surrogate pairs: no checkpoint can hold one, and a resumed run must see what this one saw."""
    return text.encode("utf-8", "replace").decode("utf-8")
