"""The MCP servers of one session: each is started when it is first needed, and ends with the session.

They are used in an event loop of their own, in a thread that belongs to the session, so that sync and async runs use
the same servers. A server that ends, hangs or exceeds a limit is ended, and started again by the next request.
"""

import asyncio
import logging
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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

Response = TypeVar("Response")
Request = Callable[["ClientSession"], Awaitable[Response]]
"""Sends a request in a session of `mcp`, and returns the response."""

_SILENT: Final = logging.NullHandler()
_LOGGERS: Final = ("mcp", "client", "httpx", "langchain_mcp_adapters")
"""Loggers whose messages quote servers."""


class McpServers:
    """The running servers of one session; close it at the end of the session, or garbage collection does."""

    def __init__(self) -> None:
        self._clients: dict[McpServer, _Client] = {}
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def send(self, server: McpServer, request: "Request[Response]", timeout_s: float) -> Response | ToolError:
        """Return the response to `request` of this server, which is started if it does not run.

        UNAVAILABLE if the server cannot be started or reached, TIMEOUT after `timeout_s` seconds, IO_ERROR if it
        dies, refuses the request, exceeds a limit, or breaks the protocol.
        """
        with self._lock:
            if self._thread is None:
                self._thread = _LoopThread(self._clients)
                self._finalizer = weakref.finalize(self, self._thread.finish)

            client = self._clients.setdefault(server, _Client(server))
            loop = self._thread.loop

        future = asyncio.run_coroutine_threadsafe(client.send(request, timeout_s), loop)
        return await asyncio.wrap_future(future)

    def server(self, name: str) -> McpServer:
        """Return the server of this name, to which a request was sent before."""
        with self._lock:
            return next(server for server in self._clients if server.name == name)

    def close(self) -> None:
        """End all servers; their processes have ended when this returns."""
        with self._lock:
            finalizer = self._finalizer
            self._finalizer = None
            self._thread = None
            self._clients = {}

        if finalizer is not None:
            finalizer()


class _LoopThread:
    """A thread with an event loop for these clients, which end with it."""

    def __init__(self, clients: "dict[McpServer, _Client]") -> None:
        self.loop = asyncio.new_event_loop()  # raises here, not in the thread, if no more files can be opened
        self._closing: asyncio.Event
        self._clients = clients
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run_loop, name="mcp servers", daemon=True)

        for library in _LOGGERS:
            logging.getLogger(library).addHandler(_SILENT)

        self._thread.start()
        self._started.wait()

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self._closing = asyncio.Event()
        self._started.set()
        await self._closing.wait()

        await asyncio.gather(*(client.end() for client in self._clients.values()), return_exceptions=True)
        others = asyncio.all_tasks() - {asyncio.current_task()}  # a cancelled request may still end its server
        if others:
            await asyncio.wait(others, timeout=END_S)

    def finish(self) -> None:
        """End the clients and the thread."""
        self.loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(3 * END_S)


@dataclass(eq=False)
class _Client:
    """Sends requests to one server; it connects again after the last connection has ended."""

    server: McpServer
    _connection: "_Connection | None" = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, request: "Request[Response]", timeout_s: float) -> Response | ToolError:
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._current()
                return await connection.send(request)
        except TimeoutError:
            await self.end()
            message = f"The MCP server {quoted(self.server.name)} did not answer within {timeout_s:g} s, and was ended."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
        except asyncio.CancelledError:
            await self.end()
            raise
        except Exception as error:  # noqa: BLE001 - a server may fail in any way, and none ends the run
            return await self._failed(connection, error)

    async def _current(self) -> "_Connection":
        async with self._starting:
            if self._connection is None or self._connection.is_over:
                await self.end()
                self._connection = _Connection(self.server)

            return self._connection

    async def _failed(self, connection: "_Connection | None", error: Exception) -> ToolError:
        """Return the error of a failed request. The connection stays open if the server only refused it."""
        from mcp import McpError, types

        refused = isinstance(error, McpError) and error.error.code != types.CONNECTION_CLOSED
        began = connection is not None and connection.has_begun
        if not (refused and began):
            await self.end()

        cause = _first_error(error)
        reason = ""
        if connection is not None and not refused and not isinstance(cause, McpLimitError):
            reason = connection.why_ended()

        reason = reason or _reason(str(cause)) or type(cause).__name__
        code = ToolErrorCode.IO_ERROR if began else ToolErrorCode.UNAVAILABLE
        return ToolError(code=code, message=f"The MCP server {quoted(self.server.name)} failed: {reason}")

    async def end(self) -> None:
        """End the connection, and the server if it is a program."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            await connection.end()


class _Connection:
    """A session of `mcp`. One task opens and closes it, as its cancel scopes belong to that task."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._session: asyncio.Future[ClientSession] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._problem = ""
        self._process: StdioProcess | None = None
        self._task = asyncio.create_task(self._keep_open())

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended."""
        return self._task.done() or self._closing.is_set()

    @property
    def has_begun(self) -> bool:
        """Whether the server has answered `initialize`."""
        return self._session.done() and not self._session.cancelled() and self._session.exception() is None

    async def send(self, request: "Request[Response]") -> Response:
        """Send a request after the server has answered `initialize`; an error if the connection ends before."""
        session = await asyncio.shield(self._session)
        response = asyncio.ensure_future(request(session))
        closing = asyncio.create_task(self._closing.wait())

        try:
            await asyncio.wait({response, closing}, return_when=asyncio.FIRST_COMPLETED)
            if response.done():
                return await response
            raise _ClosedError
        finally:
            response.cancel()
            closing.cancel()

    async def end(self) -> None:
        """Close it; a program and its process group have ended afterwards."""
        self._closing.set()
        if not self.has_begun:
            self._task.cancel()

        await asyncio.wait({self._task}, timeout=END_S)
        self._task.cancel()

    def why_ended(self) -> str:
        """Return why it has ended, as far as that is known; "" while it is open."""
        if self._problem or self._process is None:
            return self._problem
        if self._process.problem or not self._process.ended.is_set():
            return self._process.problem

        reason = _reason(self._process.stderr.decode("utf-8", "replace"))
        if reason:
            return f"it ended; it said: {reason}"

        return "it ended"

    async def _keep_open(self) -> None:
        try:
            async with self._open() as session:
                await _initialize(session, self._server.startup_timeout_s or START_S)
                self._session.set_result(session)
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - a server may fail in any way, and `send` raises the error
            if self._session.done():
                self._problem = self._problem or _reason(str(_first_error(error)))
            else:
                self._session.set_exception(_first_error(error))
        finally:
            if not self._session.done():
                self._session.set_exception(_ClosedError())

            self._session.exception()  # marks it as retrieved, as perhaps no request waits for it
            self._closing.set()

    @asynccontextmanager
    async def _open(self) -> "AsyncIterator[ClientSession]":
        extra = dict(cast("dict[str, Any]", self._server.connection.get("session_kwargs") or {}))

        if not self._server.argv:
            from langchain_mcp_adapters.sessions import create_session

            from mendgraph.nodes.execute_tools.mcp_servers.bounded_http import BoundedHttp

            connection: Any = {**self._server.connection, "session_kwargs": extra}
            connection.pop("startup_timeout_s", None)
            if connection.pop("login", False):
                from mendgraph.nodes.execute_tools.mcp_servers.logins import stored_login

                connection["auth"] = stored_login(connection["url"], self._refuse)

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


class _ClosedError(Exception):
    def __init__(self) -> None:
        super().__init__("it was ended before it answered")


async def _initialize(session: "ClientSession", seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await session.initialize()
    except TimeoutError as error:
        raise McpLimitError(f"it did not start within {seconds:g} s") from error


def _first_error(error: BaseException) -> BaseException:
    """Return the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]

    return error


def _reason(text: str) -> str:
    return one_line(str(redact(text[: 4 * LONGEST_REASON])), LONGEST_REASON)
