"""The servers of the settings in one command: started once, with a line for each, and ended with the command."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.mcp_servers import ALL_TOOLS, McpSettings, ServerSettings, connection_of
from mendgraph.nodes.execute_tools.mcp_servers.connections import Connection
from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
from mendgraph.nodes.execute_tools.mcp_tools import load_configured_tools, load_session_tools, tool_name
from mendgraph.nodes.execute_tools.registry import Tool
from mendgraph.nodes.execute_tools.tool_search import searchable
from mendgraph.nodes.language.display import count_of
from mendgraph.nodes.records import ToolError

Tell = Callable[[str], None]


class OpenedServer(NamedTuple):
    """A server that was started, with its tools or why it has none."""

    name: str
    settings: ServerSettings
    tools: tuple[Tool, ...] | ToolError

    @property
    def allowed(self) -> int:
        """The number of tools that run without an approval."""
        if isinstance(self.tools, ToolError):
            return 0

        return sum(tool.approval == "granted" for tool in self.tools)

    def unknown(self) -> list[str]:
        """Return the entries of `allow` that name no tool."""
        if isinstance(self.tools, ToolError):
            return []

        names = {tool.name for tool in self.tools}
        return [tool for tool in self.settings.allow if tool != ALL_TOOLS and tool_name(self.name, tool) not in names]


async def open_servers(running: McpServers, servers: Mapping[str, ServerSettings], root: str) -> list[OpenedServer]:
    """Start these servers side by side, and list their tools; relative names of files count from `root`."""

    async def open_server(name: str, settings: ServerSettings) -> OpenedServer:
        connection = connection_of(name, settings, os.environ)
        if isinstance(connection, ToolError):
            return OpenedServer(name, settings, connection)

        tools = await load_configured_tools(running, name, connection, root, settings.allow)
        return OpenedServer(name, settings, tools)

    return await asyncio.gather(*(open_server(name, settings) for name, settings in servers.items()))


def usable_tools(opened: Sequence[OpenedServer], *, asks: bool, tell: Tell) -> tuple[Tool, ...] | ToolError:
    """Return the tools of the servers that have started, or why a required one has not. Many tools are searched.

    `tell` gets a line for each other problem; `asks` says whether a person may be asked about calls.
    """
    tools: dict[str, Tool] = {}
    for server in opened:
        if isinstance(server.tools, ToolError):
            reason = server.tools.message.rstrip(".")
            if server.settings.required:
                message = f"{reason}. It is `required`, so nothing is run: `mendgraph mcp list` tries it again."
                return server.tools.model_copy(update={"message": message})

            tell(f"{reason}. The run goes on without it; `mendgraph mcp list` tries it again.")
            continue

        taken = [tool.name for tool in server.tools if tool.name in tools]
        if taken:
            tell(f"The MCP server {server.name!r} is not used: another server has a tool {taken[0]!r}. Rename one.")
            continue

        tools |= {tool.name: tool for tool in server.tools}
        for name in server.unknown():
            tell(f"`allow` of the MCP server {server.name!r} names {name!r}, which is none of its tools.")

        if server.tools and not server.allowed and not asks:
            tell(
                f"The MCP server {server.name!r} has {count_of(len(server.tools), 'tool')}, and none may run in mode"
                f' auto: list them in `allow` of [mcp_servers.{server.name}] ("{ALL_TOOLS}": all), or use --mode ask.'
            )

    return searchable(list(tools.values()))


@contextmanager
def server_tools(
    servers: Mapping[str, ServerSettings], root: str, *, asks: bool, tell: Tell
) -> Iterator[tuple[Tool, ...] | ToolError]:
    """Start the servers, yield what `usable_tools` returns, and end them."""
    with McpServers() as running:
        yield usable_tools(asyncio.run(open_servers(running, servers, root)), asks=asks, tell=tell)


async def session_tools(
    running: McpServers,
    offered: Mapping[str, Connection],
    configured: McpSettings,
    context: AgentContext,
    tell: Tell,
) -> tuple[Tool, ...] | ToolError:
    """Return the tools of the servers that an editor has `offered`, and those of the other `configured` ones."""
    tools = await load_session_tools(running, offered, context.workspace)
    if isinstance(tools, ToolError):
        tell(f"The editor's MCP servers are not used. {tools.message}")
        tools = ()

    for note in configured.notes:
        tell(note)

    others = {name: settings for name, settings in configured.servers.items() if name not in offered}
    opened = await open_servers(running, others, context.workspace)
    more = usable_tools(opened, asks=context.mode == "ask", tell=tell)
    return more if isinstance(more, ToolError) else (*tools, *more)
