"""A file's private keys as marks, line by line, so that any part of the file can be shown. Pure.

Redaction sees what is shown, which may be the middle of a key without its first line. So whatever shows a part of a
file goes through here with the whole of it first. The number of lines stays as it is.
"""

import re
from collections.abc import Iterator
from typing import Final

from nodes.execute_tools.redact import MARK
from nodes.execute_tools.secrets.key_blocks import key_block_spans, open_block

LONGEST_HELD: Final = 262_144
"""Characters of an unfinished block that a stream holds: several times the largest PGP key in use."""

_BEGIN: Final = "-----BEGIN"
_DASHES: Final = "-----"
_CUT_HEADER = re.compile(r"-----B[A-Z0-9 ]{0,90}-{0,5}\Z|-{1,5}\Z")
"""What may be the start of a block's first line, also right behind the dashes of another one's last line."""
_INK = re.compile(r"\S(?:[^\n]*\S)?")
"""A line without the spaces around it."""


def masked_blocks(text: str) -> str:
    """The text with `MARK` in each line of each block of a key; the same object where there is none."""
    if _BEGIN not in text:
        return text
    pieces = list(_pieces(text, 0, len(text)))
    return "".join(pieces) if len(pieces) > 1 else text


def masked_lines(text: str) -> dict[int, str]:
    """The lines of which a block of a key takes something, by number from 1, with `MARK` in its place."""
    masked = masked_blocks(text)
    if masked is text:
        return {}
    pairs = zip(text.split("\n"), masked.split("\n"), strict=True)
    return {number: shown for number, (line, shown) in enumerate(pairs, start=1) if shown != line}


class MaskedStream:
    """One text in pieces. What `feed` and `close` return is, put together, `masked_blocks` of the whole.

    It holds back no more than a piece and the block that is open at its end. Of a block that is too long to hold,
    everything up to the next five dashes is masked.
    """

    def __init__(self) -> None:
        self._held = ""
        self._endless = False

    def feed(self, piece: str) -> str:
        """Take the next piece; what may be shown now."""
        self._held += piece
        shown = self._pass_endless() if self._endless else ""
        if self._endless:
            return shown
        shown += self._take(_settled(self._held))
        if len(self._held) > LONGEST_HELD:
            shown += self._pass_endless(self._held.index(_DASHES, len(_BEGIN)) + len(_DASHES))
        return shown

    def close(self) -> str:
        """No piece follows; the rest."""
        if self._endless:
            return _marked(self._held)
        return self._take(len(self._held))

    def _take(self, end: int) -> str:
        """What is held up to `end`, masked; what stands behind it is known, and stays held."""
        text, self._held = self._held, self._held[end:]
        return "".join(_pieces(text, 0, end)) if _BEGIN in text else text[:end]

    def _pass_endless(self, first_line: int = 0) -> str:
        """What is held of an endless block, as marks; dashes behind its first line end it."""
        end = self._held.find(_DASHES, first_line)
        self._endless = end < 0
        if end < 0:
            end = len(self._held.rstrip("-"))
        masked, self._held = self._held[:end], self._held[end:]
        return _marked(masked)


def _settled(text: str) -> int:
    """How much of the text no block takes that what follows may still begin or go on with."""
    end = len(text)
    block = open_block(text)
    closed = max((stop for _, stop in key_block_spans(text)), default=0) if _BEGIN in text else 0
    header = _CUT_HEADER.search(text, max(closed, end - 100))
    return min(end if block is None else block, header.start() if header else end)


def _pieces(text: str, at: int, end: int) -> Iterator[str]:
    """The text from `at` to `end` in pieces, an odd number of them, of which every second is a masked block."""
    for start, stop in key_block_spans(text):
        if start >= end:
            break
        yield text[at:start]
        yield _marked(text[start : min(stop, end)])
        at = min(stop, end)
    yield text[at:end]


def _marked(block: str) -> str:
    """The mark in each line of a block that says something; the spaces around it stay."""
    return _INK.sub(lambda line: MARK if any(map(str.isalnum, line[0])) else line[0], block)
