"""The tool that reads a page or a document of the network."""

import re
from html import unescape
from typing import Final

from pydantic import Field

from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolArguments, ToolContext, ToolOutput, tool
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode

_MARKUP: Final = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|template|svg|iframe)\b.*?(?:</\1\b[^>]*(?:>|\Z)|\Z)"
    r"|<(?P<end>/?)(?P<name>[a-z][a-z0-9]*)(?P<attributes>[^>]*)(?:>|\Z)|<[!?/][^>]*(?:>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
"""Each alternative that begins also ends, at the end of the text at last: so it takes time linear in its length."""
_HREF: Final = re.compile(r"\bhref=[\"']?(?!#|javascript:)([^\s\"'>]{1,500})", re.IGNORECASE)
_BLANK: Final = re.compile(r"\s+")
_LINE_ENDS: Final = re.compile(r"(?<! ) *\n")
_GAP: Final = re.compile(r"\n{3,}")
_LINES: Final = frozenset({"br", "dd", "div", "dt", "form", "li", "ol", "option", "title", "tr", "ul"})
_PARAGRAPHS: Final = frozenset({
    "article", "aside", "blockquote", "dl", "figure", "footer", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr",
    "main", "nav", "p", "pre", "section", "table",
})  # fmt: skip


def readable_text(html: str) -> str:
    """The visible text of `html`, in time linear in its length, whatever it is.

    Blocks stand on lines of their own, list items begin with "- ", links keep their target in brackets, and `pre` keeps
    its lines. What no `>` or `-->` ends is dropped, as in a browser. An attribute with `>` in it leaves some markup.
    """
    parts: list[str] = [""]
    links: list[str] = []
    at = preformatted = 0

    def add(text: str) -> None:
        if not preformatted:
            text = _BLANK.sub(" ", text)
            if parts[-1].endswith(("\n", " ")):
                text = text.lstrip(" ")

        if text:
            parts.append(text)

    for tag in _MARKUP.finditer(html):
        add(html[at : tag.start()])
        at = tag.end()
        name = (tag["name"] or "").lower()
        opening = not tag["end"]

        line_ends = _line_ends(name, opening=opening)
        if line_ends:
            parts.append(line_ends)

        if name == "pre":
            preformatted = preformatted + 1 if opening else max(0, preformatted - 1)
        elif name == "a" and opening:
            href = _HREF.search(tag["attributes"])
            links.append(f" ({href[1]})" if href else "")
        elif name == "a" and links:
            add(links.pop())
        elif opening and name in {"li", "td", "th"}:
            add("- " if name == "li" else " ")

    add(html[at:])
    text = _GAP.sub("\n\n", _LINE_ENDS.sub("\n", "".join(parts))).strip()

    try:
        return unescape(text)
    except ValueError:  # a reference of thousands of digits is none
        return text


def _line_ends(tag: str, *, opening: bool) -> str:
    if tag in _PARAGRAPHS:
        return "\n\n"
    if tag in _LINES and (opening or tag != "li"):
        return "\n"

    return ""


_PAGES = frozenset({"text/html", "application/xhtml+xml"})


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

        message = f"{DISABLED} To allow it, whoever starts the run names hosts in `allowed_hosts` (`--allow-host`)."
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)

    response = context.network.get(arguments.url, min(context.timeout_s, context.seconds_left))
    if isinstance(response, ToolError):
        return response

    text = response.text
    if response.content_type in _PAGES:
        text = readable_text(text)

    return ToolOutput.ok(
        status=response.status,
        url=response.url,
        content_type=response.content_type,
        text=text,
        size=response.size,
        has_more=response.cut,
    )
