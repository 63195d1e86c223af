"""The only file that talks to a model: one streamed call, sync or async, whose failures are values.

A request is sent as bytes that are known for all but the end of its history, and its answer is read as it comes. The
chat model of langchain-openai stands beside it for whoever listens to LangChain's callbacks; the openai SDK under it
would walk the whole history at every call, which was nine tenths of a step's CPU.
Source: measured on openai 3.51, 23 of 30 ms a step at 200 steps.
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, closing
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import httpx2
from langchain_core.callbacks import CallbackManager
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables.config import RunnableConfig, ensure_config

from nodes.call_model import request as wire
from nodes.call_model.assembly import ReplyAssembly
from nodes.call_model.connection_faults import SETUP_ERRORS, header_fault, setup_fault
from nodes.call_model.endpoint import Endpoint, choose_served_model, find_endpoint
from nodes.call_model.failures import BrokenConnectionError, EndpointError, ReplyTimeoutError, describe_failure
from nodes.call_model.local_model import shared_local_server
from nodes.call_model.model import Call
from nodes.call_model.prompt import Prompt
from nodes.call_model.reply_clock import Clock, bind_reads, timed_by
from nodes.call_model.reply_stream import CONNECT_TIMEOUT_S, ReplyStream, refusal
from nodes.call_model.schema_probe import SchemaProbe
from nodes.call_model.token_count import acount_tokens, count_tokens
from nodes.call_model.told_events import atold, told
from nodes.call_model.weights import embedded_weights
from nodes.records import JsonMap, ModelReply, ProviderErrorKind, ProviderFailure

if TYPE_CHECKING:
    from nodes.call_model.wire_chat import WireChatOpenAI

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
UNSTREAMED = "nostream"
"""The tag of calls that LangGraph's mode "messages" leaves out. Source: langgraph.constants.TAG_NOSTREAM."""
POOL = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
"""Nobody waits for a connection: how many runs there are is decided elsewhere."""

_BAD_DOCUMENT = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What reading raises where an endpoint sends something else than chat completions."""

_FAILURES = (ReplyTimeoutError, BrokenConnectionError, EndpointError, httpx2.HTTPError, *_BAD_DOCUMENT)


class OpenAIModel:
    """A model behind an OpenAI-compatible endpoint. One client for sync calls, one for each event loop."""

    def __init__(self, endpoint: Endpoint, transport: Callable[[], httpx2.BaseTransport] | None = None) -> None:
        """Connect lazily; `transport` replaces the network, for tests."""
        plain = endpoint.base_url.startswith("http://")
        self._endpoint = endpoint
        self._verify: ssl.SSLContext | bool = False if plain else ssl.create_default_context()
        # A proxy that the environment names must not come between us and a server on this machine.
        self._trust_env = httpx2.URL(endpoint.base_url).host not in LOOPBACK_HOSTS
        self._headers = wire.headers(endpoint, os.environ)
        self._url = wire.address(endpoint, "/chat/completions")
        self._sync_client = httpx2.Client(
            verify=self._verify,
            trust_env=self._trust_env,
            limits=POOL,
            headers=self._headers,
            transport=transport() if transport else None,
        )
        bind_reads(self._sync_client)
        self._proxied = _is_proxied(self._sync_client, self._url)
        self._per_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = WeakKeyDictionary()
        self._chat: WireChatOpenAI | None = None
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
        reply = self._reply_of(call, on_text)
        try:
            with timed_by(reply.clock):
                request = self._request(self._sync_client, call, call.timeout_s)
                with closing(reply.read(self._sync_client, request)) as events:
                    if _is_listened_to():
                        self._tell(call, events)
                    for _ in events:
                        pass
        except _FAILURES as error:
            return self._ended(error, reply)
        return _finish(reply)

    async def _acomplete(self, call: Call, on_text: Callable[[str], None]) -> ModelReply | ProviderFailure:
        try:
            client = self._async_client()
        except SETUP_ERRORS as error:  # the environment is another one than that of the sync client
            return setup_fault(os.environ, error)
        reply, loop = self._reply_of(call, on_text), asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(loop.time() + reply.clock.left()) as bound:
                request = self._request(client, call, None)
                async with aclosing(_bounded(reply, bound, reply.aread(client, request))) as events:
                    if _is_listened_to():
                        await self._atell(call, events)
                    async for _ in events:
                        pass
        except TimeoutError:
            return self._ended(reply.clock.overdue(), reply)
        except _FAILURES as error:
            return self._ended(error, reply)
        return _finish(reply)

    def served_models(self) -> list[str] | ProviderFailure:
        """Ask the endpoint which models it serves."""
        try:
            with timed_by(Clock(time.monotonic, CONNECT_TIMEOUT_S, None)):
                url = wire.address(self._endpoint, "/models")
                response = self._sync_client.get(url, timeout=CONNECT_TIMEOUT_S)
            if not response.is_success:
                raise refusal(response, response.content, time.time())
            return [str(served["id"]) for served in response.json()["data"]]
        except _FAILURES as error:
            return describe_failure(error, self._endpoint, proxied=self._proxied)

    def count_tokens(self, prompt: Prompt) -> int | None:
        """The prompt's tokens as the embedded model reads them; None at other endpoints and where it cannot tell."""
        return count_tokens(self._sync_client, self._endpoint.base_url, prompt) if self._endpoint.embedded else None

    async def acount_tokens(self, prompt: Prompt) -> int | None:
        """Count without blocking the event loop."""
        if not self._endpoint.embedded:
            return None
        return await acount_tokens(self._async_client(), self._endpoint.base_url, prompt)

    def close(self) -> None:
        """Close the connections for sync calls."""
        self._sync_client.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, and those for sync calls."""
        client = self._per_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()
        self.close()

    def _ended(self, error: Exception, reply: ReplyStream) -> ModelReply | ProviderFailure:
        """The reply all the same, where it was whole before its connection broke or fell silent: it was paid for."""
        if isinstance(error, BrokenConnectionError | ReplyTimeoutError) and reply.assembly.finish_reason:
            return _finish(reply)
        return self._failed(error, reply.assembly)

    def _failed(self, error: Exception, assembly: ReplyAssembly) -> ProviderFailure:
        failure = describe_failure(error, self._endpoint, begun=assembly.begun, proxied=self._proxied)
        return failure.model_copy(update={"received_characters": assembly.characters})

    def _reply_of(self, call: Call, on_text: Callable[[str], None]) -> ReplyStream:
        return ReplyStream(Clock(time.monotonic, call.timeout_s, call.idle_timeout_s), on_text, time.time)

    def _request(self, client: httpx2.Client | httpx2.AsyncClient, call: Call, read_s: float | None) -> httpx2.Request:
        timeout = httpx2.Timeout(read_s, connect=min(call.timeout_s, CONNECT_TIMEOUT_S))
        return client.build_request("POST", self._url, content=wire.body(self._endpoint, call), timeout=timeout)

    def _async_client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._per_loop.get(loop)
        if client is None:
            client = httpx2.AsyncClient(
                verify=self._verify, trust_env=self._trust_env, limits=POOL, headers=self._headers
            )
            self._per_loop[loop] = client
        return client

    def _tell(self, call: Call, events: Generator[list[JsonMap]]) -> None:
        """Read the reply through LangChain, for its callbacks."""
        chat, config = self._chat_model(), _traced_as(call)
        heard = chat.stream(_traced_input(call), config, events=lambda: told(events, call.scrub), wire=_traced(call))
        with closing(heard) as chunks:  # type: ignore[type-var]
            for _ in chunks:
                pass

    async def _atell(self, call: Call, events: AsyncGenerator[list[JsonMap]]) -> None:
        chat, config = await asyncio.to_thread(self._chat_model), _traced_as(call)
        heard = chat.astream(_traced_input(call), config, events=lambda: atold(events, call.scrub), wire=_traced(call))
        async with aclosing(heard) as chunks:  # type: ignore[type-var]
            async for _ in chunks:
                pass

    def _chat_model(self) -> "WireChatOpenAI":
        from nodes.call_model.wire_chat import chat_model

        if self._chat is None:
            self._chat = chat_model(self._endpoint, self._sync_client)
        return self._chat


class Connections:
    """The models that a process is connected to; one for each endpoint, shared by all runs and threads."""

    def __init__(self, environment: Callable[[], Mapping[str, str]]) -> None:
        """`environment` is read at each connection, so that a changed key is honoured."""
        self._environment = environment
        self._models: dict[tuple[str, str, str, str], OpenAIModel] = {}
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

    def connect(self, model: str | None, base_url: str | None, key_variable: str = "") -> OpenAIModel | ProviderFailure:
        """Find the endpoint, start the embedded model where it is that, and return a model that answers calls.

        `key_variable` names the environment variable with the endpoint's key, "" for the usual one.
        """
        endpoint = find_endpoint(model, base_url, self._environment(), key_variable=key_variable)
        if isinstance(endpoint, ProviderFailure):
            return endpoint
        with self._lock:
            if endpoint.embedded:
                server = shared_local_server()
                if isinstance(server, ProviderFailure):
                    return server
                endpoint = Endpoint(model=server.model, base_url=server.base_url, embedded=True)
            key = (endpoint.model, endpoint.base_url, endpoint.api_key.get_secret_value(), endpoint.key_variable)
            known = self._models.get(key)
            if known is not None:
                return known
            opened = _opened(endpoint)
            connected = _named(opened, endpoint) if isinstance(opened, OpenAIModel) else opened
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


def _opened(endpoint: Endpoint) -> OpenAIModel | ProviderFailure:
    """A model at this endpoint; nobody is asked yet. What the environment says may be of no use."""
    if variable := wire.unsendable_variable(endpoint, os.environ):
        return header_fault(variable)
    try:
        return OpenAIModel(endpoint)
    except SETUP_ERRORS as error:
        return setup_fault(os.environ, error)


def _is_proxied(client: httpx2.Client, url: str) -> bool:
    """Does a proxy of the environment stand between? httpx2 tells nobody."""
    return client._transport_for_url(httpx2.URL(url)) is not client._transport  # noqa: SLF001 - see above


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


def _traced_as(call: Call) -> RunnableConfig:
    """LangGraph leaves a run with this tag out of `stream_mode="messages"`; tracers see it all the same."""
    return RunnableConfig(tags=[UNSTREAMED]) if call.quiet else RunnableConfig()


def _traced_input(call: Call) -> list[BaseMessage]:
    """What LangChain's callbacks see of the prompt: its end. The whole is in the options of the run."""
    return [HumanMessage(str(call.prompt.messages[-1].get("content") or ""))]


def _traced(call: Call) -> JsonMap:
    return {"messages": list(call.prompt.messages), "tools": list(call.prompt.tools)}


def _is_listened_to() -> bool:
    """Is there any callback of LangChain's, in this context, in its global settings, or in the environment?"""
    return bool(CallbackManager.configure(ensure_config().get("callbacks")).handlers)


async def _bounded(
    reply: ReplyStream, bound: asyncio.Timeout, events: AsyncGenerator[list[JsonMap]]
) -> AsyncGenerator[list[JsonMap]]:
    """The same events; each of them puts the end of the silence off."""
    loop = asyncio.get_running_loop()
    async with aclosing(events) as coming:
        async for together in coming:
            if not bound.expired():
                bound.reschedule(loop.time() + reply.clock.left())
            yield together


def _finish(reply: ReplyStream) -> ModelReply | ProviderFailure:
    whole = reply.assembly.reply(reply.clock.seconds)
    if whole is None:
        message = "The reply broke off before the endpoint said that it was complete."
        return ProviderFailure(
            kind=ProviderErrorKind.INCOMPLETE_STREAM, message=message, received_characters=reply.assembly.characters
        )
    return whole
