"""The part of a large file that a request is about: a small model cannot be shown all of it."""

import re
from collections import Counter
from collections.abc import Sequence
from math import log
from typing import NamedTuple

from mendgraph.nodes.small_model.wording import content_words

MOST_BYTES = 4_000
"""The maximum size of an excerpt, about 1,300 tokens."""

_MOST_LINES = 25
"""Lines of a paragraph; a longer one is divided."""

_SEVERAL_BYTES = 2_000
"""Definitions are added after the first one up to this size."""

_DEFINITION = re.compile(
    r"\s*(?:(?:export|default|pub|public|private|protected|static|async|abstract)\s+)*"
    r"(?:def|class|function|func|fn|const|let|var|type|struct|interface|impl|enum)\s+(?:\([^)]*\)\s*)?(\w+)|\s*@|#+ |\["
)
"""Matches the first line of a definition or of a part of a document, with the name of a definition."""

_NAME = re.compile(r"\w{3,}")
_LINE_NUMBER = re.compile(r"(?:, line |:)(\d{1,6})\b")
"""Matches a line number in a traceback, or behind a path in the output of a compiler."""

_NAMED = 50.0
"""The weight of a definition that the request names, or of a line that its pasted output names."""


class Excerpt(NamedTuple):
    """Some lines of a file: the number of the first one, counted from 1, and the number of lines."""

    start_line: int
    limit: int


class _Paragraph(NamedTuple):
    """Lines up to the next blank ones, which belong to it; `start` is the index of the first one."""

    start: int
    lines: Sequence[str]

    @property
    def size(self) -> int:
        return sum(map(_size, self.lines))

    @property
    def indent(self) -> int:
        return len(self.lines[0]) - len(self.lines[0].lstrip())

    @property
    def begins_definition(self) -> bool:
        return _DEFINITION.match(self.lines[0]) is not None


def excerpt_of(text: str, request: str, path: str) -> Excerpt:
    """Return the lines of a file that a request is about: the beginning if it has no word of the request.

    They are the paragraph that shares most words with it, rare ones first, and the definition around that.
    """
    paragraphs = _paragraphs(text.split("\n"))
    weights = _weights(paragraphs, request, path)
    best = weights.index(max(weights))
    size = paragraphs[best].size

    first = best
    while first and not paragraphs[first].begins_definition and size + paragraphs[first - 1].size <= MOST_BYTES:
        first -= 1
        size += paragraphs[first].size

    last = best
    limit = MOST_BYTES
    for index in range(best + 1, len(paragraphs)):
        if paragraphs[index].indent <= paragraphs[first].indent:
            limit = _SEVERAL_BYTES

        size += paragraphs[index].size
        if size > limit:
            break
        last = index

    start = paragraphs[first].start
    lines = [line for paragraph in paragraphs[first : last + 1] for line in paragraph.lines]
    return Excerpt(start + 1, _count_of_fitting(lines))


def _paragraphs(lines: Sequence[str]) -> list[_Paragraph]:
    starts = [0]
    for index in range(1, len(lines)):
        is_after_blank = lines[index].strip() and not lines[index - 1].strip()
        if is_after_blank or index - starts[-1] == _MOST_LINES:
            starts.append(index)

    ends = [*starts[1:], len(lines)]
    return [_Paragraph(start, lines[start:end]) for start, end in zip(starts, ends, strict=True)]


def _weights(paragraphs: Sequence[_Paragraph], request: str, path: str) -> list[float]:
    names = {*_NAME.findall(request)}
    request_words = _terms(request) - _terms(path)
    numbers = {int(number) for number in _LINE_NUMBER.findall(request)}

    words_of = [_terms("\n".join(paragraph.lines)) & request_words for paragraph in paragraphs]
    counts = Counter(word for words in words_of for word in words)
    weights: list[float] = []

    for paragraph, words in zip(paragraphs, words_of, strict=True):
        weight = sum(log(1 + len(paragraphs) / counts[word]) for word in words)
        end = paragraph.start + len(paragraph.lines)
        if any(paragraph.start < number <= end for number in numbers):
            weight += _NAMED

        for line in paragraph.lines:
            definition = _DEFINITION.match(line)
            if definition and definition[1] in names:
                weight += _NAMED

        weights.append(weight)

    return weights


def _terms(text: str) -> set[str]:
    """Return the words of a text, and its identifiers as they are."""
    return {*content_words(text), *_NAME.findall(text)}


def _count_of_fitting(lines: Sequence[str]) -> int:
    """Return how many lines fit, at least one."""
    size = 0
    for count, line in enumerate(lines):
        size += _size(line)
        if size > MOST_BYTES:
            return max(1, count)

    return len(lines)


def _size(line: str) -> int:
    return len(line.encode(errors="replace")) + 1
