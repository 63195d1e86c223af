"""A call of the text protocol of which only the beginning may have come: where it ends, as far as that is certain.

Pure. What is said here of the beginning of a text stays true whatever follows, but for `OPEN`. The end is the one that
`nodes.language.text_protocol` finds in the whole text.
"""

import re
from enum import Enum, auto

LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""What ends a line in the text protocol (`str.splitlines`)."""

_LINE = re.compile(rf"[^{LINE_ENDS}]*+[{LINE_ENDS}]?")
_NEXT = re.compile(r"\s*+(?P<sign>.?)", re.DOTALL)
_JSON_TOKEN = re.compile(
    r"""(?P<open>[{\[]) | (?P<close>[}\]]) | (?P<string>"[^"\\]*+(?:\\.[^"\\]*+)*(?P<quote>"?+)) | [^"(){}\[\]\\]++""",
    re.DOTALL | re.VERBOSE,
)


class Unended(Enum):
    """Why no end can be named: more has to come, or the arguments are no JSON."""

    OPEN = auto()
    BROKEN = auto()


def first_line(text: str, at: int = 0) -> str:
    """The line that begins at `at`, with its end if that has come; "" at the end of the text."""
    line = _LINE.match(text, at)
    return line[0] if line else ""


def is_complete(line: str) -> bool:
    """Whether the line has its end."""
    return line[-1:] in LINE_ENDS and bool(line)


def call_end(text: str) -> int | Unended:
    """Just after the call at the start of `text`: after its `)`, or after what there is of it where that is missing."""
    line = first_line(text)
    alone = len(line) if is_complete(line) else Unended.OPEN
    paren = line.find("(")
    if paren < 0:
        return alone
    at, bracket = _next(text, paren + 1)
    if bracket not in {"{", "["}:
        return alone if bracket else Unended.OPEN
    end = _json_end(text, at)
    if isinstance(end, Unended):
        return end
    at, sign = _next(text, end)
    if not sign:
        return Unended.OPEN
    return at + 1 if sign == ")" else end


def _json_end(text: str, at: int) -> int | Unended:
    """Just after the bracket that closes the one at `at`."""
    depth = 0
    while token := _JSON_TOKEN.match(text, at):
        at = token.end()
        depth += bool(token["open"]) - bool(token["close"])
        if token["close"] and depth == 0:
            return at
        if token["string"]:
            after = _next(text, at)[1]
            if not token["quote"] or not after:
                return Unended.OPEN
            if after not in ",:]}":
                return Unended.BROKEN
    return Unended.OPEN if at == len(text) else Unended.BROKEN


def _next(text: str, at: int) -> tuple[int, str]:
    """Where the next character stands that is no white space, and which it is; "" where none has come."""
    found = _NEXT.match(text, at)
    return (found.start("sign"), found["sign"]) if found else (len(text), "")
