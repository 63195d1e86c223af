"""The real LangChain class of each family, pointed at its server.

A package is imported with its first client: together they take 2 s of each process that collects the tests.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_openai import AzureChatOpenAI, ChatOpenAI

from tests.providers.provider_server import ProviderServer
from tests.providers.wire import JsonMap

Client = Callable[..., BaseChatModel]


def client(server: ProviderServer, **options: Any) -> BaseChatModel:
    """The model of a server; `options` are its class's own."""
    return _CLIENTS[server.family](server, **options)


def _openai(server: ProviderServer, **options: Any) -> BaseChatModel:
    settings: JsonMap = {"base_url": server.url, "api_key": server.key, "model": server.model, "max_retries": 0}
    return ChatOpenAI(**settings | options)


def _responses(server: ProviderServer, **options: Any) -> BaseChatModel:
    stateless = {"store": False, "include": ["reasoning.encrypted_content"]}
    return _openai(server, **{"use_responses_api": True} | stateless | options)


def _azure(server: ProviderServer, **options: Any) -> BaseChatModel:
    place: JsonMap = {
        "azure_endpoint": server.url,
        "azure_deployment": server.model,
        "api_version": "2025-04-01-preview",
    }
    return AzureChatOpenAI(**place | {"api_key": server.key, "model": "gpt-5-mini", "max_retries": 0} | options)


def _anthropic(server: ProviderServer, **options: Any) -> BaseChatModel:
    from langchain_anthropic import ChatAnthropic

    settings: JsonMap = {"base_url": server.url, "api_key": server.key, "model": server.model, "max_retries": 0}
    thinking: JsonMap = {"max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    return ChatAnthropic(**settings | thinking | options)


def _gemini(server: ProviderServer, **options: Any) -> BaseChatModel:
    from langchain_google_genai import ChatGoogleGenerativeAI

    settings: JsonMap = {"base_url": server.url, "api_key": server.key, "model": server.model, "max_retries": 1}
    return ChatGoogleGenerativeAI(**settings | {"include_thoughts": True} | options)


def _ollama(server: ProviderServer, **options: Any) -> BaseChatModel:
    from langchain_ollama import ChatOllama

    settings: JsonMap = {"base_url": server.url, "model": server.model, "reasoning": True}
    return ChatOllama(**settings | options)


def _of(package: str, name: str) -> Client:
    def make(server: ProviderServer, **options: Any) -> BaseChatModel:
        kind: Callable[..., BaseChatModel] = getattr(import_module(package), name)
        settings: JsonMap = {"base_url": server.url, "api_key": server.key, "model": server.model, "max_retries": 0}
        return kind(**settings | options)

    return make


_CLIENTS: Final[dict[str, Client]] = {
    "openai_gpt5": _openai,
    "openai_responses": _responses,
    "azure": _azure,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "ollama": _ollama,
    "deepseek": _of("langchain_deepseek", "ChatDeepSeek"),
    "openrouter": _of("langchain_openrouter", "ChatOpenRouter"),
    "mistral": _of("langchain_mistralai", "ChatMistralAI"),
    "no_tools": _openai,
    "no_streaming": _openai,
}
