"""Blocks of private keys in a text, such as `-----BEGIN RSA PRIVATE KEY-----`. Pure.

Only single characters repeat possessively: Python before 3.11.5 is wrong about groups that do (gh-106052).
"""

import re
from collections.abc import Iterator
from typing import Final

GAP: Final = 160
"""Most characters between a block's first line and its key, for headers such as DEK-Info, comments and versions."""

_HEADER = re.compile(r"-----BEGIN (?:[A-Z0-9]{2,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_OPEN_HEADER = re.compile(r"(?<![A-Z-])(?:-{1,5}|-----B[A-Z0-9 ]{0,70}-{0,5})\Z")
_BETWEEN = r"(?:(?!-----)[^\[\]{}])"
_START = r"(?<![A-Za-z0-9+/_])"
_SIGN = r"(?:[A-Za-z0-9+/=]|\\/)"
_LINE_OF_KEY = r"[A-Za-z0-9+/=]*+(?:\\/[A-Za-z0-9+/=]*+)*(?![_(]|\\/)"
"""A line of a key. It matches possessively, since one that is followed by an escaped `/` is refused."""
_SPACE = r"(?:\s++|\\++[nr])"
_FOOTER = re.compile(_BETWEEN + r"{0,160}?-----END (?:[A-Z0-9]{2,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----")
_FIRST = re.compile(rf"{_BETWEEN}{{0,160}}?{_START}(?={_SIGN}{{40}}){_LINE_OF_KEY}")
_NEXT = re.compile(rf"{_BETWEEN}{{0,40}}?{_START}(?={_SIGN}{{16}}){_LINE_OF_KEY}")
_LAST = re.compile(r"(?:\s|\\++[nr]){1,40}[A-Za-z0-9+/=]{0,40}+\s{0,3}+\Z")
_ONLY_KEY = re.compile(rf"{_SPACE}*[A-Za-z0-9+/=](?:[A-Za-z0-9+/=\s]++|\\++[nr])*")
_CUT = re.compile(_SPACE + r"""+(?:[A-Za-z0-9+/=]++\s*+\Z|[A-Za-z0-9+/=]{8,}+(?=\\*+["'`]))""")


def key_block_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of the blocks. A block without its last line ends with the last line that looks like a key's."""
    at = 0
    while (header := _HEADER.search(text, at)) is not None:
        at = header.end()
        end, _ = _block_end(text, header.end())
        if end is not None:
            yield header.start(), end
            at = end


def open_block(text: str) -> int | None:
    """Return the start of a block, or of its first line, that more text may continue; else None."""
    start = text.rfind("-----BEGIN ")
    header = _HEADER.match(text, start) if start >= 0 else None

    if header is not None:
        end, is_complete = _block_end(text, header.end())
        if not is_complete and len(text) - (end or header.end()) < GAP:
            return start

    cut_header = _OPEN_HEADER.search(text, max(0, len(text) - 90))
    return cut_header.start() if cut_header else None


def _block_end(text: str, start: int) -> tuple[int | None, bool]:
    """Return the end of the block after its first line, None without a key; and whether it is complete."""
    line = _FIRST.match(text, start)
    if line is None:
        return _short_block_end(text, start)

    end = line.end()
    while (line := _NEXT.match(text, end)) is not None:
        end = line.end()

    footer = _FOOTER.match(text, end)
    if footer is not None:
        return footer.end(), True

    last = _LAST.match(text, end)
    return (last.end() if last else end), False


def _short_block_end(text: str, start: int) -> tuple[int | None, bool]:
    """Return the same for a key of less than a full line; without a last line the end of the text has to cut it off."""
    footer = _FOOTER.match(text, start)
    if footer is None:
        cut_key = _CUT.match(text, start)
        return (cut_key.end() if cut_key else None), False

    body = text[start : text.rindex("-----END", start, footer.end())]
    return (footer.end() if _ONLY_KEY.fullmatch(body) else None), True
