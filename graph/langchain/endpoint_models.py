"""Connects the chat models of OpenAI-compatible endpoints, the embedded model's included.

Importing openai takes half a second of CPU: runs on chat models of other packages do not import this file.
"""

import os
import re
import ssl
from collections.abc import Generator
from functools import cache, partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import openai
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import ValidationError

from mendgraph.graph.langchain import failures
from mendgraph.graph.langchain.chat_model import ChatModel
from mendgraph.graph.langchain.connections import ChatConnections, OpenedChat
from mendgraph.graph.langchain.openai_replies import with_complete_replies
from mendgraph.graph.langchain.reply_limits import NOT_COMPRESSED, abound_response, bound_response
from mendgraph.graph.langchain.wrapped_models import split_by_fields
from mendgraph.nodes.call_model import endpoint as endpoints
from mendgraph.nodes.records import JsonMap, ProviderFailure
from mendgraph.nodes.workspace.files.deadline import call_within

CONNECT_TIMEOUT_S: Final = 10.0
POOL: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
"""Without a limit on connections, as the number of runs is limited elsewhere."""

OPENAI_HOST: Final = "api.openai.com"
_NEW_LIMIT: Final = re.compile(r"(?:^|[/.:-])(?:gpt-?[5-9]|o[134](?![a-z0-9.]))", re.IGNORECASE)
"""OpenAI's models that take the token limit only under its newer name, at any endpoint."""

_PLAIN_HEADERS: Final = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host", "user-agent"}
)
_version: Final = cache(version)  # it reads the package's metadata
_RAW_RESPONSE: Final = "x-stainless-raw-response"
"""A header that the SDK reads of its request once there is a response; it identifies nobody."""


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
        return failures.not_set_up(endpoint.model or "The model", error)
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
    fields, body = split_by_fields(options.model_kwargs, ChatOpenAI)
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
        model.connections.close()
