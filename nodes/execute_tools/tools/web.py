"""The tools that use the network: one reads a page or a document, the other searches the web."""

from typing import Final

from pydantic import Field

from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode

SEARCH_IS_OFF: Final = ToolError(
    code=ToolErrorCode.PERMISSION_DENIED,
    message="Web search is off in this run. The user can turn it on with `web_search` (`--web-search`).",
)
_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})


class HttpGetArguments(ToolArguments):
    """What to get."""

    url: str = Field(description="An http or https URL of an allowed host.")


@tool(effect=Effect.NETWORK, self_timed=True)
def http_get(context: ToolContext, arguments: HttpGetArguments) -> ToolAnswer:
    """Get a text, JSON or XML document from an allowed host; HTML comes as its readable text.

    An HTTP error status is a result: the document says what is wrong. It keeps its own time, as its connections end at
    their deadline.
    """
    if context.network is None:
        from mendgraph.nodes.execute_tools.network.url_rules import DISABLED

        message = f"{DISABLED} The user can allow hosts with `allowed_hosts` (`--allow-host`)."
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)

    response = context.network.get(arguments.url, min(context.timeout_s, context.seconds_left))
    if isinstance(response, ToolError):
        return response

    text = response.text
    if response.content_type in _HTML_TYPES:
        from mendgraph.nodes.execute_tools.network.html_text import readable_text

        text = readable_text(text)

    return ToolOutput.ok(
        status=response.status,
        url=response.url,
        content_type=response.content_type,
        text=text,
        size=response.size,
        has_more=response.cut,
    )


class WebSearchArguments(ToolArguments):
    """The words to search for."""

    query: str = Field(min_length=1, max_length=400)  # Source: Brave Search API, the longest `q`


@tool(effect=Effect.NETWORK, self_timed=True)
def web_search(context: ToolContext, arguments: WebSearchArguments) -> ToolAnswer:
    """Search the web: titles, URLs and snippets of pages."""
    search = context.search or SEARCH_IS_OFF
    if isinstance(search, ToolError):
        return search

    results = search.results(arguments.query, min(context.timeout_s, context.seconds_left))
    if isinstance(results, ToolError):
        return results

    return ToolOutput.ok(results=results)
