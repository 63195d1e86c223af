"""Conversations with MCP servers: one for each question, bounded in time and size, and no process is left of it.

Programs are spoken to over pipes of our own: `mcp`'s own client lets a server's stderr through to the terminal, reads
messages of any length, and waits four seconds for a server that will not end.
"""

import asyncio
import logging
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from mendgraph.nodes.execute_tools.files.deadline import Worker, await_call
from mendgraph.nodes.execute_tools.files.failures import plain_text, quoted
from mendgraph.nodes.execute_tools.secrets.redact import redact
from mendgraph.nodes.records import ToolError, ToolErrorCode

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp import ClientSession, StdioServerParameters
    from mcp.shared.message import SessionMessage
    from mcp.types import JSONRPCMessage

Answer = TypeVar("Answer")

MOST_MESSAGE_BYTES = 8 * 1024 * 1024
"""Of one message of a server."""

MOST_STRAY_MESSAGES = 1_000
"""Lines that are no MCP, and requests of a server's own, before it is given up."""

POLITE_END_S = 1.0
"""How long a server may take to end once nobody speaks to it any more."""

GIVEN_UP_END_S = 0.2
"""The same after a timeout, from SIGTERM to SIGKILL."""

_LONGEST_REASON = 500
_VARIABLE: Final = re.compile(r"\$\{([^{}]+)\}")
"""What langchain-mcp-adapters replaces in the values of a connection's `env`."""

_REMOTE: Final = ("http", "streamable_http", "streamable-http", "sse", "websocket")
"""Transports without a program of ours. Source: langchain-mcp-adapters' create_session."""

MISSING: Final = ToolError(
    code=ToolErrorCode.UNAVAILABLE,
    message="MCP tools need packages that are not installed: pip install 'mendgraph[mcp]'",
)


class ConnectionSettingsError(ValueError):
    """What the user says of a server does not describe one."""


@dataclass(frozen=True)
class McpServer:
    """A server by its name and its connection, in the form of langchain-mcp-adapters' MultiServerMCPClient."""

    name: str
    connection: Mapping[str, object]

    async def ask(
        self, question: "Callable[[ClientSession], Awaitable[Answer]]", timeout_s: float
    ) -> Answer | ToolError:
        """What `question` comes to in a conversation of its own, which takes at most `timeout_s` seconds.

        UNAVAILABLE where the server cannot be started or the extra `mcp` is missing, INVALID_ARGUMENT for a connection
        that is none, TIMEOUT, and IO_ERROR for a server that dies, refuses, or says what nobody understands.
        """
        try:
            import anyio
            import langchain_mcp_adapters.sessions
        except ImportError:
            return MISSING
        _ = langchain_mcp_adapters
        _keep_logs_off_the_terminal()
        talk = _Talk()
        try:
            with anyio.fail_after(timeout_s) as scope:
                async with self._session(talk) as session:
                    try:
                        await session.initialize()
                        talk.greeted = True
                        return await question(session)
                    except asyncio.CancelledError:
                        scope.cancel()  # no polite ending of the transports, which could take long
                        raise
        except TimeoutError:
            message = f"The MCP server {quoted(self.name)} did not answer within {timeout_s:g} s, and was given up."
            return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
        except Exception as error:  # noqa: BLE001 - a server may fail in any way, and none ends the run
            return self._failure(_leaf(error), talk)

    def _session(self, talk: "_Talk") -> "AbstractAsyncContextManager[ClientSession]":
        transport = self.connection.get("transport")
        if transport == "stdio":
            return _program_session(dict(self.connection), talk)
        if transport not in _REMOTE:
            raise ConnectionSettingsError(f"its transport has to be one of stdio, {', '.join(_REMOTE)}")
        if not isinstance(self.connection.get("url"), str):
            raise ConnectionSettingsError("it has no url")
        from langchain_mcp_adapters.sessions import Connection, create_session

        # A copy, since create_session adds to the inner map.
        extra = self.connection.get("session_kwargs")
        given = {**self.connection, "session_kwargs": dict(extra) if isinstance(extra, Mapping) else {}}
        return create_session(cast("Connection", given))

    def _failure(self, error: BaseException, talk: "_Talk") -> ToolError:
        name, reason = quoted(self.name), _reason(error)
        if isinstance(error, ConnectionSettingsError):
            message = f"The connection of the MCP server {name} cannot be used: {reason}"
            return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
        if isinstance(error, OSError | ImportError) or (not talk.started and _is_unreachable(error)):
            message = f"The MCP server {name} cannot be reached: {reason}"
            return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
        code = ToolErrorCode.UNAVAILABLE if talk.started and not talk.greeted else ToolErrorCode.IO_ERROR
        return ToolError(code=code, message=f"The MCP server {name} failed: {talk.last_words() or reason}")


@dataclass
class _Talk:
    started: bool = False
    greeted: bool = False
    stray: int = 0
    broken: str = ""
    stderr: bytearray = field(default_factory=bytearray)

    def last_words(self) -> str:
        """Why it ended, where it did not end as it should."""
        if not self.broken:
            return ""
        said = _reason(self.stderr.decode("utf-8", "replace")[-_LONGEST_REASON:])
        return f"{self.broken}; it said: {said}" if said else self.broken


class _Tail(asyncio.Protocol):
    def __init__(self, kept: bytearray) -> None:
        self._kept = kept

    def data_received(self, data: bytes) -> None:
        self._kept += data[-2 * _LONGEST_REASON :]
        del self._kept[: -2 * _LONGEST_REASON]


@asynccontextmanager
async def _program_session(connection: dict[str, Any], talk: _Talk) -> "AsyncIterator[ClientSession]":
    import anyio
    from mcp import ClientSession

    extra = connection.pop("session_kwargs", None) or {}
    process = await _started(_parameters(connection))
    talk.started = True
    polite = False
    reader = asyncio.StreamReader(limit=MOST_MESSAGE_BYTES)
    transports: list[asyncio.BaseTransport] = []
    try:
        to_server = await _connect(process, reader, talk, transports)
        heard, session_hears = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
        session_says, said = anyio.create_memory_object_stream["SessionMessage"](0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_listen, reader, heard, talk)
            tasks.start_soon(_speak, said, to_server)
            async with session_hears, session_says, ClientSession(session_hears, session_says, **extra) as session:
                yield session
            tasks.cancel_scope.cancel()
        polite = True
    finally:
        await _end(process, reader, transports, polite=polite)


def _parameters(connection: dict[str, Any]) -> "StdioServerParameters":
    """The connection's fields, checked, with `${NAME}` in its `env` replaced as langchain-mcp-adapters does."""
    from mcp import StdioServerParameters
    from pydantic import ValidationError

    try:
        parameters = StdioServerParameters.model_validate(connection)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        raise ConnectionSettingsError(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error
    env = parameters.env
    if env is not None:
        env = {k: _VARIABLE.sub(lambda found: os.environ.get(found[1], found[0]), v) for k, v in env.items()}
    return parameters.model_copy(update={"env": env})


async def _started(parameters: "StdioServerParameters") -> subprocess.Popen[bytes]:
    """The server, started in a thread: the loop may be that of other runs, and starting a program waits for it."""
    starting = Worker(copy_context(), partial(_start, parameters)).outcome
    try:
        return await asyncio.shield(asyncio.wrap_future(starting))
    except asyncio.CancelledError:
        starting.add_done_callback(_end_unused)
        raise


def _end_unused(started: "Future[subprocess.Popen[bytes]]") -> None:
    if started.exception() is None:
        with started.result() as process:
            _signal_group(process, signal.SIGKILL)


def _start(parameters: "StdioServerParameters") -> subprocess.Popen[bytes]:
    """The server as a process group of its own, with the environment that `mcp` gives to servers: no keys."""
    from mcp.client.stdio import get_default_environment

    return subprocess.Popen(  # noqa: S603 - the user's own connection, never a shell line
        [parameters.command, *parameters.args],
        bufsize=0,
        cwd=parameters.cwd,
        env={**get_default_environment(), **(parameters.env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


async def _connect(
    process: subprocess.Popen[bytes], reader: asyncio.StreamReader, talk: _Talk, transports: list[asyncio.BaseTransport]
) -> asyncio.WriteTransport:
    loop = asyncio.get_running_loop()
    stdout, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
    transports.append(stdout)
    stderr, _ = await loop.connect_read_pipe(lambda: _Tail(talk.stderr), process.stderr)
    transports.append(stderr)
    stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
    transports.append(stdin)
    return stdin


async def _listen(
    reader: asyncio.StreamReader, heard: "MemoryObjectSendStream[SessionMessage | Exception]", talk: _Talk
) -> None:
    """Hand on what is for us, until the server ends or is not worth listening to."""
    import anyio
    from mcp.shared.message import SessionMessage

    async with heard:
        try:
            while line := await reader.readline():
                message = _message(line, talk)
                if message is not None:
                    await heard.send(SessionMessage(message))
                elif talk.stray > MOST_STRAY_MESSAGES:
                    talk.broken = "it sends what is not MCP"
                    return
            talk.broken = "it ended"
        except ValueError:
            talk.broken = f"it sent a message of more than {MOST_MESSAGE_BYTES} bytes"
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return


def _message(line: bytes, talk: _Talk) -> "JSONRPCMessage | None":
    """The message of a line: an answer, or a request that can be refused. Nothing else is for us."""
    from mcp.types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, ServerRequest
    from pydantic import ValidationError

    try:
        message = JSONRPCMessage.model_validate_json(line)
        told = message.root
        if isinstance(told, JSONRPCNotification):
            return None
        if not isinstance(told, JSONRPCRequest) and str(told.id).isdecimal():
            return message
        talk.stray += 1
        if not isinstance(told, JSONRPCRequest) or talk.stray > MOST_STRAY_MESSAGES:
            return None
        ServerRequest.model_validate(told.model_dump(by_alias=True, mode="json", exclude_none=True))
    except ValidationError:
        talk.stray += 1
        return None
    return message


async def _speak(said: "MemoryObjectReceiveStream[SessionMessage]", to_server: asyncio.WriteTransport) -> None:
    async with said:
        async for message in said:
            text = message.message.model_dump_json(by_alias=True, exclude_none=True)
            to_server.write(f"{text}\n".encode())


async def _end(
    process: subprocess.Popen[bytes],
    reader: asyncio.StreamReader,
    transports: list[asyncio.BaseTransport],
    *,
    polite: bool,
) -> None:
    """End the server by its process id: politely by closing its input, else by SIGTERM; what is left by SIGKILL."""
    import anyio

    try:
        for transport in transports:
            if isinstance(transport, asyncio.WriteTransport) and not transport.is_closing():
                transport.abort()
        if not polite:
            _signal_group(process, signal.SIGTERM)
        with anyio.move_on_after(POLITE_END_S if polite else GIVEN_UP_END_S, shield=True), suppress(Exception):
            while await reader.read(MOST_MESSAGE_BYTES):
                pass
    finally:
        # Before the process is waited for: until then nobody else can have its number.
        _signal_group(process, signal.SIGKILL)
        for transport in transports:
            transport.close()
        for pipe in (process.stdout, process.stderr, process.stdin)[len(transports) :]:
            if pipe is not None:
                pipe.close()
        with anyio.CancelScope(shield=True), suppress(subprocess.TimeoutExpired):
            await await_call(partial(process.wait, POLITE_END_S))


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _keep_logs_off_the_terminal() -> None:
    """What these libraries log quotes servers, and would be shown where the user has set up no logging."""
    for name in ("mcp", "client", "httpx", "langchain_mcp_adapters"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def _leaf(error: BaseException) -> BaseException:
    """The first error of a group: what the others followed from."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _is_unreachable(error: BaseException) -> bool:
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)


def _reason(error: BaseException | str) -> str:
    text = str(redact(str(error)[: 4 * _LONGEST_REASON]))
    return plain_text(text, _LONGEST_REASON) or ("" if isinstance(error, str) else type(error).__name__)
