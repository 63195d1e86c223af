"""Tools of MCP servers as tools of ours, so that guard, timeout, trace, redaction and journal are the engine's.

A server is not trusted: what it says of its tools is bounded and made plain, and its hints on what a tool does to the
world are not read. It checks the arguments of its tools itself. Each call is a conversation of its own, so a server
keeps nothing in memory from call to call. The protocol is spoken by `mcp`; its own client of programs lets a server's
stderr through to the terminal and reads messages of any length, so programs are spoken to over pipes of ours.
Source of the shapes: the Model Context Protocol, revision 2025-06-18, "Tools", and its schema of content blocks.
"""

import asyncio
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import orjson

from mendgraph.nodes.execute_tools.argument_schema import OpenArguments, UnusableSchemaError, plain_schema
from mendgraph.nodes.execute_tools.files.failures import invalid, plain_text, quoted
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext
from mendgraph.nodes.execute_tools.secrets.redact import redact
from mendgraph.nodes.execute_tools.tool_run import meant_or_known
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp import ClientSession, StdioServerParameters, types
    from mcp.shared.message import SessionMessage

Answer = TypeVar("Answer")

MOST_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Of one message of a server."""

END_S: Final = 1.0
"""How long a server may take to end once nobody speaks to it any more; what is left of it is killed."""

MOST_TOOLS: Final = 500
"""Of one server; one that lists more is refused, since its list may have no end."""

LONGEST_NAME: Final = 64
"""Characters of a tool's name. Source: OpenAI's API, as `[A-Za-z0-9_-]{1,64}`."""

LONGEST_DESCRIPTION: Final = 1_024
"""Characters of a description. Source: what OpenAI's API takes of one."""

LONGEST_ERROR: Final = 2_000
LONGEST_SCHEMA: Final = 65_536
"""Bytes of one tool's schema."""

_LONGEST_REASON: Final = 500
_VARIABLE: Final = re.compile(r"\$\{([^{}]+)\}")
"""What langchain-mcp-adapters replaces in the values of a connection's `env`."""

_MISSING: Final = "MCP tools need packages that are not installed: pip install 'mendgraph[mcp]'"

Connection = Mapping[str, object]
"""As langchain-mcp-adapters' MultiServerMCPClient takes it: {"transport": "stdio", "command": "python", ...}."""


class ConnectionSettingsError(ValueError):
    """What the user says of a server does not describe one."""


async def load_mcp_tools(
    connections: Mapping[str, Connection],
    *,
    effects: Mapping[str, Effect] | None = None,
    timeout_s: float = 30.0,
) -> tuple[Tool, ...] | ToolError:
    """All tools of these servers, as `server__tool`, or why they cannot be had.

    `connections` has a connection for each server's name, as langchain-mcp-adapters' MultiServerMCPClient takes them:
    {"calc": {"transport": "stdio", "command": "python", "args": ["calc.py"]}}. A tool's effect is EXECUTE unless
    `effects` says otherwise of `server__tool` or of the whole `server`; a server's own hints (`readOnlyHint`) are not
    trusted. A server has `timeout_s` seconds to list its tools.
    """
    listed = await asyncio.gather(*(ask(name, each, _list_tools, timeout_s) for name, each in connections.items()))
    effects, found = effects or {}, dict[str, Tool]()
    for (server, connection), offered in zip(connections.items(), listed, strict=True):
        if isinstance(offered, ToolError):
            return offered
        if len(offered) > MOST_TOOLS:
            return invalid(f"The MCP server {quoted(server)} lists more than {MOST_TOOLS} tools, so it is not used.")
        for each in offered:
            name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{each.name}")[:LONGEST_NAME]
            if name in found:
                return invalid(f"Two MCP tools would both be called {name!r}. Rename a server.")
            try:
                found[name] = _tool(name, server, connection, each, effects)
            except ValueError as error:
                return invalid(str(error))
    for name, effect in effects.items():
        if name not in {*connections, *found}:
            remedy = meant_or_known(name, [*connections, *found])[1]
            return invalid(f"The effects name {name!r}, which is no MCP tool or server. {remedy}")
        if not isinstance(effect, Effect):
            return invalid(f"The effect of {name!r} has to be an Effect, such as Effect.READ.")
    return tuple(found.values())


def load_mcp_tools_sync(
    connections: Mapping[str, Connection],
    *,
    effects: Mapping[str, Effect] | None = None,
    timeout_s: float = 30.0,
) -> tuple[Tool, ...] | ToolError:
    """As `load_mcp_tools`, for callers without an event loop; inside one it is an error that says what to await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(load_mcp_tools(connections, effects=effects, timeout_s=timeout_s))
    return invalid("An event loop is running here: use `await load_mcp_tools(...)` instead of load_mcp_tools_sync.")


async def _list_tools(session: "ClientSession") -> "list[types.Tool]":
    """The server's tools, page by page; one more than MOST_TOOLS are enough to know that there are too many."""
    from mcp.types import PaginatedRequestParams

    found: list[types.Tool] = []
    cursor: str | None = None
    while True:
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        found += page.tools
        cursor = page.nextCursor
        if not cursor or len(found) > MOST_TOOLS:
            return found[: MOST_TOOLS + 1]


def _tool(name: str, server: str, connection: Connection, offered: "types.Tool", effects: Mapping[str, Effect]) -> Tool:
    """One tool. ValueError where its schema cannot be used; the text names the tool."""
    try:
        schema = {"type": "object", "properties": {}, **plain_schema(_bounded(offered.inputSchema))}
        size = len(orjson.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnusableSchemaError(f"The tool {name!r} has a schema that cannot be used: {error}.") from error
    if schema["type"] != "object":
        raise UnusableSchemaError(f"The tool {name!r} has a schema that cannot be used: its type has to be 'object'.")
    if size > LONGEST_SCHEMA:
        raise UnusableSchemaError(f"The tool {name!r} has a schema of {size} bytes, and {LONGEST_SCHEMA} are the most.")
    said = plain_text(offered.description or offered.title or "", LONGEST_DESCRIPTION)

    async def run(context: ToolContext, arguments: OpenArguments) -> ToolResult | ToolError:
        question = partial(_call, tool=offered.name, arguments=arguments.model_extra or {})
        answer = await ask(server, connection, question, min(context.timeout_s, context.seconds_left))
        return answer if isinstance(answer, ToolError) else call_result(name, answer)

    return Tool(
        name=name,
        description=said or f"A tool of the MCP server {quoted(server)}.",
        arguments=OpenArguments,
        effect=effects.get(name, effects.get(server, Effect.EXECUTE)),
        run=run,
        self_timed=True,
        remote=True,
        schema=schema,
    )


def _bounded(node: Any) -> Any:
    """A schema with its descriptions made plain. ValueError where a name in it cannot be read."""
    if isinstance(node, list):
        return [_bounded(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    if odd := next((name for name in node if not name.isprintable() or len(name) > 100), ""):
        raise ValueError(f"it has the unreadable name {plain_text(odd, 100)!r}")
    return {
        key: plain_text(value, LONGEST_DESCRIPTION)
        if key == "description" and isinstance(value, str)
        else _bounded(value)
        for key, value in node.items()
    }


async def _call(session: "ClientSession", tool: str, arguments: JsonMap) -> JsonMap:
    """The server's answer as a plain map.

    Not by `session.call_tool`: it would list all tools again, and check the answer by a schema of the server's, whose
    regular expressions may never end.
    """
    from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest

    request = ClientRequest(CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments)))
    answer: Any = await session.send_request(request, CallToolResult)
    plain: JsonMap = answer.model_dump(mode="json", by_alias=True)
    return plain


def call_result(name: str, answer: Mapping[str, Any]) -> ToolResult:
    """The envelope for what the tool `name` answered: its `text`, or what it has in a `structured` form beside no text.

    Of images, sounds and files (`attachments`) there is what is said of them, and the text of an embedded file.
    """
    blocks: list[JsonMap] = answer.get("content") or []
    text = "\n".join(str(block["text"]) for block in blocks if block["type"] == "text")
    if answer.get("isError"):
        said = plain_text(text, LONGEST_ERROR) or "it gave no reason"
        return ToolResult(ok=False, error=ToolError(code=ToolErrorCode.IO_ERROR, message=f"{name} failed: {said}"))
    data: JsonMap = {"text": text}
    if not text and answer.get("structuredContent") is not None:
        data = {"structured": answer["structuredContent"]}
    if attachments := [_attachment(block) for block in blocks if block["type"] != "text"]:
        data["attachments"] = attachments
    return ToolResult(ok=True, data=data)


def _attachment(block: JsonMap) -> JsonMap:
    inner: JsonMap = block.get("resource") or block
    said = {key: plain_text(str(inner[key]), LONGEST_DESCRIPTION) for key in ("mimeType", "uri") if inner.get(key)}
    return {"type": block["type"], **said, **({"text": inner["text"]} if isinstance(inner.get("text"), str) else {})}


# --- Conversations: one for each question, bounded in time and size, and no process is left of it


async def ask(
    name: str, connection: Connection, question: "Callable[[ClientSession], Awaitable[Answer]]", timeout_s: float
) -> Answer | ToolError:
    """What `question` to this server comes to in a conversation of its own, which takes at most `timeout_s` seconds.

    UNAVAILABLE where the server cannot be started or reached or the extra `mcp` is missing, INVALID_ARGUMENT for a
    connection that is none, TIMEOUT, and IO_ERROR for a server that dies, refuses, or says what nobody understands.
    """
    try:
        import anyio
        import langchain_mcp_adapters.sessions
    except ImportError:
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=_MISSING)
    _ = langchain_mcp_adapters
    _keep_logs_off_the_terminal()
    broken: list[str] = []
    greeted = False
    try:
        with anyio.fail_after(timeout_s) as scope:
            async with _session(connection, broken) as session:
                try:
                    await session.initialize()
                    greeted = True
                    return await question(session)
                except asyncio.CancelledError:
                    scope.cancel()  # no polite ending of the transports, which could take long
                    raise
    except TimeoutError:
        message = f"The MCP server {quoted(name)} did not answer within {timeout_s:g} s, and was given up."
        return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
    except Exception as error:  # noqa: BLE001 - a server may fail in any way, and none ends the run
        first: BaseException = error  # what the others of a group followed from
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        reason = _reason(broken[0] if broken else str(first)) or type(first).__name__
        if isinstance(first, ConnectionSettingsError):
            return invalid(f"The connection of the MCP server {quoted(name)} cannot be used: {reason}")
        code = ToolErrorCode.IO_ERROR if greeted else ToolErrorCode.UNAVAILABLE
        return ToolError(code=code, message=f"The MCP server {quoted(name)} failed: {reason}")


def _session(connection: Connection, broken: list[str]) -> "AbstractAsyncContextManager[ClientSession]":
    if connection.get("transport") == "stdio":
        return _program_session(dict(connection), broken)
    if not isinstance(connection.get("url"), str):
        raise ConnectionSettingsError("it has neither a url nor the transport 'stdio'")
    from langchain_mcp_adapters.sessions import create_session

    # A copy, since create_session adds to the inner map.
    extra = connection.get("session_kwargs")
    given: Any = {**connection, "session_kwargs": dict(extra) if isinstance(extra, Mapping) else {}}
    return create_session(given)


@asynccontextmanager
async def _program_session(connection: dict[str, Any], broken: list[str]) -> "AsyncIterator[ClientSession]":
    """A conversation with a program of ours, in a process group and with the environment that `mcp` gives: no keys."""
    import anyio
    from mcp import ClientSession
    from mcp.client.stdio import get_default_environment

    extra = connection.pop("session_kwargs", None) or {}
    parameters = _parameters(connection)
    process = await asyncio.create_subprocess_exec(
        parameters.command,
        *parameters.args,
        limit=MOST_MESSAGE_BYTES,
        cwd=parameters.cwd,
        env={**get_default_environment(), **(parameters.env or {})},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    last_words = asyncio.ensure_future(_tail(cast("asyncio.StreamReader", process.stderr)))
    polite = False
    try:
        heard, session_hears = anyio.create_memory_object_stream["SessionMessage | Exception"](0)
        session_says, said = anyio.create_memory_object_stream["SessionMessage"](0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_listen, process, heard, last_words, broken)
            tasks.start_soon(_speak, process, said)
            async with session_hears, session_says, ClientSession(session_hears, session_says, **extra) as session:
                yield session
            tasks.cancel_scope.cancel()
        polite = True
    finally:
        last_words.cancel()
        await _end(process, polite=polite)


def _parameters(connection: dict[str, Any]) -> "StdioServerParameters":
    """The connection's fields, checked, with `${NAME}` in its `env` replaced as langchain-mcp-adapters does."""
    from mcp import StdioServerParameters
    from pydantic import ValidationError

    try:
        parameters = StdioServerParameters.model_validate(connection)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        raise ConnectionSettingsError(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error
    env = {
        name: _VARIABLE.sub(lambda found: os.environ.get(found[1], found[0]), value)
        for name, value in (parameters.env or {}).items()
    }
    return parameters.model_copy(update={"env": env})


async def _tail(stderr: asyncio.StreamReader) -> str:
    """The end of what the server says to people; read all the while, so that it never waits for us."""
    tail = bytearray()
    while piece := await stderr.read(65_536):
        tail += piece
        del tail[:-_LONGEST_REASON]
    return tail.decode("utf-8", "replace")


async def _listen(
    process: asyncio.subprocess.Process,
    heard: "MemoryObjectSendStream[SessionMessage | Exception]",
    last_words: asyncio.Task[str],
    broken: list[str],
) -> None:
    """Hand on what the server says, until it ends or a message is too long; what is no message is passed over."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp.types import JSONRPCMessage
    from pydantic import ValidationError

    async with heard:
        try:
            while line := await cast("asyncio.StreamReader", process.stdout).readline():
                with suppress(ValidationError):
                    message = JSONRPCMessage.model_validate_json(line)
                    if _is_for_us(message):
                        await heard.send(SessionMessage(message))
                await anyio.lowlevel.checkpoint()  # a flood must not keep the loop from its other work
            said = await asyncio.wait({last_words}, timeout=END_S)
            broken.append(f"it ended; it said: {next(iter(said[0])).result()}" if said[0] else "it ended")
        except ValueError:
            broken.append(f"it sent a message of more than {MOST_MESSAGE_BYTES} bytes")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return


def _is_for_us(message: "types.JSONRPCMessage") -> bool:
    """An answer, or a request that can be refused: `mcp` would log anything else where the user sees it."""
    from mcp.types import JSONRPCNotification, JSONRPCRequest, ServerRequest

    told = message.root
    if isinstance(told, JSONRPCRequest):
        ServerRequest.model_validate(told.model_dump(by_alias=True, mode="json", exclude_none=True))
        return True
    return not isinstance(told, JSONRPCNotification) and str(told.id).isdecimal()


async def _speak(process: asyncio.subprocess.Process, said: "MemoryObjectReceiveStream[SessionMessage]") -> None:
    to_server = cast("asyncio.StreamWriter", process.stdin)
    async with said:
        async for message in said:
            to_server.write(f"{message.message.model_dump_json(by_alias=True, exclude_none=True)}\n".encode())


async def _end(process: asyncio.subprocess.Process, *, polite: bool) -> None:
    """End the server: politely by closing its input, else by SIGTERM; what is left of its group by SIGKILL."""
    import anyio

    with anyio.CancelScope(shield=True):
        cast("asyncio.StreamWriter", process.stdin).close()
        if not polite:
            _signal_group(process, signal.SIGTERM)
        with anyio.move_on_after(END_S):
            await process.wait()
        _signal_group(process, signal.SIGKILL)
        with anyio.move_on_after(END_S):
            await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - a child may hold its pipes open


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _keep_logs_off_the_terminal() -> None:
    """What these libraries log quotes servers, and would be shown where the user has set up no logging."""
    for name in ("mcp", "client", "httpx", "langchain_mcp_adapters"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())


def _reason(text: str) -> str:
    return plain_text(str(redact(text[: 4 * _LONGEST_REASON])), _LONGEST_REASON)
