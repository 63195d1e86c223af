"""Parts of a text without secrets: files with keys in them, pieces between whole words, streams. Pure.

Redaction sees what is shown, which may be the middle of a key without its first line, or what a cut leaves of a secret
that is told by how it begins, by how long it is, or by the name before it. So what stands around a part is looked at
with it. The number of lines stays as it is.
"""

import re
from collections.abc import Iterator
from typing import Final

from mendgraph.nodes.execute_tools.secrets.redact import MARK, Redactor, fail_closed, without_spans
from mendgraph.nodes.execute_tools.secrets.shapes import key_block_spans, open_block

_BEGIN: Final = "-----BEGIN"
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


MARGIN: Final = 1_024
"""Characters on each side of a piece that are looked at with it: room for a name before its value, and for the value.

What is longer is one word, as a rule, and so is not cut.
"""

_BREAK = re.compile(r"[\s(){}\[\]<>,;\u2e80-\U0010ffff]")
"""Stands between words. Quotes, `=` and `:` do not: a name and its value stay together."""

_POLICY: Final = Redactor()


def whole_words(text: str, start: int, end: int, mark: str = MARK) -> tuple[str, int, int]:
    """The whole words of `text[start:end]` with `mark` for each secret, and where the piece begins and ends.

    A secret that one of the ends cuts is a mark as a whole; `start` and `end` lie in the text. The piece is "" where no
    word is whole, and `mark` where the text cannot be looked through.
    """
    before = max(0, start - MARGIN)
    window = text[before : end + MARGIN]
    spans = fail_closed(lambda: _POLICY.spans(window), None)
    if spans is None:
        return mark, start, end
    first = _first(window, start - before, spans)
    last = max(first, _last(window, end - before, spans))
    return without_spans(window, spans, mark, first, last), before + first, before + last


def next_piece(text: str, start: int, end: int, mark: str = MARK) -> tuple[str, int]:
    """What `text[start:end]` says with `mark` for each secret, and where it ends, so that the next piece begins there.

    It ends where a word or a secret does; only a word that fills it is cut. A secret that `start` or `end` lies in is a
    mark in the pieces on both sides, if the text begins before it.
    """
    spans = fail_closed(lambda: _POLICY.spans(text), None)
    if spans is None:
        return mark, end
    last = _last(text, end, spans)
    last = last if last > start else min(end, len(text))
    covered = max((stop for begin, stop in spans if begin < last), default=last)
    return without_spans(text, spans, mark, start, last), max(covered, last)


def first_words(text: str, most: int, mark: str = MARK) -> str:
    """The text itself if it is at most `most` characters long, else the whole words among the first of them."""
    return text if len(text) <= most else whole_words(text, 0, most, mark)[0]


def _first(window: str, at: int, spans: list[tuple[int, int]]) -> int:
    """The first place from `at` on where a word or a secret begins, or where the secret begins that `at` is inside."""
    if at == 0 or _BREAK.match(window, at - 1):
        return next((start for start, stop in spans if start < at < stop), at)
    for start, stop in spans:
        if start <= at < stop:
            return start
    found = _BREAK.search(window, at)
    places = [start for start, _ in spans if start >= at]
    return min([*places, found.start() if found else len(window)])


def _last(window: str, at: int, spans: list[tuple[int, int]]) -> int:
    """The last place up to `at` where a word or a secret ends, or where the secret ends that `at` is inside."""
    for start, stop in spans:
        if start < at <= stop:
            return stop
    if at >= len(window) or _BREAK.match(window, at):
        return min(at, len(window))
    places = [stop for _, stop in spans if stop <= at]
    breaks = [found.end() for found in _BREAK.finditer(window, 0, at)]
    return max([0, *places, *breaks[-1:]])


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
        shown = fail_closed(lambda: self._show(self._safe_end()), None)
        if shown is None:
            self._held = ""
        return MARK if shown is None else shown

    def close(self) -> str:
        """No piece follows; the rest."""
        return fail_closed(lambda: self._show(len(self._held)), MARK)

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
        text, begin = self._shown + self._held, len(self._shown)
        spans = self._redactor.spans(text)
        end = next((start for start, stop in spans if start < begin + count < stop), begin + count)
        end = max(begin, end)
        self._shown, self._held = text[max(0, end - CONTEXT) : end], text[end:]
        return without_spans(text, spans, MARK, begin, end) if end > begin else ""
