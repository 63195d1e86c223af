"""Putting a streamed reply together, with the raw text of every argument kept to the letter.

LangChain's own aggregation quietly closes truncated JSON, which turns half a file into a valid call; here nothing is
parsed. Calls are told apart by index, and by a new id where a server reuses one index for several calls.
Source: measured on langchain-openai 1.7.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata, add_ai_message_chunks, add_usage

from mendgraph.graph.langchain.openai_chat import PlainPart, text_of
from mendgraph.nodes.call_model.prompts.estimates import countable
from mendgraph.nodes.language.documents import storable
from mendgraph.nodes.language.history import REASONING_DETAILS, joined_details, state_of, thoughts_of
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
"""Providers' words for the end of a reply. With another word it is complete if its calls are."""

_FAILED: Final = frozenset({"error", "failed", "aborted", "abort", "cancelled", "timeout"})
"""Words that say that a reply has failed."""

_FINISH_FIELDS: Final = ("finish_reason", "stop_reason", "done_reason", "stopReason", "status")
"""Where the providers' packages tell it: OpenAI, Google and Mistral; Anthropic; Ollama; Bedrock; the Responses API."""


@dataclass
class _GrowingCall:
    call_id: str = ""
    tool: str = ""
    arguments: list[str] = field(default_factory=list)

    def is_whole(self) -> bool:
        """Whether it has a name, and JSON for arguments."""
        return bool(self.tool) and isinstance(decode_arguments("".join(self.arguments)), dict)

    def is_followed_by(self, call_id: str | None, tool: str | None, arguments: str | None) -> bool:
        """Does this part begin another call? By a new id or name or, without ids, by a name after arguments."""
        has_ids = bool(call_id and self.call_id)
        if (has_ids and call_id != self.call_id) or (tool and self.tool and tool != self.tool):
            return True

        return bool(not has_ids and tool and arguments and any(self.arguments))


@dataclass
class ReplyAssembly:
    """A reply as it grows. `reply()` gives None until its provider has said why it ended.

    A chat model that names no provider, such as one of the user's own, need not say so: its reply is complete when it
    ends. So is one whose calls are whole where the provider's word is unknown.
    """

    finish_reason: str = ""
    model: str = ""
    refusal: str = ""
    has_provider: bool = False
    message_id: str | None = None
    _text: list[str] = field(default_factory=list)
    _thoughts: list[str] = field(default_factory=list)
    _calls: list[_GrowingCall] = field(default_factory=list)
    _open: dict[int | str, _GrowingCall] = field(default_factory=dict)
    _usage: UsageMetadata | None = None
    _rich: list[AIMessageChunk] = field(default_factory=list)
    _details: list[JsonMap] = field(default_factory=list)
    _whole: AIMessage | None = None

    def take(self, message: AIMessage | PlainPart) -> str:
        """Take a part of the reply, or the whole of one that is not streamed; gives its text for people."""
        if isinstance(message, PlainPart):
            self.has_provider = True
            for piece in message.calls:
                self.add_call_part(*piece)

            if message.text:
                self._text.append(message.text)

            return message.text

        content = message.text
        thought = thoughts_of(message)
        if content:
            self._text.append(content)

        if thought:
            self._thoughts.append(thought)

        if message.usage_metadata:
            self._usage = add_usage(self._usage, message.usage_metadata) if self._usage else message.usage_metadata

        if refusal := message.additional_kwargs.get("refusal"):
            self.refusal += str(refusal)

        if message.response_metadata:
            self._take_metadata(message.response_metadata)

        if isinstance(message, AIMessageChunk):
            for part in message.tool_call_chunks:
                self.add_call_part(part["index"], part["id"], part["name"], part["args"])

            if message.additional_kwargs or not isinstance(message.content, str):
                self._take_rich(message)
        else:
            self._whole = message
            self._calls += map(_whole_call, (*message.tool_calls, *message.invalid_tool_calls))

        return content

    def _take_rich(self, chunk: AIMessageChunk) -> None:
        added = dict(chunk.additional_kwargs)
        details = added.pop(REASONING_DETAILS, None)
        if isinstance(details, list):
            self._details += [piece for piece in details if isinstance(piece, dict)]
            chunk = chunk.model_copy(update={"additional_kwargs": added})

        self._rich.append(chunk)

    def add_call_part(self, index: int | str | None, call_id: str | None, tool: str | None, text: str | None) -> None:
        """Append a part of a call; a part without an index belongs to the latest call unless it begins another."""
        latest = self._calls[-1] if self._calls else None
        growing = latest if index is None else self._open.get(index)

        if growing is None or growing.is_followed_by(call_id, tool, text):
            growing = _GrowingCall()
            self._calls.append(growing)
            if index is not None:
                self._open[index] = growing

        growing.call_id = growing.call_id or call_id or ""
        growing.tool = growing.tool or tool or ""
        growing.arguments.append(text or "")

    def _take_metadata(self, told: Mapping[str, Any]) -> None:
        self.has_provider = self.has_provider or "model_provider" in told
        reasons = (told[name] for name in _FINISH_FIELDS if isinstance(told.get(name), str) and told[name])
        self.finish_reason = str(next(reasons, self.finish_reason))
        details = told.get("incomplete_details")

        if isinstance(details, dict) and details.get("reason"):
            self.finish_reason = str(details["reason"])

        if name := told.get("model_name") or told.get("model"):
            self.model = str(name)

    @property
    def spoken(self) -> bool:
        """Has a part of the reply itself come, and not only its frame?"""
        return bool(self._text or self._thoughts or self._calls or self.refusal)

    @property
    def characters(self) -> int:
        """How much has come so far."""
        calls = sum(len(part) for call in self._calls for part in call.arguments)
        return sum(map(len, self._text)) + sum(map(len, self._thoughts)) + len(self.refusal) + calls

    def reply(self, seconds: float) -> ModelReply | None:
        """The whole reply, or None when it ended before its provider said that it was complete."""
        reason = _FINISH.get(self.finish_reason.lower().replace("-", "_"))
        if reason is None and self._is_whole():
            reason = FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP

        if not self.finish_reason and not self.has_provider:
            reason = FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP

        finish = FinishReason.REFUSAL if self.refusal and reason else reason
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
            reasoning=storable("".join(self._thoughts)),
            model=storable(self.model),
            seconds=seconds,
            provider=self._state(),
            message_id=self.message_id,
            **_counts(self._usage),
        )

    def _is_whole(self) -> bool:
        """Whether a reply that an unknown word ends is complete: it says something, and its calls are whole."""
        unknown = bool(self.finish_reason) and self.finish_reason.lower() not in _FAILED
        return unknown and bool(self._text or self._calls) and all(call.is_whole() for call in self._calls)

    def _state(self) -> JsonMap:
        """What the provider wants to see again. The pieces of one block are joined as its package means them to be."""
        if self._whole is not None:
            return state_of(self._whole)
        if not self._rich:
            return {}

        joined = add_ai_message_chunks(self._rich[0], *self._rich[1:])
        if self._details:
            joined.additional_kwargs[REASONING_DETAILS] = joined_details(self._details)

        return state_of(joined)


def _whole_call(call: Any) -> _GrowingCall:
    """A call that came in one piece; one of another shape is kept as one without a name."""
    fields = call if isinstance(call, Mapping) else {"args": call}
    call_id, tool, arguments = (text_of(fields.get(name)) for name in ("id", "name", "args"))
    return _GrowingCall(call_id, tool, [arguments])


def _counts(usage: UsageMetadata | None) -> JsonMap:
    """The provider's own counts. A negative one would give budget back, and what is no number says nothing: 0."""
    if usage is None:
        return {}

    input_tokens = countable(usage.get("input_tokens"))
    output_tokens = countable(usage.get("output_tokens"))
    read = usage.get("input_token_details") or {}
    details = usage.get("output_token_details") or {}
    parts = [countable(count) for name, count in read.items() if name.startswith(("cache_creation", "ephemeral"))]

    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": countable(read.get("cache_read")),
        "cache_write_tokens": sum(parts),
        "reasoning_tokens": min(countable(details.get("reasoning")), output_tokens),
    }
