"""Tools of MCP servers as tools of ours, so that guard, timeout, trace, redaction and journal are the engine's.

A server is not trusted: what it says of its tools is bounded and made plain, and its hints on what a tool does to the
world are not read. It checks the arguments of its tools itself. Each call is a conversation of its own, spoken by
`mcp`, so a server keeps nothing in memory from call to call.
Source of the shapes: the Model Context Protocol, revision 2025-06-18, "Tools", and its schema of content blocks.
"""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, Final, TextIO, TypeVar, cast

import orjson

from mendgraph.nodes.execute_tools.registry import OpenArguments, Tool, ToolContext, plain_schema
from mendgraph.nodes.execute_tools.secrets.redact import redact
from mendgraph.nodes.execute_tools.tool_run import meant_or_known
from mendgraph.nodes.language.display import how_to_add
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult, invalid, plain_text, quoted

if TYPE_CHECKING:
    from mcp import ClientSession, types

Answer = TypeVar("Answer")
END_S: Final = 5.0
"""How long a server may take to end once nobody speaks to it any more: `mcp` kills a program after 4 s."""

MOST_TOOLS: Final = 500  # of one server; one that lists more is refused, since its list may have no end
LONGEST_NAME: Final = 64  # characters of a tool's name. Source: OpenAI's API, as `[A-Za-z0-9_-]{1,64}`.
LONGEST_DESCRIPTION: Final = 1_024  # characters of a description. Source: what OpenAI's API takes of one.
LONGEST_ERROR: Final = 2_000
LONGEST_SCHEMA: Final = 65_536  # bytes of one tool's schema
_LONGEST_REASON: Final = 500
_TOLD: Final = ("mimeType", "uri")  # what is said of an image, a sound or a file
_SILENT: Final = logging.NullHandler()
_VARIABLE: Final = re.compile(r"\$\{([^{}]+)\}")
"""What langchain-mcp-adapters replaces in the values of a connection's `env`."""

_MISSING: Final = f"MCP tools need {how_to_add('mcp')}."
Connection = Mapping[str, object]
"""As langchain-mcp-adapters' MultiServerMCPClient takes it: {"transport": "stdio", "command": "python", ...}."""


class ConnectionSettingsError(ValueError):
    """What the user says of a server does not describe one."""


async def load_mcp_tools(
    connections: Mapping[str, Connection], *, effects: Mapping[str, Effect] | None = None, timeout_s: float = 30.0
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
    connections: Mapping[str, Connection], *, effects: Mapping[str, Effect] | None = None, timeout_s: float = 30.0
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
    schema, size = dict[str, Any](), 0
    try:
        schema = {"type": "object", "properties": {}, **plain_schema(_bounded(offered.inputSchema))}
        size = len(orjson.dumps(schema))
        problem = "" if schema["type"] == "object" else "its type has to be 'object'"
    except (TypeError, ValueError, RecursionError) as error:
        problem = str(error)
    if problem:
        raise ValueError(f"The tool {name!r} has a schema that cannot be used: {problem}.")
    if size > LONGEST_SCHEMA:
        raise ValueError(f"The tool {name!r} has a schema of {size} bytes, and {LONGEST_SCHEMA} are the most.")
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
    for block in (block for block in blocks if block["type"] != "text"):
        inner: JsonMap = block.get("resource") or block
        attachment = {key: plain_text(str(inner[key]), LONGEST_DESCRIPTION) for key in _TOLD if inner.get(key)}
        if isinstance(inner.get("text"), str):
            attachment["text"] = inner["text"]
        data.setdefault("attachments", []).append({"type": block["type"], **attachment})
    return ToolResult(ok=True, data=data)


# --- Conversations: one for each question, bounded in time


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
        from mcp import McpError, types
    except ImportError:
        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=_MISSING)
    _ = langchain_mcp_adapters
    for library in ("mcp", "client", "httpx", "langchain_mcp_adapters"):  # what they log quotes servers
        logging.getLogger(library).addHandler(_SILENT)
    greeted = False
    with TemporaryFile() as stderr:
        try:
            with anyio.fail_after(timeout_s + END_S) as scope:
                async with _session(connection, stderr) as session:
                    try:
                        with anyio.fail_after(timeout_s):
                            await session.initialize()
                            greeted = True
                            return await question(session)
                    except asyncio.CancelledError:
                        scope.cancel()  # no polite ending of the transports, which could take long
                        raise
        except Exception as error:  # noqa: BLE001 - a server may fail in any way, and none ends the run
            first: BaseException = error  # what the others of a group followed from
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            if isinstance(first, TimeoutError):
                message = f"The MCP server {quoted(name)} did not answer within {timeout_s:g} s, and was given up."
                return ToolError(code=ToolErrorCode.TIMEOUT, message=message)
            if isinstance(first, ConnectionSettingsError):
                return invalid(f"The connection of the MCP server {quoted(name)} cannot be used: {first}")
            ended = isinstance(first, anyio.BrokenResourceError | anyio.ClosedResourceError)
            ended |= isinstance(first, McpError) and first.error.code == types.CONNECTION_CLOSED
            reason = _why_ended(stderr) if ended else _reason(str(first)) or type(first).__name__
            code = ToolErrorCode.IO_ERROR if greeted else ToolErrorCode.UNAVAILABLE
            return ToolError(code=code, message=f"The MCP server {quoted(name)} failed: {reason}")


@asynccontextmanager
async def _session(connection: Connection, stderr: IO[bytes]) -> "AsyncIterator[ClientSession]":
    """A conversation; a program gets the environment that `mcp` gives, without keys."""
    from langchain_mcp_adapters.sessions import create_session
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from pydantic import ValidationError

    extra = dict(cast("Mapping[str, Any]", connection.get("session_kwargs") or {}))
    if connection.get("transport") != "stdio":
        if not isinstance(connection.get("url"), str):
            raise ConnectionSettingsError("it has neither a url nor the transport 'stdio'")
        given: Any = {**connection, "session_kwargs": extra}  # create_session adds to the inner map
        async with create_session(given) as session:
            yield session
        return
    try:
        program = StdioServerParameters.model_validate(connection)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]
        raise ConnectionSettingsError(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from error
    env = {
        name: _VARIABLE.sub(lambda found: os.environ.get(found[1], found[0]), value)
        for name, value in (program.env or {}).items()
    }
    # Its own stderr would be the terminal's.
    async with (
        stdio_client(program.model_copy(update={"env": env}), errlog=cast("TextIO", stderr)) as (heard, said),
        ClientSession(heard, said, **extra) as session,
    ):
        yield session


def _why_ended(stderr: IO[bytes]) -> str:
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _LONGEST_REASON))
    said = _reason(stderr.read().decode("utf-8", "replace"))
    return f"it ended; it said: {said}" if said else "it ended"


def _reason(text: str) -> str:
    return plain_text(str(redact(text[: 4 * _LONGEST_REASON])), _LONGEST_REASON)
