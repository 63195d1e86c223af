"""Which chat model answers: the user's own, a provider's by its name, an endpoint's, or the embedded one.

What a provider demands, its LangChain package knows. Chat models are made when they are first needed, and kept.
"""

import asyncio
import json
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from http import HTTPStatus
from importlib.metadata import version
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import openai
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import SecretStr, ValidationError

from mendgraph.graph.langchain import failures
from mendgraph.graph.langchain.chat_model import ChatModel
from mendgraph.graph.langchain.connections import ForLoops, ForThreads, copies_of
from mendgraph.graph.langchain.openai_chat import REQUEST_OPTIONS, Clients, EndpointChat
from mendgraph.graph.langchain.reply_limits import NOT_COMPRESSED, abound_response, bound_response
from mendgraph.graph.langchain.wrapped_models import Single
from mendgraph.nodes.call_model import endpoint as endpoints
from mendgraph.nodes.execute_tools.files.deadline import call_within
from mendgraph.nodes.records import JsonMap, ProviderErrorKind, ProviderFailure

CONNECT_TIMEOUT_S: Final = 10.0
POOL: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
"""Nobody waits for a connection: how many runs there are is decided elsewhere."""

OPENAI_HOST: Final = "api.openai.com"
_NEW_LIMIT: Final = re.compile(r"(?:^|[/.:-])(?:gpt-?[5-9]|o[134](?![a-z0-9.]))", re.IGNORECASE)
"""Models of OpenAI's that take the token limit under its newer name alone, wherever they are served."""

_FAKE: Final = "GenericFakeChatModel"
"""LangChain's stand-in for a model in tests, which takes its replies apart where it streams."""
_PLAIN_HEADERS: Final = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host", "user-agent"}
)
_version: Final = cache(version)  # which reads the package's metadata each time
_RAW_RESPONSE: Final = "x-stainless-raw-response"
"""What the SDK reads of its own request once the answer is there; it says nothing of anybody."""


class ChatModels:
    """The chat models of a process's runs; one for each endpoint, shared by all runs and threads."""

    def __init__(self, environment: Callable[[], Mapping[str, str]], given: Sequence[Single] = ()) -> None:
        """`environment` is read at each connection, so that a changed key is honoured.

        `given` answer all calls: the first one, unless a choice has another's `place`.
        """
        self._environment = environment
        self._own = tuple(given)
        self._given = [given_model(single.chat) for single in given]
        self._models: dict[tuple[str, ...], ChatModel] = {}
        self._lock = Lock()

    @property
    def given_names(self) -> list[str]:
        """The names of the given models, in order."""
        return [model.name for model in self._given]

    def known(self, model: str | None, base_url: str | None, options: endpoints.ModelOptions) -> ChatModel | None:
        """The chat model of these settings, where nobody has to be asked for it, or has been asked before."""
        if self._given:
            return self._given[0]

        endpoint = endpoints.find_endpoint(model, base_url, self._environment())
        if isinstance(endpoint, ProviderFailure) or endpoint.embedded:
            return None
        if not endpoint.model:
            return self._models.get(_key(endpoint, options))

        with self._lock:
            chat = self._made(endpoint, options)

        return chat if isinstance(chat, ChatModel) else None

    def connect(self, wanted: endpoints.ModelChoice, *, waiting: bool = True) -> ChatModel | ProviderFailure | None:
        """Find the endpoint, start the embedded model where it is that, and return a chat model that answers calls.

        None where that takes a while and nobody is `waiting`.
        """
        if self._given:
            place = getattr(wanted, "place", 0)
            return _set_up(self._given[place], self._own[place], wanted.options)

        endpoint = endpoints.find_endpoint(
            wanted.model, wanted.base_url, self._environment(), key_variable=wanted.key_variable
        )

        if isinstance(endpoint, ProviderFailure):
            return endpoint

        if not waiting:
            if endpoint.embedded:
                return None
            return self._models.get(_key(endpoint, wanted.options))

        with self._lock:
            if not endpoint.embedded:
                return self._made(endpoint, wanted.options)

            from mendgraph.nodes.call_model.local_model import shared_local_server

            server = shared_local_server()
            if isinstance(server, ProviderFailure):
                return server

            endpoint = endpoints.Endpoint(model=server.model, base_url=server.base_url, embedded=True)
            return self._made(endpoint, endpoints.PLAIN)

    def _made(self, endpoint: endpoints.Endpoint, options: endpoints.ModelOptions) -> ChatModel | ProviderFailure:
        key = _key(endpoint, options)
        if key in self._models:
            return self._models[key]

        if endpoint.provider:
            chat = provider_model(endpoint, options)
        else:
            chat = endpoint_model(endpoint, options)

        if isinstance(chat, ChatModel) and not (endpoint.model or endpoint.provider):
            served = served_models(chat)
            chosen = served if isinstance(served, ProviderFailure) else endpoints.choose_served_model(served)
            if isinstance(chosen, ProviderFailure):
                return chosen

            chat = endpoint_model(endpoint.model_copy(update={"model": chosen}), options)

        if isinstance(chat, ChatModel):
            self._models[key] = chat

        return chat

    def close(self) -> None:
        """Close the connections of sync calls, and forget the chat models."""
        for model in self._all():
            model.close()

        self._models = {}

    async def aclose(self) -> None:
        """Close the connections of this event loop and those of sync calls, and forget the chat models."""
        for model in self._all():
            with suppress(RuntimeError, OSError):  # what is gone already need not be closed
                await model.aclose()

        await asyncio.to_thread(self.close)

    def _all(self) -> list[ChatModel]:
        return [*self._models.values(), *self._given]


def given_model(chat: BaseChatModel) -> ChatModel:
    """The user's own chat model, as the decisions want it."""
    copies = copies_of(chat)
    is_openais = isinstance(chat, BaseChatOpenAI)
    limit_name = failures.NEW_LIMIT
    name = name_of(chat)
    thinks = _thinks(chat)
    keys = [value.get_secret_value() for _, value in chat if isinstance(value, SecretStr)]

    if name:
        display = f"{name} through {type(chat).__name__}"
    else:
        display = type(chat).__name__

    provider = failures.Provider(display, next(iter(chat.lc_secrets.values()), ""), keys)
    has_tools = type(chat).bind_tools is not BaseChatModel.bind_tools
    has_tools = has_tools and (chat.profile or {}).get("tool_calling") is not False
    learned = failures.LESSONS.setdefault(
        # One that thinks refuses other settings.
        (type(chat).__name__, _address_of(chat), f"{name} thinking" if thinks else name),
        failures.Learned(limit_name, tools=has_tools, streams=type(chat).__name__ != _FAKE),
    )

    return ChatModel(
        copies.for_threads,
        copies.for_loops,
        provider,
        learned,
        name,
        dict(chat.profile or {}),
        thinks=thinks,
        in_openai_form=is_openais,
    )


def provider_model(endpoint: endpoints.Endpoint, options: endpoints.ModelOptions) -> ChatModel | ProviderFailure:
    """The chat model of a provider's package, by its name; a package or a key that is missing is one line."""
    from langchain.chat_models import init_chat_model

    settings: JsonMap = dict(options.model_kwargs)
    if endpoint.base_url:
        settings["base_url"] = endpoint.base_url

    if options.reasoning_effort is not None:
        settings["reasoning_effort"] = options.reasoning_effort

    full = endpoint.full_name
    try:
        chat: BaseChatModel = init_chat_model(endpoint.model, model_provider=endpoint.provider, **settings)
    except ImportError as error:
        package = re.search(r"langchain[-_]\w+(?:-\w+)*", str(error))
        named = package[0].replace("_", "-") if package else str(error)
        from mendgraph.nodes.language.installation import how_to_install  # only where something is missing

        return _unavailable(f"{full} needs a package that is not installed: run `{how_to_install(named)}`")
    except Exception as error:  # noqa: BLE001 - each package refuses wrong settings in its own way
        return _not_set_up(full, error)

    if options.reasoning_effort is not None and "reasoning_effort" not in type(chat).model_fields:
        return _unavailable(f"{type(chat).__name__} has no reasoning_effort: leave it empty, or use model_kwargs.")

    return given_model(chat)


def endpoint_model(endpoint: endpoints.Endpoint, options: endpoints.ModelOptions) -> ChatModel | ProviderFailure:
    """A model at an OpenAI-compatible endpoint; nobody is asked yet. What the environment says may be of no use."""
    # A proxy that the environment names must not come between us and a server on this machine.
    trusted = urlsplit(endpoint.base_url).hostname not in endpoints.LOOPBACK_HOSTS
    try:
        verify = False if endpoint.base_url.startswith("http://") else ssl.create_default_context()
        chat: Any = endpoint_chat(endpoint, options, verify=verify, trust_env=trusted)
    except (ValidationError, openai.OpenAIError) as error:
        return _not_set_up(endpoint.model or "The model", error)
    except Exception as error:  # noqa: BLE001 - what the environment says of proxies and certificates
        return failures.setup_fault(os.environ, error)

    if endpoint.embedded:
        where = "the embedded model"
    else:
        where = endpoint.base_url or "the OpenAI endpoint"

    key = endpoint.api_key.get_secret_value()
    provider = failures.Provider(where, endpoint.key_variable, (key,), endpoint=True)
    learned = failures.LESSONS.setdefault(
        ("", endpoint.base_url, endpoint.model), failures.Learned(_limit_name(endpoint))
    )

    unused = [chat]

    def for_threads() -> tuple[BaseChatModel, Callable[[], object]]:
        copy: Any

        try:
            copy = unused.pop()
        except IndexError:
            copy = endpoint_chat(endpoint, options, verify=verify, trust_env=trusted)

        return copy, copy.http_client.close

    def for_loop() -> tuple[BaseChatModel, Callable[[], Awaitable[object]]]:
        copy: Any = endpoint_chat(endpoint, options, verify=verify, trust_env=trusted, in_loop=True)
        return copy, copy.http_clients.aclose

    profile = dict(chat.profile or {}) if _is_openai(endpoint) else {}
    return ChatModel(
        ForThreads(for_threads),
        ForLoops(for_loop),
        provider,
        learned,
        endpoint.model,
        profile,
        in_openai_form=True,
    )


class BelowV1(httpx2.Auth):
    """Asks an endpoint whose address has no path once more, below /v1, where it says that there is nothing without."""

    def __init__(self) -> None:
        self._found = False

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """The request as it is, and after a 404 below /v1; from then on there at once, if there is something."""
        plain = request.url
        if not self._found and (yield request).status_code != HTTPStatus.NOT_FOUND:
            return

        request.url = plain.copy_with(path=f"/v1{plain.path}")
        self._found = (yield request).status_code != HTTPStatus.NOT_FOUND


def endpoint_chat(
    endpoint: endpoints.Endpoint,
    options: endpoints.ModelOptions,
    *,
    verify: ssl.SSLContext | bool,
    trust_env: bool = False,
    transport: Any = None,
    in_loop: bool = False,
) -> EndpointChat:
    """LangChain's chat model for an endpoint, for sync calls, or for those of one event loop.

    `transport` answers in place of the network.
    """
    known_fields = {name for name in options.model_kwargs if name in ChatOpenAI.model_fields}
    field_values = {name: value for name, value in options.model_kwargs.items() if name in known_fields}
    body = {name: value for name, value in options.model_kwargs.items() if name not in known_fields}
    http = _http_clients(endpoint, {"verify": verify, "trust_env": trust_env, "transport": transport}, in_loop=in_loop)
    responses = options.use_responses_api

    if responses is None and not _is_openai(endpoint):
        responses = False

    return EndpointChat(
        model=endpoint.model or "unnamed",
        base_url=endpoint.base_url or endpoints.USUAL_URL,
        api_key=endpoint.api_key,
        max_retries=0,
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
        stream_chunk_timeout=None,
        use_responses_api=responses,
        reasoning_effort=options.reasoning_effort,
        openai_proxy="",
        extra_body=body or None,
        **http,
        **field_values,
    )


def _http_clients(endpoint: endpoints.Endpoint, connection: JsonMap, *, in_loop: bool) -> JsonMap:
    """The clients of a chat model for an endpoint, as its settings; `connection` says how they connect."""
    is_default_endpoint = endpoint.key_variable == endpoints.USUAL_KEY and not endpoint.embedded
    agent = f"mendgraph/{_version('mendgraph')}"

    def as_we_are(request: httpx2.Request) -> None:
        """Say who asks, and to endpoints that are not the run's own nothing of what is meant for that one."""
        for name in set(request.headers) - {_RAW_RESPONSE}:
            if name.startswith("x-stainless-") or (not is_default_endpoint and name not in _PLAIN_HEADERS):
                del request.headers[name]

        request.headers["user-agent"] = agent

    async def as_we_are_in_loop(request: httpx2.Request) -> None:
        as_we_are(request)

    settings: JsonMap = {
        **connection,
        "limits": POOL,
        "timeout": httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
        "headers": NOT_COMPRESSED,
        "auth": None if endpoints.has_path(endpoint.base_url) else BelowV1(),
    }

    if in_loop:
        hooks: JsonMap = {"request": [as_we_are_in_loop], "response": [abound_response]}
        http_clients = Clients(partial(httpx2.AsyncClient, **settings, event_hooks=hooks))
        return {"http_async_client": http_clients.first, "http_clients": http_clients, "client": _UNUSED}

    hooks = {"request": [as_we_are], "response": [bound_response]}
    return {"http_client": httpx2.Client(**settings, event_hooks=hooks), "async_client": _UNUSED}


_UNUSED: Final = object()
"""In place of the client of the other kind, which nobody calls."""


def _is_openai(endpoint: endpoints.Endpoint) -> bool:
    return not endpoint.base_url or urlsplit(endpoint.base_url).hostname == OPENAI_HOST


def _limit_name(endpoint: endpoints.Endpoint) -> str:
    """What an endpoint likely calls the most tokens of a reply; its first refusal corrects that."""
    if _is_openai(endpoint) or _NEW_LIMIT.search(endpoint.model):
        return failures.NEW_LIMIT
    return failures.OLD_LIMIT


def served_models(model: ChatModel) -> list[str] | ProviderFailure:
    """Ask an endpoint which models it serves."""
    chat: Any = model.threads.get()
    try:
        document = call_within(CONNECT_TIMEOUT_S, partial(chat.root_client.get, "/models", cast_to=object))
        return [str(served["id"]) for served in document["data"]]
    except Exception as error:  # noqa: BLE001 - whatever an endpoint sends instead of a list
        return failures.describe_failure(error, model.provider)
    finally:
        model.close()


def name_of(chat: BaseChatModel) -> str:
    """The name of a chat model's model; "" where it has none."""
    for name in ("model_name", "model", "model_id", "azure_deployment", "deployment_name"):
        if isinstance(value := getattr(chat, name, None), str) and value:
            return value.removeprefix("models/")

    return ""


def _address_of(chat: BaseChatModel) -> str:
    names = ("openai_api_base", "azure_endpoint", "anthropic_api_url", "base_url", "endpoint", "api_base")
    return next((str(value) for name in names if (value := getattr(chat, name, None))), "")


def _set_up(model: ChatModel, single: Single, options: endpoints.ModelOptions) -> ChatModel:
    """The user's own chat model with a run's settings: those that it has, and others for each of its requests."""
    chat = single.chat

    if options.reasoning_effort is None:
        effort = {}
    else:
        effort = {"reasoning_effort": options.reasoning_effort}

    arguments: JsonMap = {**single.settings, **options.model_kwargs, **effort}
    settings = {name: value for name, value in arguments.items() if name in type(chat).model_fields}
    others = {name: value for name, value in arguments.items() if name not in settings}

    if isinstance(chat, BaseChatOpenAI):
        body = {name: value for name, value in others.items() if name not in REQUEST_OPTIONS}
        others = {name: value for name, value in others.items() if name in REQUEST_OPTIONS}
        if body:
            settings["extra_body"] = {**(settings.get("extra_body", chat.extra_body) or {}), **body}

    return replace(model, settings=settings, options=others)


def _thinks(chat: BaseChatModel) -> bool:
    names = ("thinking", "thinking_budget", "thinking_level", "reasoning", "reasoning_effort")
    set_up = [getattr(chat, name, None) for name in names]
    return any(value and value not in ("none", {"type": "disabled"}) for value in set_up)


def _key(endpoint: endpoints.Endpoint, options: endpoints.ModelOptions) -> tuple[str, ...]:
    key = endpoint.api_key.get_secret_value()
    named = (endpoint.provider, endpoint.model, endpoint.base_url, key, endpoint.key_variable)
    return (*named, json.dumps(options.model_dump(), sort_keys=True, default=str))


def _not_set_up(model: str, error: Exception) -> ProviderFailure:
    """A package refuses its settings; of what was given nothing is quoted, as pydantic would."""
    if isinstance(error, ValidationError):
        first = ": ".join(map(str, (*error.errors()[0]["loc"], error.errors()[0]["msg"]))).removeprefix("Value error, ")
    else:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)

    return _unavailable(f"{model} cannot be set up ({first[:300].rstrip('.')}).")


def _unavailable(message: str) -> ProviderFailure:
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message, sent=False)
