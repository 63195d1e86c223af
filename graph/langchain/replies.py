"""Assembles a streamed reply, with the raw text of every argument unchanged.

LangChain's own aggregation quietly closes truncated JSON, which turns half a file into a valid call; here nothing is
parsed. Calls are distinguished by index, and by a new id where a server reuses one index for several calls.
Source: measured on langchain-openai 1.7.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata, add_ai_message_chunks, add_usage, subtract_usage

from mendgraph.nodes.call_model.prompts.estimates import countable
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.provider_state import (
    REASONING_DETAILS,
    TOOL_CALL_EXTRAS,
    join_details,
    state_of,
    thoughts_of,
)
from mendgraph.nodes.language.text_protocol import decode_arguments
from mendgraph.nodes.records import FinishReason, JsonMap, ModelReply, RawCall

_FINISH: Final = {
    **dict.fromkeys(("stop", "end_turn", "eos", "eos_token", "stop_sequence", "complete"), FinishReason.STOP),
    **dict.fromkeys(("completed", "finish_reason_stop", "malformed_function_call", "end"), FinishReason.STOP),
    **dict.fromkeys(
        ("tool_calls", "function_call", "tool_use", "tool_call", "function_calls"), FinishReason.TOOL_CALLS
    ),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens"), FinishReason.LENGTH),
    **dict.fromkeys(("incomplete", "model_context_window_exceeded"), FinishReason.LENGTH),
    **dict.fromkeys(("content_filter", "safety", "recitation", "blocklist"), FinishReason.CONTENT_FILTER),
    **dict.fromkeys(("prohibited_content", "spii", "content_filtered", "sensitive"), FinishReason.CONTENT_FILTER),
    **dict.fromkeys(("guardrail", "guardrail_intervened", "image_safety"), FinishReason.CONTENT_FILTER),
    "refusal": FinishReason.REFUSAL,
}
"""Providers' finish reasons. A reply with another one is complete if its calls are."""

_FAILED: Final = frozenset({"error", "failed", "aborted", "abort", "cancelled", "timeout"})
"""Finish reasons of replies that have failed."""

END_OF_STREAM: Final = "[DONE]"
"""The finish reason of a reply that ends without one."""

_FINISH_FIELDS: Final = ("finish_reason", "stop_reason", "done_reason", "stopReason", "status")
"""The fields that hold the finish reason: OpenAI's, Anthropic's, Ollama's, Bedrock's, and the Responses API's."""


@dataclass
class _GrowingCall:
    call_id: str = ""
    tool: str = ""
    arguments: list[str] = field(default_factory=list)
    extras: JsonMap = field(default_factory=dict)

    def is_complete(self) -> bool:
        """Return whether it has a name, and a JSON object for arguments."""
        return bool(self.tool) and isinstance(decode_arguments("".join(self.arguments)), dict)

    def as_raw_call(self) -> RawCall:
        return RawCall(
            call_id=storable(self.call_id), tool=storable(self.tool), arguments=storable("".join(self.arguments))
        )

    def is_followed_by(self, call_id: str | None, tool: str | None, arguments: str | None) -> bool:
        """Return whether a part begins another call: by a new id or name or, without ids, by a name after arguments."""
        has_ids = bool(call_id and self.call_id)
        if (has_ids and call_id != self.call_id) or (tool and self.tool and tool != self.tool):
            return True

        return bool(not has_ids and tool and arguments and any(self.arguments))


@dataclass
class ReplyAssembly:
    """A growing reply. `reply()` returns None until the provider has sent a finish reason.

    A chat model that names no provider, such as one of a user's own, need not send one: its reply is complete when it
    ends. So is a reply with an unknown finish reason whose calls are complete.
    """

    finish_reason: str = ""
    model: str = ""
    refusal: str = ""
    has_provider: bool = False
    message_id: str | None = None
    usage_is_total: bool = False
    """Whether each report of usage is of the whole reply, as at OpenAI-compatible endpoints; others are added."""

    _text: list[str] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _calls: list[_GrowingCall] = field(default_factory=list)
    _open: dict[int | str, _GrowingCall] = field(default_factory=dict)
    _usage: UsageMetadata | None = None
    _rich: list[AIMessageChunk] = field(default_factory=list)
    _details: list[JsonMap] = field(default_factory=list)
    _complete_message: AIMessage | None = None

    def take(self, message: AIMessage) -> str:
        """Add a part of the reply, or a complete reply that is not streamed; return its text."""
        content = message.text
        thought = thoughts_of(message)
        if content:
            self._text.append(content)

        if thought:
            self._thoughts.append(thought)

        if message.usage_metadata:
            added = message.usage_metadata
            if self.usage_is_total and self._usage is not None:
                added = subtract_usage(added, self._usage)

            self._usage = add_usage(self._usage, added)

        self.refusal += str(message.additional_kwargs.get("refusal") or "")
        if message.response_metadata:
            self._take_metadata(message.response_metadata)

        if isinstance(message, AIMessageChunk):
            self._take_chunk(message)
        else:
            self._complete_message = message
            self._calls += map(_complete_call, (*message.tool_calls, *message.invalid_tool_calls))

        return content

    def _take_chunk(self, chunk: AIMessageChunk) -> None:
        added = dict(chunk.additional_kwargs)
        extras_of_calls = added.pop(TOOL_CALL_EXTRAS, None) or [{}] * len(chunk.tool_call_chunks)
        for part, extras in zip(chunk.tool_call_chunks, extras_of_calls, strict=True):
            call = self.add_call_part(part["index"], part["id"], part["name"], part["args"])
            call.extras |= extras

        details = added.get(REASONING_DETAILS)
        if isinstance(details, list):
            del added[REASONING_DETAILS]
            self._details += [piece for piece in details if isinstance(piece, dict)]

        if added or not isinstance(chunk.content, str):
            self._rich.append(chunk.model_copy(update={"additional_kwargs": added}))

    def add_call_part(
        self, index: int | str | None, call_id: str | None, tool: str | None, text: str | None
    ) -> _GrowingCall:
        """Append a part of a call; a part without an index belongs to the latest call unless it begins another."""
        growing = None
        if index is not None:
            growing = self._open.get(index)
        elif self._calls:
            growing = self._calls[-1]

        if growing is None or growing.is_followed_by(call_id, tool, text):
            growing = _GrowingCall()
            self._calls.append(growing)
            if index is not None:
                self._open[index] = growing

        growing.call_id = growing.call_id or call_id or ""
        growing.tool = growing.tool or tool or ""
        growing.arguments.append(text or "")
        return growing

    def _take_metadata(self, metadata: Mapping[str, Any]) -> None:
        self.has_provider = self.has_provider or "model_provider" in metadata
        for name in _FINISH_FIELDS:
            reason = metadata.get(name)
            if reason and isinstance(reason, str):
                if reason != END_OF_STREAM or not self.finish_reason:
                    self.finish_reason = reason

                break

        details = metadata.get("incomplete_details")
        if isinstance(details, dict) and details.get("reason"):
            self.finish_reason = str(details["reason"])

        model = metadata.get("model_name") or metadata.get("model")
        if model:
            self.model = str(model)

    @property
    def spoken(self) -> bool:
        """Return whether a part of the reply itself has arrived, and not only metadata."""
        return bool(self._text or self._thoughts or self._calls or self.refusal)

    @property
    def characters(self) -> int:
        """Return the number of characters so far: of text, reasoning, refusal and arguments."""
        count = len(self.refusal) + sum(map(len, self._text)) + sum(map(len, self._thoughts))
        for call in self._calls:
            count += sum(map(len, call.arguments))

        return count

    def reply(self, seconds: float) -> ModelReply | None:
        """Return the reply, None if it is not complete."""
        finish_reason = self._finish_reason()
        if finish_reason is None:
            return None

        return ModelReply(
            text=storable("".join(self._text)),
            calls=tuple(call.as_raw_call() for call in self._calls),
            finish_reason=finish_reason,
            refusal=storable(self.refusal),
            reasoning=storable("".join(self._thoughts)),
            model=storable(self.model),
            seconds=seconds,
            provider=self._state(),
            message_id=self.message_id,
            **_counts(self._usage),
        )

    def _finish_reason(self) -> FinishReason | None:
        """Return why the reply ended, None if it is not complete."""
        reason = _FINISH.get(self.finish_reason.lower().replace("-", "_"))
        must_not_say = not self.finish_reason and not self.has_provider

        if must_not_say or (reason is None and self._is_complete()):
            reason = FinishReason.STOP
            if self._calls:
                reason = FinishReason.TOOL_CALLS

        if reason is not None and self.refusal:
            return FinishReason.REFUSAL

        return reason

    def _is_complete(self) -> bool:
        """Return whether a reply with an unknown finish reason is complete: not empty, with complete calls."""
        if not self.finish_reason or self.finish_reason.lower() in _FAILED:
            return False

        return bool(self._text or self._calls) and all(call.is_complete() for call in self._calls)

    def _state(self) -> JsonMap:
        """Return what the provider needs in later requests. LangChain joins the pieces of a block."""
        if self._complete_message is not None:
            return state_of(self._complete_message)

        joined = AIMessageChunk(content="")
        if self._rich:
            joined = add_ai_message_chunks(self._rich[0], *self._rich[1:])

        if self._details:
            joined.additional_kwargs[REASONING_DETAILS] = join_details(self._details)

        extras = {call.call_id: call.extras for call in self._calls if call.call_id and call.extras}
        if extras:
            joined.additional_kwargs[TOOL_CALL_EXTRAS] = extras

        return state_of(joined)


def _complete_call(call: Any) -> _GrowingCall:
    """Convert a call of a reply that is not streamed; a call of another shape has no name."""
    if not isinstance(call, Mapping):
        call = {"args": call}

    return _GrowingCall(text_of(call.get("id")), text_of(call.get("name")), [text_of(call.get("args"))])


def _counts(usage: UsageMetadata | None) -> JsonMap:
    """Return the provider's counts. A negative number, which would increase the budget, or no number counts as 0."""
    if usage is None:
        return {}

    input_tokens = countable(usage.get("input_tokens"))
    output_tokens = countable(usage.get("output_tokens"))
    input_details = usage.get("input_token_details") or {}
    output_details = usage.get("output_token_details") or {}
    cache_write_tokens = 0
    for name, count in input_details.items():
        if name.startswith(("cache_creation", "ephemeral")):
            cache_write_tokens += countable(count)

    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": countable(input_details.get("cache_read")),
        "cache_write_tokens": cache_write_tokens,
        "reasoning_tokens": min(countable(output_details.get("reasoning")), output_tokens),
    }


def text_of(value: Any) -> str:
    """Return a text unchanged, None as "", and anything else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""

    return json.dumps(value, ensure_ascii=False)
