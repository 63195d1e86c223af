"""The connections of chat models: one set for each event loop, and one for the threads of each process.

A connection belongs to the event loop that opened it, and a forked child must not write to its parent's. LangChain's
packages share one HTTP client among all event loops of a process. So a package's chat model is called as a copy with
separate clients, which keeps the settings of a user, HTTP clients included.
"""

import asyncio
import os
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import cached_property
from typing import Any, Final, Generic, NamedTuple, TypeVar

import openai
from langchain_core.language_models import BaseChatModel
from langchain_openai.chat_models.base import BaseChatOpenAI

from mendgraph.graph.langchain.openai_chat import with_extras

Value = TypeVar("Value")
Closing = TypeVar("Closing")


class ForThreads(Generic[Value]):
    """A value that the threads of a process share, created on first use; a forked child creates another one.

    It is closed by `close`, by garbage collection, or when the process ends.
    """

    def __init__(self, new: Callable[[], tuple[Value, Callable[[], object]]]) -> None:
        """`new` returns a value, and the function that closes it."""
        self._new = new
        self._value: tuple[int, Value, weakref.finalize[[], ForThreads[Value]]] | None = None

    def get(self) -> Value:
        """The value of this process."""
        if self._value is None or self._value[0] != os.getpid():
            value, close = self._new()
            self._value = os.getpid(), value, weakref.finalize(self, close)

        return self._value[1]

    def close(self) -> None:
        """Close the value of this process; the next `get` creates another one."""
        if self._value is not None and self._value[0] == os.getpid():
            self._value[2]()

        self._value = None


class ForLoops(Generic[Value]):
    """A value for each event loop, created on first use in it.

    It is closed by `aclose`, by garbage collection, or when the loop ends: an async generator that waits in the loop
    is closed with it. Source: the Python library reference, `loop.shutdown_asyncgens`.
    """

    def __init__(self, new: Callable[[], tuple[Value, Callable[[], Awaitable[object]]]]) -> None:
        """`new` returns a value, and the function that closes it."""
        self._new = new
        self._values: dict[asyncio.AbstractEventLoop, tuple[Value, AsyncGenerator[None]]] = {}

    async def get(self) -> Value:
        """The value of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            for other in list(self._values):
                if other.is_closed():
                    self._values.pop(other, None)

            value, close = await asyncio.to_thread(self._new)  # it reads the certificates of the authorities

            if loop not in self._values:
                waiting = self._closed_with_loop(loop, close)
                self._values[loop] = value, waiting
                await anext(waiting)
            else:  # another task was faster
                await close()

        return self._values[loop][0]

    async def _closed_with_loop(
        self, loop: asyncio.AbstractEventLoop, close: Callable[[], Awaitable[object]]
    ) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._values.pop(loop, None)
            await close()

    async def aclose(self) -> None:
        """Close the value of the running event loop; the next `get` creates another one."""
        _, waiting = self._values.get(asyncio.get_running_loop(), (None, None))
        if waiting is not None:
            await waiting.aclose()


class Copies(NamedTuple):
    """Copies of a chat model: one for the threads of a process, and one for each event loop."""

    for_threads: ForThreads[BaseChatModel]
    for_loops: ForLoops[BaseChatModel]


def separate_copies(chat: BaseChatModel) -> Copies:
    """Copies of a user's chat model without retries: the run makes retries, which are counted and paid.

    Those of OpenAI's, Anthropic's and Ollama's packages have separate connections. Others share those of the original.
    """
    plain = _without_retries(chat)
    return Copies(ForThreads(lambda: _for_threads(plain)), ForLoops(lambda: _for_loop(plain)))


def _without_retries(chat: BaseChatModel) -> BaseChatModel:
    """A copy without retries; clients that the original has cached are created again."""
    if "max_retries" not in type(chat).model_fields:
        return chat  # a copy would not share the count of replies of LangChain's fake models

    retries = 0
    if type(chat).__module__.startswith("langchain_google"):
        retries = 1  # where 0 means the default

    copy = chat.model_copy(update={"max_retries": retries})

    for kind in type(chat).__mro__:
        for name, value in vars(kind).items():
            if isinstance(value, cached_property):
                copy.__dict__.pop(name, None)

    return copy


_SDK_CLIENTS: Final = ("Anthropic", "AsyncAnthropic")


def _for_threads(chat: BaseChatModel) -> tuple[BaseChatModel, Callable[[], object]]:
    if isinstance(chat, BaseChatOpenAI):
        if chat.root_client is None:
            return with_extras(chat), _nothing

        http = None
        if not chat.http_client:
            http = openai.DefaultHttpxClient(**_http_settings(chat.root_client))

        root = _with_http(chat.root_client, http)
        copy = chat.model_copy(update={"root_client": root, "client": root.chat.completions})
        close = _nothing
        if http:
            close = http.close

        return with_extras(copy), close

    sdk = _anthropic_client(chat, "_client")
    if sdk is not None:
        import anthropic

        http = anthropic.DefaultHttpxClient(**_http_settings(sdk))
        return _with_client(chat, "_client", _with_http(sdk, http)), http.close

    if _is_of_ollama(chat):
        copy = _created_again(chat)
        return copy, copy._client.close  # noqa: SLF001 - langchain-ollama has no other way to close it

    return chat, _nothing


def _for_loop(chat: BaseChatModel) -> tuple[BaseChatModel, Callable[[], Awaitable[object]]]:
    if isinstance(chat, BaseChatOpenAI):
        if chat.root_async_client is None:
            return with_extras(chat), _anothing

        sdk = chat.root_async_client

        http = None
        if not chat.http_async_client:
            http = openai.DefaultAsyncHttpxClient(**_http_settings(sdk))

        root = _with_http(sdk, http)
        copy = chat.model_copy(update={"root_async_client": root, "async_client": root.chat.completions})
        close = _anothing
        if http:
            close = http.aclose

        return with_extras(copy), close

    sdk = _anthropic_client(chat, "_async_client")
    if sdk is not None:
        import anthropic

        http = anthropic.DefaultAsyncHttpxClient(**_http_settings(sdk))
        return _with_client(chat, "_async_client", _with_http(sdk, http)), http.aclose

    if _is_of_ollama(chat):
        copy = _created_again(chat)
        return copy, copy._async_client.close  # noqa: SLF001 - as above

    return chat, _anothing


def _nothing() -> None:
    """Close a copy that has no separate connections."""


async def _anothing() -> None:
    """Close a copy that has no separate connections."""


def _http_settings(sdk: Any) -> dict[str, Any]:
    return {"base_url": sdk.base_url, "timeout": sdk.timeout, **_tls_settings(str(sdk.base_url))}


def _tls_settings(base_url: str) -> dict[str, Any]:
    """Without TLS nothing is verified, as reading the certificates of the authorities takes 50 ms."""
    if base_url.startswith("http://"):
        return {"verify": False}
    return {}


def _with_http(sdk: Any, http: Any) -> Any:
    """A copy of an SDK's client without retries, which sends by `http` unless that is None."""
    if http is None:
        return sdk.with_options(max_retries=0)
    return sdk.with_options(max_retries=0, http_client=http)


def _anthropic_client(chat: BaseChatModel, name: str) -> Any:
    """The SDK's client of a chat model for Anthropic's API; None for others, and for one that has a proxy."""
    is_anthropic = any(kind.__name__ == "ChatAnthropic" for kind in type(chat).__mro__)
    if not is_anthropic or getattr(chat, "anthropic_proxy", None):
        return None

    sdk = getattr(chat, name, None)
    if type(sdk).__name__ in _SDK_CLIENTS:
        return sdk

    return None


def _with_client(chat: BaseChatModel, name: str, sdk: Any) -> BaseChatModel:
    copy = chat.model_copy()
    copy.__dict__[name] = sdk
    return copy


def _is_of_ollama(chat: BaseChatModel) -> bool:
    return type(chat).__name__ == "ChatOllama" and type(chat).__module__.startswith("langchain_ollama")


def _created_again(chat: BaseChatModel) -> Any:
    """Another chat model with the same settings, which creates clients."""
    settings = {name: getattr(chat, name) for name in chat.model_fields_set}
    options = {**_tls_settings(str(settings.get("base_url") or "")), **(settings.get("client_kwargs") or {})}
    return type(chat)(**{**settings, "client_kwargs": options, "validate_model_on_init": False})
