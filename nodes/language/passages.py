"""How a reply is cut up before it is read in another form: into prose and fenced blocks."""

import re
from typing import NamedTuple

from nodes.language.text_protocol import fence_after

FILE_NAME = re.compile(r"/?(?:[\w@.+-]++/)*(?:[\w@.+-]*\.[A-Za-z]\w{0,9}|(?<=/)[\w@.+-]++|Makefile|Dockerfile)")
"""A path as it is written in prose: with a suffix, or with a directory. For `fullmatch`."""

_LEADING_WORD = re.compile(r"\s*+(?i:action|call|tool[ _]call|function[ _]call)[ \t]*+:")
_COMMENT = re.compile(r"(?:#+|//+)[ \t]*+([^\n]*+)")


class Passage(NamedTuple):
    """A passage of a reply: the inside of a code fence with the line that opens it, or prose (`opening` is None).

    `line` is the number of its first line, the fence's own included.
    """

    opening: str | None
    body: str
    line: int = 1

    @property
    def info(self) -> str | None:
        """The first word after the fence's marks, in lower case; None for prose."""
        words = self._words()
        return None if self.opening is None else words[0].lower() if words else ""

    @property
    def is_file(self) -> bool:
        """Whether the fence, or a comment in the first line inside, says that this is the text of a file."""
        comment = _COMMENT.match(self.body) if self.opening is not None else None
        named = comment[1].split() if comment else []
        return (len(named) == 1 and is_file_name(named[0])) or any(map(is_file_name, self._words()))

    def _words(self) -> list[str]:
        return (self.opening or "").strip().lstrip("`~").split()


def whole(text: str) -> Passage:
    """The reply as one passage: without its leading word, and without the fence if one stands around all of it."""
    body = text[_lead_end(text) :].strip()
    first, _, rest = body.partition("\n")
    fence = fence_after(first, "")
    if not fence:
        return Passage(None, body)
    inside, _, last = rest.rpartition("\n")
    return Passage(first, (rest if fence_after(last, fence) else inside).strip())


def passages(text: str) -> list[Passage]:
    """The passages of a reply in order, without its leading word and without blank prose."""
    found: list[Passage] = []
    opening: str | None = None
    fence, lines, first = "", list[str](), 1
    lead = _lead_end(text)
    for number, line in enumerate(text[lead:].splitlines(keepends=True), start=1 + text.count("\n", 0, lead)):
        before, fence = fence, fence_after(line, fence)
        if before == fence:
            lines.append(line)
            continue
        found.append(Passage(opening, "".join(lines).strip(), first))
        opening, lines, first = (line if fence else None), [], number
    found.append(Passage(opening, "".join(lines).strip(), first))
    return [passage for passage in found if passage.opening is not None or passage.body]


def before_fence(text: str) -> tuple[str, str] | None:
    """The prose before the first fence, and everything from there on; None where there is no fence or no prose."""
    at = 0
    for line in text.splitlines(keepends=True):
        if fence_after(line, ""):
            return (text[:at], text[at:]) if text[:at].strip() else None
        at += len(line)
    return None


def is_file_name(text: str) -> bool:
    """Whether a word, apart from the marks of Markdown around it, is a path: of a file, or inside a directory."""
    return FILE_NAME.fullmatch(text.strip("*`_\"'():,;").rstrip(".")) is not None


def _lead_end(text: str) -> int:
    lead = _LEADING_WORD.match(text)
    return lead.end() if lead else 0
