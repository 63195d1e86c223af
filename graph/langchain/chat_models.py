"""Chooses the chat model of a run: a user's, a provider's by its name, an endpoint's, or the embedded one."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Final

from langchain_core.language_models import BaseChatModel
from pydantic import SecretStr

from mendgraph.graph.langchain import failures
from mendgraph.graph.langchain.chat_model import ChatModel
from mendgraph.graph.langchain.connections import is_openai_chat, user_connections
from mendgraph.graph.langchain.wrapped_models import Single, split_by_fields
from mendgraph.nodes.call_model import endpoint as endpoints
from mendgraph.nodes.records import JsonMap, ProviderFailure

_FAKE: Final = "GenericFakeChatModel"
"""LangChain's fake model for tests, which splits its replies where it streams."""


class ChatModels:
    """The chat models of a process's runs: one for each endpoint, shared by all runs and threads."""

    def __init__(self, environment: Mapping[str, str], user_chats: Sequence[Single] = ()) -> None:
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

        endpoint = endpoints.find_endpoint(model, base_url, self._environment)
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
            choice.model, choice.base_url, self._environment, key_variable=choice.key_variable
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
        from mendgraph.graph.langchain.endpoint_models import endpoint_model, served_models

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
            model.connections.close()

        self._models = {}

    async def aclose(self) -> None:
        """Close the connections of this event loop and those of sync calls, and empty the cache."""
        for model in self._all():
            with suppress(RuntimeError, OSError):  # it is closed already
                await model.connections.aclose()

        await asyncio.to_thread(self.close)

    def _all(self) -> list[ChatModel]:
        return [*self._models.values(), *self._user_models]


def user_model(chat: BaseChatModel) -> ChatModel:
    """Wrap a user's chat model in the interface of `Model`."""
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
        in_openai_form=is_openai_chat(chat),
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

        return failures.unavailable(f"{full} needs a package that is not installed: run `{how_to_install(package)}`")
    except Exception as error:  # noqa: BLE001 - each package refuses wrong settings in its own way
        return failures.not_set_up(full, error)

    if options.reasoning_effort is not None and "reasoning_effort" not in type(chat).model_fields:
        return failures.unavailable(
            f"{type(chat).__name__} has no reasoning_effort: leave it empty, or use model_kwargs."
        )

    return user_model(chat)


def name_of(chat: BaseChatModel) -> str:
    """Return the name of a chat model's model, or ""."""
    fields = ("model_name", "model", "model_id", "azure_deployment", "deployment_name")
    return _setting(chat, *fields).removeprefix("models/")


def _address_of(chat: BaseChatModel) -> str:
    fields = ("openai_api_base", "azure_endpoint", "anthropic_api_url", "base_url", "endpoint", "api_base")
    return _setting(chat, *fields)


def _setting(chat: BaseChatModel, *fields: str) -> str:
    """Return the first of these fields that is set, or ""."""
    return next((value for field in fields if (value := getattr(chat, field, None)) and isinstance(value, str)), "")


def _with_options(model: ChatModel, single: Single, options: endpoints.ModelOptions) -> ChatModel:
    """Return a user's chat model with a run's options: as settings if it has such fields, else for each request."""
    chat = single.chat
    arguments: JsonMap = {**single.settings, **options.model_kwargs}
    if options.reasoning_effort is not None:
        arguments["reasoning_effort"] = options.reasoning_effort

    settings, others = split_by_fields(arguments, type(chat))

    if is_openai_chat(chat):
        from mendgraph.graph.langchain.openai_replies import REQUEST_OPTIONS

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
