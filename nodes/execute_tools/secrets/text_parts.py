"""Redaction of parts of a text: files with blocks of keys, pieces between whole words, and streams. Pure.

A part may be the middle of a key without its first line, or what a cut leaves of a secret that is recognized by its
start, its length, or the name before it. So the text around a part is searched with it. The number of lines stays the
same.
"""

import re
from collections.abc import Sequence
from typing import Final

from mendgraph.nodes.execute_tools.secrets.key_blocks import key_block_spans, open_block
from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor, Span, fail_closed, without_spans

_REDACTOR: Final = Redactor()
_BLOCK_START: Final = "-----BEGIN"
_LINE_TEXT = re.compile(r"\S(?:[^\n]*\S)?")
"""A line without the spaces around it."""


def masked_blocks(text: str) -> str:
    """Return the text with `MARK` in each line of each block of a key; the same object without one."""
    if _BLOCK_START not in text:
        return text

    pieces = list[str]()
    at = 0

    for start, end in key_block_spans(text):
        pieces += [text[at:start], _LINE_TEXT.sub(_masked_line, text[start:end])]
        at = end

    if not pieces:
        return text

    return "".join([*pieces, text[at:]])


def _masked_line(line: re.Match[str]) -> str:
    """`MARK`, or a line of signs alone as it is."""
    return MARK if any(char.isalnum() for char in line[0]) else line[0]


def masked_lines(text: str) -> dict[int, str]:
    """Return the redacted lines that belong to blocks of keys, by their numbers from 1."""
    masked = masked_blocks(text)
    if masked is text:
        return {}

    lines = zip(text.split("\n"), masked.split("\n"), strict=True)
    return {number: masked_line for number, (line, masked_line) in enumerate(lines, start=1) if masked_line != line}


MARGIN: Final = 1_024
"""Characters around a piece, or before new text of a stream, that are searched with it: a name and its value."""

_WORD_BREAK = re.compile(r"[\s(){}\[\]<>,;]|[^\x00-\u2e7f]")  # the large range in the class would take 10 times as long
"""Separates words. Quotes, `=` and `:` do not: a name and its value stay together."""


def whole_words(text: str, start: int, end: int, mark: str = MARK) -> tuple[str, int, int]:
    """Return the whole words of `text[start:end]` with `mark` for each secret, and the start and end of this piece.

    A secret that is cut by `start` or `end` is replaced as a whole. The piece is "" if no word is whole, and `mark`
    where the text cannot be searched.
    """
    window_start = max(0, start - MARGIN)
    window = text[window_start : end + MARGIN]
    spans = fail_closed(lambda: _REDACTOR.spans(window), None)
    if spans is None:
        return mark, start, end

    first = _next_boundary(window, start - window_start, spans)
    last = max(first, _previous_boundary(window, end - window_start, spans))
    return without_spans(window, spans, mark, first, last), window_start + first, window_start + last


def next_piece(text: str, start: int, end: int) -> tuple[str, int]:
    """Return `text[start:end]` with MARK for each secret, shortened to whole words, and the next start.

    Only a word that is as long as the piece is cut. A secret that `start` or `end` lies in is a mark in the pieces on
    both sides, if the text begins before it.
    """
    spans = fail_closed(lambda: _REDACTOR.spans(text), None)
    if spans is None:
        return MARK, end

    last = _previous_boundary(text, end, spans)
    if last <= start:
        last = min(end, len(text))

    next_start = max([last, *(span_end for span_start, span_end in spans if span_start < last)])
    return without_spans(text, spans, MARK, start, last), next_start


def first_words(text: str, most: int, mark: str = MARK) -> str:
    """Return the text if it has at most `most` characters, else the whole words among its first `most` ones."""
    if len(text) <= most:
        return text

    return whole_words(text, 0, most, mark)[0]


def _next_boundary(window: str, at: int, spans: Sequence[Span]) -> int:
    """Return the first start of a word or a secret from `at` on, or the start of the secret that `at` lies in."""
    is_boundary = at == 0 or _WORD_BREAK.match(window, at - 1) is not None
    for start, end in spans:
        if start < at < end or (start == at and not is_boundary):
            return start

    if is_boundary:
        return at

    word_break = _WORD_BREAK.search(window, at)
    word_start = word_break.start() if word_break else len(window)
    return min([word_start, *(start for start, _ in spans if start >= at)])


def _previous_boundary(window: str, at: int, spans: Sequence[Span]) -> int:
    """Return the last end of a word or a secret up to `at`, or the end of the secret that `at` lies in."""
    for start, end in spans:
        if start < at <= end:
            return end

    if at >= len(window) or _WORD_BREAK.match(window, at):
        return min(at, len(window))

    boundaries = [0, *(end for _, end in spans if end <= at)]
    boundaries += [match.end() for match in _WORD_BREAK.finditer(window, 0, at)]
    return max(boundaries)


_LONG: Final = 2048
"""From this many pending characters on, they are searched only after an eighth more has come: it takes linear time."""

_WORD_END = re.compile(r"\s|[^\x00-\u2e7f]")
"""Ends a word: only known values and blocks of keys continue after it."""


class RedactedStream:
    """A text that comes in pieces. The results of `feed` and `close` joined are `redactor.text` of the whole text.

    There are two differences: JSON documents are not parsed, and a value whose name comes only after it is not removed.
    Text is pending until its word ends, and the start of a key block or a known value until it can be judged.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._margin = ""
        self._pending = ""
        self._next_search = 0

    def feed(self, piece: str) -> str:
        """Add the next piece; the text that is redacted now."""
        self._pending += piece
        if len(self._pending) < self._next_search:
            return ""

        text = fail_closed(lambda: self._take(self._safe_count()), None)
        if text is None:
            self._pending = ""
            return MARK

        return text

    def close(self) -> str:
        """End the stream; the remaining text."""
        return fail_closed(lambda: self._take(len(self._pending)), MARK)

    def _safe_count(self) -> int:
        """Pending characters whose redaction does not depend on what follows."""
        word_ends = [match.end() for match in _WORD_END.finditer(self._pending)]
        if not word_ends:
            return 0

        text = self._margin + self._pending
        ends = [len(self._margin) + word_ends[-1], self._redactor.pending(text)]
        block = open_block(text)
        if block is not None:
            ends.append(block)

        return max(0, min(ends) - len(self._margin))

    def _take(self, count: int) -> str:
        """Remove `count` characters from the pending text, or fewer if a secret continues, and redact them."""
        self._next_search = 0
        if not count:
            if len(self._pending) > _LONG:
                self._next_search = len(self._pending) * 9 // 8

            return ""

        text = self._margin + self._pending
        start = len(self._margin)
        end = start + count
        spans = self._redactor.spans(text)

        for span_start, span_end in spans:
            if span_start < end < span_end:
                end = max(start, span_start)
                break

        self._margin = text[max(0, end - MARGIN) : end]
        self._pending = text[end:]
        return without_spans(text, spans, MARK, start, end) if end > start else ""
