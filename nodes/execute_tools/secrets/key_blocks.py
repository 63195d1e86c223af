"""Private keys in blocks of text: PEM, OpenSSH, PGP, whole or cut, with escaped or numbered lines too. Pure.

Only single characters repeat possessively: Python before 3.11.5 is wrong about groups that do (gh-106052).
"""

import re
from collections.abc import Iterator
from typing import Final

GAP: Final = 160
"""Characters between a block's first line and its key: room for headers such as DEK-Info, comments and versions."""

_HEADER = re.compile(r"-----BEGIN (?:[A-Z0-9]{2,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_OPEN_HEADER = re.compile(r"(?<![A-Z-])(?:-{1,5}|-----B[A-Z0-9 ]{0,70}-{0,5})\Z")
_BETWEEN = r"(?:(?!-----)[^\[\]{}])"
_STARTS = r"(?<![A-Za-z0-9+/_])"
_SIGN = r"(?:[A-Za-z0-9+/=]|\\/)"
_REST = r"[A-Za-z0-9+/=]*+(?:\\/[A-Za-z0-9+/=]*+)*(?![_(]|\\/)"
"""All signs of a line of key: it gives none of them back, since one that is followed by an escaped `/` is refused."""
_SPACE = r"(?:\s++|\\++[nr])"
_FOOTER = re.compile(_BETWEEN + r"{0,160}?-----END (?:[A-Z0-9]{2,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_FIRST = re.compile(rf"{_BETWEEN}{{0,160}}?{_STARTS}(?={_SIGN}{{40}}){_REST}")
_NEXT = re.compile(rf"{_BETWEEN}{{0,40}}?{_STARTS}(?={_SIGN}{{16}}){_REST}")
_LAST = re.compile(r"(?:\s|\\++[nr]){1,40}[A-Za-z0-9+/=]{0,40}+\s{0,3}+\Z")
_ONLY_KEY = re.compile(rf"{_SPACE}*[A-Za-z0-9+/=](?:[A-Za-z0-9+/=\s]++|\\++[nr])*")
_CUT = re.compile(_SPACE + r"""+(?:[A-Za-z0-9+/=]++\s*+\Z|[A-Za-z0-9+/=]{8,}+(?=\\*+["'`]))""")


def key_block_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the blocks stand. A block without its last line ends with the last line that looks like a key's."""
    at = 0
    while (header := _HEADER.search(text, at)) is not None:
        end, _ = _block_end(text, header.end())
        if end is not None:
            yield header.start(), end
        at = end if end is not None else header.end()


def open_block(text: str) -> int | None:
    """Where a block, or its first line, begins that what follows this text may still be a part of."""
    start = text.rfind("-----BEGIN ")
    header = _HEADER.match(text, start) if start >= 0 else None
    if header is not None:
        end, closed = _block_end(text, header.end())
        if not closed and len(text) - (end or header.end()) < GAP:
            return start
    cut = _OPEN_HEADER.search(text, max(0, len(text) - 90))
    return cut.start() if cut else None


def _block_end(text: str, start: int) -> tuple[int | None, bool]:
    """Where the block whose first line ends at `start` ends, None where no key follows; and whether it is whole."""
    found = _FIRST.match(text, start)
    if found is None:
        return _short_block_end(text, start)
    end = found.end()
    while (found := _NEXT.match(text, end)) is not None:
        end = found.end()
    footer = _FOOTER.match(text, end)
    if footer is not None:
        return footer.end(), True
    last = _LAST.match(text, end)
    return (last.end() if last else end), False


def _short_block_end(text: str, start: int) -> tuple[int | None, bool]:
    """The end of a block with less than a line of key: with its last line, or cut off by the end of the text."""
    footer = _FOOTER.match(text, start)
    if footer is not None:
        body = text[start : text.rindex("-----END", start, footer.end())]
        return (footer.end() if _ONLY_KEY.fullmatch(body) else None), True
    cut = _CUT.match(text, start)
    return (cut.end() if cut else None), False
