"""The tool that reads a page or a document of the network."""

from pydantic import Field

from nodes.execute_tools.environment.url_rules import DISABLED
from nodes.execute_tools.registry import ToolContext, ToolOutput, tool
from nodes.execute_tools.tools.arguments import ToolArguments
from nodes.execute_tools.tools.page_text import readable_text
from nodes.records import Effect, ToolError, ToolErrorCode

_PAGES = frozenset({"text/html", "application/xhtml+xml"})


class HttpGetArguments(ToolArguments):
    """What to get."""

    url: str = Field(description="An http or https URL of an allowed host.")


@tool(effect=Effect.NETWORK, self_timed=True)
def http_get(context: ToolContext, arguments: HttpGetArguments) -> ToolOutput:
    """Get a text, JSON or XML document from an allowed host; HTML comes as its readable text.

    An HTTP error status is a result: the document says what is wrong. It keeps its own time, as its connections end at
    their deadline.
    """
    if context.network is None:
        message = f"{DISABLED} To allow it, whoever starts the run names hosts in `allowed_hosts` (`--allow-host`)."
        return ToolOutput.failed(ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message))
    response = context.network.get(arguments.url, min(context.timeout_s, context.seconds_left))
    if isinstance(response, ToolError):
        return ToolOutput.failed(response)
    text = readable_text(response.text) if response.content_type in _PAGES else response.text
    return ToolOutput.ok(
        status=response.status,
        url=response.url,
        content_type=response.content_type,
        text=text,
        size=response.size,
        has_more=response.cut,
    )
