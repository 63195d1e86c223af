"""Tools that a model searches: with many tools, their schemas would fill each request."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Final

from pydantic import Field

from mendgraph.nodes.execute_tools.registry import Tool, ToolAnswer, ToolArguments, ToolContext, ToolOutput
from mendgraph.nodes.language.chat_messages import json_size, native_tool
from mendgraph.nodes.language.display import count_of
from mendgraph.nodes.language.token_estimates import estimate_tokens
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode

MOST_LISTED_TOKENS: Final = 10_000
"""Estimated tokens of tools that are all listed. Source: Claude Code warns of more from one call of an MCP tool."""

MOST_MATCHES: Final = 10
"""The most tools of one search."""

_LEAST_SCORE: Final = 40.0
"""Of 100, by `rapidfuzz.fuzz.token_set_ratio`: words that are no tool's have less."""

SEARCH_TOOL: Final = "find_tools"


class FindTools(ToolArguments):
    """The arguments of a search."""

    query: Annotated[str, Field(description="Words of the tool's name or purpose, such as: create issue")]


def searchable(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Return these tools; if their descriptions are too long, none of them is listed, and a tool finds them."""
    size = sum(json_size(native_tool(tool.spec)) for tool in tools)
    if estimate_tokens(size, 0) <= MOST_LISTED_TOKENS:
        return tuple(tools)

    index = ToolIndex({tool.name: tool for tool in tools})
    servers = ", ".join(dict.fromkeys(tool.name.partition("__")[0] for tool in tools))
    description = (
        f"Find tools among the {count_of(len(tools), 'tool')} of these MCP servers: {servers}. The answer has names,"
        " descriptions and parameters of those that fit best; call them in your next reply."
    )
    search = Tool(SEARCH_TOOL, description, FindTools, Effect.NONE, index.run, finds=index.find)
    return (search, *(replace(tool, offered=False) for tool in tools))


class ToolIndex:
    """Tools by name, found by the words of their names and descriptions; the same words find the same tools."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        self._texts = [f"{name.replace('_', ' ')} {tool.description}" for name, tool in tools.items()]
        self.find = lru_cache(1_000)(self._find)

    def _find(self, query: str) -> tuple[str, ...]:
        from rapidfuzz import fuzz, process, utils

        scored = process.extract(
            query,
            self._texts,
            scorer=fuzz.token_set_ratio,
            processor=utils.default_process,
            limit=MOST_MATCHES,
            score_cutoff=_LEAST_SCORE,
        )
        names = [*self._tools]
        return tuple(names[place] for _, _, place in scored)

    def run(self, context: ToolContext, arguments: FindTools) -> ToolAnswer:
        """Answer with the tools that fit and may be called."""
        asks = getattr(context.state.get("context"), "mode", "") == "ask"
        candidates = [self._tools[name] for name in self.find(arguments.query)]
        matches = [tool for tool in candidates if asks or tool.approval != "required"]

        if not matches:
            message = "No tool fits these words. Name what it does or the service it uses, or go on without it."
            return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)

        return ToolOutput.ok(tools=[native_tool(tool.spec)["function"] for tool in matches])
