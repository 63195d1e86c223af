"""The only file that talks to a model: one streamed call, sync or async, whose failures are values.

`WireChatOpenAI` hands messages and tools over in `extra_body`, already converted: the openai SDK would otherwise walk
the whole history against every message type at every call, which is nine tenths of a step's CPU.
Source: measured on openai 3.51, 23 of 30 ms a step at 200 steps.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import httpx2
import openai
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI

from nodes.call_model.assembly import ReplyAssembly
from nodes.call_model.endpoint import Endpoint, choose_served_model, find_endpoint
from nodes.call_model.failures import TotalTimeoutError, describe_failure
from nodes.call_model.local_model import shared_local_server
from nodes.call_model.model import Call
from nodes.call_model.schema_probe import SchemaProbe, response_format
from nodes.call_model.weights import embedded_weights
from nodes.language.storable_text import storable
from nodes.records import ModelReply, ProviderErrorKind, ProviderFailure

OPENAI_HOST = "api.openai.com"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
CONNECT_TIMEOUT_S = 10.0

_BAD_DOCUMENT = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What the libraries between raise where an endpoint sends something else than chat completions."""

_FAILURES = (openai.OpenAIError, httpx2.HTTPError, TotalTimeoutError, *_BAD_DOCUMENT)


class WireChatOpenAI(ChatOpenAI):
    """`ChatOpenAI` that sends ready-made messages, and keeps a streamed refusal that it would drop."""

    def _get_request_payload(
        self,
        input_: Any,  # noqa: ARG002 - the name is the base class's; the messages come in `wire`
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        wire = kwargs.pop("wire")
        payload = super()._get_request_payload([], stop=stop, **kwargs)
        payload["messages"] = []
        payload["extra_body"] = {**(payload.get("extra_body") or {}), **wire}
        return payload

    def _convert_chunk_to_generation_chunk(
        self, chunk: dict[str, Any], default_chunk_class: type, base_generation_info: dict[str, Any] | None
    ) -> ChatGenerationChunk | None:
        converted = super()._convert_chunk_to_generation_chunk(chunk, default_chunk_class, base_generation_info)
        delta = (chunk.get("choices") or [{}])[0].get("delta") or {}
        if converted is not None and delta.get("refusal"):
            converted.message.additional_kwargs["refusal"] = delta["refusal"]
        return converted


class OpenAIModel:
    """A model behind an OpenAI-compatible endpoint. One client for sync calls, one for each event loop."""

    def __init__(self, endpoint: Endpoint, transport: Callable[[], httpx2.BaseTransport] | None = None) -> None:
        """Connect lazily; `transport` replaces the network, for tests."""
        plain = endpoint.base_url.startswith("http://")
        self._endpoint = endpoint
        self._verify: ssl.SSLContext | bool = False if plain else ssl.create_default_context()
        # A proxy that the environment names must not come between us and a server on this machine.
        self._trust_env = httpx2.URL(endpoint.base_url).host not in LOOPBACK_HOSTS
        self._sync_client = httpx2.Client(
            verify=self._verify,
            trust_env=self._trust_env,
            transport=transport() if transport else None,
            event_hooks={"response": [_bound_by_deadline]},
        )
        self._chat = self._build(http_client=self._sync_client)
        self._per_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, WireChatOpenAI] = WeakKeyDictionary()
        self._probe = SchemaProbe()

    def complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one call. Returns the reply, or the typed failure of this one try.

        A prompt's schema is left away where the endpoint refuses schemas, which its first refusal shows.
        """
        started = time.monotonic()
        sent = self._probe.as_taken(call)
        result = self._complete(sent, on_text)
        again = self._probe.second_try(sent, result, time.monotonic() - started)
        return self._probe.learned(self._complete(again, on_text)) if again else result

    async def acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        """Make one call without blocking the event loop; otherwise as `complete`."""
        started = time.monotonic()
        sent = self._probe.as_taken(call)
        result = await self._acomplete(sent, on_text)
        again = self._probe.second_try(sent, result, time.monotonic() - started)
        return self._probe.learned(await self._acomplete(again, on_text)) if again else result

    def _complete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        started = time.monotonic()
        assembly = ReplyAssembly()
        try:
            for chunk in self._stream(call):
                _take(chunk, assembly, on_text)
                _check_total_time(started, call.timeout_s)
        except _FAILURES as error:
            return self._failed(_as_deadline(error, call), assembly)
        return _finish(assembly, time.monotonic() - started)

    async def _acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        started = time.monotonic()
        assembly = ReplyAssembly()
        try:
            async with asyncio.timeout(call.timeout_s), aclosing(self._astream(call)) as chunks:
                async for chunk in chunks:
                    _take(chunk, assembly, on_text)
                    _check_total_time(started, call.timeout_s)
        except TimeoutError:
            return self._failed(TotalTimeoutError(call.timeout_s), assembly)
        except _FAILURES as error:
            return self._failed(_as_deadline(error, call), assembly)
        return _finish(assembly, time.monotonic() - started)

    def served_models(self) -> list[str] | ProviderFailure:
        """Ask the endpoint which models it serves."""
        try:
            return [model.id for model in self._chat.root_client.models.list(timeout=CONNECT_TIMEOUT_S)]
        except _FAILURES as error:
            return describe_failure(error, self._endpoint)

    def close(self) -> None:
        """Close the connections for sync calls."""
        self._sync_client.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those for sync calls."""
        chat = self._per_loop.pop(asyncio.get_running_loop(), None)
        if chat is not None and chat.http_async_client is not None:
            await chat.http_async_client.aclose()
        self.close()

    def _failed(self, error: Exception, assembly: ReplyAssembly) -> ProviderFailure:
        failure = describe_failure(error, self._endpoint, begun=assembly.begun)
        return failure.model_copy(update={"received_characters": assembly.characters})

    def _stream(self, call: Call) -> Iterator[AIMessageChunk]:
        yield from self._chat.stream(_traced_input(call), **self._options(call))

    async def _astream(self, call: Call) -> AsyncGenerator[AIMessageChunk, None]:
        chat = await self._chat_of_this_loop()
        async for chunk in chat.astream(_traced_input(call), **self._options(call)):
            yield chunk

    async def _chat_of_this_loop(self) -> WireChatOpenAI:
        loop = asyncio.get_running_loop()
        if loop not in self._per_loop:
            client = httpx2.AsyncClient(verify=self._verify, trust_env=self._trust_env)
            built = await asyncio.to_thread(self._build, http_async_client=client)
            if self._per_loop.setdefault(loop, built) is not built:
                await client.aclose()
        return self._per_loop[loop]

    def _build(self, **clients: Any) -> WireChatOpenAI:
        return WireChatOpenAI(
            model=self._endpoint.model or "unnamed",
            base_url=self._endpoint.base_url or None,
            api_key=self._endpoint.api_key,
            max_retries=0,
            stream_usage=True,
            stream_chunk_timeout=None,
            use_responses_api=False,
            http_client=clients.get("http_client") or self._sync_client,
            http_async_client=clients.get("http_async_client"),
        )

    def _options(self, call: Call) -> dict[str, Any]:
        limit = "max_completion_tokens" if self._is_openai() else "max_tokens"
        wire: dict[str, Any] = {"messages": list(call.prompt.messages), limit: call.max_output_tokens}
        if call.prompt.tools:
            wire["tools"] = list(call.prompt.tools)
        if call.prompt.response_schema is not None:
            # Beside the tools, of which the prompt tells: without them its front would change, and be read anew.
            wire["response_format"] = response_format(call.prompt.response_schema)
        if call.seed is not None:
            wire["seed"] = call.seed
        wire["temperature"] = call.prompt.temperature
        timeout = httpx2.Timeout(call.timeout_s, connect=min(call.timeout_s, CONNECT_TIMEOUT_S))
        options: dict[str, Any] = {"wire": wire, "timeout": timeout}
        if call.prompt.stop:
            options["stop"] = list(call.prompt.stop)
        return options

    def _is_openai(self) -> bool:
        return not self._endpoint.base_url or OPENAI_HOST in self._endpoint.base_url


class Connections:
    """The models that a process is connected to; one for each endpoint, shared by all runs and threads."""

    def __init__(self, environment: Callable[[], Mapping[str, str]]) -> None:
        """`environment` is read at each connection, so that a changed key is honoured."""
        self._environment = environment
        self._models: dict[tuple[str, str, str], OpenAIModel] = {}
        self._lock = Lock()

    def is_embedded(self, model: str | None, base_url: str | None) -> bool:
        """Would these settings use the embedded model?"""
        endpoint = find_endpoint(model, base_url, self._environment())
        return isinstance(endpoint, Endpoint) and endpoint.embedded

    def model_name(self, model: str | None, base_url: str | None) -> str:
        """The name of the model that these settings lead to; "" where only its endpoint can tell. Asks nobody."""
        endpoint = find_endpoint(model, base_url, self._environment())
        if isinstance(endpoint, ProviderFailure):
            return ""
        return embedded_weights().model if endpoint.embedded else endpoint.model

    def connect(self, model: str | None, base_url: str | None) -> OpenAIModel | ProviderFailure:
        """Find the endpoint, start the embedded model where it is that, and return a model that answers calls."""
        endpoint = find_endpoint(model, base_url, self._environment())
        if isinstance(endpoint, ProviderFailure):
            return endpoint
        with self._lock:
            if endpoint.embedded:
                server = shared_local_server()
                if isinstance(server, ProviderFailure):
                    return server
                endpoint = Endpoint(model=server.model, base_url=server.base_url, embedded=True)
            key = (endpoint.model, endpoint.base_url, endpoint.api_key.get_secret_value())
            known = self._models.get(key)
            if known is not None:
                return known
            connected = _named(OpenAIModel(endpoint), endpoint)
            if isinstance(connected, OpenAIModel):
                self._models[key] = connected
            return connected

    def close(self) -> None:
        """Close all connections for sync calls."""
        for model in self._models.values():
            model.close()
        self._models.clear()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those for sync calls."""
        for model in list(self._models.values()):
            await model.aclose()
        self._models.clear()


def _named(model: OpenAIModel, endpoint: Endpoint) -> OpenAIModel | ProviderFailure:
    """Where no model was named, take the one that the endpoint serves."""
    if endpoint.model:
        return model
    served = model.served_models()
    chosen = served if isinstance(served, ProviderFailure) else choose_served_model(served)
    model.close()
    if isinstance(chosen, ProviderFailure):
        return chosen
    return OpenAIModel(endpoint.model_copy(update={"model": chosen}))


def _traced_input(call: Call) -> list[BaseMessage]:
    """What LangChain's callbacks see of the prompt: its end. The whole goes on the wire in `extra_body`."""
    return [HumanMessage(str(call.prompt.messages[-1].get("content") or ""))]


def _take(chunk: AIMessageChunk, assembly: ReplyAssembly, on_text: Callable[[str], None]) -> None:
    assembly.begun = True
    if chunk.text:
        assembly.add_text(chunk.text)
        on_text(storable(chunk.text))
    for part in chunk.tool_call_chunks:
        assembly.add_call_part(part.get("index"), part.get("id"), part.get("name"), part.get("args"))
    assembly.refusal += str(chunk.additional_kwargs.get("refusal") or "")
    assembly.finish_reason = str(chunk.response_metadata.get("finish_reason") or assembly.finish_reason)
    assembly.model = str(chunk.response_metadata.get("model_name") or assembly.model)
    if chunk.usage_metadata:
        assembly.add_usage(chunk.usage_metadata)


def _as_deadline(error: Exception, call: Call) -> Exception:
    """Silence and slowness are one failure to a run, whichever clock noticed it first."""
    return TotalTimeoutError(call.timeout_s) if isinstance(error, openai.APITimeoutError) else error


class _DeadlineStream(httpx2.SyncByteStream):
    """A response that ends at its call's deadline, even where only comments keep coming."""

    def __init__(self, stream: httpx2.SyncByteStream, seconds: float) -> None:
        self._stream, self._seconds, self._end = stream, seconds, time.monotonic() + seconds

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            yield part
            if time.monotonic() > self._end:
                raise TotalTimeoutError(self._seconds)

    def close(self) -> None:
        self._stream.close()


def _bound_by_deadline(response: httpx2.Response) -> None:
    seconds = response.request.extensions.get("timeout", {}).get("read")
    if seconds is not None and isinstance(response.stream, httpx2.SyncByteStream):
        response.stream = _DeadlineStream(response.stream, seconds)


def _check_total_time(started: float, timeout_s: float) -> None:
    if time.monotonic() - started > timeout_s:
        raise TotalTimeoutError(timeout_s)


def _finish(assembly: ReplyAssembly, seconds: float) -> ModelReply | ProviderFailure:
    reply = assembly.reply(seconds)
    if reply is None:
        message = "The reply broke off before the endpoint said that it was complete."
        return ProviderFailure(kind=ProviderErrorKind.INCOMPLETE_STREAM, message=message)
    return reply
