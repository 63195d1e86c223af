"""The tool that reads a page or a document of the network."""

import re
from html import unescape
from typing import Final

from pydantic import Field

from mendgraph.nodes.execute_tools.argument_schema import ToolArguments
from mendgraph.nodes.execute_tools.network.url_rules import DISABLED
from mendgraph.nodes.execute_tools.registry import ToolAnswer, ToolContext, ToolOutput, tool
from mendgraph.nodes.records import Effect, ToolError, ToolErrorCode

_NAME: Final = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_HREF: Final = re.compile(r"\bhref=[\"']?([^\s\"'>]{1,500})", re.IGNORECASE)
_BLANK: Final = re.compile(r"\s+")
_GAP: Final = re.compile(r"\n{3,}")
_UNSEEN: Final = {
    name: re.compile(rf"</{name}\b", re.IGNORECASE) for name in ("script", "style", "template", "svg", "iframe")
}
_BREAKS: Final = {
    **dict.fromkeys(("br", "div", "tr", "ul", "ol", "dt", "dd", "form", "option", "title"), "\n"),
    **dict.fromkeys(("p", "pre", "table", "section", "article", "header", "footer", "nav", "main", "aside"), "\n\n"),
    **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "hr", "dl", "figure"), "\n\n"),
}
_CELLS: Final = frozenset({"td", "th"})


def readable_text(html: str) -> str:
    """The visible text of `html`, in time linear in its length, whatever it is.

    Blocks stand on lines of their own, list items begin with "- ", links keep their target in brackets, and `pre` keeps
    its lines. What no `>` or `-->` ends is dropped, as in a browser. An attribute with `>` in it leaves some markup.
    """
    page = _Page()
    at = 0
    while (tag := html.find("<", at)) >= 0:
        page.add_text(html[at:tag])
        at = _pass_markup(html, tag, page)
    page.add_text(html[at:])
    return page.finish()


def _pass_markup(html: str, at: int, page: "_Page") -> int:
    """Take in what begins with the "<" at `at`; returns where the text goes on."""
    if html.startswith("<!--", at):
        return _after(html, "-->", at + 4)
    match = _NAME.match(html, at)
    if match is None:
        if html.startswith(("<!", "<?", "</"), at):
            return _after(html, ">", at)
        page.add_text("<")
        return at + 1
    closing, name = bool(match[1]), match[2].lower()
    end = _after(html, ">", at)
    page.add_tag(name, closing, html[match.end() : end])
    if name in _UNSEEN and not closing:
        closed = _UNSEEN[name].search(html, end)
        return closed.start() if closed else len(html)
    return end


def _after(html: str, mark: str, at: int) -> int:
    found = html.find(mark, at)
    return len(html) if found < 0 else found + len(mark)


class _Page:
    """Collects text, and where its lines end."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._preformatted = 0
        self._links: list[str] = []

    def add_text(self, raw: str) -> None:
        text = _unescaped(raw)
        if not self._preformatted:
            text = _BLANK.sub(" ", text)
            if not self._parts or self._parts[-1].endswith(("\n", " ")):
                text = text.lstrip(" ")
        if text:
            self._parts.append(text)

    def add_tag(self, name: str, closing: bool, attributes: str) -> None:
        if name in _BREAKS:
            self._break(_BREAKS[name])
        if name == "pre":
            self._preformatted = max(0, self._preformatted + (-1 if closing else 1))
        elif name == "li" and not closing:
            self._break("\n")
            self._parts.append("- ")
        elif name in _CELLS and not closing:
            self.add_text(" ")
        elif name == "a":
            self._link(closing, attributes)

    def finish(self) -> str:
        return _GAP.sub("\n\n", "".join(self._parts)).strip()

    def _break(self, ends: str) -> None:
        if self._parts and not self._preformatted:
            self._parts[-1] = self._parts[-1].rstrip(" ")
        self._parts.append(ends)

    def _link(self, closing: bool, attributes: str) -> None:
        if not closing:
            match = _HREF.search(attributes)
            self._links.append(_unescaped(match[1]) if match else "")
        elif self._links:
            target = self._links.pop()
            if target and not target.startswith(("#", "javascript:")):
                self._parts.append(f" ({target})")


def _unescaped(text: str) -> str:
    """With its character references as characters; one of thousands of digits is no reference, and none is resolved."""
    try:
        return unescape(text)
    except ValueError:
        return text


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
        message = f"{DISABLED} To allow it, whoever starts the run names hosts in `allowed_hosts` (`--allow-host`)."
        return ToolError(code=ToolErrorCode.PERMISSION_DENIED, message=message)
    response = context.network.get(arguments.url, min(context.timeout_s, context.seconds_left))
    if isinstance(response, ToolError):
        return response
    text = readable_text(response.text) if response.content_type in _PAGES else response.text
    return ToolOutput.ok(
        status=response.status,
        url=response.url,
        content_type=response.content_type,
        text=text,
        size=response.size,
        has_more=response.cut,
    )
