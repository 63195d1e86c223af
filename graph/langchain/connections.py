"""The connections of chat models: one set for each event loop, and one for the threads of each process.

A connection belongs to the event loop that opened it, and a forked child must not write to its parent's. LangChain's
packages share one HTTP client among all event loops of a process. So a chat model is called as a copy with separate
clients, which keeps the settings of a user, HTTP clients included.
"""

import asyncio
import os
import sys
import weakref
from collections.abc import AsyncGenerator, Callable
from functools import cached_property, partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from langchain_core.language_models import BaseChatModel

from mendgraph.graph.langchain.reply_limits import NOT_COMPRESSED, abound_response, bound_response

if TYPE_CHECKING:
    from langchain_openai.chat_models.base import BaseChatOpenAI

OpenedChat = tuple[BaseChatModel, Callable[[], Any]]
"""A chat model, and the function that closes its connections: an async one if it is for an event loop."""


class ChatConnections:
    """A chat model for the threads of each process, and one for each event loop, each opened on first use.

    It is closed by `close` or `aclose`, by garbage collection, or when its process or loop ends: an async generator
    that waits in a loop is closed with it. Source: the Python library reference, `loop.shutdown_asyncgens`.
    """

    def __init__(self, open_chat: Callable[[bool], OpenedChat]) -> None:
        """`open_chat` opens a chat model: for an event loop if its argument is True, else for threads."""
        self._open = open_chat
        self._for_threads: tuple[int, BaseChatModel, weakref.finalize[[], ChatConnections]] | None = None
        self._for_loops: dict[asyncio.AbstractEventLoop, tuple[BaseChatModel, AsyncGenerator[None]]] = {}

    def get(self) -> BaseChatModel:
        """Return the chat model for the threads of this process."""
        if self._for_threads is None or self._for_threads[0] != os.getpid():
            chat, close = self._open(False)
            self._for_threads = os.getpid(), chat, weakref.finalize(self, close)

        return self._for_threads[1]

    async def aget(self) -> BaseChatModel:
        """Return the chat model for the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._for_loops:
            for other in list(self._for_loops):
                if other.is_closed():
                    self._for_loops.pop(other, None)

            chat, close = await asyncio.to_thread(self._open, True)  # it reads the certificates of the authorities

            if loop not in self._for_loops:
                closing = self._close_with_loop(loop, close)
                self._for_loops[loop] = chat, closing
                await anext(closing)
            else:  # another task was faster
                await _call(close)

        return self._for_loops[loop][0]

    async def _close_with_loop(self, loop: asyncio.AbstractEventLoop, close: Callable[[], Any]) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self._for_loops.pop(loop, None)
            await _call(close)

    def close(self) -> None:
        """Close the connections of this process's threads; the next `get` opens others."""
        if self._for_threads is not None and self._for_threads[0] == os.getpid():
            self._for_threads[2]()

        self._for_threads = None

    async def aclose(self) -> None:
        """Close the connections of the running event loop; the next `aget` opens others."""
        _, closing = self._for_loops.get(asyncio.get_running_loop(), (None, None))
        if closing is not None:
            await closing.aclose()


async def _call(close: Callable[[], Any]) -> None:
    result = close()
    if isawaitable(result):
        await result


def user_connections(chat: BaseChatModel) -> ChatConnections:
    """Return connections for a user's chat model, without retries: the run makes retries, which are counted and paid.

    Chat models of OpenAI's, Anthropic's and Ollama's packages get separate connections. Others share those of the
    original.
    """
    return ChatConnections(partial(_open_copy, _without_retries(chat)))


def _without_retries(chat: BaseChatModel) -> BaseChatModel:
    """Return a copy without retries; clients that the original has cached are created again."""
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


def _open_copy(chat: BaseChatModel, in_loop: bool) -> OpenedChat:
    if is_openai_chat(chat):
        return _open_openai(chat, in_loop)
    if is_anthropic_chat(chat):
        return _open_anthropic(chat, in_loop)
    if _is_instance(chat, "langchain_ollama", "ChatOllama"):
        return _open_ollama(chat, in_loop)

    return chat, _keep_open


def is_openai_chat(chat: object) -> "TypeGuard[BaseChatOpenAI]":
    """Return whether this is a chat model of langchain-openai's family, without an import of the package."""
    return _is_instance(chat, "langchain_openai.chat_models.base", "BaseChatOpenAI")


def is_anthropic_chat(chat: object) -> bool:
    """Return whether this is a chat model of langchain-anthropic's family, whose package may be missing."""
    return _is_instance(chat, "langchain_anthropic", "ChatAnthropic")


def _is_instance(chat: object, module: str, name: str) -> bool:
    """Return whether a chat model is of this class, whose module is imported if there is such a chat model."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(chat, kind)


def _keep_open() -> None:
    """Close a copy that has no separate connections."""


def _open_openai(chat: "BaseChatOpenAI", in_loop: bool) -> OpenedChat:
    import openai

    from mendgraph.graph.langchain.openai_replies import with_complete_replies

    fields = ("root_client", "client")
    user_http = chat.http_client
    if in_loop:
        fields = ("root_async_client", "async_client")
        user_http = chat.http_async_client

    sdk: Any = getattr(chat, fields[0])
    if sdk is None:  # it has only the other client
        return with_complete_replies(chat), _keep_open

    settings = {**_http_settings(sdk), "headers": NOT_COMPRESSED}
    close: Callable[[], Any] = _keep_open
    http: Any = user_http
    if in_loop and not user_http:
        http = openai.DefaultAsyncHttpxClient(**settings, event_hooks={"response": [abound_response]})
        close = http.aclose
    elif not user_http:
        http = openai.DefaultHttpxClient(**settings, event_hooks={"response": [bound_response]})
        close = http.close

    root = sdk.with_options(max_retries=0, http_client=http)
    copy = chat.model_copy(update={fields[0]: root, fields[1]: root.chat.completions})
    return with_complete_replies(copy), close


_SDK_CLIENTS: Final = ("Anthropic", "AsyncAnthropic")


def _open_anthropic(chat: BaseChatModel, in_loop: bool) -> OpenedChat:
    field = "_async_client" if in_loop else "_client"
    sdk: Any = getattr(chat, field, None)
    if type(sdk).__name__ not in _SDK_CLIENTS or getattr(chat, "anthropic_proxy", None):
        return chat, _keep_open

    import anthropic

    http: Any
    if in_loop:
        http = anthropic.DefaultAsyncHttpxClient(**_http_settings(sdk))
    else:
        http = anthropic.DefaultHttpxClient(**_http_settings(sdk))

    copy = chat.model_copy()
    copy.__dict__[field] = sdk.with_options(max_retries=0, http_client=http)
    return copy, http.aclose if in_loop else http.close


def _open_ollama(chat: BaseChatModel, in_loop: bool) -> OpenedChat:
    """Create another chat model with the same settings, which creates clients."""
    settings = {name: getattr(chat, name) for name in chat.model_fields_set}
    options = {**_tls_settings(str(settings.get("base_url") or "")), **(settings.get("client_kwargs") or {})}
    copy: Any = type(chat)(**{**settings, "client_kwargs": options, "validate_model_on_init": False})
    client = copy._async_client if in_loop else copy._client  # noqa: SLF001 - it has no other way to close them

    return copy, client.close


def _http_settings(sdk: Any) -> dict[str, Any]:
    return {"base_url": sdk.base_url, "timeout": sdk.timeout, **_tls_settings(str(sdk.base_url))}


def _tls_settings(base_url: str) -> dict[str, Any]:
    """Verify nothing without TLS, as reading the certificates of the authorities takes 50 ms."""
    if base_url.startswith("http://"):
        return {"verify": False}

    return {}
