"""Text that comes in pieces, shown without secrets, also those that the pieces split. Pure."""

import re
from typing import Final

from nodes.execute_tools.redact import MARK, Redactor
from nodes.execute_tools.secrets.key_blocks import open_block

CONTEXT: Final = 1024
"""Characters of what has been shown that are looked at again: room for a name before its value."""
_LONG: Final = 2048
"""Characters held back from which on they are looked at only when an eighth more has come: it takes linear time."""

_WORD_END = re.compile(r"[\s\u2e80-\U0010ffff][^\s\u2e80-\U0010ffff]*+\Z")
"""The last place where a word ends: only known values and blocks of keys go on beyond it."""


class RedactedStream:
    """One text in pieces. What `feed` and `close` return is, put together, `redactor.text` of the whole.

    Two things differ: documents in JSON are read when they are whole, which a stream never is, and a value whose name
    comes only behind it has been shown by then. Ordinary text is held back until its word ends; the start of a key's
    block or of a known value until it is known what it is.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._shown = ""
        self._held = ""
        self._wait = 0

    def feed(self, piece: str) -> str:
        """Take the next piece; what may be shown now."""
        self._held += piece
        if len(self._held) < self._wait:
            return ""
        try:
            return self._show(self._safe_end())
        except Exception:  # noqa: BLE001 - what cannot be looked through is not shown
            self._held = ""
            return MARK

    def close(self) -> str:
        """No piece follows; the rest."""
        try:
            return self._show(len(self._held))
        except Exception:  # noqa: BLE001 - what cannot be looked through is not shown
            return MARK

    def _safe_end(self) -> int:
        """The characters held back about which nothing that follows can change anything."""
        word_end = _WORD_END.search(self._held)
        if word_end is None:
            return 0
        text = self._shown + self._held
        end = len(self._shown) + word_end.start() + 1
        block = open_block(text)
        end = min(end, self._redactor.pending(text), len(text) if block is None else block)
        return max(0, end - len(self._shown))

    def _show(self, count: int) -> str:
        """Take that many characters from what is held back, and fewer where a secret goes on beyond them."""
        self._wait = len(self._held) * 9 // 8 if not count and len(self._held) > _LONG else 0
        if not count:
            return ""
        text = self._shown + self._held
        begin = len(self._shown)
        end = begin + count
        pieces = []
        at = begin
        for start, stop in self._redactor.spans(text):
            if stop <= begin:
                continue
            if start >= end:
                break
            if stop > end:
                end = max(start, at)
                break
            pieces += [text[at : max(start, at)], MARK]
            at = stop
        pieces.append(text[at:end])
        self._shown = text[max(0, end - CONTEXT) : end]
        self._held = text[end:]
        return "".join(pieces)
