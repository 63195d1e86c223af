"""ChatOpenAI for OpenAI-compatible endpoints: it sends prompts without conversion, and keeps all of a reply.

The openai SDK walks every message of a request and every event of a stream against its types, which is nine tenths of a
step's CPU at 200 steps; its `post` with plain objects does not. `EndpointChat` sends without the SDK: in an event loop
that takes 2.7 ms of CPU a request instead of 4.0, and a sync connection is used again after its stream.
Source: measured on openai 3.51 and langchain-openai 1.7, 23 of 30 ms a step.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from functools import cache
from threading import Timer
from typing import Any, Final, cast

import httpx2
import openai
from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_openai.chat_models.base import BaseChatOpenAI, ChatOpenAI
from openai._streaming import SSEDecoder
from openai._types import RequestOptions
from pydantic import Field

from mendgraph.graph.langchain.failures import NEW_LIMIT, OLD_LIMIT
from mendgraph.graph.langchain.openai_documents import (
    PlainPart,
    StreamExtras,
    call_parts,
    choice_of,
    object_of,
    plain_part,
    read_message,
    usage_of,
)
from mendgraph.graph.langchain.reply_limits import NOT_COMPRESSED, abound_response, bound_response
from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.language.chat_messages import json_bytes
from mendgraph.nodes.records import JsonMap

REQUEST_OPTIONS: Final = {"extra_headers": "headers", "extra_query": "params", "timeout": "timeout"}
"""Entries of a payload that are options of the SDK's request, by the SDK's names, and no part of the body."""


class ExtrasMixin(BaseChatOpenAI, defer_build=True):
    """Mixed into a chat model of langchain-openai's family: reads replies without losing what LangChain drops."""

    def takes_prompts(self, prompt: Prompt) -> bool:
        """Whether a prompt can be sent without conversion, which only the chat completions API allows."""
        return not self._use_responses_api({**self._default_params, "tools": list(prompt.tools)})

    def _get_request_payload(self, input_: Any, *, stop: list[str] | None = None, **kwargs: Any) -> JsonMap:
        prompt = kwargs.pop("prompt", None)
        limit_name = kwargs.pop("limit_name", None)
        if not isinstance(prompt, Prompt):
            return super()._get_request_payload(input_, stop=stop, **kwargs)

        payload = super()._get_request_payload([], stop=stop, **kwargs)
        for name in (OLD_LIMIT, NEW_LIMIT):
            if payload.get(name) is not None:
                payload[limit_name or NEW_LIMIT] = payload.pop(name)
                break

        if prompt.tools:
            payload["tools"] = list(prompt.tools)

        payload["messages"] = media_after_results(prompt.messages)
        return payload

    def parts(self, **options: Any) -> Iterator[AIMessageChunk | PlainPart]:
        """Stream the parts of the reply to the option `prompt`, without LangChain's stream around them.

        Raises what the SDK raises, and ValueError: the stream is empty.
        """
        if self.rate_limiter:
            self.rate_limiter.acquire(blocking=True)

        reader = _PartReader(self)
        with closing(self._documents(self._stream_payload(options))) as documents:
            for document in documents:
                part = reader.part(document)
                if part is not None:
                    yield part

        yield from reader.end()

    async def aparts(self, **options: Any) -> AsyncGenerator[AIMessageChunk | PlainPart]:
        """Stream the parts of the reply in an event loop; see `parts`."""
        if self.rate_limiter:
            await self.rate_limiter.aacquire(blocking=True)

        reader = _PartReader(self)
        async with aclosing(self._adocuments(self._stream_payload(options))) as documents:
            async for document in documents:
                part = reader.part(document)
                if part is not None:
                    yield part

        for part in reader.end():
            yield part

    def _stream_payload(self, options: JsonMap) -> JsonMap:
        if self.stream_usage:
            options["stream_options"] = {"include_usage": True}

        return self._get_request_payload([], stream=True, **options)

    def _documents(self, payload: JsonMap) -> Generator[JsonMap]:
        """Send the payload by the SDK, without its types; yields the events of the stream as JSON objects."""
        client = self.root_client
        post = _post_options(payload, model_in_path=isinstance(client, openai.AzureOpenAI))
        events: openai.Stream[Any] = client.post("/chat/completions", stream_cls=openai.Stream[object], **post)

        with events:
            bound_response(events.response)
            yield from events

    async def _adocuments(self, payload: JsonMap) -> AsyncGenerator[JsonMap]:
        client = self.root_async_client
        post = _post_options(payload, model_in_path=isinstance(client, openai.AsyncAzureOpenAI))
        events: openai.AsyncStream[Any]
        events = await client.post("/chat/completions", stream_cls=openai.AsyncStream[object], **post)

        async with events:
            await abound_response(events.response)
            async for document in events:
                yield document

    def _convert_chunk_to_generation_chunk(
        self, chunk: JsonMap, default_chunk_class: type, base_generation_info: JsonMap | None
    ) -> ChatGenerationChunk | None:
        plain = {**chunk, "usage": None, "choices": []}
        extras: JsonMap = {}
        choice = choice_of(chunk)

        if choice is not None and not _is_other_reply(choice):
            delta = object_of(choice.get("delta") or {}, "delta")
            message, extras = read_message(delta)
            message["tool_calls"] = call_parts(delta) or None
            plain["choices"] = [{**choice, "delta": message}]

        converted = super()._convert_chunk_to_generation_chunk(plain, default_chunk_class, base_generation_info)
        if converted is not None and isinstance(converted.message, AIMessageChunk):
            converted.message.usage_metadata = usage_of(chunk.get("usage"), chunk.get("timings"))
            converted.message.additional_kwargs |= extras

        return converted

    def _create_chat_result(self, response: Any, generation_info: JsonMap | None = None) -> ChatResult:
        document = response
        if not isinstance(response, dict):
            document = response.model_dump(warnings=False)

        if document.get("error"):
            return super()._create_chat_result(document, generation_info)  # which raises it

        choice = choice_of(document)
        if choice is None:
            raise ValueError("its choices are empty")

        message = object_of(choice.get("message"), "message")
        plain_message, extras = read_message(message)
        plain = {**document, "usage": None, "choices": [{**choice, "message": plain_message}]}
        result = super()._create_chat_result(plain, generation_info)
        reply = result.generations[0].message

        if isinstance(reply, AIMessage):
            calls = StreamExtras()
            reply.additional_kwargs |= calls.take_call_fields(extras) | calls.flush()
            reply.usage_metadata = usage_of(document.get("usage"), document.get("timings"))
            reply.invalid_tool_calls = [_raw_call(part) for part in call_parts(message)]

        return result


def _is_other_reply(choice: JsonMap) -> bool:
    """Whether a choice of a stream is a part of a second reply."""
    index = choice.get("index")
    return isinstance(index, int) and index > 0


def _raw_call(part: JsonMap) -> InvalidToolCall:
    """A call with its arguments as raw text: LangChain would decode them, and read `false` as {}."""
    function = part["function"]
    return InvalidToolCall(
        type="invalid_tool_call", id=part["id"], name=function["name"], args=function["arguments"], error=None
    )


def _body(payload: JsonMap) -> JsonMap:
    body = {**payload, **(payload.get("extra_body") or {})}
    body.pop("extra_body", None)
    return {name: value for name, value in body.items() if name not in REQUEST_OPTIONS}


def _post_options(payload: JsonMap, *, model_in_path: bool) -> JsonMap:
    """The SDK's arguments for a payload; `model_in_path`: the SDK reads the model from the body, as Azure needs it."""
    options = {}
    for name, option in REQUEST_OPTIONS.items():
        if payload.get(name) is not None:
            options[option] = payload.pop(name)

    options["headers"] = {**NOT_COMPRESSED, **options.get("headers", {})}
    arguments: JsonMap = {"cast_to": object, "options": cast("RequestOptions", options), "stream": True}
    body = _body(payload)
    if model_in_path:
        arguments["body"] = body
    else:
        arguments["content"] = json_bytes(body)

    return arguments


class _PartReader:
    """Reads the documents of one stream."""

    def __init__(self, chat: ExtrasMixin) -> None:
        self._chat = chat
        self._extras = StreamExtras()
        self._is_empty = True

    def part(self, document: JsonMap) -> AIMessageChunk | PlainPart | None:
        """The part of the reply that a document holds, None where it holds none."""
        self._is_empty = False
        part = plain_part(document)
        if part is None:
            return self._converted(document)

        for index, call_id, *_ in part.calls:
            if call_id and index is not None:
                self._extras.call_ids[index] = call_id

        return part

    def _converted(self, document: JsonMap) -> AIMessageChunk | None:
        chunk = self._chat._convert_chunk_to_generation_chunk(document, AIMessageChunk, None)  # noqa: SLF001 - ours
        if chunk is None or not isinstance(chunk.message, AIMessageChunk):
            return None

        part = chunk.message
        part.response_metadata = {**(chunk.generation_info or {}), **part.response_metadata}
        self._extras.take_from(part)
        if part.response_metadata.get("finish_reason"):  # the connection may break after it
            part.additional_kwargs |= self._extras.flush()

        return part

    def end(self) -> Iterator[AIMessageChunk]:
        """The last part, with the extras that no other part holds. Raises ValueError: the stream was empty."""
        if self._is_empty:
            raise ValueError("its stream is empty")

        extras = self._extras.flush()
        if extras:
            yield AIMessageChunk(content="", additional_kwargs=extras)


# --- Endpoints, by plain HTTP


_MOST_REQUESTS: Final = 8
"""Requests at a time of one client.

A client checks each of its connections when a request begins and when it ends: with 64 runs in one event loop that was
an eighth of their CPU time.
"""


class ClientPool:
    """HTTP clients of one endpoint in one event loop, each with at most `_MOST_REQUESTS` requests at a time."""

    def __init__(self, new: Callable[[], httpx2.AsyncClient]) -> None:
        self.first = new()
        self._new = new
        self._requests = Counter({self.first: 0})

    @contextmanager
    def client(self) -> Iterator[httpx2.AsyncClient]:
        """A client for one request, which ends with the context."""
        client = self._free_client()
        self._requests[client] += 1
        try:
            yield client
        finally:
            self._requests[client] -= 1

    def _free_client(self) -> httpx2.AsyncClient:
        for client, requests in self._requests.items():
            if requests < _MOST_REQUESTS:
                return client

        return self._new()

    async def aclose(self) -> None:
        """Close the connections of all clients."""
        for client in list(self._requests):
            await client.aclose()


class EndpointChat(ExtrasMixin, ChatOpenAI):
    """The chat model of an OpenAI-compatible endpoint, which an address and a model's name identify.

    It sends sync requests by `http_client`, and those of one event loop by `http_clients`.
    """

    http_clients: ClientPool | None = Field(default=None, exclude=True, repr=False)

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
        with self.http_clients.client() as http:
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
        headers = {**client.default_headers, **client.auth_headers, **(payload.get("extra_headers") or {})}
        for name, value in list(headers.items()):
            if name.startswith("X-Stainless-") or isinstance(value, openai.Omit):
                del headers[name]

        request: httpx2.Request = http.build_request(
            "POST",
            client.base_url.join("chat/completions"),
            headers=headers,
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


_END_S: Final = 0.1
"""Seconds that a response may take to end after its last event. Source: the openai SDK."""


def _events(response: httpx2.Response, request: httpx2.Request) -> Iterator[JsonMap]:
    """The documents of the events of a stream."""
    pieces = response.iter_bytes()
    reader = _EventReader(request)

    for event in SSEDecoder().iter_bytes(pieces):
        yield from reader.documents(event)
        if reader.is_done:
            break

    _read_end(response, pieces)


def _read_end(response: httpx2.Response, pieces: Iterator[bytes]) -> None:
    """Read the end of a response, so that its connection is used again; one that does not end in time is broken."""
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

    with suppress(TimeoutError):  # reads the end of the response, so that its connection is used again
        async with asyncio.timeout(_END_S):
            async for _ in pieces:
                pass


class _EventReader:
    """Decodes the events of one stream."""

    def __init__(self, request: httpx2.Request) -> None:
        self._request = request
        self._finish_reason = None
        self.is_done = False

    def documents(self, event: Any) -> Iterator[JsonMap]:
        """The document of an event; for [DONE] one that ends the reply, unless another document has ended it.

        Raises openai.APIError: the endpoint sent an error.
        """
        if event.data.startswith("[DONE]"):
            self.is_done = True
            if self._finish_reason is None:
                yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "[DONE]"}]}
            return

        document = event.json()
        if isinstance(document, dict):
            self._raise_error(document.get("error"))
            self._note_finish_reason(document.get("choices"))

        yield document

    def _raise_error(self, error: Any) -> None:
        if not error:
            return

        message = None
        if isinstance(error, dict):
            message = error.get("message")

        raise openai.APIError(str(message or "An error occurred in the stream"), self._request, body=error)

    def _note_finish_reason(self, choices: Any) -> None:
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            self._finish_reason = self._finish_reason or choices[0].get("finish_reason")


# --- Chat models of a user


@cache
def _class_with_extras(kind: type[BaseChatOpenAI]) -> type[ExtrasMixin]:
    return type(kind.__name__, (ExtrasMixin, kind), {"__module__": kind.__module__})


def with_extras(chat: BaseChatOpenAI) -> ExtrasMixin:
    """A copy of a user's chat model that keeps extras; it shares the connections of the original."""
    copied = chat.model_copy()
    copied.__class__ = _class_with_extras(type(chat))
    assert isinstance(copied, ExtrasMixin)  # noqa: S101 - by the line above
    return copied


def media_after_results(messages: Iterable[JsonMap]) -> list[JsonMap]:
    """The messages, with a user's message behind results that hold images or files: this API takes these from no tool.

    Source: OpenAI's API reference, "Create chat completion", content of tool messages.
    """
    sent: list[JsonMap] = []
    media: list[JsonMap] = []

    for message in messages:
        if media and message["role"] != "tool":
            sent.append({"role": "user", "content": media})
            media = []

        if message["role"] == "tool" and isinstance(message["content"], list):
            text = ""
            for block in message["content"]:
                if block["type"] == "text":
                    text += block["text"]
                else:
                    media.append(block)

            sent.append({**message, "content": text or "It follows the results."})
        else:
            sent.append(message)

    if media:
        sent.append({"role": "user", "content": media})

    return sent
