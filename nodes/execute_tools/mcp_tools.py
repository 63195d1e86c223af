"""Tools of MCP servers as tools of ours, so that guard, timeout, trace, redaction and journal are the engine's.

A server is not trusted: what it says of its tools is bounded and made plain, and its hints on what a tool does to the
world are not read. Each call is a conversation of its own, so a server keeps nothing in memory from call to call.
Source of the shapes: the Model Context Protocol, revision 2025-06-18, "Tools", and its schema of content blocks.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from mendgraph.nodes.execute_tools.argument_schema import OpenArguments, UnusableSchemaError
from mendgraph.nodes.execute_tools.files.failures import plain_text, quoted
from mendgraph.nodes.execute_tools.network.mcp_sessions import McpServer
from mendgraph.nodes.execute_tools.registry import Tool, ToolContext
from mendgraph.nodes.language.names import closest_names
from mendgraph.nodes.records import Effect, JsonMap, ToolError, ToolErrorCode, ToolResult

if TYPE_CHECKING:
    from mcp import ClientSession, types

LONGEST_DESCRIPTION = 1_024
"""Characters of a description. Source: what OpenAI's API takes of one."""

LONGEST_ERROR = 2_000
LONGEST_SCHEMA = 65_536
"""Bytes of one tool's schema."""

_LONGEST_NAME = 100
"""Characters of a property's name."""


def bounded_schema(schema: Mapping[str, Any]) -> JsonMap | str:
    """The schema with its descriptions made plain, or why it cannot be offered to a model."""
    try:
        bounded: JsonMap = _bounded(schema)
        size = len(orjson.dumps(bounded))
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return bounded if size <= LONGEST_SCHEMA else f"it has {size} bytes, and {LONGEST_SCHEMA} are the most"


def call_result(name: str, answer: Mapping[str, Any]) -> ToolResult:
    """The envelope for what the tool `name` answered: `text`, `structured` and `attachments`, each where there is one.

    Text that only repeats the structured content is left out. Of images, sounds and files there is the type and the
    size in bytes.
    """
    blocks = [block for block in answer.get("content") or () if isinstance(block, Mapping)]
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    if answer.get("isError"):
        said = plain_text("\n".join(texts), LONGEST_ERROR) or "it gave no reason"
        return ToolResult(ok=False, error=ToolError(code=ToolErrorCode.IO_ERROR, message=f"{name} failed: {said}"))
    structured = answer.get("structuredContent")
    if structured is not None:
        texts = [text for text in texts if not _repeats(text, structured)]
    attachments = [_attachment(block) for block in blocks if block.get("type") != "text"]
    data: JsonMap = {"text": "\n".join(texts)} if texts or not (structured or attachments) else {}
    if structured is not None:
        data["structured"] = structured
    if attachments:
        data["attachments"] = attachments
    return ToolResult(ok=True, data=data)


def _bounded(node: Any) -> Any:
    if isinstance(node, list):
        return [_bounded(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    for name in node:
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            raise ValueError(f"it has the unreadable name {plain_text(name, _LONGEST_NAME)!r}")
    return {
        key: plain_text(value, LONGEST_DESCRIPTION)
        if key == "description" and isinstance(value, str)
        else _bounded(value)
        for key, value in node.items()
    }


def _repeats(text: str, structured: Any) -> bool:
    """Whether a text says what the structured content says, as the protocol asks servers to do for old clients."""
    known = [structured]
    if isinstance(structured, Mapping) and structured.keys() == {"result"}:
        inner = structured["result"]
        known += [inner, *(inner if isinstance(inner, list) else ())]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text in known
    return value in known or text in known


def _attachment(block: Mapping[str, Any]) -> JsonMap:
    """What is to be known of a content block that is not text. The text of an embedded file is kept."""
    kind = plain_text(str(block.get("type", "")), _LONGEST_NAME)
    inner = block.get("resource") if kind == "resource" else block
    inner = inner if isinstance(inner, Mapping) else {}
    found = {
        "type": kind,
        "mime_type": _short(inner.get("mimeType")),
        "uri": _short(inner.get("uri")),
        "bytes": _size(inner),
        "text": inner.get("text"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _short(value: object) -> str | None:
    return plain_text(value, LONGEST_DESCRIPTION) if isinstance(value, str) else None


def _size(block: Mapping[str, Any]) -> int | None:
    """Bytes of the content, by the length of its base64 (RFC 4648: four characters for three bytes)."""
    if isinstance(block.get("text"), str):
        return len(block["text"].encode("utf-8", "surrogatepass"))
    encoded = block.get("data", block.get("blob"))
    if isinstance(encoded, str):
        return len(encoded) * 3 // 4 - encoded[-2:].count("=")
    size = block.get("size")
    return size if isinstance(size, int) else None


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
