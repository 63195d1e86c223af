"""A piece of a text that ends and begins between words, so that no part of a secret is left without the rest. Pure.

A secret is told by how it begins, by how long it is, or by the name before it. What a cut leaves of one may have none
of these, so what stands on both sides of the cut is looked at before.
"""

import re
from typing import Final

from nodes.execute_tools.redact import MARK, Redactor

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
    try:
        spans = _POLICY.spans(window)
    except Exception:  # noqa: BLE001 - what cannot be looked through is not shown
        return mark, start, end
    first = _first(window, start - before, spans)
    last = max(first, _last(window, end - before, spans))
    pieces, at = [], first
    for begin, stop in spans:
        if begin >= at and stop <= last:
            pieces += [window[at:begin], mark]
            at = stop
    return "".join([*pieces, window[at:last]]), before + first, before + last


def next_piece(text: str, start: int, end: int, mark: str = MARK) -> tuple[str, int]:
    """What `text[start:end]` says with `mark` for each secret, and where it ends, so that the next piece begins there.

    It ends where a word or a secret does; only a word that fills it is cut. A secret that `start` or `end` lies in is a
    mark in the pieces on both sides, if the text begins before it.
    """
    try:
        spans = _POLICY.spans(text)
    except Exception:  # noqa: BLE001 - what cannot be looked through is not shown
        return mark, end
    last = _last(text, end, spans)
    last = last if last > start else min(end, len(text))
    pieces, at = [], start
    for begin, stop in spans:
        if stop > at and begin < last:
            pieces += [text[at:begin], mark]
            at = stop
    return "".join([*pieces, text[at:last]]), max(at, last)


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
