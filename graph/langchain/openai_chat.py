"""ChatOpenAI for OpenAI-compatible endpoints: messages handed over as they are, and nothing lost that comes back.

The openai SDK walks every message of a request and every event of a stream against its types, which is nine tenths of a
step's CPU at 200 steps; its own `post` does not. And LangChain drops what it does not know of a reply: reasoning,
signatures, calls without an index, counts of caches.
Source: measured on openai 3.51 and langchain-openai 1.7, 23 of 30 ms a step.
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager, suppress
from functools import cache
from threading import Timer
from typing import Any, Final, NamedTuple, cast

import httpx2
import openai
from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata, subtract_usage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai.chat_models.base import BaseChatOpenAI, ChatOpenAI
from openai._streaming import SSEDecoder
from openai._types import RequestOptions
from pydantic import Field

from mendgraph.graph.langchain.failures import NEW_LIMIT, OLD_LIMIT
from mendgraph.graph.langchain.reply_limits import NOT_COMPRESSED, abound_response, bound_response
from mendgraph.nodes.call_model.prompts.estimates import countable
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.language.chat_messages import json_bytes
from mendgraph.nodes.language.history import REASONING, REASONING_DETAILS, TOOL_CALL_EXTRAS
from mendgraph.nodes.records import JsonMap

_CALL_FIELDS: Final = frozenset({"id", "type", "function", "index"})
"""Fields of a tool call that LangChain knows; all others go back as they came."""


class KeepsExtras(BaseChatOpenAI, defer_build=True):
    """What is mixed into a chat model of langchain-openai's family, whoever made it."""

    def takes_prompts(self, prompt: Prompt) -> bool:
        """Whether a prompt can be handed over, which only the chat completions API allows."""
        return not self._use_responses_api({**self._default_params, "tools": list(prompt.tools)})

    def _get_request_payload(self, input_: Any, *, stop: list[str] | None = None, **kwargs: Any) -> JsonMap:
        prompt = kwargs.pop("prompt", None)
        limit_name = kwargs.pop("limit_name", None)
        if not isinstance(prompt, Prompt):
            return super()._get_request_payload(input_, stop=stop, **kwargs)

        payload = super()._get_request_payload([], stop=stop, **kwargs)
        limit = next((payload.pop(name) for name in (OLD_LIMIT, NEW_LIMIT) if payload.get(name) is not None), None)
        if limit is not None:
            payload[limit_name or NEW_LIMIT] = limit

        tools = {"tools": list(prompt.tools)} if prompt.tools else {}
        return {**payload, **tools, "messages": media_after_results(prompt.messages)}

    def parts(self, **options: Any) -> "Iterator[AIMessageChunk | PlainPart]":
        """The parts of the reply to a `prompt`, as they come, without LangChain's stream around them.

        Raises what the SDK raises, and ValueError: nothing came.
        """
        if self.rate_limiter:
            self.rate_limiter.acquire(blocking=True)

        reader = _PartReader(self)
        with closing(self._documents(self._stream_payload(options))) as documents:
            for document in documents:
                if (part := reader.part(document)) is not None:
                    yield part

        yield from reader.end()

    async def aparts(self, **options: Any) -> "AsyncGenerator[AIMessageChunk | PlainPart]":
        """The same in an event loop."""
        if self.rate_limiter:
            await self.rate_limiter.aacquire(blocking=True)

        reader = _PartReader(self)
        async with aclosing(self._adocuments(self._stream_payload(options))) as documents:
            async for document in documents:
                if (part := reader.part(document)) is not None:
                    yield part

        for part in reader.end():
            yield part

    def _stream_payload(self, options: JsonMap) -> JsonMap:
        if self.stream_usage:
            options["stream_options"] = {"include_usage": True}

        return self._get_request_payload([], stream=True, **options)

    def _documents(self, payload: JsonMap) -> Generator[JsonMap]:
        """The events of a stream as plain documents: its body and its events need no types."""
        client = self.root_client
        post = _post_options(payload, by_model=isinstance(client, openai.AzureOpenAI))
        events: openai.Stream[Any] = client.post("/chat/completions", stream_cls=openai.Stream[object], **post)

        with events:
            bound_response(events.response)
            yield from events

    async def _adocuments(self, payload: JsonMap) -> AsyncGenerator[JsonMap]:
        """The same in an event loop."""
        client = self.root_async_client
        post = _post_options(payload, by_model=isinstance(client, openai.AsyncAzureOpenAI))
        events: openai.AsyncStream[Any]
        events = await client.post("/chat/completions", stream_cls=openai.AsyncStream[object], **post)
        async with events:
            await abound_response(events.response)
            async for document in events:
                yield document

    def _convert_chunk_to_generation_chunk(
        self, chunk: JsonMap, default_chunk_class: type, base_generation_info: JsonMap | None
    ) -> ChatGenerationChunk | None:
        usage = usage_of(chunk.get("usage"), chunk.get("timings"))
        choice = _choice(chunk)
        extras = JsonMap()
        plain = {**chunk, "usage": None, "choices": []}
        index = choice.get("index") if choice else None
        if choice is not None and not (isinstance(index, int) and index > 0):  # which is part of another reply
            delta = _object(choice.get("delta") or {}, "delta")
            fields, extras = _read(delta)
            plain["choices"] = [{**choice, "delta": {**fields, "tool_calls": _call_parts(delta) or None}}]
        converted = super()._convert_chunk_to_generation_chunk(plain, default_chunk_class, base_generation_info)
        if converted is not None and isinstance(converted.message, AIMessageChunk):
            converted.message.usage_metadata = usage
            converted.message.additional_kwargs |= extras
        return converted

    def _create_chat_result(self, response: Any, generation_info: JsonMap | None = None) -> ChatResult:
        if isinstance(response, dict):
            document = response
        else:
            document = response.model_dump(warnings=False)
        if document.get("error"):
            return super()._create_chat_result(document, generation_info)  # which raises it
        choice = _choice(document)
        if choice is None:
            raise ValueError("its choices are empty")
        content = _object(choice.get("message"), "message")
        fields, additions = _read(content)
        plain = {**document, "usage": None, "choices": [{**choice, "message": fields}]}
        result = super()._create_chat_result(plain, generation_info)
        message = result.generations[0].message
        if isinstance(message, AIMessage):
            extras = _Extras()
            message.additional_kwargs |= extras.without_pieces(additions) | extras.rest()
            message.usage_metadata = usage_of(document.get("usage"), document.get("timings"))
            # As raw text: LangChain would decode their arguments, and take `false` for {}.
            message.invalid_tool_calls = [
                InvalidToolCall(
                    type="invalid_tool_call",
                    id=part["id"],
                    name=part["function"]["name"],
                    args=part["function"]["arguments"],
                    error=None,
                )
                for part in _call_parts(content)
            ]
        return result


REQUEST_OPTIONS: Final = {"extra_headers": "headers", "extra_query": "params", "timeout": "timeout"}
"""What of a payload is no part of the body."""


def _body(payload: JsonMap) -> JsonMap:
    body = {**payload, **(payload.get("extra_body") or {})}
    return {name: value for name, value in body.items() if name not in REQUEST_OPTIONS and name != "extra_body"}


def _post_options(payload: JsonMap, *, by_model: bool) -> JsonMap:
    """How the SDK posts a payload; `by_model` says that the body's model is a part of its path, as Azure has it."""
    options = {option: payload.pop(name) for name, option in REQUEST_OPTIONS.items() if payload.get(name) is not None}
    options["headers"] = {**NOT_COMPRESSED, **options.get("headers", {})}
    body = _body(payload)
    content: JsonMap = {"body": body} if by_model else {"content": json_bytes(body)}
    return {"cast_to": object, "options": cast("RequestOptions", options), "stream": True, **content}


class _PartReader:
    """Makes parts of the documents of one stream."""

    def __init__(self, chat: KeepsExtras) -> None:
        self._chat = chat
        self._extras = _Extras()
        self._is_empty = True

    def part(self, document: JsonMap) -> "AIMessageChunk | PlainPart | None":
        """The part that a document is, None where it says nothing."""
        self._is_empty = False
        part = _plain_part(document)
        if part is None:
            return self._any_part(document)
        for index, call_id, *_ in part.calls:
            if call_id and index is not None:
                self._extras.ids[index] = call_id
        return part

    def _any_part(self, document: JsonMap) -> AIMessageChunk | None:
        chunk = self._chat._convert_chunk_to_generation_chunk(document, AIMessageChunk, None)  # noqa: SLF001 - ours
        if chunk is None or not isinstance(part := chunk.message, AIMessageChunk):
            return None
        part.response_metadata = {**(chunk.generation_info or {}), **part.response_metadata}
        self._extras.take(part)
        if part.response_metadata.get("finish_reason"):  # the connection may break after it
            part.additional_kwargs |= self._extras.rest()
        return part

    def end(self) -> Iterator[AIMessageChunk]:
        """What remains to be said at the end of the stream.

        Raises:
            ValueError: nothing came.
        """
        if self._is_empty:
            raise ValueError("its stream is empty")
        if extras := self._extras.rest():
            yield AIMessageChunk(content="", additional_kwargs=extras)


class Clients:
    """HTTP clients of one endpoint in one event loop, each with a few requests at a time.

    A client looks at each of its connections when a request begins, and again when it ends: with 64 runs in one event
    loop that was an eighth of their CPU time.
    """

    def __init__(self, new: Callable[[], httpx2.AsyncClient]) -> None:
        self.first = new()
        self._new = new
        self._requests = Counter({self.first: 0})

    @contextmanager
    def one(self) -> Iterator[httpx2.AsyncClient]:
        """A client for one request, which ends with the context."""
        free = (client for client, requests in self._requests.items() if requests < _MOST_REQUESTS)
        client = next(free, None) or self._new()
        self._requests[client] += 1
        try:
            yield client
        finally:
            self._requests[client] -= 1

    async def aclose(self) -> None:
        """Close the connections of all."""
        for client in [*self._requests]:
            await client.aclose()


_MOST_REQUESTS: Final = 8


class EndpointChat(KeepsExtras, ChatOpenAI):
    """The chat model of an OpenAI-compatible endpoint that is given by its address and a model's name.

    It sends sync requests by `http_client`, or those of one event loop by `http_clients`, without the SDK's own way,
    which costs half as much again.
    """

    http_clients: Clients | None = Field(default=None, exclude=True, repr=False)

    def _documents(self, payload: JsonMap) -> Generator[JsonMap]:
        http: Any = self.http_client
        request = self._build_request(http, self.root_client, payload)
        with _as_sdk_errors(request), closing(http.send(request, stream=True)) as response:
            if not response.is_success:
                response.read()
                raise self.root_client._make_status_error_from_response(response)  # noqa: SLF001 - as the SDK does
            yield from _events(response, request)

    async def _adocuments(self, payload: JsonMap) -> AsyncGenerator[JsonMap]:
        assert self.http_clients is not None  # noqa: S101 - of a chat model for an event loop
        client = self.root_async_client
        with self.http_clients.one() as http:
            request = self._build_request(http, client, payload)
            with _as_sdk_errors(request):
                async with aclosing(await http.send(request, stream=True)) as response:
                    if not response.is_success:
                        await response.aread()
                        raise client._make_status_error_from_response(response)  # noqa: SLF001 - as the SDK does
                    async with aclosing(_aevents(response, request)) as events:
                        async for event in events:
                            yield event

    def _build_request(self, http: Any, client: Any, payload: JsonMap) -> httpx2.Request:
        headers = {name: value for name, value in client.default_headers.items() if not name.startswith("X-Stainless-")}
        headers |= {**client.auth_headers, **(payload.get("extra_headers") or {})}
        request: httpx2.Request = http.build_request(
            "POST",
            client.base_url.join("chat/completions"),
            headers={name: value for name, value in headers.items() if not isinstance(value, openai.Omit)},
            params={**client.default_query, **(payload.get("extra_query") or {})},
            content=json_bytes(_body(payload)),
            timeout=payload.get("timeout") or http.timeout,
        )
        return request


@contextmanager
def _as_sdk_errors(request: httpx2.Request) -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException as error:
        raise openai.APITimeoutError(request) from error
    except (httpx2.RequestError, httpx2.StreamError) as error:
        raise openai.APIConnectionError(request=request) from error


def _events(response: httpx2.Response, request: httpx2.Request) -> Iterator[JsonMap]:
    pieces = response.iter_bytes()
    reader = _EventReader(request)
    for event in SSEDecoder().iter_bytes(pieces):
        yield from reader.documents(event)
        if reader.is_done:
            break
    _read_end(response, pieces)


def _read_end(response: httpx2.Response, pieces: Iterator[bytes]) -> None:
    """Read what ends a response, so that its connection is used again; one that does not end in time is broken."""
    stream = response.extensions.get("network_stream")
    if stream is None:  # of a transport without connections
        return

    def break_off() -> None:
        with suppress(OSError):
            stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    timer = Timer(_END_S, break_off)
    timer.daemon = True
    timer.start()
    try:
        with suppress(httpx2.HTTPError):
            for _ in pieces:
                pass
    finally:
        timer.cancel()


async def _aevents(response: httpx2.Response, request: httpx2.Request) -> AsyncGenerator[JsonMap]:
    pieces = response.aiter_bytes()
    reader = _EventReader(request)
    async with aclosing(cast("AsyncGenerator[Any]", SSEDecoder().aiter_bytes(pieces))) as events:
        async for event in events:
            for document in reader.documents(event):
                yield document
            if reader.is_done:
                break
    with suppress(TimeoutError):  # what ends it, so that the connection is used again
        async with asyncio.timeout(_END_S):
            async for _ in pieces:
                pass


_END_S: Final = 0.1
"""How long an answer may take to end after its last event. Source: the openai SDK."""


class _EventReader:
    """Makes documents of the events of one stream."""

    def __init__(self, request: httpx2.Request) -> None:
        self._request = request
        self._finish_reason = None
        self.is_done = False

    def documents(self, event: Any) -> Iterator[JsonMap]:
        """The document of an event. The last event is one that ends the reply, where none did before.

        Raises:
            openai.APIError: it is an error.
        """
        if event.data.startswith("[DONE]"):
            self.is_done = True
            if self._finish_reason is None:
                yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "[DONE]"}]}
            return
        document = event.json()
        if isinstance(document, dict) and (error := document.get("error")):
            message = error.get("message") if isinstance(error, dict) else None
            raise openai.APIError(str(message or "An error occurred in the stream"), self._request, body=error)
        choices = None
        if isinstance(document, dict):
            choices = document.get("choices")
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            self._finish_reason = self._finish_reason or choices[0].get("finish_reason")
        yield document


class PlainPart(NamedTuple):
    """A part of a reply that is text, or pieces of calls as (index, id, name, arguments), as nearly all are."""

    text: str
    calls: "Sequence[tuple[int | str | None, str | None, str | None, str]]"


def _plain_part(document: JsonMap) -> PlainPart | None:
    choices = document.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or document.get("usage") or document.get("timings"):
        return None
    choice = choices[0]
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict) or choice.get("index") or choice.get("finish_reason") is not None:
        return None
    if any(value is not None and name not in _PLAIN for name, value in delta.items()):
        return None
    content = delta.get("content")
    calls = _parts(delta)
    if not isinstance(content, str | None) or any(
        type(call) is not dict or call.keys() - _CALL_FIELDS for call in calls
    ):
        return None
    parts = _call_parts(delta) if calls else ()
    pieces = [(part["index"], part["id"], *part["function"].values()) for part in parts]
    return PlainPart(content or "", pieces)


_PLAIN: Final = frozenset({"role", "content", "tool_calls"})


@cache
def _kept(kind: type[BaseChatOpenAI]) -> type[KeepsExtras]:
    return type(kind.__name__, (KeepsExtras, kind), {"__module__": kind.__module__})


def keeping_extras(chat: BaseChatOpenAI) -> KeepsExtras:
    """A copy of the user's own chat model that keeps what comes back; its connections are those of the original."""
    copied = chat.model_copy()
    copied.__class__ = _kept(type(chat))
    assert isinstance(copied, KeepsExtras)  # noqa: S101 - which it was just made
    return copied


def media_after_results(messages: Iterable[JsonMap]) -> list[JsonMap]:
    """The messages, with a user's message behind results that hold images or files: this API takes these from no tool.

    Source: OpenAI's API reference, "Create chat completion", content of tool messages.
    """
    sent = list[JsonMap]()
    media = list[JsonMap]()
    for message in messages:
        if media and message["role"] != "tool":
            sent.append({"role": "user", "content": media})
            media = []
        content = message["content"]
        if message["role"] == "tool" and isinstance(content, list):
            said = "".join(block["text"] for block in content if block["type"] == "text")
            media += [block for block in content if block["type"] != "text"]
            message = {**message, "content": said or "It follows the results."}  # noqa: PLW2901 - as it is sent
        sent.append(message)
    return [*sent, {"role": "user", "content": media}] if media else sent


def usage_of(usage: Any, timings: Any) -> UsageMetadata | None:
    """An endpoint's own count of tokens; None where it tells none. Caches are counted in another place by each kind."""
    usage, timings = (mapping if isinstance(mapping, Mapping) else {} for mapping in (usage, timings))
    if not usage and not timings:
        return None
    input_tokens = countable(usage.get("prompt_tokens") or usage.get("input_tokens"))
    output_tokens = countable(usage.get("completion_tokens") or usage.get("output_tokens"))
    read = usage.get("prompt_tokens_details")
    details = usage.get("completion_tokens_details")
    read, details = (mapping if isinstance(mapping, Mapping) else {} for mapping in (read, details))
    cached = (
        read.get("cached_tokens"),
        usage.get("cache_read_input_tokens"),
        usage.get("prompt_cache_hit_tokens"),
        timings.get("cache_n"),
    )
    written = (read.get("cache_write_tokens"), usage.get("cache_creation_input_tokens"))
    return UsageMetadata(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
        input_token_details=InputTokenDetails(cache_read=_first(cached), cache_creation=_first(written)),
        output_token_details=OutputTokenDetails(reasoning=countable(details.get("reasoning_tokens"))),
    )


def _first(counts: tuple[Any, ...]) -> int:
    return next((count for count in map(countable, counts) if count), 0)


def _object(value: Any, name: str) -> JsonMap:
    if not isinstance(value, dict):
        raise TypeError(f"its {name} is {json.dumps(value)[:40]}, not an object")
    return value


def _choice(document: JsonMap) -> JsonMap | None:
    choices = document.get("choices")
    return _object(choices[0] if isinstance(choices, list) else choices, "choice") if choices else None


def _read(delta: JsonMap) -> tuple[JsonMap, JsonMap]:
    """A part of a reply, or a whole message, but for its calls: as LangChain takes it, and what is kept beside that."""
    content, thought = _texts(delta.get("content"))
    extras: JsonMap = {}
    for name in (REASONING, "reasoning"):
        if text := text_of(delta.get(name)) + (thought if name == REASONING else ""):
            extras[name] = text
            break
    if delta.get("refusal"):
        extras["refusal"] = str(delta["refusal"])
    if isinstance(delta.get(REASONING_DETAILS), list):
        extras[REASONING_DETAILS] = delta[REASONING_DETAILS]
    parts = [part for part in _parts(delta) if isinstance(part, dict)]
    if added := [(part, {k: v for k, v in part.items() if k not in _CALL_FIELDS and v is not None}) for part in parts]:
        extras[TOOL_CALL_EXTRAS] = [{"at": _at(part), "fields": fields} for part, fields in added if fields]
    return {**delta, "role": "assistant", "content": content, "tool_calls": None, "function_call": None}, extras


def _parts(delta: JsonMap) -> list[Any]:
    """The calls, or parts of calls, as they came. A null is none, and one that stands alone is no list's."""
    calls = delta.get("tool_calls")
    if not calls and delta.get("function_call"):  # of the API before tools
        calls = {"function": delta["function_call"]}
    parts = calls if isinstance(calls, list) else [calls] if calls else []
    return [part for part in parts if part is not None]


def _call_parts(delta: JsonMap) -> list[JsonMap]:
    return [_call_part(part, place) for place, part in enumerate(_parts(delta))]


def _call_part(part: Any, place: int) -> JsonMap:
    fields = part if isinstance(part, dict) else {"index": -1 - place, "function": part}
    function = fields.get("function")
    if function is None and "name" in fields:
        function = fields
    if not isinstance(function, dict):
        function = {"arguments": function}
    name = function.get("name")
    arguments = text_of(function.get("arguments"))
    named = {"name": name if name is None else text_of(name), "arguments": arguments}
    return {**_at(fields), "type": "function", "function": named}


def _at(part: JsonMap) -> JsonMap:
    call_id = part.get("id")
    index = part.get("index")
    return {
        "id": None if call_id is None or isinstance(call_id, dict | list) else str(call_id),
        "index": index if isinstance(index, int | str) else None,
    }


def _texts(content: Any) -> tuple[str, str]:
    if not isinstance(content, list):
        return text_of(content), ""
    parts = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in content]
    texts = (text_of(part.get("text")) for part in parts if part.get("type") == "text")
    thinking = (part.get("thinking") for part in parts if part.get("type") == "thinking")
    thought = (_texts(part)[0] if isinstance(part, list) else text_of(part) for part in thinking)
    return "".join(texts), "".join(thought)


def text_of(value: Any) -> str:
    """A text as it is, nothing as "", and what is neither as JSON."""
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


class _Extras:
    """What of a stream comes in pieces that LangChain does not join: counts, fields of tool calls."""

    def __init__(self) -> None:
        self._usage: UsageMetadata | None = None
        self._calls: JsonMap = {}
        self.ids: dict[Any, str] = {}

    def take(self, message: AIMessageChunk) -> None:
        """Take them out of a part, and leave what its count adds to the last one, as some endpoints count up."""
        if (usage := message.usage_metadata) is not None:
            self._usage, message.usage_metadata = usage, subtract_usage(usage, self._usage)
        for part in message.tool_call_chunks:
            if part["id"] and part["index"] is not None:
                self.ids[part["index"]] = part["id"]
        message.additional_kwargs = self.without_pieces(message.additional_kwargs)

    def without_pieces(self, kept: JsonMap) -> JsonMap:
        """What is kept of a part, without what is kept here."""
        for extra in kept.get(TOOL_CALL_EXTRAS) or ():
            call_id = extra["at"]["id"] or self.ids.get(extra["at"]["index"])
            if call_id:
                self._calls.setdefault(str(call_id), {}).update(extra["fields"])
        return {name: value for name, value in kept.items() if name != TOOL_CALL_EXTRAS}

    def rest(self) -> JsonMap:
        """What has been taken out so far and was not given back yet."""
        extras: JsonMap = {TOOL_CALL_EXTRAS: self._calls} if self._calls else {}
        self._calls = {}
        return extras
