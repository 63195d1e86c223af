"""Putting a streamed reply together, with the raw text of every argument kept to the letter.

LangChain's own aggregation quietly closes truncated JSON, which turns half a file into a valid call; here nothing is
parsed. Calls are told apart by index, and by a new id where a server reuses one index for several calls.
Source: measured on langchain-openai 1.7.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.language.storable_text import storable
from nodes.records import FinishReason, ModelReply, RawCall

_FINISH = {
    **dict.fromkeys(("stop", "end_turn", "eos", "eos_token", "stop_sequence", "complete"), FinishReason.STOP),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), FinishReason.TOOL_CALLS),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens"), FinishReason.LENGTH),
    **dict.fromkeys(("content_filter", "safety", "recitation", "blocklist"), FinishReason.CONTENT_FILTER),
}
"""Endpoints' words for the end of a reply. Any other word does not say that the reply is complete."""

MOST_TOKENS = 2**40
"""What an endpoint may claim; more would not fit into a checkpoint."""


@dataclass
class _GrowingCall:
    call_id: str = ""
    tool: str = ""
    arguments: list[str] = field(default_factory=list)

    def is_followed_by(self, call_id: str | None, tool: str | None, arguments: str | None) -> bool:
        """Does this part begin another call? By a new id or name or, without ids, by a name after arguments."""
        has_ids = bool(call_id and self.call_id)
        if (has_ids and call_id != self.call_id) or (tool and self.tool and tool != self.tool):
            return True
        return bool(not has_ids and tool and arguments and any(self.arguments))


@dataclass
class ReplyAssembly:
    """A reply as it grows. `reply()` gives None until the endpoint has said why it ended.

    `begun` says that something has come, so that the endpoint has worked on the prompt.
    """

    finish_reason: str = ""
    model: str = ""
    refusal: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    begun: bool = False
    _text: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _calls: list[_GrowingCall] = field(default_factory=list)
    _open: dict[int, _GrowingCall] = field(default_factory=dict)

    def add_text(self, text: str) -> None:
        """Append what the model says."""
        self._text.append(text)

    def add_reasoning(self, text: str) -> None:
        """Append what the model thinks before it speaks."""
        self._reasoning.append(text)

    def add_call_part(self, index: int | None, call_id: str | None, tool: str | None, arguments: str | None) -> None:
        """Append a part of a call; a part without an index belongs to the latest call unless it begins another."""
        latest = self._calls[-1] if self._calls else None
        growing = latest if index is None else self._open.get(index)
        if growing is None or growing.is_followed_by(call_id, tool, arguments):
            growing = _GrowingCall()
            self._calls.append(growing)
            if index is not None:
                self._open[index] = growing
        growing.call_id = growing.call_id or call_id or ""
        growing.tool = growing.tool or tool or ""
        growing.arguments.append(arguments or "")

    def add_usage(self, usage: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        """Take over the endpoint's own count of tokens; the last word counts.

        A negative count would give budget back, and one that is no number says nothing: both count as none. Cached
        tokens stand in another place at each kind of endpoint, with llama.cpp in `timings`.
        """
        if usage:
            self.input_tokens = _count(usage.get("prompt_tokens") or usage.get("input_tokens"))
            self.output_tokens = _count(usage.get("completion_tokens") or usage.get("output_tokens"))
        details = usage.get("prompt_tokens_details")
        told = (
            details.get("cached_tokens") if isinstance(details, dict) else None,
            usage.get("cache_read_input_tokens"),
            usage.get("prompt_cache_hit_tokens"),
            timings.get("cache_n"),
        )
        self.cached_tokens = next((count for count in map(_count, told) if count), self.cached_tokens)

    @property
    def spoken(self) -> bool:
        """Has a part of the reply itself come, and not only its frame?"""
        return bool(self._text or self._reasoning or self._calls or self.refusal)

    @property
    def characters(self) -> int:
        """How much has come so far."""
        calls = sum(len(part) for call in self._calls for part in call.arguments)
        return sum(map(len, self._text)) + sum(map(len, self._reasoning)) + calls

    def reply(self, seconds: float) -> ModelReply | None:
        """The whole reply, or None when the stream ended before the endpoint said that it was complete."""
        said = _FINISH.get(self.finish_reason.lower().replace("-", "_"))
        finish = FinishReason.REFUSAL if self.refusal and self.finish_reason else said
        if finish is None:
            return None
        return ModelReply(
            text=storable("".join(self._text)),
            calls=tuple(
                RawCall(
                    call_id=storable(call.call_id),
                    tool=storable(call.tool),
                    arguments=storable("".join(call.arguments)),
                )
                for call in self._calls
            ),
            finish_reason=finish,
            refusal=storable(self.refusal),
            reasoning=storable("".join(self._reasoning)),
            model=storable(self.model),
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=min(self.cached_tokens, self.input_tokens),
            seconds=seconds,
        )


def _count(tokens: Any) -> int:
    """A count as it can be kept; comparisons with what is no number are false."""
    if not isinstance(tokens, int | float) or not tokens > 0:
        return 0
    return int(min(tokens, MOST_TOKENS))
