"""Chooses the chat model of a run: a user's, a provider's by its name, an endpoint's, or the embedded one."""

import asyncio
import json
import os
import re
import ssl
from collections.abc import Callable, Generator, Mapping, Sequence
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
from mendgraph.graph.langchain.connections import ChatConnections, OpenedChat, user_connections
from mendgraph.graph.langchain.openai_replies import REQUEST_OPTIONS, with_complete_replies
from mendgraph.graph.langchain.reply_limits import NOT_COMPRESSED, abound_response, bound_response
from mendgraph.graph.langchain.wrapped_models import Single
from mendgraph.nodes.call_model import endpoint as endpoints
from mendgraph.nodes.records import JsonMap, ProviderErrorKind, ProviderFailure
from mendgraph.nodes.workspace.files.deadline import call_within

CONNECT_TIMEOUT_S: Final = 10.0
POOL: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
"""Without a limit on connections, as the number of runs is limited elsewhere."""

OPENAI_HOST: Final = "api.openai.com"
_NEW_LIMIT: Final = re.compile(r"(?:^|[/.:-])(?:gpt-?[5-9]|o[134](?![a-z0-9.]))", re.IGNORECASE)
"""OpenAI's models that take the token limit only under its newer name, at any endpoint."""

_FAKE: Final = "GenericFakeChatModel"
"""LangChain's fake model for tests, which splits its replies where it streams."""
_PLAIN_HEADERS: Final = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host", "user-agent"}
)
_version: Final = cache(version)  # it reads the package's metadata
_RAW_RESPONSE: Final = "x-stainless-raw-response"
"""A header that the SDK reads of its request once there is a response; it identifies nobody."""


class ChatModels:
    """The chat models of a process's runs: one for each endpoint, shared by all runs and threads."""

    def __init__(self, environment: Callable[[], Mapping[str, str]], user_chats: Sequence[Single] = ()) -> None:
        """`environment` is read at each connection, so that a changed key takes effect.

        `user_chats` answer all calls: the first one, unless a choice has the `place` of another.
        """
        self._environment = environment
        self._user_chats = tuple(user_chats)
        self._user_models = [user_model(single.chat) for single in user_chats]
        self._models: dict[tuple[str, ...], ChatModel] = {}
        self._lock = Lock()

    @property
    def user_names(self) -> list[str]:
        """Return the names of the user's models, in order."""
        return [model.name for model in self._user_models]

    def without_request(
        self, model: str | None, base_url: str | None, options: endpoints.ModelOptions
    ) -> ChatModel | None:
        """Return the chat model of these settings, None if a request to the endpoint has to find its name first."""
        if self._user_models:
            return self._user_models[0]

        endpoint = endpoints.find_endpoint(model, base_url, self._environment())
        if isinstance(endpoint, ProviderFailure) or endpoint.embedded:
            return None
        if not endpoint.model:
            return self._models.get(_key(endpoint, options))

        with self._lock:
            chat = self._cached(endpoint, options)

        if isinstance(chat, ProviderFailure):
            return None

        return chat

    def connect(self, choice: endpoints.ModelChoice, *, waiting: bool = True) -> ChatModel | ProviderFailure | None:
        """Find the endpoint, start the embedded model if it is chosen, and return a chat model that answers calls.

        Return None if that takes a while and the caller is not `waiting`.
        """
        if self._user_models:
            place = getattr(choice, "place", 0)
            return _with_options(self._user_models[place], self._user_chats[place], choice.options)

        endpoint = endpoints.find_endpoint(
            choice.model, choice.base_url, self._environment(), key_variable=choice.key_variable
        )

        if isinstance(endpoint, ProviderFailure):
            return endpoint

        if not waiting:
            if endpoint.embedded:
                return None
            return self._models.get(_key(endpoint, choice.options))

        with self._lock:
            if not endpoint.embedded:
                return self._cached(endpoint, choice.options)

            from mendgraph.nodes.call_model.local_model import shared_local_server

            server = shared_local_server()
            if isinstance(server, ProviderFailure):
                return server

            endpoint = endpoints.Endpoint(model=server.model, base_url=server.base_url, embedded=True)
            return self._cached(endpoint, endpoints.PLAIN)

    def _cached(self, endpoint: endpoints.Endpoint, options: endpoints.ModelOptions) -> ChatModel | ProviderFailure:
        key = _key(endpoint, options)
        if key in self._models:
            return self._models[key]

        if endpoint.provider:
            chat = provider_model(endpoint, options)
        else:
            chat = endpoint_model(endpoint, options)

        if isinstance(chat, ChatModel) and not (endpoint.model or endpoint.provider):
            served = served_models(chat)
            if isinstance(served, ProviderFailure):
                return served

            chosen = endpoints.choose_served_model(served)
            if isinstance(chosen, ProviderFailure):
                return chosen

            chat = endpoint_model(endpoint.model_copy(update={"model": chosen}), options)

        if isinstance(chat, ChatModel):
            self._models[key] = chat

        return chat

    def close(self) -> None:
        """Close the connections of sync calls, and empty the cache."""
        for model in self._all():
            model.close()

        self._models = {}

    async def aclose(self) -> None:
        """Close the connections of this event loop and those of sync calls, and empty the cache."""
        for model in self._all():
            with suppress(RuntimeError, OSError):  # it is closed already
                await model.aclose()

        await asyncio.to_thread(self.close)

    def _all(self) -> list[ChatModel]:
        return [*self._models.values(), *self._user_models]


def user_model(chat: BaseChatModel) -> ChatModel:
    """Wrap a user's chat model in the interface of `Model`."""
    is_openais = isinstance(chat, BaseChatOpenAI)
    limit_name = failures.NEW_LIMIT
    name = name_of(chat)
    thinks = _thinks(chat)
    keys = [value.get_secret_value() for _, value in chat if isinstance(value, SecretStr)]

    display = type(chat).__name__
    if name:
        display = f"{name} through {display}"

    provider = failures.Provider(display, next(iter(chat.lc_secrets.values()), ""), keys)
    has_tools = type(chat).bind_tools is not BaseChatModel.bind_tools
    has_tools = has_tools and (chat.profile or {}).get("tool_calling") is not False
    name_in_lessons = name
    if thinks:  # it refuses other settings
        name_in_lessons = f"{name} thinking"

    learned = failures.LESSONS.setdefault(
        (type(chat).__name__, _address_of(chat), name_in_lessons),
        failures.Learned(limit_name, tools=has_tools, streams=type(chat).__name__ != _FAKE),
    )

    return ChatModel(
        user_connections(chat),
        provider,
        learned,
        name,
        dict(chat.profile or {}),
        thinks=thinks,
        in_openai_form=is_openais,
    )


def provider_model(endpoint: endpoints.Endpoint, options: endpoints.ModelOptions) -> ChatModel | ProviderFailure:
    """Return the chat model of a provider's package; a failure names a missing package or key."""
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
        from mendgraph.nodes.language.installation import how_to_install  # only where something is missing

        package = str(error)
        match = re.search(r"langchain[-_]\w+(?:-\w+)*", package)
        if match:
            package = match[0].replace("_", "-")

        return _unavailable(f"{full} needs a package that is not installed: run `{how_to_install(package)}`")
    except Exception as error:  # noqa: BLE001 - each package refuses wrong settings in its own way
        return _not_set_up(full, error)

    if options.reasoning_effort is not None and "reasoning_effort" not in type(chat).model_fields:
        return _unavailable(f"{type(chat).__name__} has no reasoning_effort: leave it empty, or use model_kwargs.")

    return user_model(chat)


def endpoint_model(endpoint: endpoints.Endpoint, options: endpoints.ModelOptions) -> ChatModel | ProviderFailure:
    """Return a model at an OpenAI-compatible endpoint, without a request to it; a failure names a wrong setting."""
    # No proxy is used for a server on this machine.
    trusted = urlsplit(endpoint.base_url).hostname not in endpoints.LOOPBACK_HOSTS
    try:
        verify: ssl.SSLContext | bool = False
        if not endpoint.base_url.startswith("http://"):
            verify = ssl.create_default_context()

        connections = ChatConnections(partial(_open_endpoint, endpoint, options, verify, trusted))
        profile = connections.get().profile or {}
    except (ValidationError, openai.OpenAIError) as error:
        return _not_set_up(endpoint.model or "The model", error)
    except Exception as error:  # noqa: BLE001 - of proxies and certificates in the environment
        return failures.setup_fault(os.environ, error)

    where = endpoint.base_url or "the OpenAI endpoint"
    if endpoint.embedded:
        where = "the embedded model"

    key = endpoint.api_key.get_secret_value()
    provider = failures.Provider(where, endpoint.key_variable, (key,), endpoint=True)
    learned = failures.LESSONS.setdefault(
        ("", endpoint.base_url, endpoint.model), failures.Learned(_limit_name(endpoint))
    )

    if not _is_openai(endpoint):
        profile = {}

    return ChatModel(connections, provider, learned, endpoint.model, dict(profile), in_openai_form=True)


def _open_endpoint(
    endpoint: endpoints.Endpoint,
    options: endpoints.ModelOptions,
    verify: ssl.SSLContext | bool,
    trusted: bool,
    in_loop: bool,
) -> OpenedChat:
    chat: Any = endpoint_chat(endpoint, options, verify=verify, trust_env=trusted, in_loop=in_loop)
    if in_loop:
        return chat, chat.http_async_client.aclose

    return chat, chat.http_client.close


class BelowV1(httpx2.Auth):
    """Sends a request to an endpoint whose address has no path again, below /v1, where the answer is 404."""

    def __init__(self) -> None:
        self._is_below = False

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Send the request, and after a 404 the one below /v1; if it succeeds, later requests go there at once."""
        plain = request.url
        if not self._is_below and (yield request).status_code != HTTPStatus.NOT_FOUND:
            return

        request.url = plain.copy_with(path=f"/v1{plain.path}")
        self._is_below = (yield request).status_code != HTTPStatus.NOT_FOUND


def endpoint_chat(
    endpoint: endpoints.Endpoint,
    options: endpoints.ModelOptions,
    *,
    verify: ssl.SSLContext | bool,
    trust_env: bool = False,
    transport: Any = None,
    in_loop: bool = False,
) -> BaseChatOpenAI:
    """Return LangChain's chat model for an endpoint, for sync calls or for those of one event loop.

    `transport` answers in place of the network.
    """
    fields, body = _split_by_fields(options.model_kwargs, ChatOpenAI)
    connection = {"verify": verify, "trust_env": trust_env, "transport": transport}
    responses = options.use_responses_api

    if responses is None and not _is_openai(endpoint):
        responses = False

    chat: Any = ChatOpenAI(
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
        **_http_client(endpoint, connection, in_loop=in_loop),
        **fields,
    )
    return with_complete_replies(chat)


def _split_by_fields(arguments: Mapping[str, Any], kind: type[BaseChatModel]) -> tuple[JsonMap, JsonMap]:
    """Return the arguments that are fields of a class of chat models, and the others."""
    fields: JsonMap = {}
    others: JsonMap = {}

    for name, value in arguments.items():
        if name in kind.model_fields:
            fields[name] = value
        else:
            others[name] = value

    return fields, others


def _http_client(endpoint: endpoints.Endpoint, connection: JsonMap, *, in_loop: bool) -> JsonMap:
    """Return the settings of ChatOpenAI with an HTTP client for an endpoint; `connection` are options of the client."""
    is_default_endpoint = endpoint.key_variable == endpoints.USUAL_KEY and not endpoint.embedded
    agent = f"mendgraph/{_version('mendgraph')}"

    def strip_headers(request: httpx2.Request) -> None:
        """Name this agent, and remove the SDK's headers; other endpoints than the default one get no other headers."""
        for name in set(request.headers) - {_RAW_RESPONSE}:
            if name.startswith("x-stainless-") or (not is_default_endpoint and name not in _PLAIN_HEADERS):
                del request.headers[name]

        request.headers["user-agent"] = agent

    async def strip_headers_in_loop(request: httpx2.Request) -> None:
        strip_headers(request)

    auth = None
    if not endpoints.has_path(endpoint.base_url):
        auth = BelowV1()

    settings: JsonMap = {
        **connection,
        "limits": POOL,
        "timeout": httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
        "headers": NOT_COMPRESSED,
        "auth": auth,
    }

    if in_loop:
        hooks: JsonMap = {"request": [strip_headers_in_loop], "response": [abound_response]}
        return {"http_async_client": httpx2.AsyncClient(**settings, event_hooks=hooks), "client": _UNUSED}

    hooks = {"request": [strip_headers], "response": [bound_response]}
    return {"http_client": httpx2.Client(**settings, event_hooks=hooks), "async_client": _UNUSED}


_UNUSED: Final = object()
"""In place of the SDK's other client, which is not called."""


def _is_openai(endpoint: endpoints.Endpoint) -> bool:
    return not endpoint.base_url or urlsplit(endpoint.base_url).hostname == OPENAI_HOST


def _limit_name(endpoint: endpoints.Endpoint) -> str:
    """Return the likely name of an endpoint's limit on a reply; its first refusal corrects it."""
    if _is_openai(endpoint) or _NEW_LIMIT.search(endpoint.model):
        return failures.NEW_LIMIT
    return failures.OLD_LIMIT


def served_models(model: ChatModel) -> list[str] | ProviderFailure:
    """Request the list of models that an endpoint serves."""
    chat: Any = model.connections.get()
    try:
        document = call_within(CONNECT_TIMEOUT_S, partial(chat.root_client.get, "/models", cast_to=object))
        return [str(served["id"]) for served in document["data"]]
    except Exception as error:  # noqa: BLE001 - an endpoint may send anything
        return failures.describe_failure(error, model.provider)
    finally:
        model.close()


def name_of(chat: BaseChatModel) -> str:
    """Return the name of a chat model's model, or ""."""
    for field in ("model_name", "model", "model_id", "azure_deployment", "deployment_name"):
        value = getattr(chat, field, None)
        if value and isinstance(value, str):
            return value.removeprefix("models/")

    return ""


def _address_of(chat: BaseChatModel) -> str:
    for field in ("openai_api_base", "azure_endpoint", "anthropic_api_url", "base_url", "endpoint", "api_base"):
        value = getattr(chat, field, None)
        if value:
            return str(value)

    return ""


def _with_options(model: ChatModel, single: Single, options: endpoints.ModelOptions) -> ChatModel:
    """Return a user's chat model with a run's options: as settings if it has such fields, else for each request."""
    chat = single.chat
    arguments: JsonMap = {**single.settings, **options.model_kwargs}
    if options.reasoning_effort is not None:
        arguments["reasoning_effort"] = options.reasoning_effort

    settings, others = _split_by_fields(arguments, type(chat))

    if isinstance(chat, BaseChatOpenAI):
        body = {name: value for name, value in others.items() if name not in REQUEST_OPTIONS}
        others = {name: value for name, value in others.items() if name in REQUEST_OPTIONS}
        if body:
            settings["extra_body"] = {**(settings.get("extra_body", chat.extra_body) or {}), **body}

    return replace(model, settings=settings, options=others)


def _thinks(chat: BaseChatModel) -> bool:
    for field in ("thinking", "thinking_budget", "thinking_level", "reasoning", "reasoning_effort"):
        value = getattr(chat, field, None)
        if value and value not in ("none", {"type": "disabled"}):
            return True

    return False


def _key(endpoint: endpoints.Endpoint, options: endpoints.ModelOptions) -> tuple[str, ...]:
    key = endpoint.api_key.get_secret_value()
    named = (endpoint.provider, endpoint.model, endpoint.base_url, key, endpoint.key_variable)
    return (*named, json.dumps(options.model_dump(), sort_keys=True, default=str))


def _not_set_up(model: str, error: Exception) -> ProviderFailure:
    """Return the failure of a package that refuses its settings; no value is quoted, as pydantic would do."""
    if isinstance(error, ValidationError):
        problem = error.errors()[0]
        first = ": ".join(map(str, (*problem["loc"], problem["msg"]))).removeprefix("Value error, ")
    else:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)

    return _unavailable(f"{model} cannot be set up ({first[:300].rstrip('.')}).")


def _unavailable(message: str) -> ProviderFailure:
    return ProviderFailure(kind=ProviderErrorKind.MODEL_UNAVAILABLE, message=message, sent=False)
