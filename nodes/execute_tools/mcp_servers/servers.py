"""The MCP servers of one session: each is started once, when it is first needed, and ends with the session.

Their conversations live in an event loop of their own, in a thread that belongs to the session, so that sync and async
runs use the same one. A server that ends, hangs or goes beyond a limit is ended, and started again by the next call.
"""

import asyncio
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from mendgraph.nodes.execute_tools.mcp_servers.connections import McpServer
from mendgraph.nodes.execute_tools.mcp_servers.limits import END_S, LONGEST_REASON, START_S, McpLimitError
from mendgraph.nodes.execute_tools.mcp_servers.stdio_process import StdioProcess, started_process
from mendgraph.nodes.execute_tools.secrets.redact import redact
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import ToolError, ToolErrorCode, quoted

if TYPE_CHECKING:
    from mcp import ClientSession

Answer = TypeVar("Answer")
Question = Callable[["ClientSession"], Awaitable[Answer]]

_SILENT: Final = logging.NullHandler()
_LOGGERS: Final = ("mcp", "client", "httpx", "langchain_mcp_adapters")
"""What they log quotes servers."""


class McpServers:
    """The running servers of one session; close it at the session's end. An object that is forgotten closes itself."""

    def __init__(self) -> None:
        self._clients: dict[McpServer, _Client] = {}
        self._lock = threading.Lock()
        self._loop: _LoopThread | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def ask(self, server: McpServer, question: "Question[Answer]", timeout_s: float) -> Answer | ToolError:
        """What `question` comes to in the conversation with this server, which is started where it does not run.

        UNAVAILABLE where the server cannot be started or reached, TIMEOUT after `timeout_s` seconds, and IO_ERROR for a
        server that dies, refuses, goes beyond a limit, or says what nobody understands.
        """
        client = self._client_of(server)
        future = asyncio.run_coroutine_threadsafe(client.ask(question, timeout_s), self._running_loop().loop)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End all servers; when this returns, their processes are gone."""
        with self._lock:
            finalizer = self._finalizer
            self._finalizer = None
            self._loop = None
            self._clients = {}

        if finalizer is not None:
            finalizer()

    def _client_of(self, server: McpServer) -> "_Client":
        with self._lock:
            return self._clients.setdefault(server, _Client(server))

    def _running_loop(self) -> "_LoopThread":
        with self._lock:
            if self._loop is None:
                self._loop = _LoopThread()
                self._finalizer = weakref.finalize(self, _end_all, self._loop, self._clients)

            return self._loop


def _end_all(loop: "_LoopThread", clients: "dict[McpServer, _Client]") -> None:
    async def end() -> None:
        await asyncio.gather(*(client.end() for client in clients.values()), return_exceptions=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}  # what was cancelled may still be ending its server
        if others:
            await asyncio.wait(others, timeout=END_S)

    loop.finish(end())


class _LoopThread:
    """An event loop that runs in a thread of its own until it is finished."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="mcp servers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for library in _LOGGERS:
            logging.getLogger(library).addHandler(_SILENT)

        asyncio.set_event_loop(self.loop)

        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def finish(self, last: Coroutine[Any, Any, None]) -> None:
        """Run one more coroutine, then end the thread."""
        done = asyncio.run_coroutine_threadsafe(last, self.loop)
        with suppress(TimeoutError):
            done.result(2 * END_S)

        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_S)


@dataclass(eq=False)
class _Client:
    """The conversation with one server, which is begun anew where the last one has ended."""

    server: McpServer
    _conversation: "_Conversation | None" = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, question: "Question[Answer]", timeout_s: float) -> Answer | ToolError:
        conversation: _Conversation | None = None
        try:
            async with asyncio.timeout(timeout_s):
                conversation = await self._current()
                return await conversation.ask(question)
        except TimeoutError:
            await self.end()
            message = f"The MCP server {quoted(self.server.name)} did not answer within {timeout_s:g} s, and was ended."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
        except asyncio.CancelledError:
            await self.end()
            raise
        except Exception as error:  # noqa: BLE001 - a server may fail in any way, and none ends the run
            return await self._failed(conversation, error)

    async def _current(self) -> "_Conversation":
        async with self._starting:
            if self._conversation is None or self._conversation.is_over:
                await self.end()
                self._conversation = _Conversation(self.server)

            return self._conversation

    async def _failed(self, conversation: "_Conversation | None", error: Exception) -> ToolError:
        """The failure in words. A server that has only refused the request goes on."""
        from mcp import McpError, types

        refused = isinstance(error, McpError) and error.error.code != types.CONNECTION_CLOSED
        began = conversation is not None and conversation.has_begun
        if not (refused and began):
            await self.end()

        first = _first(error)
        is_known = conversation is None or refused or isinstance(first, McpLimitError)

        if is_known or conversation is None:
            reason = ""
        else:
            reason = conversation.why_ended()

        reason = reason or _reason(str(first)) or type(first).__name__
        code = ToolErrorCode.IO_ERROR if began else ToolErrorCode.UNAVAILABLE
        return ToolError(code=code, message=f"The MCP server {quoted(self.server.name)} failed: {reason}")

    async def end(self) -> None:
        """End the conversation, and the server where it is a program."""
        conversation = self._conversation
        self._conversation = None
        if conversation is not None:
            await conversation.end()


class _Conversation:
    """A session of `mcp`, which one task opens, keeps and closes: its scopes belong to that task."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._problem = ""
        self._process: StdioProcess | None = None
        self._task = asyncio.create_task(self._keep_open())

    @property
    def is_over(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._task.done() or self._closing.is_set()

    @property
    def has_begun(self) -> bool:
        """Whether the server has answered `initialize`."""
        return self._session.done() and not self._session.cancelled() and self._session.exception() is None

    async def ask(self, question: "Question[Answer]") -> Answer:
        """The answer, once the server has answered `initialize`; an error where the conversation ends meanwhile."""
        session = await asyncio.shield(self._session)
        answer = asyncio.ensure_future(question(session))
        over = asyncio.create_task(self._closing.wait())

        try:
            await asyncio.wait({answer, over}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return await answer
            raise _OverError
        finally:
            answer.cancel()
            over.cancel()

    async def end(self) -> None:
        """Close it; a program and its process group are gone afterwards."""
        self._closing.set()
        if not self.has_begun:
            self._task.cancel()

        await asyncio.wait({self._task}, timeout=END_S)
        self._task.cancel()

    def why_ended(self) -> str:
        """Why it came to its end, as far as that is known; "" while it goes on."""
        problem = self._problem or (self._process.problem if self._process is not None else "")
        if problem or self._process is None or not self._process.ended.is_set():
            return problem

        reason = _reason(self._process.stderr.decode("utf-8", "replace"))
        if reason:
            return f"it ended; it said: {reason}"

        return "it ended"

    async def _keep_open(self) -> None:
        try:
            async with self._open() as session:
                await _initialize(session)
                self._session.set_result(session)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - a server may fail in any way, and whoever asks is told
            if self._session.done():
                self._problem = self._problem or _reason(str(_first(error)))
            else:
                self._session.set_exception(_first(error))
        finally:
            if not self._session.done():
                self._session.set_exception(_OverError())

            self._session.exception()  # nobody may ask for it any more
            self._closing.set()

    @asynccontextmanager
    async def _open(self) -> "AsyncIterator[ClientSession]":
        extra = dict(cast("dict[str, Any]", self._server.connection.get("session_kwargs") or {}))

        if not self._server.argv:
            from langchain_mcp_adapters.sessions import create_session

            from mendgraph.nodes.execute_tools.mcp_servers.bounded_http import BoundedHttp

            connection: Any = {**self._server.connection, "session_kwargs": extra}
            if connection.get("transport") != "websocket":
                connection.setdefault("httpx_client_factory", BoundedHttp(self._refuse).client)

            async with create_session(connection) as session:
                yield session

            return

        from mcp import ClientSession

        async with started_process(self._server) as process:
            self._process = process
            watch = asyncio.create_task(self._close_with(process))

            try:
                async with ClientSession(*process.streams, **extra) as session:
                    yield session
            finally:
                watch.cancel()

    def _refuse(self, problem: str) -> None:
        self._problem = self._problem or problem
        self._closing.set()

    async def _close_with(self, process: StdioProcess) -> None:
        await process.ended.wait()
        self._closing.set()


class _OverError(Exception):
    def __init__(self) -> None:
        super().__init__("it was ended before it answered")


async def _initialize(session: "ClientSession") -> None:
    try:
        async with asyncio.timeout(START_S):
            await session.initialize()
    except TimeoutError as error:
        raise McpLimitError(f"it did not begin to talk within {START_S:g} s") from error


def _first(error: BaseException) -> BaseException:
    """What the other errors of a group followed from."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]

    return error


def _reason(text: str) -> str:
    return one_line(str(redact(text[: 4 * LONGEST_REASON])), LONGEST_REASON)
