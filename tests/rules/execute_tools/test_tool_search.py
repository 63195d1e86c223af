"""Tool search: when it is used, and which words find which tools."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mendgraph.nodes.execute_tools.registry import OpenArguments, Tool, ToolContext, no_workspace
from mendgraph.nodes.execute_tools.tool_search import MOST_LISTED_TOKENS, MOST_MATCHES, SEARCH_TOOL, searchable
from mendgraph.nodes.language.token_estimates import BYTES_PER_TOKEN
from mendgraph.nodes.records import Effect, ToolErrorCode
from tests.row_tables import rows


def tool(name: str, description: str) -> Tool:
    return Tool(name, description, OpenArguments, Effect.EXECUTE, lambda *_: None, remote=True, approval="granted")


CREATE = tool("github__create_issue", "Create a new issue in a repository.")
LIST = tool("github__list_issues", "List the issues of a repository.")
SEND = tool("slack__post_message", "Post a message to a channel.")
FILLER = tuple(tool(f"other__{number}", "z" * 1_000) for number in range(40))


def search(*tools: Tool, query: str, mode: str = "auto") -> Any:
    finder = searchable((*tools, *FILLER))[0]
    assert finder.name == SEARCH_TOOL
    context = ToolContext(no_workspace(), state={"context": SimpleNamespace(mode=mode)})
    result = finder.s(context, query=query).result
    return result.error.code if result.error else [it["name"] for it in result.data["tools"]]


def test_few_tools_are_listed_and_many_are_searched() -> None:
    assert searchable((CREATE, LIST)) == (CREATE, LIST)
    long = replace(CREATE, description="x" * BYTES_PER_TOKEN * MOST_LISTED_TOKENS)
    finder, unlisted = searchable([long])
    assert unlisted == replace(long, offered=False)
    assert "1 tool of these MCP servers: github." in finder.description


@rows(
    ("create issue", ["github__create_issue"]),
    ("CREATE_ISSUE!", ["github__create_issue"]),
    ("issues of a repository", ["github__list_issues", "github__create_issue"]),
    ("post a message", ["slack__post_message"]),
    ("slack", ["slack__post_message"]),
)
def test_search_ranks_the_best_match_first(query: str, names: list[str]) -> None:
    assert search(CREATE, LIST, SEND, query=query)[: len(names)] == names


@pytest.mark.parametrize("query", ["", "!?", "qqqq wwww"])
def test_search_without_a_match_is_an_error(query: str) -> None:
    assert search(CREATE, query=query) is ToolErrorCode.NOT_FOUND


def test_number_of_search_results_is_bounded() -> None:
    assert len(search(query="other")) == MOST_MATCHES


def test_tool_that_requires_approval_is_found_only_in_mode_ask() -> None:
    unapproved = replace(SEND, approval="required")
    assert search(unapproved, query="post message", mode="ask") == ["slack__post_message"]
    assert search(unapproved, query="post message") is ToolErrorCode.NOT_FOUND
