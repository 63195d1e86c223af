"""The servers of the settings in one command: started once, with a line for each, and ended with the command."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.mcp_servers import McpSettings, ServerSettings, connection_of, without_values
from mendgraph.nodes.execute_tools.mcp_servers.connections import Connection
from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
from mendgraph.nodes.execute_tools.mcp_tools import load_configured_tools, load_session_tools
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.tool_search import searchable
from mendgraph.nodes.language.display import count_of
from mendgraph.nodes.records import ToolError, ToolErrorCode

Tell = Callable[[str], None]


class OpenedServer(NamedTuple):
    """A server that was started, with its tools, or the problem that kept it from that."""

    name: str
    settings: ServerSettings
    tools: tuple[Tool, ...] = ()
    problem: str = ""

    @property
    def allowed(self) -> int:
        """The number of tools that run without an approval."""
        return sum(tool.approval == "granted" for tool in self.tools)


async def open_servers(running: McpServers, servers: Mapping[str, ServerSettings], root: str) -> list[OpenedServer]:
    """Start these servers side by side, and list their tools; relative names of files count from `root`."""

    async def open_server(name: str, settings: ServerSettings) -> OpenedServer:
        connection = connection_of(name, settings, os.environ)
        if isinstance(connection, ToolError):
            return OpenedServer(name, settings, problem=connection.message)

        tools = await load_configured_tools(running, name, connection, root, settings.allow)
        if isinstance(tools, ToolError):
            return OpenedServer(name, settings, problem=without_values(tools.message, settings, os.environ))

        return OpenedServer(name, settings, tools)

    return await asyncio.gather(*(open_server(name, settings) for name, settings in servers.items()))


def usable_tools(opened: Sequence[OpenedServer], *, asks: bool, tell: Tell) -> tuple[Tool, ...] | ToolError:
    """Return the tools of the servers that have started, or why a required one has not. Many tools are searched.

    `tell` gets a line for each other problem; `asks` says whether a person may be asked about calls.
    """
    tools: dict[str, Tool] = {}
    for server in opened:
        problem = server.problem.rstrip(".")
        if any(tool.name in tools for tool in server.tools):
            problem = f"The MCP server {server.name!r} has a tool with the name of another: rename it"

        if problem and server.settings.required:
            message = f"{problem}. It is `required`, so nothing is run: `mendgraph mcp list` tries it again."
            return ToolError(code=ToolErrorCode.UNAVAILABLE, message=message)
        if problem:
            tell(f"{problem}. The run continues without it; `mendgraph mcp list` tries it again.")
            continue

        tools |= {tool.name: tool for tool in server.tools}
        if server.tools and not server.allowed and not asks:
            tell(
                f"The MCP server {server.name!r} has {count_of(len(server.tools), 'tool')}, and none may run in mode"
                f' auto: list them in `allow` of [mcp_servers.{server.name}] ("*": all), or use --mode ask.'
            )

    return searchable(list(tools.values()))


@contextmanager
def running_servers(
    servers: Mapping[str, ServerSettings], root: str, tell: Tell
) -> Iterator[tuple[McpServers, list[OpenedServer]]]:
    """Start the servers, yield them, and end them."""
    tell(f"starting the MCP servers: {', '.join(servers)}")

    with McpServers() as running:
        yield running, asyncio.run(open_servers(running, servers, root))


class SessionServers(NamedTuple):
    """The servers of an editor's session, and their tools."""

    opened: Sequence[OpenedServer]
    tools: tuple[Tool, ...]


async def session_servers(
    running: McpServers,
    offered: Mapping[str, Connection],
    configured: McpSettings,
    context: AgentContext,
    tell: Tell,
) -> SessionServers | ToolError:
    """Start the servers that an editor has `offered`, and the other `configured` ones."""
    tools = await load_session_tools(running, offered, context.workspace)
    of_session = [OpenedServer(name, ServerSettings()) for name in offered]
    if isinstance(tools, ToolError):
        tell(f"The editor's MCP servers are not used. {tools.message}")
        tools = ()
        of_session = []

    for note in configured.notes:
        tell(note)

    others = {name: settings for name, settings in configured.servers.items() if name not in offered}
    opened = await open_servers(running, others, context.workspace)
    more = usable_tools(opened, asks=context.mode == "ask", tell=tell)
    if isinstance(more, ToolError):
        return more

    return SessionServers([*of_session, *opened], (*tools, *more))
