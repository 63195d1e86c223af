"""The readable text of HTML pages. Pure."""

import re
from html import unescape
from typing import Final

_MARKUP: Final = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style|template|svg|iframe)\b.*?(?:</\1\b[^>]*(?:>|\Z)|\Z)"
    r"|<(?P<end>/?)(?P<name>[a-z][a-z0-9]*)(?P<attributes>[^>]*)(?:>|\Z)|<[!?/][^>]*(?:>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
"""Each alternative ends at the end of the text at the latest, so that a search takes linear time."""
_HREF: Final = re.compile(r"\bhref=[\"']?(?!#|javascript:)([^\s\"'>]{1,500})", re.IGNORECASE)
_WHITE_SPACE: Final = re.compile(r"\s+")
_TRAILING_SPACE: Final = re.compile(r"(?<! ) *\n")
_EMPTY_LINES: Final = re.compile(r"\n{3,}")
_LINES: Final = frozenset({"br", "dd", "div", "dt", "form", "li", "ol", "option", "title", "tr", "ul"})
_PARAGRAPHS: Final = frozenset({
    "article", "aside", "blockquote", "dl", "figure", "footer", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr",
    "main", "nav", "p", "pre", "section", "table",
})  # fmt: skip


def readable_text(html: str) -> str:
    """Return the visible text of `html`, in time linear in its length.

    Blocks stand on lines of their own, list items begin with "- ", links have their target in brackets, and `pre` keeps
    its lines. Markup that no `>` or `-->` ends is dropped, as in a browser. An attribute with `>` in it leaves some
    markup.
    """
    page = _Page()
    at = 0

    for tag in _MARKUP.finditer(html):
        page.add_text(html[at : tag.start()])
        page.add_tag(tag)
        at = tag.end()

    page.add_text(html[at:])
    return page.text()


class _Page:
    """Collects the text of a page."""

    def __init__(self) -> None:
        self._parts: list[str] = [""]
        self._links: list[str] = []
        self._open_pre = 0

    def add_text(self, text: str) -> None:
        if not self._open_pre:
            text = _WHITE_SPACE.sub(" ", text)
            if self._parts[-1].endswith(("\n", " ")):
                text = text.lstrip(" ")

        if text:
            self._parts.append(text)

    def add_tag(self, tag: re.Match[str]) -> None:
        name = (tag["name"] or "").lower()
        is_opening = not tag["end"]

        if name in _PARAGRAPHS:
            self._parts.append("\n\n")
        elif name in _LINES and (is_opening or name != "li"):
            self._parts.append("\n")

        if name == "pre":
            self._open_pre = max(0, self._open_pre + (1 if is_opening else -1))
        elif name == "a" and is_opening:
            href = _HREF.search(tag["attributes"])
            self._links.append(f" ({href[1]})" if href else "")
        elif name == "a" and self._links:
            self.add_text(self._links.pop())
        elif is_opening and name == "li":
            self.add_text("- ")
        elif is_opening and name in {"td", "th"}:
            self.add_text(" ")

    def text(self) -> str:
        text = _TRAILING_SPACE.sub("\n", "".join(self._parts))
        text = _EMPTY_LINES.sub("\n\n", text).strip()

        try:
            return unescape(text)
        except ValueError:  # a reference with thousands of digits is none
            return text
