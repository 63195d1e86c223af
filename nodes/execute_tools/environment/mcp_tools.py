"""Tools of MCP servers as tools of ours, so that guard, timeout, trace, redaction and journal are the engine's.

A server is not trusted: what it says of its tools is bounded and made plain, and its hints on what a tool does to the
world are not read. Each call is a conversation of its own, so a server keeps nothing in memory from call to call.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nodes.execute_tools.argument_schema import UnusableSchemaError
from nodes.execute_tools.environment.failures import quoted
from nodes.execute_tools.environment.mcp_sessions import McpServer
from nodes.execute_tools.mcp_results import LONGEST_DESCRIPTION, bounded_schema, call_result, plain_text
from nodes.execute_tools.registry import Tool, ToolContext
from nodes.execute_tools.schema_arguments import OpenArguments
from nodes.language.names import closest_names
from nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult

if TYPE_CHECKING:
    from mcp import ClientSession, types

MOST_TOOLS = 500
"""Of one server; one that lists more is refused, since its list may have no end."""

LONGEST_NAME = 64
"""Characters of a tool's name. Source: OpenAI's API, as `[A-Za-z0-9_-]{1,64}`."""


async def load_mcp_tools(
    connections: Mapping[str, Mapping[str, object]],
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
    servers = [McpServer(name, connection) for name, connection in connections.items()]
    listed = await asyncio.gather(*(server.ask(_list_tools, timeout_s) for server in servers))
    offered: list[tuple[McpServer, types.Tool]] = []
    for server, found in zip(servers, listed, strict=True):
        if isinstance(found, ToolError):
            return found
        if len(found) > MOST_TOOLS:
            message = f"The MCP server {quoted(server.name)} lists more than {MOST_TOOLS} tools, so it is not used."
            return _invalid(message)
        offered += [(server, each) for each in found]
    names = _names([(server.name, each.name) for server, each in offered])
    if isinstance(names, ToolError):
        return names
    problem = _unknown_effect(effects or {}, [*connections, *names])
    if problem is not None:
        return problem
    try:
        return tuple(
            _tool(server, each, name, effects or {}) for (server, each), name in zip(offered, names, strict=True)
        )
    except ValueError as error:
        return _invalid(str(error))


def load_mcp_tools_sync(
    connections: Mapping[str, Mapping[str, object]],
    *,
    effects: Mapping[str, Effect] | None = None,
    timeout_s: float = 30.0,
) -> tuple[Tool, ...] | ToolError:
    """As `load_mcp_tools`, for callers without an event loop; inside one it is an error that says what to await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(load_mcp_tools(connections, effects=effects, timeout_s=timeout_s))
    return _invalid("An event loop is running here: use `await load_mcp_tools(...)` instead of load_mcp_tools_sync.")


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


def _names(offered: Sequence[tuple[str, str]]) -> list[str] | ToolError:
    """A valid name for each tool; two that become one are refused, since nobody could tell which one is called."""
    taken: dict[str, tuple[str, str]] = {}
    for server, tool in offered:
        name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")[:LONGEST_NAME]
        if name in taken:
            first, second = (f"{quoted(tool)} of {quoted(server)}" for server, tool in (taken[name], (server, tool)))
            return _invalid(f"Two MCP tools would both be called {name!r}: {first} and {second}. Rename a server.")
        taken[name] = (server, tool)
    return list(taken)


def _unknown_effect(effects: Mapping[str, Effect], known: list[str]) -> ToolError | None:
    for name, effect in effects.items():
        if name not in known:
            meant = closest_names(name, known)
            remedy = f"Did you mean {' or '.join(meant)}?" if meant else f"There are: {', '.join(known) or 'none'}."
            return _invalid(f"The effects name {name!r}, which is no MCP tool or server. {remedy}")
        if not isinstance(effect, Effect):
            return _invalid(f"The effect of {name!r} has to be an Effect, such as Effect.READ.")
    return None


def _tool(server: McpServer, offered: "types.Tool", name: str, effects: Mapping[str, Effect]) -> Tool:
    """One tool. ValueError where its schema cannot be used; the text names the tool."""
    schema = bounded_schema(offered.inputSchema)
    if isinstance(schema, str):
        raise UnusableSchemaError(f"The tool {name!r} has a schema that cannot be used: {schema}.")
    said = plain_text(offered.description or offered.title or "", LONGEST_DESCRIPTION)

    async def run(context: ToolContext, arguments: OpenArguments) -> ToolResult | ToolError:
        question = partial(_call, tool=offered.name, arguments=arguments.model_extra or {})
        answer = await server.ask(question, min(context.timeout_s, context.seconds_left))
        return answer if isinstance(answer, ToolError) else call_result(name, answer)

    return Tool(
        name=name,
        description=said or f"A tool of the MCP server {quoted(server.name)}.",
        arguments=OpenArguments,
        effect=effects.get(name, effects.get(server.name, Effect.EXECUTE)),
        run=run,
        self_timed=True,
        remote=True,
        schema=schema,
    )


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


def _invalid(message: str) -> ToolError:
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
