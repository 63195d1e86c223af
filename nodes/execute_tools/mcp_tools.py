"""Tools of MCP servers as our tools, with guard, timeout, trace, redaction and journal of the engine.

A server is not trusted: its descriptions are bounded and reduced to plain text, and its hints about effects are
ignored. The server checks the arguments of its tools.
Source of the shapes: the Model Context Protocol, revision 2025-06-18, "Tools", and its schema of content blocks.
"""

import asyncio
import base64
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mendgraph.nodes.execute_tools.mcp_servers.connections import (
    Connection,
    ConnectionSettingsError,
    McpServer,
    resolve_server,
)
from mendgraph.nodes.execute_tools.mcp_servers.limits import MOST_LISTED, read_pages
from mendgraph.nodes.execute_tools.mcp_servers.servers import McpServers
from mendgraph.nodes.execute_tools.registry import (
    OpenArguments,
    Tool,
    ToolAnswer,
    ToolContext,
    ToolOutput,
    unavailable_tool,
)
from mendgraph.nodes.execute_tools.tool_outcome import similar_or_all
from mendgraph.nodes.execute_tools.tool_schemas import shown_schema
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.language.media import IMAGE_TYPES, MOST_MEDIA_BYTES
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult, invalid, quoted

if TYPE_CHECKING:
    from mcp import ClientSession, types

READ_RESOURCE: Final = "resources/read"
"""The name of the tool that reads a server's resources, as the protocol calls this."""

LONGEST_NAME: Final = 64
"""The most characters of a tool's name. Source: OpenAI's API, as `[A-Za-z0-9_-]{1,64}`."""

LONGEST_DESCRIPTION: Final = 1_024
"""The most characters of a description. Source: OpenAI's API."""

LONGEST_ERROR: Final = 2_000
"""The most characters of an error."""

DEEPEST_SCHEMA: Final = 32
"""The most levels of a schema; deeper ones allow anything. The MCP project's servers have 8 at most."""

_MEDIA: Final = {
    **{name: ("image", name) for name in IMAGE_TYPES},
    **dict.fromkeys(("audio/wav", "audio/x-wav", "audio/wave"), ("audio", "audio/wav")),
    **dict.fromkeys(("audio/mpeg", "audio/mp3"), ("audio", "audio/mp3")),
}
"""The media types that models accept: the type of the content block, and LangChain's name for the data.

Source: OpenAI's API reference, `input_audio`, and Anthropic, "Vision".
"""

_DESCRIBED: Final = ("mimeType", "uri")  # the fields of an image, a sound or a file that the model reads


async def load_mcp_tools(
    connections: Mapping[str, Connection],
    *,
    effects: Mapping[str, Effect] | None = None,
    timeout_s: float = 30.0,
    workspace: str = ".",
) -> tuple[Tool, ...] | ToolError:
    """Return all tools of these servers, named `server__tool`, or the error that prevents it.

    `connections` has a connection for each server's name, as langchain-mcp-adapters' MultiServerMCPClient takes them:
    {"calc": {"transport": "stdio", "command": "python", "args": ["calc.py"]}}. Relative paths start from `workspace`;
    the agent cannot change workspace files that a connection executes. A tool's effect is EXECUTE unless `effects` has
    an entry for `server__tool` or for the whole `server`; hints of a server (`readOnlyHint`) are not trusted. A server
    has `timeout_s` seconds to list its tools. It is started for that, and again by each session that calls it.
    """
    servers = McpServers()
    try:
        return await list_mcp_tools(servers, connections, effects or {}, timeout_s, workspace)
    finally:
        await asyncio.to_thread(servers.close)


async def load_session_tools(
    servers: McpServers, connections: Mapping[str, Connection], workspace: str, timeout_s: float = 30.0
) -> tuple[Tool, ...] | ToolError:
    """Return the same tools, bound to these running servers; the caller closes `servers`."""
    tools = await list_mcp_tools(servers, connections, {}, timeout_s, workspace)
    if isinstance(tools, ToolError):
        return tools

    return tuple(_bound_to(servers, tool) for tool in tools)


async def load_configured_tools(
    servers: McpServers, name: str, connection: Connection, workspace: str, allow: Collection[str]
) -> tuple[Tool, ...] | ToolError:
    """Return the tools of one server of the user's settings; those that `allow` does not name need an approval."""
    tools = await load_session_tools(servers, {name: connection}, workspace)
    if isinstance(tools, ToolError):
        return tools

    granted = {tool_name(name, tool) for tool in allow}
    allowed: list[Tool] = []

    for tool in tools:
        needs_approval = "*" not in allow and tool.name not in granted
        allowed.append(replace(tool, approval="required" if needs_approval else "granted"))

    return tuple(allowed)


def tool_name(server: str, tool: str) -> str:
    """Return the name by which a model calls a server's tool."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")[:LONGEST_NAME]


def _bound_to(servers: McpServers, tool: Tool) -> Tool:
    async def run(context: ToolContext, arguments: OpenArguments) -> ToolAnswer:
        result: ToolAnswer = await tool.run(replace(context, servers=servers), arguments)
        return result

    return replace(tool, run=run)


async def list_mcp_tools(
    servers: McpServers,
    connections: Mapping[str, Connection],
    effects: Mapping[str, Effect],
    timeout_s: float,
    workspace: str,
) -> tuple[Tool, ...] | ToolError:
    """List the tools of these servers, which keep running."""
    try:
        import langchain_mcp_adapters.sessions
        import mcp
    except ImportError:
        from mendgraph.nodes.language.installation import how_to_add  # only where something is missing

        return ToolError(code=ToolErrorCode.UNAVAILABLE, message=f"MCP tools need {how_to_add('mcp')}.")

    _ = langchain_mcp_adapters, mcp

    resolved: list[McpServer] = []

    for name, connection in connections.items():
        try:
            resolved.append(await asyncio.to_thread(resolve_server, name, connection, workspace))
        except ConnectionSettingsError as error:
            return invalid(f"The connection of the MCP server {quoted(name)} cannot be used: {error}")

    listed = await asyncio.gather(
        *(servers.send(server, _list_tools, server.startup_timeout_s or timeout_s) for server in resolved)
    )
    tools = dict[str, Tool]()

    for server, offered in zip(resolved, listed, strict=True):
        if isinstance(offered, ToolError):
            return offered

        if len(offered) > MOST_LISTED:
            return invalid(
                f"The MCP server {quoted(server.name)} lists more than {MOST_LISTED} tools, so it is not used."
            )

        for tool in offered:
            name = tool_name(server.name, tool.name)
            if name in tools:
                return invalid(f"Two MCP tools would both be called {name!r}. Rename a server.")

            try:
                tools[name] = _tool(name, server, tool, effects)
            except ValueError as error:
                tools[name] = unavailable_tool(name, str(error), server.executes)

    problem = _problem_of_effects(effects, [*connections, *tools])
    if problem is None:
        return tuple(tools.values())

    return problem


def _problem_of_effects(effects: Mapping[str, Effect], names: list[str]) -> ToolError | None:
    for name, effect in effects.items():
        if name not in names:
            remedy = similar_or_all(name, names)[1]
            return invalid(f"The effects name {name!r}, which is not an MCP tool or server. {remedy}")

        if not isinstance(effect, Effect):
            return invalid(f"The effect of {name!r} must be an Effect, such as Effect.READ.")

    return None


def load_mcp_tools_sync(
    connections: Mapping[str, Connection],
    *,
    effects: Mapping[str, Effect] | None = None,
    timeout_s: float = 30.0,
    workspace: str = ".",
) -> tuple[Tool, ...] | ToolError:
    """As `load_mcp_tools`, for callers without an event loop; inside of a loop it returns an error."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loading = load_mcp_tools(connections, effects=effects, timeout_s=timeout_s, workspace=workspace)
        return asyncio.run(loading)

    return invalid("An event loop is running here: use `await load_mcp_tools(...)` instead of load_mcp_tools_sync.")


async def _list_tools(session: "ClientSession") -> "list[types.Tool]":
    """Return one tool that reads the server's resources, if it has any, and the server's own."""
    return [*await _resource_tools(session), *await read_pages(session.list_tools, "tools")]


async def _resource_tools(session: "ClientSession") -> "list[types.Tool]":
    """Return the tool that reads the server's resources, if it has any."""
    from mcp import McpError
    from mcp.types import Tool as OfferedTool

    capabilities = session.get_server_capabilities()
    if capabilities is None or capabilities.resources is None:
        return []

    try:
        resources = (await session.list_resources()).resources
    except McpError:  # its tools work all the same
        resources = []

    if not resources:
        return []

    uris = ", ".join(str(resource.uri) for resource in resources)
    schema = {"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]}
    return [OfferedTool(name=READ_RESOURCE, description=f"Read a resource. There are: {uris}", inputSchema=schema)]


def _tool(name: str, server: McpServer, offered: "types.Tool", effects: Mapping[str, Effect]) -> Tool:
    """Return one tool, or raise ValueError if its schema cannot be used."""
    try:
        schema = shown_schema(_bounded(offered.inputSchema))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"The tool {name!r} has a schema that cannot be used: {error}.") from error

    description = one_line(offered.description or offered.title or "", LONGEST_DESCRIPTION)

    async def run(context: ToolContext, arguments: OpenArguments) -> ToolAnswer:
        question = partial(_call, tool=offered.name, arguments=arguments.model_extra or {})
        servers = context.servers or McpServers()

        try:
            answer = await servers.send(server, question, min(context.timeout_s, context.seconds_left))
        finally:
            if context.servers is None:  # a call outside of a session has a server of its own
                await asyncio.to_thread(servers.close)

        if isinstance(answer, ToolError):
            return answer

        return call_result(name, answer)

    return Tool(
        name=name,
        description=description or f"A tool of the MCP server {quoted(server.name)}.",
        arguments=OpenArguments,
        effect=effects.get(name, effects.get(server.name, Effect.EXECUTE)),
        run=run,
        self_timed=True,
        remote=True,
        schema=schema,
        executes=server.executes,
    )


def _bounded(node: Any, left: int = DEEPEST_SCHEMA) -> Any:
    """Return a schema with plain descriptions, open below `left` levels; ValueError for an unreadable name."""
    if isinstance(node, list):
        return [_bounded(item, left - 1) for item in node]
    if not isinstance(node, Mapping):
        return node
    if left <= 0:
        return {}

    if odd := next((name for name in node if not name.isprintable() or len(name) > 100), ""):
        raise ValueError(f"it has the unreadable name {one_line(odd, 100)!r}")

    return {
        key: one_line(value, LONGEST_DESCRIPTION)
        if key == "description" and isinstance(value, str)
        else _bounded(value, left - 1)
        for key, value in node.items()
    }


async def _call(session: "ClientSession", tool: str, arguments: JsonMap) -> JsonMap:
    """Return the server's answer as a plain map.

    `session.call_tool` would list all tools again, and check the answer with a schema of the server, whose regular
    expressions may never end.
    """
    from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest

    if tool == READ_RESOURCE:
        return await _read_resource(session, str(arguments.get("uri", "")))

    request = ClientRequest(CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments)))
    answer: Any = await session.send_request(request, CallToolResult)
    plain: JsonMap = answer.model_dump(mode="json", by_alias=True)

    return plain


async def _read_resource(session: "ClientSession", uri: str) -> JsonMap:
    """Return the content of a resource in the form of a tool's answer."""
    from pydantic import AnyUrl, ValidationError

    try:
        address = AnyUrl(uri)
    except ValidationError:
        return {"isError": True, "content": [{"type": "text", "text": "uri is not a URI"}]}

    plain = (await session.read_resource(address)).model_dump(mode="json", by_alias=True)
    return {"content": [{"type": "resource", "resource": content} for content in plain["contents"]]}


def call_result(name: str, answer: Mapping[str, Any]) -> ToolOutput:
    """Return the answer of the tool `name`: its `text`, or its `structured` content if it has no text.

    `attachments` describe images, sounds and files. The model receives images and sounds of usual types, and the text
    of embedded files.
    """
    blocks: list[JsonMap] = answer.get("content") or []
    text = "\n".join(str(block["text"]) for block in blocks if block["type"] == "text")
    if answer.get("isError"):
        reason = one_line(text, LONGEST_ERROR) or "it gave no reason"
        return ToolOutput.failed(ToolError(code=ToolErrorCode.IO_ERROR, message=f"{name} failed: {reason}"))

    data: JsonMap = {"text": text}
    if not text and answer.get("structuredContent") is not None:
        data = {"structured": answer["structuredContent"]}

    media: list[JsonMap] = []

    for block in blocks:
        if block["type"] != "text":
            attachment, shown = _attachment(block)
            data.setdefault("attachments", []).append(attachment)
            media += shown

    return ToolOutput(ToolResult(ok=True, data=data), blocks=tuple(media) or None)


def _attachment(block: JsonMap) -> tuple[JsonMap, list[JsonMap]]:
    """Return the description of an image, a sound or a file, and its content blocks for the model."""
    inner: JsonMap = block.get("resource") or block
    attachment: JsonMap = {"type": block["type"]}
    attachment |= {key: one_line(str(inner[key]), LONGEST_DESCRIPTION) for key in _DESCRIBED if inner.get(key)}

    if isinstance(inner.get("text"), str):
        attachment["text"] = inner["text"]

    encoded = inner.get("data") or inner.get("blob")
    if not isinstance(encoded, str):
        return attachment, []

    try:
        size = len(base64.b64decode(encoded, validate=True))
    except ValueError:
        return {**attachment, "left_out": "its data is not Base64"}, []

    attachment["bytes"] = size
    kind, mime_type = _MEDIA.get(str(inner.get("mimeType")).lower(), ("", ""))
    if not kind:
        return {**attachment, "left_out": "models do not accept data of this type"}, []
    if size > MOST_MEDIA_BYTES:
        return {**attachment, "left_out": f"it has more than {MOST_MEDIA_BYTES:,} bytes"}, []

    return attachment, [{"type": kind, "base64": encoded, "mime_type": mime_type}]
