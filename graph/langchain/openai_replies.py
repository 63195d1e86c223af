"""Reads all of a reply of an OpenAI-compatible endpoint, with the fields that ChatOpenAI drops.

ChatOpenAI drops reasoning, signatures, fields that an endpoint adds to a tool call, calls without an index, and the
token counts of caches. As the packages of other providers do, this one overrides how a chat completion becomes a
message; ChatOpenAI itself sends the request.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import cache
from typing import Any, Final, Self

import openai
from langchain_core.load.serializable import SerializedNotImplemented
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCallChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import model_validator

from mendgraph.graph.langchain.replies import END_OF_STREAM, text_of
from mendgraph.nodes.call_model.prompts.estimates import countable
from mendgraph.nodes.language.chat_messages import json_bytes
from mendgraph.nodes.language.provider_state import REASONING, REASONING_DETAILS, TOOL_CALL_EXTRAS
from mendgraph.nodes.records import JsonMap

REQUEST_OPTIONS: Final = {"extra_headers": "headers", "extra_query": "params", "timeout": "timeout"}
"""Arguments of a call that are options of the SDK's request and no part of its body, by the names of the options."""

_CALL_FIELDS: Final = frozenset({"id", "type", "function", "index"})
"""Fields of a tool call that `ToolCallChunk` holds; all others are sent back to the endpoint unchanged."""


class CompleteReplies(BaseChatOpenAI, defer_build=True):
    """Mixed into a chat model of langchain-openai's family: its replies keep all that the endpoint sent.

    Each reply is an `AIMessageChunk`, whose `tool_call_chunks` hold the raw text of all arguments.
    """

    def to_json(self) -> SerializedNotImplemented:
        """Return no fields: LangChain serializes the model at each request, for callbacks that `UNHEARD` lacks."""
        return {"lc": 1, "type": "not_implemented", "id": [], "repr": None}

    def _convert_chunk_to_generation_chunk(
        self,
        chunk: JsonMap,
        default_chunk_class: type,  # noqa: ARG002 - LangChain's signature
        base_generation_info: JsonMap | None,  # noqa: ARG002
    ) -> ChatGenerationChunk | None:
        return ChatGenerationChunk(message=read_completion(chunk, "delta"))

    def _create_chat_result(self, response: Any, generation_info: JsonMap | None = None) -> ChatResult:
        document = response
        if hasattr(response, "model_dump"):
            document = response.model_dump(warnings=False)

        if not isinstance(document, dict) or document.get("error"):
            return super()._create_chat_result(document, generation_info)  # raises the error

        if not document.get("choices"):
            raise ValueError("its choices are empty")

        return ChatResult(generations=[ChatGeneration(message=read_completion(document, "message"))])


_END: Final = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": END_OF_STREAM}]})
"""An event before the one that ends a stream: some endpoints send no finish reason."""


class _Documents(openai.Stream[object]):
    """The events of a stream as JSON objects. One that ends with [DONE] is complete, also without a finish reason."""

    def _iter_events(self) -> Iterator[Any]:
        for event in super()._iter_events():
            if event.data.startswith(END_OF_STREAM):
                yield type(event)(data=_END)

            yield event


class _AsyncDocuments(openai.AsyncStream[object]):
    """The same in an event loop."""

    async def _iter_events(self) -> AsyncIterator[Any]:
        async for event in super()._iter_events():
            if event.data.startswith(END_OF_STREAM):
                yield type(event)(data=_END)

            yield event


class _PlainCompletions:
    """The SDK's chat completions, with the JSON objects that the endpoint sent as events of a stream.

    The SDK would convert them to its types, and warn of each value that has another type.
    """

    def __init__(self, sdk: Any, stream_class: type[Any]) -> None:
        self._sdk = sdk
        self._stream_class = stream_class
        self.with_raw_response = sdk.chat.completions.with_raw_response

    def create(self, *, extra_body: JsonMap | None = None, **payload: Any) -> Any:
        """Send a request for a stream; return the stream or, of an async client, a coroutine that returns it."""
        options = {}
        for argument, option in REQUEST_OPTIONS.items():
            value = payload.pop(argument, None)
            if value is not None:
                options[option] = value

        body = {**payload, **(extra_body or {})}
        arguments: JsonMap = {"cast_to": object, "stream": True, "stream_cls": self._stream_class}
        if isinstance(self._sdk, openai.AzureOpenAI | openai.AsyncAzureOpenAI):  # which read the model from the body
            arguments["body"] = body
        else:  # the SDK encodes neither lone surrogates nor NaN
            arguments["content"] = json_bytes(body)

        return self._sdk.post("/chat/completions", options=options, **arguments)


class _RawChunk(AIMessageChunk):
    """A message whose calls are not parsed: LangChain would try each prefix of arguments that are not JSON."""

    @model_validator(mode="after")
    def init_tool_calls(self) -> Self:
        """Leave `tool_calls` empty: `tool_call_chunks` hold the calls."""
        return self


@cache
def _complete_class(kind: type[BaseChatOpenAI]) -> type[CompleteReplies]:
    return type(kind.__name__, (CompleteReplies, kind), {"__module__": kind.__module__})


def with_complete_replies(chat: BaseChatOpenAI) -> CompleteReplies:
    """Return a copy of a chat model whose replies are complete; it shares the connections of the original."""
    copied: Any = chat.model_copy()
    copied.__class__ = _complete_class(type(chat))
    if isinstance(chat.root_client, openai.OpenAI):
        copied.client = _PlainCompletions(chat.root_client, _Documents)

    if isinstance(chat.root_async_client, openai.AsyncOpenAI):
        copied.async_client = _PlainCompletions(chat.root_async_client, _AsyncDocuments)

    return copied  # type: ignore[no-any-return]


def read_completion(document: JsonMap, part: str) -> AIMessageChunk:
    """Read a chat completion, where `part` is "message", or an event of its stream, where it is "delta".

    Raises TypeError: a part of it has the wrong type.
    """
    document = document.get("chunk") or document  # of the SDK's events for structured output
    message: JsonMap = {}
    metadata: JsonMap = {}
    choices = document.get("choices")

    if choices:
        choice = _object(choices[0] if isinstance(choices, list) else choices, "choice")
        if not choice.get("index"):  # not of a second reply
            message = _object(choice.get(part) or {}, part)
            metadata["model_provider"] = "openai"

        if not choice.get("index") and choice.get("finish_reason"):
            metadata |= {"finish_reason": choice["finish_reason"], "model_name": document.get("model")}

    text, thought = _text_and_thought(message.get("content"))
    calls = _calls_in(message)

    return _RawChunk(
        content=text,
        additional_kwargs=_extras(message, thought, calls),
        tool_call_chunks=[_call_chunk(call, place) for place, call in enumerate(calls)],
        usage_metadata=_read_usage(document.get("usage"), document.get("timings")),
        response_metadata=metadata,
    )


def _object(value: Any, name: str) -> JsonMap:
    if not isinstance(value, dict):
        raise TypeError(f"its {name} is {json.dumps(value)[:40]}, not an object")

    return value


def _extras(message: JsonMap, thought: str, calls: list[Any]) -> JsonMap:
    """Return the reasoning, the refusal and the added fields of calls, as `additional_kwargs`."""
    extras: JsonMap = {}
    reasoning = text_of(message.get(REASONING)) + thought
    if reasoning:
        extras[REASONING] = reasoning
    elif message.get("reasoning"):
        extras["reasoning"] = text_of(message["reasoning"])

    if message.get("refusal"):
        extras["refusal"] = str(message["refusal"])

    if isinstance(message.get(REASONING_DETAILS), list):
        extras[REASONING_DETAILS] = message[REASONING_DETAILS]

    added_fields = []
    for call in calls:
        fields = {}
        if isinstance(call, dict):
            fields = {name: value for name, value in call.items() if name not in _CALL_FIELDS and value is not None}

        added_fields.append(fields)

    if any(added_fields):
        extras[TOOL_CALL_EXTRAS] = added_fields

    return extras


def _calls_in(message: JsonMap) -> list[Any]:
    """Return the calls as the endpoint sent them. A null is no call; a call outside of a list counts as one."""
    calls = message.get("tool_calls")
    if not calls and message.get("function_call"):  # of the API before tools
        calls = {"function": message["function_call"]}

    if not calls:
        return []
    if not isinstance(calls, list):
        return [calls]

    return [call for call in calls if call is not None]


def _call_chunk(call: Any, place: int) -> ToolCallChunk:
    """Return a call of any shape; one that has no function or no name is a call without a name."""
    if not isinstance(call, dict):
        call = {"index": -1 - place, "function": call}

    function = call.get("function")
    if function is None and "name" in call:
        function = call

    if not isinstance(function, dict):
        function = {"arguments": function}

    name = function.get("name")
    if name is not None:
        name = text_of(name)

    call_id = call.get("id")
    if call_id is not None:
        call_id = text_of(call_id)

    index: Any = call.get("index")
    if not isinstance(index, int | str):
        index = None

    arguments = text_of(function.get("arguments"))
    return ToolCallChunk(type="tool_call_chunk", name=name, args=arguments, id=call_id, index=index)


def _text_and_thought(content: Any) -> tuple[str, str]:
    """Return the text and the reasoning of a message's content, which is a text or a list of blocks."""
    if not isinstance(content, list):
        return text_of(content), ""

    text = ""
    thought = ""

    for block in content:
        if not isinstance(block, dict):
            text += text_of(block)
        elif block.get("type") == "text":
            text += text_of(block.get("text"))
        elif block.get("type") == "thinking":
            thinking = block.get("thinking")
            if isinstance(thinking, list):
                thinking, _ = _text_and_thought(thinking)

            thought += text_of(thinking)

    return text, thought


def _read_usage(usage: Any, timings: Any) -> UsageMetadata | None:
    """Read an endpoint's `usage` and llama.cpp's `timings`; return None if both are missing.

    Each kind of endpoint counts the tokens of its cache in another field.
    """
    usage = _mapping(usage)
    timings = _mapping(timings)
    if not usage and not timings:
        return None

    input_details = _mapping(usage.get("prompt_tokens_details"))
    output_details = _mapping(usage.get("completion_tokens_details"))
    input_tokens = _first_count(usage.get("prompt_tokens"), usage.get("input_tokens"))
    output_tokens = _first_count(usage.get("completion_tokens"), usage.get("output_tokens"))
    cache_read = _first_count(
        input_details.get("cached_tokens"),
        usage.get("cache_read_input_tokens"),
        usage.get("prompt_cache_hit_tokens"),
        timings.get("cache_n"),
    )
    cache_written = _first_count(
        input_details.get("cache_write_tokens"),
        usage.get("cache_creation_input_tokens"),
    )

    return UsageMetadata(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
        input_token_details=InputTokenDetails(cache_read=cache_read, cache_creation=cache_written),
        output_token_details=OutputTokenDetails(reasoning=countable(output_details.get("reasoning_tokens"))),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value

    return {}


def _first_count(*counts: Any) -> int:
    """Return the first count that is a positive number, or 0."""
    return next((countable(count) for count in counts if countable(count)), 0)
